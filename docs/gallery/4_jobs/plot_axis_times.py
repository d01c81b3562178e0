"""
Time by axis
============

The time of an average rank: transfers that computation hides, transfers that it does not hide, and waiting
for other ranks.
"""

import meshlab as ml

ml.plot.axis_times(ml.Trace.example())
