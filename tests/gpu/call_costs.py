"""Time per call of small collectives, for every way to issue one, next to the library alone.

    python tests/gpu/call_costs.py
    python tests/gpu/call_costs.py --backend mpi
    python tests/gpu/call_costs.py --backend gloo

Each rank issues many calls and then synchronises, so GPU calls overlap as in `nccl-tests` without graphs. ``host`` is
the time until the last call is issued, ``total`` the time until it is done. The ways take turns, and the table has the
least and the median time of some rounds, and the slower rank. What a call costs beyond the library does not depend on
the other ranks, so ``--ranks 1`` measures it on one GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd

import meshlab as ml
from tests.gpu.launching import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def ways(comm: Any, size: int) -> dict[str, Callable[[], object]]:
    """Return the ways to issue an all_reduce of a size in bytes, the library alone first."""
    x = comm.xp.zeros(max(size // 4, 1), "float32")
    out = comm.xp.empty_like(x)
    prepared = comm.prepare("all_reduce", x, out)
    found: dict[str, Callable[[], object]] = {}
    if comm.capabilities().backend == "gloo":
        import torch
        from torch import distributed

        # A loop of torch.distributed: one array in place, and one that is copied first. The group is that of meshlab.
        tensor, options = torch.from_numpy(out), distributed.AllreduceOptions()
        group = comm.backend.group

        def in_place() -> None:
            group.allreduce([tensor], options).wait()

        def bare() -> None:
            np.copyto(out, x)
            group.allreduce([tensor], options).wait()

        found["library alone, in place"] = in_place
    elif comm.xp is np:
        from mpi4py import MPI

        bare = partial(comm.backend.comm.Allreduce, [x, MPI.FLOAT], [out, MPI.FLOAT], MPI.SUM)
    else:
        bare = partial(comm.backend.binder.bind(prepared.calls[0]), comm.backend.stream.ptr)
    found |= {
        "library alone": bare,
        "prepared.enqueue()": prepared.enqueue,
        "prepared()": prepared,
        "all_reduce(x, out)": partial(comm.all_reduce, x, out),
        "all_reduce(x, x)": partial(comm.all_reduce, x, x),
        "all_reduce(x)": partial(comm.all_reduce, x),
    }
    if comm.xp is not np:
        # What orders a call with other streams: two functions of CUDA, which no Python code can avoid.
        runtime, event = comm.xp.cuda.runtime, comm.xp.cuda.Event(disable_timing=True)

        def in_order() -> None:
            bare()
            runtime.eventRecord(event.ptr, 0)
            runtime.streamWaitEvent(comm.backend.stream.ptr, event.ptr)

        found["library alone, and an event for the communication stream"] = in_order

        def with_output() -> None:
            comm.xp.empty(x.shape, x.dtype)
            bare()

        found["library alone, and a new array"] = with_output
        stream = comm.xp.cuda.Stream(non_blocking=True)

        def in_streams(call: Callable[[], object], streams: list[Any]) -> None:
            for one in streams:
                with one:
                    call()

        found["prepared() in the communication stream"] = partial(in_streams, prepared, [comm.backend.stream])
        found["two prepared() in alternating streams"] = partial(
            in_streams, prepared, [comm.xp.cuda.Stream.null, stream]
        )
    return found


def costs(comm: Any, size: int, calls: int, rounds: int) -> dict[str, tuple[float, float, float]]:
    """Return the least host and total time and the median total time per call, in µs, for every way to issue a call."""
    wait = (lambda: None) if comm.xp is np else comm.xp.cuda.Device(comm.backend.device).synchronize
    found = ways(comm, size)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, call in found.items():
            for _ in range(20):
                call()
            wait()
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            issued = time.perf_counter()
            wait()
            times[name].append((issued - begin, time.perf_counter() - begin))
    scale = 1e6 / calls
    return {
        name: (*(float(one) for one in np.min(rows, axis=0) * scale), float(np.median(rows, axis=0)[1] * scale))
        for name, rows in times.items()
    }


def comparison_us(comm: Any, n: int) -> float:
    """Return the time that a comparison of the ranks adds to the first call of a kind, in µs."""
    arrays = [comm.xp.zeros(1 + number, "float32") for number in range(2 * n)]
    calls = [comm.prepare("all_reduce", x, x) for x in arrays]
    again = [comm.prepare("all_reduce", x, x) for x in arrays]
    comm.all_reduce(comm.xp.zeros(4 * n, "float32"))
    times = []
    for group in (calls, again):
        comm.barrier()
        begin = time.perf_counter()
        for call in group:
            call()
        times.append(time.perf_counter() - begin)
    return (times[0] - times[1]) / len(calls) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["nccl", "mpi", "gloo"], default="nccl")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 4096], help="bytes")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--checks", nargs="*", default=["first", "all", "off"])
    options = parser.parse_args()
    rows = []
    for checks in options.checks:
        start = launch if options.backend == "nccl" else partial(ml.launch, backend=options.backend)
        with start(options.ranks, checks=checks) as engines:
            print(f"{engines.where}, checks={checks!r}")
            for size in options.sizes:
                of_ranks = engines.run(costs, arguments=(size, options.calls, options.rounds), deadline_s=300)["value"]
                for name in of_ranks[0]:
                    host, total, median = np.max([times[name] for times in of_ranks], axis=0)
                    rows.append((checks, size, name, host, total, median))
            compared = engines.run(comparison_us, arguments=(200,), deadline_s=300)["value"]
            print(f"first call of a kind: {max(compared):+.1f} µs")
    table = pd.DataFrame(rows, columns=["checks", "size_bytes", "call", "host_us", "total_us", "median_us"])
    alone = table[table["call"] == "library alone"].set_index(["checks", "size_bytes"])["total_us"]
    table["over_us"] = table["total_us"] - alone.loc[list(zip(table["checks"], table["size_bytes"], strict=True))].array
    print(table.round(2).to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
