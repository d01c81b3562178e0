"""Measuring collectives: plans, runs, the frames they give, and other people's numbers in the same frames."""

from meshlab.benchmark.alternate import EnvComparison, compare_env
from meshlab.benchmark.comparing import compare
from meshlab.benchmark.comparison import Comparison
from meshlab.benchmark.estimate import Estimate
from meshlab.benchmark.frame import RESULTS, SAMPLES, describe
from meshlab.benchmark.nccl_tests import NcclTestsLog, read_nccl_tests, to_nccl_tests
from meshlab.benchmark.overlap import measure_overlap
from meshlab.benchmark.pairs import pair_matrix, pair_table
from meshlab.benchmark.plan import Plan, Sampling
from meshlab.benchmark.references import published_references, reference_lines
from meshlab.benchmark.run import Progress, Run
from meshlab.benchmark.sharing import contention, interference
from meshlab.benchmark.shipped import example
from meshlab.benchmark.spikes import find_spikes
from meshlab.benchmark.start import bench, bench_pairs
from meshlab.benchmark.steps import Step
from meshlab.benchmark.stragglers import find_stragglers

__all__ = [
    "RESULTS",
    "SAMPLES",
    "Comparison",
    "EnvComparison",
    "Estimate",
    "NcclTestsLog",
    "Plan",
    "Progress",
    "Run",
    "Sampling",
    "Step",
    "bench",
    "bench_pairs",
    "compare",
    "compare_env",
    "contention",
    "describe",
    "example",
    "find_spikes",
    "find_stragglers",
    "interference",
    "measure_overlap",
    "pair_matrix",
    "pair_table",
    "published_references",
    "read_nccl_tests",
    "reference_lines",
    "to_nccl_tests",
]
