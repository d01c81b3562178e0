"""
Calls on the curve of a machine
===============================

The bandwidth of each call of a job, next to the curve of the same collective, which is predicted here.
"""

import meshlab as ml

machine = ml.predict("dp=2, tp=2", "dgx-h100")
ml.plot.calls_on_curve(ml.Trace.example(), machine)
