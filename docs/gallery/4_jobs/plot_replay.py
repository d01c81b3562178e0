"""
A job, replayed
===============

``meshlab.benchmark.replay`` makes the calls of a trace again. Here the ranks are threads, so the times are
not those of a network.
"""

import meshlab as ml

with ml.launch(4, backend="threads") as engines:
    replay = ml.benchmark.replay(engines, ml.Trace.example())

replay.plot()
