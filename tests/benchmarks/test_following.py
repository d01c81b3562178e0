"""How much of a core it takes to follow the logs of a job."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import meshlab as ml

SECONDS = 10.0
WRITER = """
import sys, time
from pathlib import Path
from tests.traces.log_maker import append
folder, rate, ranks = Path(sys.argv[1]), int(sys.argv[2]), range(int(sys.argv[3]))
begin, number = time.perf_counter(), 0
while True:
    time.sleep(0.1)
    due = int((time.perf_counter() - begin) * rate)
    append(folder, range(number, due), ranks)
    number = due
"""


@pytest.mark.parametrize(("rate", "n_ranks"), [(1000, 2), (500, 4)])
def test_following_takes_at_most_2_percent_of_a_core(tmp_path: Path, rate: int, n_ranks: int) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(rate), str(n_ranks)]
    with subprocess.Popen(command) as writer, ml.Trace.follow(tmp_path) as live:
        try:
            while live.n_calls < 2 * rate:
                time.sleep(0.1)
            begin, cpu, n_lines = time.perf_counter(), time.process_time(), live.n_calls
            time.sleep(SECONDS)
            share = (time.process_time() - cpu) / (time.perf_counter() - begin)
            n_lines = live.n_calls - n_lines
        finally:
            writer.kill()
    print(f"{rate} calls per second of {n_ranks} ranks: {100 * share:.2f} % of a core, {n_lines / SECONDS:.0f} lines/s")
    assert share < 0.02
