"""
Lateness by rank
================

How late each rank arrives at its calls.
"""

import meshlab as ml

ml.plot.lateness(ml.Trace.example())
