"""
Batches of a step
=================

A heat map of ranks and batches. It shows spikes, drifts and ranks that are late from time to time.
"""

import meshlab as ml

with ml.launch(4, backend="threads") as engines:
    run = ml.bench(engines, "tp=4", axis="tp", sizes="64K", mode="isolated", sampling="quick")
    run.wait()

ml.plot.batches(run)
