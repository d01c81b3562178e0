"""
Groups on a machine
===================

:func:`meshlab.plot.topology` draws the GPUs, NVLink, NICs and switches of a cluster, and the load of every
link when all groups of an axis communicate.
"""

import meshlab as ml

cluster = ml.preset("dgx-h100", nodes=4)
ml.plot.topology("dp=4, tp=8", cluster, axis="dp")

# %%
# With ``group=``, the route of one group.

ml.plot.topology("dp=4, tp=8", cluster, axis="dp", group=0)
