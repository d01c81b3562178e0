"""Measuring collectives: plans, runs, and the frames they give."""

from meshlab.benchmark.frame import RESULTS, SAMPLES, describe
from meshlab.benchmark.plan import Plan, Sampling, Step
from meshlab.benchmark.run import Progress, Run
from meshlab.benchmark.start import bench

__all__ = ["RESULTS", "SAMPLES", "Plan", "Progress", "Run", "Sampling", "Step", "bench", "describe"]
