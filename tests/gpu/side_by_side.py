"""Compare with nccl-tests on the same machine, with alternating launches of both.

    python tests/gpu/side_by_side.py --build NCCL_TESTS/build --out side_by_side.csv

Both time the same placement, with one process or thread per GPU. In graph mode, nccl-tests runs with ``-n 20 -G 20``,
and meshlab captures twenty calls in a graph that is replayed twenty times. In pipelined mode, nccl-tests runs with
``-n 20``, and meshlab measures batches of twenty calls.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import meshlab as ml
from meshlab.base._units import parse_sizes

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "all_to_all": "alltoall_perf",
    "send_recv": "sendrecv_perf",
}
IN_PLACE = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}
JUDGED = ["mode", "collective", "size_bytes", "meshlab_us", "nccl_tests_us", "ratio", "ratio_hi", "itself_hi"]
CALLS = 20  # -n and -G of nccl-tests
SMALL = 1 << 20  # bytes


def theirs(program: Path, n: int, sizes: str, mode: str) -> pd.DataFrame:
    first, last, factor = sizes.replace("*", ":").split(":")
    command = [str(program), "-b", first, "-e", last, "-f", factor, "-t", str(n), "-g", "1", "-n", "20", "-w", "5"]
    command += ["-c", "0", *(["-G", "20"] if mode == "graph" else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return ml.nccl_tests.read(done.stdout).results


def ours(engines: ml.Engines, mesh: ml.DeviceMesh, name: str, sizes: str, mode: str) -> pd.DataFrame:
    # nccl-tests takes one time for all replays of a graph. For small messages the gaps between replays matter, so a
    # batch has as many calls.
    every = parse_sizes(sizes)
    small = [size for size in every if size <= SMALL and mode == "graph"]
    frames = []
    for part, calls, batches in (
        (small, CALLS * CALLS, 6),
        ([size for size in every if size not in small], CALLS, 20),
    ):
        if part:
            sampling = ml.Sampling(1e-9, batches, batches, batch_us=1e9, max_calls=calls, max_s=1e6, warmup_batches=1)
            plan = ml.Plan(name, "tp", sizes=part, mode=mode, in_place=name in IN_PLACE, sampling=sampling, check=False)
            frames.append(ml.bench(engines, mesh, plan, deadline_s=120).wait(300, progress=False))
    return pd.concat(frames, ignore_index=True)


def rows(frame: pd.DataFrame, who: str, name: str, mode: str, launch: int) -> pd.DataFrame:
    frame = frame[frame["in_place"].fillna(False).astype(bool) == (name in IN_PLACE)]
    picked = frame.loc[frame["size_bytes"] > 0, ["size_bytes", "time_us"]]
    picked = picked.assign(who=who, collective=name, mode=mode, launch=launch)
    return picked.drop_duplicates(["size_bytes"])


def measure(
    build: Path, out: Path, n: int, sizes: str, launches: int, names: list[str], modes: list[str]
) -> pd.DataFrame:
    parts: list[pd.DataFrame] = []
    mesh = ml.DeviceMesh(tp=n)
    choices = [(name, mode) for name in names for mode in modes]
    for launch in range(launches):
        begin = time.monotonic()
        with ml.launch(n, backend="nccl") as engines:
            for name, mode in choices:
                parts.append(rows(ours(engines, mesh, name, sizes, mode), "meshlab", name, mode, launch))
        middle = time.monotonic()
        for name, mode in choices:
            parts.append(rows(theirs(build / PROGRAMS[name], n, sizes, mode), "nccl-tests", name, mode, launch))
        took = f"meshlab {middle - begin:.0f} s, nccl-tests {time.monotonic() - middle:.0f} s"
        print(f"launch {launch}: {took}", flush=True)
        widen(pd.concat(parts)).to_csv(out, index=False)  # after every launch, so that an interrupted run loses little
    return widen(pd.concat(parts))


def widen(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per tool and size with one column per launch, for the sizes that both tools measured."""
    index = ["mode", "collective", "size_bytes", "who"]
    wide = frame.pivot_table(index=index, columns="launch", values="time_us").round(2)
    wide.columns = [f"launch_{launch}" for launch in wide.columns]
    wide = wide.reset_index()
    return wide[wide.groupby(index[:3])["who"].transform("size") == 2]


def judge(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the ratio of the medians with an interval, and that of nccl-tests to itself, for each size.

    With fewer than two launches, the interval is NaN.
    """
    found: list[dict[str, Any]] = []
    random = np.random.default_rng(0)
    times = frame.set_index("who").filter(regex="^launch_")
    points = frame.reset_index(drop=True).groupby(["mode", "collective", "size_bytes"]).indices
    for (mode, name, size), at in points.items():
        part = times.iloc[at]
        a, b = (part.loc[who].dropna().to_numpy(float) for who in ("meshlab", "nccl-tests"))
        if not len(a) or not len(b):
            continue
        ratio_hi = itself_hi = np.nan
        if len(a) > 1 and len(b) > 1:
            drawn_a, drawn_b, again_b = (np.median(random.choice(x, (2000, len(x))), axis=1) for x in (a, b, b))
            ratio_hi, itself_hi = (np.quantile(drawn, 0.975) for drawn in (drawn_a / drawn_b, drawn_b / again_b))
        found.append(
            {
                "mode": mode,
                "collective": name,
                "size_bytes": int(size),
                "meshlab_us": np.median(a),
                "nccl_tests_us": np.median(b),
                "ratio": np.median(a) / np.median(b),
                "ratio_hi": ratio_hi,
                "itself_hi": itself_hi,
            }
        )
    table = pd.DataFrame(found, columns=JUDGED)
    return table.astype({name: float for name in JUDGED if name.startswith("ratio")}) if table.empty else table


def geometric_means(judged: pd.DataFrame) -> pd.Series:
    """Return the geometric mean of the ratio over all sizes, for each mode and collective."""
    return np.exp(np.log(judged["ratio"]).groupby([judged["mode"], judged["collective"]]).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="build folder of nccl-tests")
    parser.add_argument("--out", type=Path, required=True, help="output file, CSV")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--sizes", default="8:1G*2")
    parser.add_argument("--collectives", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--modes", nargs="*", default=["graph", "pipelined"])
    options = parser.parse_args()
    frame = measure(
        options.build, options.out, options.gpus, options.sizes, options.launches, options.collectives, options.modes
    )
    table = judge(frame)
    if table.empty:
        print("no size was measured by both")
        return 1
    table.to_csv(options.out.with_suffix(".judged.csv"), index=False)
    print(table.round(3).to_string())
    print(geometric_means(table).round(4).to_string())
    worse = table[table["ratio_hi"] > np.maximum(1.05, table["itself_hi"])]
    print(f"{len(worse)} of {table['ratio_hi'].count()} sizes beyond 1.05 and beyond nccl-tests against itself")
    return 0


if __name__ == "__main__":
    sys.exit(main())
