"""
Bus bandwidth
=============

:func:`meshlab.plot.bandwidth` draws a line per collective and axis against the message size, with the 95 %
interval as a band. ``references=`` adds dashed lines. These results were measured on two H200 GPUs.
"""

import meshlab as ml

results = ml.example().query("mode == 'graph'")
ml.plot.bandwidth(results, references={"NVLink 4": 450})
