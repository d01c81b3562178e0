"""
The link matrix of a host
=========================

The links between every two devices, as ``nvidia-smi topo -m`` lists them. Light cells are near, and dark
cells are far.
"""

import meshlab as ml

ml.plot.links("dgx-a100")
