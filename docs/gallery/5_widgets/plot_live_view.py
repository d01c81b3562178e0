"""
The live view of a run
======================

A notebook shows a run as a :class:`meshlab.widgets.LiveView`, with its progress, a growing chart, and buttons
that pause or stop it.
"""

# sphinx_gallery_thumbnail_path = "_static/widgets/live_view.png"

import meshlab as ml

with ml.launch(2, backend="threads") as engines:
    run = ml.bench(engines, sizes="1K:64K", sampling="quick")
    view = ml.widgets.LiveView(run)
    run.wait()

view
