"""What a communicator adds to the bare library: on one rank, where nothing else is timed, and on two."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._hierarchical import Hierarchical

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[ml.Engines]:
    with ml.launch(2, backend="mpi") as engines:
        yield engines


def best_us(call: Callable[[], object], barrier: Callable[[], object], n: int, rounds: int = 60) -> float:
    """The least time per call over some rounds; every rank of the group makes the same."""
    times = []
    for _ in range(rounds):
        barrier()
        begin = time.perf_counter()
        for _ in range(n):
            call()
        times.append((time.perf_counter() - begin) / n)
    return 1e6 * min(times)


def overheads(comm: Any, alone: bool) -> dict[str, float]:
    """Times of one small all_reduce, made in every way there is."""
    from mpi4py import MPI

    from meshlab.comm.backends._mpi import MpiBackend

    own = Communicator(MpiBackend(MPI.COMM_SELF.Dup())) if alone else comm
    bare = own.backend.comm
    x, y = np.zeros(2, "float32"), np.zeros(2, "float32")
    send, recv = [x, MPI.FLOAT], [y, MPI.FLOAT]
    prepared = own.prepare("all_reduce", x, y)
    n = 500  # short rounds, of which some are not disturbed by other processes
    return {
        "mpi4py": best_us(lambda: bare.Allreduce(send, recv, MPI.SUM), bare.Barrier, n),
        "timed loop": float(prepared.measure("pipelined", n, 15).time_us.min()),
        "prepared": best_us(prepared, bare.Barrier, n),
        "all_reduce(x, y)": best_us(lambda: own.all_reduce(x, y), bare.Barrier, n),
        "all_reduce(x, x)": best_us(lambda: own.all_reduce(x, x), bare.Barrier, n),
        "all_reduce(x)": best_us(lambda: own.all_reduce(x), bare.Barrier, n),
    }


def report(benchmark: Any, title: str, times: dict[str, float]) -> None:
    bare = times.get("mpi4py")
    told = [
        f"{name} {value:.2f} µs" + ("" if bare is None or name == "mpi4py" else f" ({value - bare:+.2f})")
        for name, value in times.items()
    ]
    print(f"\n    {title}: {', '.join(told)}")
    benchmark.extra_info.update(times)


def test_on_one_rank(benchmark: Any, two_ranks: ml.Engines) -> None:
    times = benchmark.pedantic(lambda: two_ranks.run(overheads, arguments=(True,)), rounds=1)["value"].iloc[0]
    report(benchmark, "COMM_SELF", times)


def test_on_two_ranks(benchmark: Any, two_ranks: ml.Engines) -> None:
    """The public call compares the ranks first, in shared memory."""
    times = benchmark.pedantic(lambda: two_ranks.run(overheads, arguments=(False,)), rounds=1)["value"].iloc[0]
    report(benchmark, "two ranks", times)


def stages(comm: Any, size: int) -> dict[str, float]:
    x, y = np.zeros(size // 4, "float32"), np.zeros(size // 4, "float32")
    flat = comm.prepare("all_reduce", x, y)
    with Hierarchical.cut(comm, 2) as levels:
        staged = levels.prepare("all_reduce", x, y)
        calls = max(1, min(200, (1 << 20) // size))
        return {
            "flat": float(flat.measure("pipelined", calls, 7).time_us.min()),
            "two levels": float(staged.measure("pipelined", calls, 7).time_us.min()),
        }


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 1 << 24])
def test_all_reduce_in_stages(benchmark: Any, mpi_engines: ml.Engines, size: int) -> None:
    frame = benchmark.pedantic(lambda: mpi_engines.run(stages, arguments=(size,)), rounds=1)
    report(benchmark, f"{size >> 10} KiB on 2 nodes of 2", frame["value"].iloc[0])


def repeated(comm: Any) -> dict[str, float]:
    x, y = np.zeros(2), np.zeros(2)
    call = comm.prepare("all_reduce", x, y)
    return {
        "prepared": best_us(call, comm.barrier, 100),
        "all_reduce(x, y)": best_us(lambda: comm.all_reduce(x, y), comm.barrier, 100),
    }


def test_public_calls_on_two_threads(benchmark: Any) -> None:
    with ml.launch(2, backend="threads") as engines:
        times = benchmark.pedantic(lambda: engines.run(repeated), rounds=1)["value"].iloc[0]
    report(benchmark, "two threads", times)


@pytest.mark.parametrize("collective", ["all_reduce", "barrier"])
def test_a_call_on_four_threads(benchmark: Any, collective: str) -> None:
    """The reference need not be fast, but tests make many calls of it."""

    def calls(comm: Any) -> None:
        call = comm.prepare(collective, *([np.zeros(2), np.zeros(2)] if collective != "barrier" else []))
        for _ in range(200):
            call()

    with ml.launch(4, backend="threads") as engines:
        benchmark.pedantic(lambda: engines.run(calls), rounds=5, warmup_rounds=1)
