"""Measuring collectives: plans, runs, the frames they give, and other people's numbers in the same frames."""

from meshlab.benchmark.environments import EnvComparison, compare_env
from meshlab.analysis.comparison import compare
from meshlab.benchmark.comparison import Comparison
from meshlab.benchmark.estimate import Estimate
from meshlab.frames.schema import RESULTS, SAMPLES, describe
from meshlab.nccl_tests.log import NcclTestsLog
from meshlab.benchmark.nccl_tests.read import read_nccl_tests
from meshlab.nccl_tests.writer import to_nccl_tests
from meshlab.benchmark.overlap import measure_overlap
from meshlab.analysis.pairs import pair_matrix, pair_table
from meshlab.frames.plan import Plan, Sampling
from meshlab.analysis.references import published_references, reference_lines
from meshlab.benchmark.progress import Progress
from meshlab.benchmark.run import Run
from meshlab.analysis.concurrency import contention, interference
from meshlab.frames.example_data import example
from meshlab.benchmark.spikes import find_spikes
from meshlab.benchmark.api import bench, bench_pairs
from meshlab.benchmark.steps import Step
from meshlab.analysis.stragglers import find_stragglers

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
