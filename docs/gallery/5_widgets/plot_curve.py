"""
A growing curve
===============

:class:`meshlab.widgets.Curve` draws lines that grow while they are displayed.
"""

# sphinx_gallery_thumbnail_path = "_static/widgets/curve.png"

import meshlab as ml

curve = ml.widgets.Curve(references={"NVLink 450 GB/s": 450.0}, x_range=(2**10, 2**29))
rows = ml.example().query("mode == 'graph' and collective == 'all_reduce' and size_bytes >= 1024")
curve.set_series("all_reduce", *(rows[name] for name in ["size_bytes", "busbw_gbs", "busbw_gbs", "busbw_gbs"]))
curve
