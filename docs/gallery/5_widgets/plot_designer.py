"""
The designer
============

:class:`meshlab.widgets.Designer` edits the sizes and the order of the axes, next to the groups.
"""

# sphinx_gallery_thumbnail_path = "_static/widgets/designer.png"

import meshlab as ml

designer = ml.widgets.Designer(mesh="dp=2, tp=4")
designer
