"""Kill processes that save a run over another, and check that the folder holds one of the two, whole.

Run by hand: ``python -m tests.runs.killed_saves --kills 1000``. Half of the processes are killed at an operation on a
file, counted from the start of the save, and half of them at a random moment, with a pause before every operation.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

import meshlab as ml
from meshlab.runs._rundata import RunData

PAUSE_S = 0.005


def example_run(name: str, n_rows: int) -> RunData:
    """Return a run with `n_rows` results and some samples, recognisable by its name."""
    plan = ml.Plan("all_reduce", "tp", sizes="1K")
    results = ml.example().head(n_rows).assign(run_id=name)
    samples = pd.DataFrame({"step": range(20 * n_rows), "rank": 0, "batch": 0, "time_us": 0.1, "launch": 0})
    samples = ml.frames.RunData(plan, ml.DeviceMesh("tp=2"), run_id="", source="", where="").samples.merge(
        samples, how="right"
    )
    samples["run_id"] = pd.Series([name] * len(samples), dtype="string")
    return RunData(
        plan, ml.DeviceMesh("tp=2"), run_id=name, source="threads", where=name, state="done",
        results=results, samples=samples.astype({"run_id": "string"}),
    )  # fmt: skip


def is_same(run: RunData, other: RunData) -> bool:
    """Return whether two runs have the same rows, samples and state."""
    return (
        (run.run_id, run.state, run.where) == (other.run_id, other.state, other.where)
        and run.results.equals(other.results)
        and run.samples.equals(other.samples)
    )


def child_that_saves(run: RunData, folder: Path, *, kill_at: int = 0, pause_s: float = 0.0) -> int:
    """Save a run in a new process, which kills itself at its operation `kill_at` on a file. Return its process id."""
    process = os.fork()
    if process:
        return process
    n_operations = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal n_operations
        if event.startswith(("os.", "open", "fcntl.", "shutil.")):
            n_operations += 1
            if n_operations == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if pause_s:
                time.sleep(pause_s)

    sys.addaudithook(hook)
    try:
        run.save(folder, overwrite=True)
    finally:
        os._exit(0)


def prepare(folder: Path, old: RunData) -> None:
    """Make a folder with a run, a report and a file of the user."""
    old.save(folder)
    (folder / "report.html").write_text(old.run_id)
    (folder / "mine.txt").write_text("mine")
    (folder / "results-mine").mkdir()


def found_in(folder: Path, old: RunData | None, new: RunData) -> str:
    """Return which of two runs the folder holds, and raise if it is neither of them or anything else is wrong."""
    if old is not None:
        assert (folder / "mine.txt").read_text() == "mine"
        assert (folder / "results-mine").is_dir()
    elif not (folder / "run.json").exists():
        return "nothing"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = RunData.load(folder)
    found = next((one for one in (old, new) if one is not None and is_same(run, one)), None)
    assert found is not None, f"{run} is neither {old} nor {new}"
    report = folder / "report.html"
    assert not report.exists() or report.read_text() == found.run_id, "the report is of another run"
    return "old" if found is old else "new"


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def kill_saves(n_kills: int, seed: int, *, stride: int = 1, most: int = 60) -> collections.Counter[str]:
    """Kill saves, check every folder, and return how often it had the old run, the new run, or none."""
    choose = random.Random(seed)
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as place:
        # Read back, so that the frames have exactly what a folder keeps.
        old, new = (
            RunData.load(example_run(name, n).save(Path(place) / name)) for name, n in (("old", 14), ("new", 84))
        )
        folder, prepared = Path(place) / "run", Path(place) / "prepared"
        prepare(prepared, old)
        shutil.copytree(prepared, folder)
        began = time.monotonic()
        os.waitpid(child_that_saves(new, folder, pause_s=PAUSE_S), 0)
        duration_s = time.monotonic() - began
        expected = names_in(folder)
        kill_at = 0
        for number in range(n_kills):
            shutil.rmtree(folder, ignore_errors=True)
            before = None if number % 10 == 9 else old
            if before is not None:
                shutil.copytree(prepared, folder)
            if number % 2:
                process = child_that_saves(new, folder, pause_s=PAUSE_S)
                time.sleep(choose.uniform(0, duration_s))
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
            else:
                kill_at += stride
                _, status = os.waitpid(child_that_saves(new, folder, kill_at=kill_at), 0)
                if os.WIFSIGNALED(status):
                    counts["most operations"] = max(counts["most operations"], kill_at)
                else:
                    kill_at = 0  # the save has fewer operations
            found = found_in(folder, before, new)
            counts[found] += 1
            if number % 100 == 99:
                print(number + 1, dict(counts), flush=True)
            counts["new, with files to move"] += found == "new" and any(folder.glob(".meshlab-*/*.parquet"))
            if number % 5 == 0:
                # A second kill, of a save that also cleans up behind the first one.
                os.waitpid(child_that_saves(old, folder, kill_at=choose.randrange(1, most)), 0)
                counts[f"after a second kill: {found_in(folder, old, new)}"] += 1
                new.save(folder, overwrite=True)
                assert found_in(folder, before, new) == "new"
                left = names_in(folder) - expected
                assert not left, f"left behind: {left}"
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stride", type=int, default=1, help="distance of the operations at which saves are killed")
    given = parser.parse_args()
    print(dict(kill_saves(given.kills, given.seed, stride=given.stride)))
