"""
Time per call
=============

The same results as times, on logarithmic scales. The modes of measuring differ most for small messages.
"""

import meshlab as ml

ml.plot.latency(ml.example().query("collective == 'all_reduce'"))
