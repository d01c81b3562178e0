"""Which memory of a GPU does an abort of NCCL lose? With and without meshlab, with and without windows.

    python tests/gpu/abort_memory.py

The first part uses nccl4py alone: each variant opens a communicator, blocks in a call or not, aborts, and is repeated.
The second part does the same through engines, and then collects the garbage of Python.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, NamedTuple

import cloudpickle

import meshlab as ml
from meshlab.base._errors import EngineError
from tests.gpu.launching import launch
from tests.gpu.nccl_ranks import Rank, run_ranks

MIB = 1 << 20


class Variant(NamedTuple):
    """What is registered, whether a call is under way at the abort, and what is done before the abort."""

    windows: bool
    blocked: bool
    child: bool
    before: str  # "", "deregister" or "revoke"


VARIANTS = {
    "idle, no windows": Variant(False, False, False, ""),
    "idle, windows": Variant(True, False, False, ""),
    "blocked, no windows": Variant(False, True, False, ""),
    "blocked, windows": Variant(True, True, False, ""),
    "blocked, windows of a shared child": Variant(True, True, True, ""),
    "blocked, windows, deregistered first": Variant(True, True, False, "deregister"),
    "blocked, windows, revoked and deregistered first": Variant(True, True, False, "revoke"),
}


def abort_with(rank: Rank, argument: Any) -> None:
    name, rounds = argument
    variant = VARIANTS[name]
    lost, stages = [], []
    before, start = 0.0, rank.free_mib()

    def mark(stage: str) -> None:
        rank.meet()
        stages.append(f"{start - rank.free_mib():.0f} {stage}")
        rank.meet()

    for number in range(rounds + 1):
        comm = rank.open(split_share=True)
        mark("open")
        owner = comm.split(0, rank.rank) if variant.child else comm
        arrays = [rank.empty(64 * MIB // 4) for _ in range(3)] if variant.windows else []
        windows = [rank.binding.comm_window_register(owner._comm, a.data.ptr, a.nbytes, 1) for a in arrays]
        plain = rank.cupy.ones(1024, "float32")
        for array in (*arrays, plain):
            rank.all_reduce(array, owner)
        rank.is_done()
        mark("used")
        if variant.blocked and rank.rank == 1:
            rank.all_reduce(arrays[0] if arrays else plain, owner)
        time.sleep(0.3)
        if variant.before == "revoke":
            comm.revoke()
            rank.is_done(3.0)
        if variant.before:
            for window in windows:
                try:
                    rank.binding.comm_window_deregister(owner._comm, window)
                except Exception as error:
                    rank.report(name, f"deregistration: {error}")
        begin = time.monotonic()
        if owner is not comm:
            owner.abort()
        comm.abort()
        took = time.monotonic() - begin
        rank.free(*arrays)
        del plain, arrays
        rank.cupy.get_default_memory_pool().free_all_blocks()
        mark("aborted and freed")
        free = rank.free_mib()
        if number == 0:
            before = free
        else:
            lost.append(round(before - free))
    if rank.rank == 0:
        rank.report(name, f"lost after each abort {lost} MiB; the last abort took {took:.2f} s; {', '.join(stages)}")


def free_mib(comm: Any) -> float:
    comm.to_host(comm.xp.empty(0))
    comm.xp.cuda.Device().synchronize()
    return float(comm.xp.cuda.runtime.memGetInfo()[0]) / MIB


def collect(comm: Any) -> int:
    import gc

    return gc.collect()


def keep(comm: Any) -> None:
    comm.backend.kept_by_test = comm.empty(64 * MIB, "uint8", symmetric=True)


def never_call(comm: Any, has_windows: bool) -> None:
    x = comm.empty(64 * MIB, "uint8", symmetric=has_windows)
    y = comm.empty(64 * MIB, "uint8")
    if comm.world_rank == 0:
        time.sleep(60)
    comm.all_reduce(x, y, op="max")
    comm.to_host(y[:1])


def use_window(comm: Any) -> None:
    x = comm.empty(64 * MIB, "uint8", symmetric=True)
    x[...] = 1
    comm.all_reduce(x, x, op="max")
    comm.to_host(x[:1])


def enter_and_wait(comm: Any) -> None:
    x = comm.xp.ones(1024, "float32")
    if comm.world_rank == 0:
        time.sleep(60)
    comm.to_host(comm.all_reduce(x))


def lose_ranks(engines: ml.Engines, function: Any, *arguments: Any) -> None:
    try:
        engines.run(function, arguments=arguments, deadline_s=2)
    except EngineError:
        engines.restart()


def through_engines(rounds: int, *, has_windows: bool) -> None:
    """Print the memory taken since the start after each stage, of all ranks of the first GPU."""
    with launch(2) as engines:
        engines.run(free_mib)
        before = engines.run(free_mib)["value"].min()

        def taken() -> str:
            engines.run(collect)
            return f"{before - engines.run(free_mib)['value'].min():.0f}"

        parts = []
        lose_ranks(engines, enter_and_wait)
        parts.append(f"{taken()} after an abort without windows")
        if has_windows:
            engines.run(use_window)
            parts.append(f"{taken()} after a call on a window that is closed")
            lose_ranks(engines, enter_and_wait)
            parts.append(f"{taken()} after an abort without open windows")
            engines.run(use_window)
            parts.append(f"{taken()} after a call on a new window that is closed")
        for number in range(rounds):
            if has_windows:
                engines.run(keep)
            lose_ranks(engines, never_call, has_windows)
            parts.append(f"{taken()} after abort {number + 1} {'with windows' if has_windows else ''}".rstrip())
        if has_windows:
            engines.run(use_window)
            parts.append(f"{taken()} after a call on a window that is closed")
        print(f"engines, MiB taken since the start: {', '.join(parts)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    options = parser.parse_args()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for has_windows in (True, False):
        through_engines(options.rounds, has_windows=has_windows)
    for name in options.only or ():
        rows = run_ranks(abort_with, (name, options.rounds), limit_s=25.0)
        print(f"{name}: {'; '.join(dict.fromkeys(text for *_, text in rows)) or 'no answer'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
