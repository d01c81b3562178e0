"""
The picture
===========

:class:`meshlab.widgets.Picture` draws up to 16,384 GPUs on a canvas, at any zoom.
"""

# sphinx_gallery_thumbnail_path = "_static/widgets/picture.png"

import meshlab as ml

picture = ml.widgets.Picture("dp=2, tp=8", ml.preset("dgx-h100", nodes=2), axis="dp")
picture
