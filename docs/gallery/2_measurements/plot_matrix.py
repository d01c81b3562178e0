"""
Every pair of ranks
===================

:func:`meshlab.bench_pairs` measures every pair of ranks, and :func:`meshlab.plot.matrix` frames slow pairs in
red. This matrix is written by hand.
"""

import numpy as np
import pandas as pd

import meshlab as ml

bandwidth = np.random.default_rng(0).normal(40, 0.4, (8, 8))
bandwidth[2, :] *= 0.6  # rank 2 has a slow link
bandwidth[:, 2] *= 0.6
np.fill_diagonal(bandwidth, np.nan)
ml.plot.matrix(pd.DataFrame(bandwidth))
