"""Follow the logs of NCCL Inspector while two ranks run, of which one is late for some seconds.

    python tests/gpu/follow_inspector.py --plugin libnccl-profiler-inspector.so

Each step is an all_reduce of 32 MiB and one of 1 MiB. From second 5 to 10, rank 1 sleeps for 2 ms before each step.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.multiprocessing
from torch import distributed

import meshlab as ml

LATE_FROM_S, LATE_UNTIL_S, END_S = 5.0, 10.0, 14.0
INTERVAL_US = 500
SIZES = (32 << 20, 1 << 20)


def work(rank: int, world: int, begin: float) -> None:
    """Run steps until the end."""
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    buffers = [torch.zeros(size // 4, device="cuda") for size in SIZES]
    flag = torch.zeros(1 << 12, device="cuda")
    while not flag.max().item():
        passed = time.time() - begin
        if rank == world - 1 and LATE_FROM_S <= passed < LATE_UNTIL_S:
            time.sleep(0.002)
        for buffer in buffers:
            distributed.all_reduce(buffer)
        flag.fill_(float(passed > END_S))
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        torch.cuda.synchronize()
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugin", type=Path, required=True, help="the plugin, built for this NCCL")
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    os.environ |= {
        "NCCL_PROFILER_PLUGIN": str(options.plugin.resolve()),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": str(INTERVAL_US),
        "NCCL_INSPECTOR_DUMP_DIR": folder,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29555",
    }
    begin, world = time.time(), torch.cuda.device_count()
    with ml.Trace.follow(folder, error_us=50.0) as live:
        jobs = torch.multiprocessing.spawn(work, (world, begin), nprocs=world, join=False)
        cpu, late, lost = time.process_time(), live.late, live.lost
        while not jobs.join(timeout=0.1):
            if (live.late, live.lost) != (late, lost):
                late, lost = live.late, live.lost
                print(f"{time.time() - begin:5.1f} s · late {late} · lost {lost} · {live.n_calls:,} lines", flush=True)
        share = (time.process_time() - cpu) / (time.time() - begin)
    print(live, f"{100 * share:.1f} % of a core", live.trace(), sep="\n")


if __name__ == "__main__":
    main()
