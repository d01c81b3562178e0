"""
Tuned options
=============

The default and the tuned time of each size, and the gain below. This tuning of two H200 GPUs comes with
meshlab.
"""

import meshlab as ml

ml.plot.tuning(ml.example("tuning"))
