"""Compare uneven traffic with ``alltoallv_perf`` of nccl-tests 2.19 or newer, with alternating launches of both.

    python tests/gpu/alltoallv_side_by_side.py --build NCCL_TESTS/build --out alltoallv.csv

Both send the same bytes between the same ranks: nccl-tests reads ``NCCL_TESTS_ALLTOALLV_SPREAD``, or the file of a
matrix that meshlab has written. Sizes, counts and imbalances must be equal, and the results of meshlab correct. Without
``--build``, meshlab alone is measured, also on a CPU with ``--backend threads``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

import meshlab as ml
from tests.gpu.side_by_side import CALLS, geometric_means, judge, rows, widen

MATRIX = "matrix"
SPREADS = (1.0, 0.5, 0.0)


def matrix_of(n: int, largest: int) -> ml.Traffic:
    """Return a matrix of bytes with an empty pair, and with a busiest rank that receives twice the mean."""
    table = [[largest * (1 + (3 * i + 5 * j) % 7) // 7 * (i != 0 or j != 0) for j in range(n)] for i in range(n)]
    for row in table:
        row[-1] *= 2
    return ml.Traffic.matrix(table)


def theirs(program: Path, n: int, sizes: str, mode: str, variable: str) -> pd.DataFrame:
    first, last = sizes.split(":")
    command = [str(program), "-b", first, "-e", last, "-f", "16", "-t", str(n), "-g", "1", "-n", "20", "-w", "5"]
    command += ["-c", "0", *(["-G", "20"] if mode == "graph" else [])]
    name, _, value = variable.partition("=")
    environment = os.environ | {name: value}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    return ml.nccl_tests.read(done.stdout).results


def ours(engines: ml.Engines, traffic: ml.Traffic, sizes: str, mode: str) -> pd.DataFrame:
    calls, batches = (CALLS * CALLS, 6) if mode == "graph" else (CALLS, 20)
    sampling = ml.Sampling(1e-9, batches, batches, batch_us=1e9, max_calls=calls, max_s=1e6, warmup_batches=1)
    n = engines.world_size
    run = ml.bench(
        engines, f"ep={n}", "all_to_all_v", sizes=sizes, mode=mode, traffic=traffic, sampling=sampling, deadline_s=60
    )
    frame = run.wait(300, progress=False)
    assert frame["n_wrong"].eq(0).all(), frame[["traffic", "size_bytes", "n_wrong", "status", "stop_reason"]]
    return frame


def check(options: argparse.Namespace) -> None:
    """Print how many calls with empty ranks are correct, in all modes and kinds of buffers."""
    n, is_gpu = options.ranks, options.backend == "nccl"
    kept = [[0] * n for _ in range(n)]
    kept[0][0] = 4096  # all other ranks send and receive nothing
    one_way = [[0] * n for _ in range(n)]
    one_way[0][n - 1] = 1 << 20
    traffics = [ml.Traffic.matrix(kept).named("kept"), ml.Traffic.matrix(one_way).named("one way"), "zipf:1.2", "even"]
    modes = ["isolated", "pipelined", "graph"] if is_gpu else ["isolated", "pipelined"]
    buffers = ["plain", "registered", "symmetric"] if is_gpu else ["plain"]
    sampling = ml.Sampling(max_s=0.05, min_batches=6)
    with ml.launch(n, backend=options.backend) as engines:
        for kind in buffers:
            plan = ml.Plan(
                "all_to_all_v", "ep", sizes="1M", mode=modes, buffers=kind, traffic=traffics, sampling=sampling
            )
            try:
                frame = ml.bench(engines, f"ep={n}", plan, deadline_s=60).wait(120, progress=False)
            except ml.MeshlabError as error:
                print(f"{kind}: {error}")
                continue
            good = frame["n_wrong"].eq(0) & frame["status"].eq("ok")
            print(f"{kind}: {int(good.sum())} of {len(frame)} steps correct")
            if not good.all():
                print(frame.loc[~good, ["traffic", "mode", "n_wrong", "status", "stop_reason"]].to_string())


def measure(options: argparse.Namespace) -> pd.DataFrame:
    n, parts = options.ranks, []
    first, last = options.sizes.split(":")
    matrix = matrix_of(n, options.largest)
    file = matrix.write(options.out.with_suffix(".matrix.txt"))
    cases = [(ml.Traffic.spread(factor), f"NCCL_TESTS_ALLTOALLV_SPREAD={factor}") for factor in SPREADS]
    cases.append((matrix, f"NCCL_TESTS_ALLTOALLV_MATRIX_FILE={file}"))
    for launch in range(options.launches):
        begin = time.monotonic()
        with ml.launch(n, backend=options.backend) as engines:
            for mode in options.modes:
                for traffic, _ in cases:
                    frame = ours(engines, traffic, f"{first}:{last}*16", mode)
                    parts.append(rows(frame, "meshlab", str(traffic), mode, launch))
        middle = time.monotonic()
        for mode in options.modes if options.build else ():
            for traffic, variable in cases:
                ends = f"{matrix.size_bytes}:{matrix.size_bytes}" if traffic is matrix else options.sizes
                frame = theirs(options.build / "alltoallv_perf", n, ends, mode, variable)
                parts.append(rows(frame, "nccl-tests", str(traffic), mode, launch))
        print(f"launch {launch}: meshlab {middle - begin:.0f} s, nccl-tests {time.monotonic() - middle:.0f} s")
        pd.concat(parts).to_csv(options.out, index=False)
    return pd.concat(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, help="build folder of nccl-tests")
    parser.add_argument("--out", type=Path, required=True, help="output file, CSV")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3, help="0: check the results alone")
    parser.add_argument("--sizes", default="64K:256M")
    parser.add_argument("--largest", type=int, default=64 << 20, help="bytes of the largest pair of the matrix")
    parser.add_argument("--modes", nargs="*", default=["graph", "pipelined"])
    options = parser.parse_args()
    check(options)
    if not options.launches:
        return 0
    frame = measure(options)
    if not options.build:
        print(frame.to_string())
        return 0
    sizes = frame.groupby(["collective", "who"])["size_bytes"].unique().map(sorted).unstack()
    different = sizes[sizes["meshlab"] != sizes["nccl-tests"]]
    print("sizes of both are equal" if different.empty else different.to_string())
    table = judge(widen(frame))
    table.to_csv(options.out.with_suffix(".judged.csv"), index=False)
    print(table.round(3).to_string())
    print(geometric_means(table).round(4).to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
