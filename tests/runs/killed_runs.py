"""Kill processes that measure a run into a folder, and check that the folder has every finished step, and can be
resumed.

Run by hand: ``python -m tests.runs.killed_runs --kills 100``.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import meshlab as ml
from meshlab.runs._rundata import RunData

SAMPLING = ml.Sampling(max_s=0.01, min_batches=6)
STEPS = 13


def child_that_measures(folder: Path, n_known: int, pipe: int) -> int:
    """Measure a run into a folder in a new process, or resume the one in there. Return its process id.

    It writes one byte to the pipe after each step.
    """
    process = os.fork()
    if process:
        return process
    try:
        with ml.launch(2, backend="threads") as engines:
            resume = folder if n_known >= 0 else None
            run = ml.bench(engines, sizes=f"1K:{1 << STEPS - 1}K", sampling=SAMPLING, out=folder, resume=resume)
            n = n_known = max(n_known, 0)
            while not run._is_over.wait(0.001):
                n_now = run.progress.done
                os.write(pipe, b"." * (n_now - n))
                n = n_now
            assert run.state == "done", run.state
    finally:
        os._exit(0)


def kill_runs(n_kills: int, seed: int) -> collections.Counter[str]:
    """Kill runs until each is complete, and return how often, and how often in which state."""
    choose = random.Random(seed)
    counts: collections.Counter[str] = collections.Counter()
    n_killed = 0
    with tempfile.TemporaryDirectory() as place:
        while n_killed < n_kills:
            folder, n_known, rows = Path(place) / str(n_killed), -1, None
            while True:
                ours, theirs = os.pipe()
                process = child_that_measures(folder, n_known, theirs)
                os.close(theirs)
                n_wanted = choose.randrange(1, 5)
                n_reported = max(n_known, 0)
                is_alive = True
                for _ in range(n_wanted):
                    n_new = len(os.read(ours, 1))
                    n_reported += n_new
                    if not n_new:
                        is_alive = False
                        break
                if is_alive:
                    time.sleep(choose.uniform(0, 0.03))
                    os.kill(process, signal.SIGKILL)
                    n_killed += 1
                os.waitpid(process, 0)
                os.close(ours)
                run = RunData.load(folder)
                counts[run.state] += 1
                # The step that was reported last is in the folder, and so are all rows of before.
                assert run.progress.done >= n_reported, (run, n_reported)
                assert len(run.results) == run.progress.done == run.samples["step"].nunique()
                assert run.results["status"].eq("ok").all()
                if rows is not None:
                    assert run.results.head(len(rows)).equals(rows), "rows were lost or changed"
                if run.state == "done":
                    assert run.progress.done == STEPS
                    break
                assert run.state == "interrupted", run
                n_known, rows = run.progress.done, run.results
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(dict(kill_runs(given.kills, given.seed)))
