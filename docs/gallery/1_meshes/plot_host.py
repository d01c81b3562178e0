"""
The inside of a host
====================

:func:`meshlab.plot.host` draws processors, PCIe switches, GPUs, NICs and NVLink. It accepts a preset, a
probed machine, or a file such as the XML that NCCL writes.
"""

import meshlab as ml

ml.plot.host("dgx-h100")
