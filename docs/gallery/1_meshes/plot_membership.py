"""
The groups of an axis
=====================

One cell per rank, coloured by its group. :func:`meshlab.plot.membership` takes a mesh or its text. Without an
axis, it draws a panel for every axis.
"""

import meshlab as ml

ml.plot.membership("dp=2, tp=4", "tp")

# %%
# ``mesh.plot()`` is the same function.

ml.DeviceMesh("pp=2, dp=2, tp=4").plot()
