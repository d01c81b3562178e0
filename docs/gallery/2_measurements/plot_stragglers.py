"""
Ranks that enter late
=====================

One dot per batch, and a bar at the median. A run in the mode ``isolated`` aligns the starts and records who
enters late. Here, rank 3 sleeps before each call.
"""

import time

import meshlab as ml


def late(comm):
    x = comm.xp.ones(256)

    def call():
        if comm.rank == 3:
            time.sleep(0.002)
        comm.all_reduce(x)

    return call


with ml.launch(4, backend="threads") as engines:
    run = ml.bench(engines, "tp=4", late, axis="tp", mode="isolated", sampling="quick")
    run.wait()

ml.plot.stragglers(run)
