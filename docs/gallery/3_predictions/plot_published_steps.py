"""
Published training steps
========================

How far predictions of steps are from published ones, by source.
"""

import meshlab as ml

ml.plot.published_steps()
