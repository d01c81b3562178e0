"""Record jobs with PyTorch's profiler, and replay their calls on the same ranks: the transfers then and now.

    python tests/gpu/replay_traces.py --out FOLDER [--traces FOLDER]

Each folder in ``--traces`` is replayed without gaps, next to symmetric buffers, and some of them with gaps. Without
``--traces``, record_traces.py records DDP, FSDP2 and tensor-parallel steps first. Another job is recorded here, with
one message size on a communicator that may only use one thread block: the replay has to name this size, and no other.
``--backend gloo`` needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch import distributed
from torch.profiler import ProfilerActivity, profile

import meshlab as ml

PLANTED = "planted"
SIZES_MIB = (4, 16, 64)
SLOW_MIB = 16
STEPS, CALLS = 3, 6


def limited_options() -> Any:
    """Return the options of a communicator of NCCL with one thread block."""
    options = distributed.ProcessGroupNCCL.Options()  # type: ignore[attr-defined]
    options.config.min_ctas = options.config.max_ctas = 1
    return options


def record(rank: int, world: int, backend: str, store: str, folder: str) -> None:
    """Record all_reduces of several sizes with computation between them, one size on a slow communicator."""
    is_gpu = backend == "nccl"
    device = torch.device("cuda", rank) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(device)
    os.environ["LOCAL_RANK"] = str(rank)
    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    slow = distributed.new_group(list(range(world)), pg_options=limited_options() if is_gpu else None)
    dtype = torch.bfloat16 if is_gpu else torch.float32
    shrink = 1 if is_gpu else 64
    buffers = {
        mib: torch.zeros(mib * (1 << 20) // shrink // dtype.itemsize, dtype=dtype, device=device) for mib in SIZES_MIB
    }
    matrix = torch.randn(2048 if is_gpu else 64, 2048 if is_gpu else 64, dtype=dtype, device=device)

    def step() -> None:
        for _ in range(CALLS):
            for mib, buffer in buffers.items():
                torch.matmul(matrix, matrix)
                distributed.all_reduce(buffer, group=slow if mib == SLOW_MIB else None)
        if is_gpu:
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    distributed.barrier()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities, record_shapes=True) as profiler:
        for number in range(STEPS):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                step()
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
    distributed.barrier()
    distributed.destroy_process_group()


def record_all(out: Path, backend: str, world: int) -> list[Path]:
    """Record the jobs, and return their folders."""
    script = Path(__file__).with_name("record_traces.py")
    if script.exists():
        command = [sys.executable, str(script), "--out", str(out / "traces"), "--backend", backend]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    folder = out / "traces" / PLANTED
    folder.mkdir(parents=True, exist_ok=True)
    store = str(out.resolve() / "store")
    torch.multiprocessing.spawn(record, (world, backend, store, str(folder)), nprocs=world)
    return sorted(path for path in (out / "traces").iterdir() if path.is_dir())


def report(engines: ml.Engines, folder: Path, is_gpu: bool) -> None:
    """Replay a trace, and print its transfers then and now."""
    began = time.monotonic()
    trace = ml.Trace.read(folder)
    options: dict[str, Any] = {"buffers": "symmetric"} if is_gpu else {}
    has_gaps = folder.name in ("tp", PLANTED)
    replayed = ml.benchmark.replay(engines, trace, gaps=has_gaps, budget_s=4, progress=False, **options)
    columns = ["collective", "size_bytes", "calls", "then_us", "now_us", "ratio", "then_total_us", "now_total_us"]
    frame = replayed.frame()[[*columns, "exposed_share", "is_slow", "n_wrong"]]
    print(f"\n== {folder.name}: {time.monotonic() - began:.1f} s", replayed, sep="\n")
    print(frame.to_string(index=False, float_format="%.2f"))
    print(replayed.options().drop(columns="where").to_string(index=False, float_format="%.2f"))
    by_axis = replayed.by_axis()
    print(by_axis[["axis", "side", "transfer_us", "ratio", "wait_us", "exposed_us"]].to_string(index=False))
    # The spans of calls that follow one another, next to the duration of all of them.
    spans_us = float(replayed.by_axis().query("side == 'default'")["transfer_us"].sum())
    print(f"sum of transfers {spans_us:,.1f} µs, duration {replayed.options()['calls_us'].iloc[0]:,.1f} µs", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the traces that are recorded")
    parser.add_argument("--traces", type=Path, help="folder with a folder per job, instead of recording them")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    options = parser.parse_args()
    is_gpu = options.backend == "nccl"
    world = torch.cuda.device_count() if is_gpu else 2
    options.out.mkdir(parents=True, exist_ok=True)
    folders = (
        sorted(path for path in options.traces.iterdir() if path.is_dir())
        if options.traces
        else record_all(options.out, options.backend, world)
    )
    with ml.launch(world, backend=options.backend) as engines:
        print(engines.where, "torch", torch.__version__, "NCCL of torch", torch.cuda.nccl.version() if is_gpu else "")
        for folder in folders:
            report(engines, folder, is_gpu)


if __name__ == "__main__":
    main()
