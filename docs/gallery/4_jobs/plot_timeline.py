"""
The timeline of a step
======================

Solid boxes are transfers, and hatched boxes are waits. ``window=`` zooms in.
"""

import meshlab as ml

ml.plot.timeline(ml.Trace.example(), step=0)
