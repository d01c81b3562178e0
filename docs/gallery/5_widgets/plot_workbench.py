"""
The workbench
=============

:class:`meshlab.Workbench` edits a machine and a mesh, predicts a training step at every edit, and compares
two candidates. In a notebook, everything in the picture can be picked. Below is its saved page, which works
without Python.
"""

# sphinx_gallery_thumbnail_path = "_static/widgets/workbench.png"

import meshlab as ml

cluster = ml.preset("dgx-h100", nodes=4)
wb = ml.Workbench(cluster, "dp=4, tp=8", axis="dp", job="llama3-8b")
page = wb.save("workbench.html")

# %%
# .. raw:: html
#
#     <iframe class="workbench" src="../../_static/workbench.html" title="The workbench, saved as a page"></iframe>
