"""
What a measurement can show
===========================

Before a long run, ``run.estimate`` and the probe of a machine state how large a slowdown must be to show. On
a busy host, measuring in turns shows smaller ones.
"""

import meshlab as ml

visible = ml.analysis.Visibility("all_reduce", 2**20, ratio=1.8, turns_ratio=1.2)
ml.plot.visibility(visible)
