"""How fast logs are read and compared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._comparison import compare
from meshlab.frames._schema import RESULTS, SAMPLES, conform

SIZE = 10 << 20
HALF = "    198.6  168.96  295.67      0"
ROW = f"    33554432       8388608     float     sum      -1{HALF}{HALF}\n"
HEADER = "#       size         count      type   redop    root" + "     time   algbw   busbw #wrong" * 2 + "\n"
MESSAGE = "[1,0]<stdout>:node00:1000:1009 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM\n"


def repeated(text, size=SIZE):
    return text * (size // len(text))


def real_logs():
    folder = os.environ.get("MESHLAB_CASES")
    if not folder:
        pytest.skip("MESHLAB_CASES names no folder of real logs")
    files = sorted(Path(folder, "nccl_logs").glob("*.txt"))
    return repeated("\n".join(file.read_text() for file in files if "json" not in file.name))


@pytest.mark.parametrize("what", ["rows", "messages", "real logs"])
def test_reading_10_mib(benchmark, tmp_path, what):
    path = tmp_path / "log.txt"
    path.write_text(
        {"rows": lambda: HEADER + repeated(ROW), "messages": lambda: repeated(MESSAGE), "real logs": real_logs}[what]()
    )
    benchmark.pedantic(ml.nccl_tests.read, (path,), rounds=3)


def test_results_of_100_000_rows(benchmark, tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(HEADER + ROW * 50_000)

    def results():
        return ml.nccl_tests.read(path).results

    assert len(benchmark.pedantic(results, rounds=2)) == 100_000


def test_comparing_40_rows_of_400_batches(benchmark):
    rng = np.random.default_rng(0)
    rows = [
        {
            "run_id": "r",
            "launch": 0,
            "step": step,
            "collective": "all_reduce",
            "size_bytes": 1024 + step,
            "time_us": 10.0,
        }
        for step in range(40)
    ]
    samples = [
        pd.DataFrame({"run_id": "r", "launch": 0, "step": step, "rank": 0, "batch": range(400), "time_us": times})
        for step, times in enumerate(rng.normal(10, 1, size=(40, 400)))
    ]
    side = conform(pd.DataFrame(rows), RESULTS), conform(pd.concat(samples, ignore_index=True), SAMPLES)
    comparison = benchmark.pedantic(compare, (side, side), rounds=2)
    assert comparison.counts["SAME"] == 40
