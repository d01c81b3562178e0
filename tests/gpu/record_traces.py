"""Record DDP, FSDP2 and tensor-parallel steps with PyTorch's profiler, with a planted delay, and read them again.

    python tests/gpu/record_traces.py --out FOLDER

Before step 2 of 4, the host of rank 1 sleeps for 5 ms after its GPU is idle. Each job is read by meshlab, which prints
its time by axis and its delays. The files stay in the folder, compressed. ``--backend gloo`` needs no GPU.
"""

from __future__ import annotations

import argparse
import gzip
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import meshlab as ml

JOBS = ("ddp", "fsdp", "tp")
STEPS, WARMUP = 4, 3
LATE_RANK, LATE_STEP = 1, 2
LAYERS = 4


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def model_of(job: str, device: torch.device, width: int, world: int) -> nn.Module:
    """Return layers that are distributed as the job asks."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    layers = [nn.Linear(width, width, device=device, dtype=dtype) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    if job == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=width * width * dtype.itemsize / (1 << 20))
    name = "dp" if job == "fsdp" else "tp"
    mesh = init_device_mesh(device.type, (world,), mesh_dim_names=(name,))
    if job == "fsdp":
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    plan = {str(number): RowwiseParallel() if number % 2 else ColwiseParallel() for number in range(LAYERS)}
    return parallelize_module(model, mesh[name], plan)


def step(model: nn.Module, inputs: torch.Tensor, wait: Callable[[], Any]) -> None:
    model(inputs).float().sum().backward()
    wait()


def record(rank: int, world: int, backend: str, port: int, delay_s: float, folder: str) -> None:
    """Run all jobs on one rank, and export a trace of each."""
    is_gpu = backend == "nccl"
    device = torch.device("cuda", rank) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    distributed.init_process_group(backend, rank=rank, world_size=world, device_id=device if is_gpu else None)
    width, batch = (4096, 2048) if is_gpu else (256, 16)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    wait: Callable[[], Any] = torch.cuda.synchronize if is_gpu else lambda: None
    for job in JOBS:
        model = model_of(job, device, width, world)
        inputs = torch.randn(batch, width, device=device, dtype=next(model.parameters()).dtype)
        for _ in range(WARMUP):
            step(model, inputs, wait)
        distributed.barrier()
        with profile(activities=activities, record_shapes=True) as profiler:
            for number in range(STEPS):
                with torch.profiler.record_function(f"ProfilerStep#{number}"):
                    if (rank, number) == (LATE_RANK, LATE_STEP):
                        time.sleep(delay_s)
                    step(model, inputs, wait)
        path = Path(folder) / job / f"rank{rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        distributed.barrier()
    distributed.destroy_process_group()


def report(folder: Path, delay_s: float) -> None:
    """Print what meshlab reads."""
    for job in JOBS:
        trace = ml.Trace.read(folder / job)
        table = trace.by_axis(steps=False).round(1)
        delays = trace.delays()
        hits = delays[delays["rank"].eq(LATE_RANK) & delays["step"].eq(LATE_STEP)]
        late = (
            f"{hits['idle_us'].max():,.0f} µs idle, {hits['lateness_us'].max():,.0f} µs late" if len(hits) else "none"
        )
        print(f"== {job}: {trace}", f"planted {delay_s * 1e6:,.0f} µs, found {late}; {len(delays)} delays", sep="\n")
        print(table.to_string(index=False), delays.head(5).round(1).to_string(index=False), sep="\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--delay-ms", type=float, default=5.0)
    options = parser.parse_args()
    world = torch.cuda.device_count() if options.backend == "nccl" else 2
    delay_s = options.delay_ms / 1e3
    arguments = (world, options.backend, free_port(), delay_s, str(options.out))
    torch.multiprocessing.spawn(record, arguments, nprocs=world)
    report(options.out, delay_s)


if __name__ == "__main__":
    main()
