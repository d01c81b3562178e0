"""What a long session costs: memory, threads, descriptors, tasks and files while the same thing is done many times.

Run it by hand with ``python -m tests.endurance sweeps --count 1000``. Each activity runs in a process of its own, so
that the memory of one does not hide that of another.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

import meshlab as ml
from meshlab.engines._reaper import shared_memory_files
from meshlab.widgets._edits import MOST_UNDOS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ACTIVITIES", "Footprint", "growth", "measure", "measure_apart"]

_N_POINTS = 40  # footprints per activity
_WARM = 0.3  # part of the repetitions that is not counted: caches fill, and allocators reach their size


@dataclass(frozen=True, slots=True)
class Footprint:
    """What this process and its children hold.

    Parameters
    ----------
    memory_kib : float
        The resident memory of this process, in KiB.
    ranks_kib : float
        The resident memory of all its children together, in KiB.
    threads, descriptors, tasks, objects : int
        The Python threads, open descriptors, asyncio tasks and objects with references of this process.
    processes : int
        Its children, with theirs.
    temporary : int
        The files and folders in the folder for temporary files.
    shared : int
        The files of this process and its children in shared memory.
    """

    memory_kib: float
    ranks_kib: float
    threads: int
    descriptors: int
    tasks: int
    objects: int
    processes: int
    temporary: int
    shared: int

    @classmethod
    def now(cls) -> Footprint:
        """Return the footprint at this moment, without garbage."""
        gc.collect()
        objects = gc.get_objects()
        me = psutil.Process()
        ranks, n_children = 0, 0
        files: set[str] = set(shared_memory_files(me.pid))
        for child in me.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                ranks += child.memory_info().rss
                n_children += 1
                files.update(shared_memory_files(child.pid))
        return cls(
            me.memory_info().rss / 1024,
            ranks / 1024,
            threading.active_count(),
            me.num_fds(),
            sum(isinstance(one, asyncio.Task) for one in objects),
            len(objects),
            n_children,
            sum(1 for _ in Path(tempfile.gettempdir()).iterdir()),
            len(files),
        )


QUICK = ml.Sampling(max_s=0.002, min_batches=6, max_batches=6)


@contextlib.contextmanager
def sweeps() -> Iterator[Callable[[int], None]]:
    """Benchmarks, one after the other, on one set of MPI ranks."""
    with ml.launch(2, backend="mpi") as engines:

        def repeat(number: int) -> None:
            run = ml.bench(engines, "tp=2", ["all_reduce", "broadcast"], sizes="1K", sampling=QUICK)
            assert run.wait(60)["status"].eq("ok").all()

        yield repeat


@contextlib.contextmanager
def thread_sweeps() -> Iterator[Callable[[int], None]]:
    """Benchmarks on one set of threads."""
    with ml.launch(2, backend="threads") as engines:

        def repeat(number: int) -> None:
            run = ml.bench(engines, "tp=2", ["all_reduce", "broadcast"], sizes="1K", sampling=QUICK)
            assert run.wait(60)["status"].eq("ok").all()

        yield repeat


@contextlib.contextmanager
def launches() -> Iterator[Callable[[int], None]]:
    """Launches of MPI ranks, each used once and closed."""

    def repeat(number: int) -> None:
        with ml.launch(2, backend="mpi") as engines:
            assert engines.verify("tp=2")["is_right"].all()

    yield repeat


@contextlib.contextmanager
def thread_launches() -> Iterator[Callable[[int], None]]:
    """Launches of threads."""

    def repeat(number: int) -> None:
        with ml.launch(2, backend="threads") as engines:
            assert engines.verify("tp=2")["is_right"].all()

    yield repeat


@contextlib.contextmanager
def restarts() -> Iterator[Callable[[int], None]]:
    """Restarts of one set of MPI ranks."""
    with ml.launch(2, backend="mpi") as engines:

        def repeat(number: int) -> None:
            engines.kill()
            engines.restart()
            assert engines.verify("tp=2")["is_right"].all()

        yield repeat


@contextlib.contextmanager
def curve_updates() -> Iterator[Callable[[int], None]]:
    """Updates of a chart, 100 at a time. Without a front end, its messages are made but go nowhere."""
    curve = ml.widgets.Curve()

    def repeat(number: int) -> None:
        curve.clear()
        for point in range(100):
            curve.append(f"line {point % 5}", 1024 << (point // 5), 1.0 + point, 0.9 + point, 1.1 + point)

    yield repeat


@contextlib.contextmanager
def view_updates() -> Iterator[Callable[[int], None]]:
    """Runs of 100 steps, each with a live view that draws every step."""
    with ml.launch(2, backend="threads") as engines:

        def repeat(number: int) -> None:
            run = ml.bench(
                engines, "tp=2", ["all_reduce", "all_gather"], sizes=[4 * (1 + n) for n in range(50)], sampling=QUICK
            )
            view = run.view
            run.subscribe(lambda run: view.follower._draw(run))
            run.wait(60)
            assert view.follower.is_over.wait(10)
            assert sum(map(len, view.follower.series.values())) >= 50
            view.close()

        yield repeat


@contextlib.contextmanager
def workbench_changes() -> Iterator[Callable[[int], None]]:
    """Changes of a workbench: machine, failed parts, mesh, message, axis, and some of them undone."""
    workbench = ml.Workbench("dgx-h100", "dp=2, tp=4", axis="tp")
    changes: list[Callable[[int], None]] = [
        lambda turn: setattr(workbench, "cluster", ml.preset("dgx-h100", nodes=1 + turn % 4)),
        lambda turn: setattr(workbench, "mesh", ("dp=2, tp=4", "dp=4, tp=2")[turn % 2]),
        lambda turn: setattr(workbench, "failed", ([], ["node0/NIC3"])[turn % 2]),
        lambda turn: setattr(workbench, "size", ("64M", "128M")[turn % 2]),
        lambda turn: setattr(workbench, "axis", ("dp", "tp")[turn % 2]),
        lambda turn: workbench.undo(),
    ]
    for number in range(3 * MOST_UNDOS):  # it keeps so many changes to undo
        changes[number % 5](number // 5)

    def repeat(number: int) -> None:
        changes[number % 6](number // 6)

    yield repeat


@contextlib.contextmanager
def saves() -> Iterator[Callable[[int], None]]:
    """Saves of a run over itself, and loads."""
    with ml.launch(2, backend="threads") as engines:
        run = ml.bench(engines, sizes="1K:16K", sampling=QUICK)
        run.wait(60)
    with tempfile.TemporaryDirectory() as folder:

        def repeat(number: int) -> None:
            run.save(Path(folder) / "run", overwrite=True)
            assert len(ml.Run.load(Path(folder) / "run").results) == len(run.results)

        yield repeat


_LOGS = (
    "host:1:2 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\nhost:1:2 [0] transport/net_ib.cc:101 NCCL WARN NET/IB : Got "
    "completion from peer 10.0.0.1<4000> with error 12, opcode 0, len 0, vendor err 129\n",
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
    "an unknown text, number {number}\n",
)


@contextlib.contextmanager
def explanations() -> Iterator[Callable[[int], None]]:
    """Explanations of pasted texts, each of which differs from all others."""

    def repeat(number: int) -> None:
        for text in _LOGS:
            with contextlib.suppress(ml.errors.ParseError):  # nothing is recognised in the last one
                ml.explain(f"line {number}\n{text.replace('{number}', str(number))}")._repr_html_()

    yield repeat


ACTIVITIES: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Callable[[int], None]]], int]] = {
    "sweeps": (sweeps, 1000),
    "thread_sweeps": (thread_sweeps, 1000),
    "launches": (launches, 100),
    "thread_launches": (thread_launches, 100),
    "restarts": (restarts, 30),
    "curve_updates": (curve_updates, 100),
    "view_updates": (view_updates, 100),
    "workbench_changes": (workbench_changes, 1000),
    "saves": (saves, 1000),
    "explanations": (explanations, 1000),
}
"""The activities, and how often each one is repeated by default. A chart is updated 100 times in a repetition."""


def measure(activity: str, count: int) -> pd.DataFrame:
    """Repeat an activity, and return its footprints: one row per measured repetition, with its number and the time."""
    import pandas as pd

    make, _ = ACTIVITIES[activity]
    at = set(np.linspace(0, count - 1, min(count, _N_POINTS)).astype(int).tolist())
    rows = []
    began = time.monotonic()
    with make() as repeat:
        for number in range(count):
            repeat(number)
            if number in at:
                elapsed = time.monotonic() - began
                rows.append({"activity": activity, "number": number, "seconds": elapsed, **asdict(Footprint.now())})
    return pd.DataFrame(rows)


def growth(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the first and last footprint after the warm-up, and the growth per repetition of a line through all.

    The line goes through the medians of three parts, so that one footprint that happens to be large has no effect.
    """
    import pandas as pd

    warm = frame[frame["number"] >= _WARM * frame["number"].max()]
    thirds = np.array_split(np.arange(len(warm)), 3)
    rows = []
    for name in (column for column in warm.columns if column not in ("activity", "number", "seconds")):
        values, numbers = warm[name].to_numpy(dtype=float), warm["number"].to_numpy(dtype=float)
        middle = [(np.median(numbers[third]), np.median(values[third])) for third in thirds]
        slope = (middle[2][1] - middle[0][1]) / max(middle[2][0] - middle[0][0], 1)
        rows.append(
            {"what": name, "first": values[0], "last": values[-1], "most": values.max(), "per repetition": slope}
        )
    return pd.DataFrame(rows).set_index("what")


def measure_apart(activity: str, count: int) -> pd.DataFrame:
    """Call `measure` in a process of its own, with a folder for temporary files of its own."""
    import pandas as pd

    with tempfile.TemporaryDirectory(prefix="endurance-") as folder:
        code = f"from tests.endurance import measure; print(measure({activity!r}, {count}).to_json(orient='records'))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"TMPDIR": folder, "MESHLAB_PROGRESS": "0"},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    return pd.DataFrame(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure activities, and print how much they grow."""
    import pandas as pd

    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("activity", nargs="*", help=f"some of {', '.join(ACTIVITIES)}; by default all")
    parser.add_argument("--count", type=int, help="the number of repetitions")
    parser.add_argument("--out", type=Path, help="a CSV file for the footprints")
    given = parser.parse_args()
    frames = []
    for activity in given.activity or ACTIVITIES:
        count = given.count or ACTIVITIES[activity][1]
        frames.append(measure_apart(activity, count))
        print(f"\n{activity}: {count} repetitions in {frames[-1]['seconds'].iloc[-1]:.0f} s")
        print(growth(frames[-1]).round(3).to_string(), flush=True)
        if given.out is not None:
            pd.concat(frames).to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
