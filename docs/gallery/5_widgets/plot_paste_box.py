"""
The paste box
=============

A field for logs, configs, and everything else that :func:`meshlab.explain` reads.
"""

import meshlab as ml

box = ml.widgets.PasteBox()
box.text = "DeviceMesh((dp=2, tp=4), device: 'cuda', stride: (4, 1))"
box
