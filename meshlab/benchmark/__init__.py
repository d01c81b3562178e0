"""Measuring collectives: plans, runs, the frames they give, and other people's numbers in the same frames."""

from meshlab.benchmark.comparing import compare
from meshlab.benchmark.comparison import Comparison
from meshlab.benchmark.frame import RESULTS, SAMPLES, describe
from meshlab.benchmark.nccl_tests import NcclTestsLog, read_nccl_tests, to_nccl_tests
from meshlab.benchmark.plan import Plan, Sampling, Step
from meshlab.benchmark.references import published_references, reference_lines
from meshlab.benchmark.run import Progress, Run
from meshlab.benchmark.start import bench

__all__ = [
    "RESULTS",
    "SAMPLES",
    "Comparison",
    "NcclTestsLog",
    "Plan",
    "Progress",
    "Run",
    "Sampling",
    "Step",
    "bench",
    "compare",
    "describe",
    "published_references",
    "read_nccl_tests",
    "reference_lines",
    "to_nccl_tests",
]
