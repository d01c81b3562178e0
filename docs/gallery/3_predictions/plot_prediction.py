"""
Predicted times
===============

One panel per axis and collective. The band contains the expected share of published runs, and the bound is
what the hardware allows.
"""

import meshlab as ml

ml.plot.prediction(ml.predict("dp=2, tp=8", "dgx-h100"))
