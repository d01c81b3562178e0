"""Measuring collectives: plans, runs, and the frames they give."""

from meshlab.bench.start import bench
from meshlab.bench.frame import RESULTS, SAMPLES, describe
from meshlab.bench.plan import Plan, Sampling, Step
from meshlab.bench.run import Progress, Run

__all__ = ["RESULTS", "SAMPLES", "Plan", "Progress", "Run", "Sampling", "Step", "bench", "describe"]
