"""
Layouts of a job
================

:func:`meshlab.search` ranks the layouts of a training job. Each bar is a step: computation, bubble, and
exposed communication by axis.
"""

import meshlab as ml

layouts = ml.search(ml.preset("dgx-h100", nodes=16), "llama3-70b")
ml.plot.step_times(layouts)
