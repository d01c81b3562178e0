"""
A rehearsed step
================

:func:`meshlab.rehearse` makes the collectives of a training step on real ranks. Here the ranks are threads,
so the times are not those of a machine.
"""

import meshlab as ml

job = ml.Job.preset("llama3-8b", global_batch=16)
with ml.launch(4, backend="threads") as engines:
    steps = ml.rehearse(engines, ["dp=2, tp=2", "tp=4"], job, rounds=1, steps=1)

steps.plot()
