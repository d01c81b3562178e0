"""
A calibrated model
==================

:func:`meshlab.calibrate` scales the model to measured times. Each point is compared with the prediction from
the other sizes.
"""

import meshlab as ml

measured = ml.example().query("collective == 'all_reduce'")
ml.plot.calibration(ml.calibrate(measured, mode="graph"))
