"""What a failed rank costs: seconds to the first right all_reduce, by the way to recover.

    python tests/gpu/recovery_table.py --out FOLDER

The first part measures engines: restart, and shrink to the ranks that are left. The second part uses nccl4py alone, and
compares an abort and new communicators with ncclCommShrink, with and without ncclCommRevoke before it. One of two ranks
is killed or stuck, and the other one goes on alone.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import meshlab as ml
from tests.gpu.nccl_ranks import Rank, run_ranks

WAYS = ("abort and init", "shrink with abort", "revoke and shrink")


def recover(rank: Rank, argument: Any) -> None:
    fault, way, number = argument
    world = rank.open()
    children = [world.split(0, rank.rank) for _ in range(number)]
    values = rank.cupy.ones(1024, "float32")
    for comm in (world, *children):
        rank.all_reduce(values, comm)
    rank.is_done()
    rank.meet()
    if rank.rank == 1:  # it never calls again
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(7.0)
        return
    rank.all_reduce(values)
    time.sleep(1.0)
    comms = [*children, world]
    begin = time.perf_counter()
    if way == "abort and init":
        for comm in comms:
            comm.abort()
        ended = time.perf_counter()
        left = rank.nccl.Communicator.init(1, 0, rank.nccl.get_unique_id(), rank.nccl.NCCLConfig())
        new = [left, *(left.split(0, 0) for _ in range(number))]
    else:
        if way == "revoke and shrink":
            for comm in comms:
                comm.revoke()
            flag = rank.nccl.CommShrinkFlag.DEFAULT
        else:
            flag = rank.nccl.CommShrinkFlag.ABORT
        ended = time.perf_counter()
        new = [comm.shrink([1], flag=flag) for comm in comms]
    opened = time.perf_counter()
    values[...] = 1
    rank.cupy.cuda.Device().synchronize() if way != "revoke and shrink" else None
    for comm in new:
        rank.all_reduce(values, comm)
    is_done = rank.is_done()
    reduced = time.perf_counter()
    is_right = is_done and float(values[-1]) == 1.0
    text = f"{1e3 * (ended - begin):.0f} + {1e3 * (opened - ended):.0f} + {1e3 * (reduced - opened):.0f}"
    rank.report(way, f"{text} = {1e3 * (reduced - begin):.0f} ms{'' if is_right else ', WRONG'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--communicators", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--only", choices=["engines", "library"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    if options.only != "library":
        with ml.launch(options.ranks, backend=options.backend) as engines:
            for faults, ways in (
                ("killed", "restart"),
                ("killed", "shrink"),
                ("stuck", "restart"),
                ("stuck", "shrink"),
            ):
                if ways == "shrink" and options.backend != "nccl":
                    continue
                repeats = options.repeats if faults == "killed" else -(-options.repeats // 2)
                table = ml.benchmark.recovery(
                    engines, faults=faults, ways=ways, communicators=options.communicators, repeats=repeats
                )
                file = options.out / "recovery.csv"
                table.to_csv(file, mode="a", header=not file.exists(), index=False)
                print(table.attrs["verdict"].replace("; ", "\n"), flush=True)
        print(f"{time.monotonic() - begin:.0f} s", flush=True)
    if options.only != "engines" and options.backend == "nccl":
        for fault in ("killed", "stuck"):
            for way in WAYS:
                for number in options.communicators:
                    rows = run_ranks(recover, (fault, way, number), limit_s=12.0)
                    texts = [text for rank, _, text in rows if rank == 0]
                    groups = f"{number} communicators besides the world"
                    print(f"nccl4py, rank {fault}, {way}, {groups}: {'; '.join(texts)}", flush=True)
        print(f"{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
