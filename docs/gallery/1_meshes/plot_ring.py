"""
The ring of a group
===================

:func:`meshlab.plot.ring` draws the ring of a group as NCCL builds it, and the link of every hop. It also
draws the rings that NCCL chose in a log.
"""

import meshlab as ml

ml.plot.ring("tp=16", ml.preset("dgx-h100", nodes=2), axis="tp")
