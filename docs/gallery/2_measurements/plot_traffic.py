"""
Uneven traffic
==============

:class:`meshlab.Traffic` is who sends how many bytes to whom in an uneven all-to-all. :func:`meshlab.plot.traffic` draws it
with the sums of each rank, and marks the rank and the pair that decide.
"""

import meshlab as ml

traffic = ml.Traffic.zipf(1.2, seed=0).of(8, "64M")
ml.plot.traffic(traffic)
