"""
Two runs compared
=================

The ratio of the times after and before, with its interval. A row is clearly slower or faster only if each
side has several launches.
"""

import numpy as np

import meshlab as ml

before = ml.example().query("mode == 'graph' and collective == 'all_reduce'")
factor = np.where(before["size_bytes"] > 2**20, 1.2, 1.0)  # a second run, slower for large messages
times = ["time_us", "time_us_lo", "time_us_hi"]
after = before.assign(**{name: before[name] * factor for name in times})
ml.plot.comparison(ml.compare(before, after))
