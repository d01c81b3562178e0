"""
The paste box
=============

A field for logs, configs, and everything else that :func:`meshlab.explain` reads.
"""

# sphinx_gallery_thumbnail_path = "_static/widgets/paste_box.png"

import meshlab as ml

box = ml.widgets.PasteBox()
box.text = "DeviceMesh((dp=2, tp=4), device: 'cuda', stride: (4, 1))"
box
