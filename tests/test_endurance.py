"""Nothing grows in a long session: neither memory, threads and descriptors of the client, nor processes and files."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.endurance import ACTIVITIES, Footprint, growth, measure_apart

# KiB per repetition. A benchmark keeps nothing, but allocators take a while to reuse what they have.
_MOST_KIB = {"launches": 60, "restarts": 60, "view_updates": 60, "curve_updates": 20}
_MOST_KIB_OTHERS = 8
_MOST_OBJECTS = {"workbench_changes": 0.2}


def check_footprint(folder: Path) -> None:
    """Compare two footprints of this process, between which it takes one thing of each kind."""
    tempfile.tempdir = str(folder)
    before = Footprint.now()
    stop = threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(60))
    thread = threading.Thread(target=stop.wait)
    thread.start()
    memory = np.ones(4 << 20)
    try:
        with (
            (folder / "left").open("w"),
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child,
        ):
            after = Footprint.now()
            child.kill()
    finally:
        stop.set()
        thread.join()
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
    assert after.threads == before.threads + 1
    assert after.processes == before.processes + 1
    assert after.tasks == before.tasks + 1
    assert after.temporary == before.temporary + 1
    assert after.descriptors > before.descriptors
    assert after.memory_kib - before.memory_kib > memory.nbytes / 1024 / 2
    assert after.ranks_kib > before.ranks_kib


def test_a_footprint_counts_what_this_process_holds(tmp_path: Path) -> None:
    # In a process of its own, because the engines of other tests start and end processes in this one.
    code = "import pathlib, sys; import tests.test_endurance as own; own.check_footprint(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[1], check=True)


def test_a_leak_is_a_growth_and_noise_is_not() -> None:
    number = np.arange(0, 1000, 25)
    random = np.random.default_rng(0)
    noise = random.normal(0, 50, number.size)
    frame = pd.DataFrame(
        {
            "activity": "planted",
            "number": number,
            "seconds": 1.0 * number,
            "leaking": 1e5 + 10.0 * number + noise,
            "flat": 1e5 + noise,
            "warming": 1e5 + np.minimum(number, 200) * 40 + noise,
        }
    )
    slope = growth(frame)["per repetition"]
    assert slope["leaking"] == pytest.approx(10, abs=0.5)
    assert abs(slope["flat"]) < 0.5
    assert abs(slope["warming"]) < 0.5


@pytest.mark.long
@pytest.mark.parametrize("activity", ACTIVITIES)
def test_nothing_grows(activity: str) -> None:
    count = int(os.environ.get("MESHLAB_REPETITIONS", ACTIVITIES[activity][1]))
    found = growth(measure_apart(activity, count))
    print(f"\n{activity}\n{found.round(3)}")
    most = _MOST_KIB.get(activity, _MOST_KIB_OTHERS)
    assert found.loc[["memory_kib", "ranks_kib"], "per repetition"].max() < most
    if activity in _MOST_OBJECTS:
        assert found.loc["objects", "per repetition"] < _MOST_OBJECTS[activity]
    counted = ["threads", "descriptors", "tasks", "processes", "temporary", "shared"]
    # A thread or a descriptor of a library may come once, but not with every repetition.
    assert (found.loc[counted, "last"] - found.loc[counted, "first"]).max() <= 2
