"""The memory of a step: registered once, in its place, and within the limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.benchmark.on_ranks._buffers import allocate, block_bytes, plan_buffers, release_buffers
from meshlab.benchmark.on_ranks._sampling import measure_pair, measure_step
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling
from tests.comm.threads_with_windows import with_windows

MIB = 1 << 20
QUICK = Sampling(max_s=0.01, min_batches=6)


def steps(**arguments: Any) -> Any:
    return Plan(**{"collective": "all_reduce", "axis": "tp", "sizes": "64", **arguments}).steps("tp=4")


def registered(log: list[str]) -> list[str]:
    return [entry for entry in log if entry.startswith("register")]


@pytest.mark.parametrize(("kind", "suffix"), [("symmetric", ""), ("registered", " alone")])
def test_memory_is_registered_once_if_its_final_size_is_known(
    thread_engines: ml.Engines, kind: str, suffix: str
) -> None:
    every = steps(sizes="1K:16M*4", buffers=kind)
    largest = max(block_bytes(step) for step in every)

    def measure(comm: Any) -> tuple[list[str], list[int]]:
        group, backend = with_windows(comm)
        plan_buffers(None, {kind: largest}, 1 << 40)  # type: ignore[dict-item]
        wrong = [measure_step(group, step, QUICK, True).n_wrong for step in every]
        release_buffers()
        return registered(backend.log), wrong  # type: ignore[return-value]

    for log, wrong in thread_engines.run(measure)["value"]:
        assert log == [f"register {largest}{suffix}"]
        assert set(wrong) == {0}


def test_memory_of_unknown_size_grows(thread_engines: ml.Engines) -> None:
    small, large = steps(sizes="1K, 8M", buffers="symmetric")

    def measure(comm: Any) -> list[str]:
        group, backend = with_windows(comm)
        for step in (small, large, small):
            allocate([(group, step)])
        release_buffers()
        return registered(backend.log)

    assert thread_engines.run(measure)["value"].tolist() == [[f"register {4 * MIB}", f"register {16 * MIB}"]] * 4


def test_every_communicator_has_its_own_memory(thread_engines: ml.Engines) -> None:
    plain, kept, window = steps(buffers="plain, registered, symmetric")

    def measure(comm: Any) -> tuple[list[str], list[str], bool]:
        (first, log), (second, other) = ((group, backend.log) for group, backend in map(with_windows, [comm, comm]))
        for _ in range(3):
            for step in (plain, kept, window):
                own = allocate([(first, step), (second, step)])
        shares = np.shares_memory(own[0].send, own[1].send)
        release_buffers()
        return registered(log), registered(other), shares

    expected = [f"register {4 * MIB} alone", f"register {4 * MIB}"]
    for log, other, shares in thread_engines.run(measure)["value"]:
        assert (log, other, shares) == (expected, expected, False)


def test_other_memory_is_freed_if_the_limit_would_be_exceeded(thread_engines: ml.Engines) -> None:
    kept, window = steps(buffers="registered, symmetric", sizes="8M")

    def measure(comm: Any, limit: int) -> list[str]:
        group, backend = with_windows(comm)
        plan_buffers(None, {}, limit)
        for step in (kept, window, kept, window):
            allocate([(group, step)])
        release_buffers()
        return registered(backend.log)

    few = thread_engines.run(measure, arguments=(64 * MIB,))["value"].tolist()
    many = thread_engines.run(measure, arguments=(20 * MIB,))["value"].tolist()
    assert [len(log) for log in few] == [2] * 4
    assert [len(log) for log in many] == [4] * 4


def test_ranks_with_different_memory_register_together(thread_engines: ml.Engines) -> None:
    (step,) = steps(buffers="symmetric")

    def measure(comm: Any) -> list[str]:
        group, backend = with_windows(comm)
        allocate([(group, step)])
        if comm.rank == 2:
            release_buffers()
        allocate([(group, step)])
        release_buffers()
        return registered(backend.log)

    assert thread_engines.run(measure)["value"].tolist() == [[f"register {4 * MIB}"] * 2] * 4


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", ["plain", "symmetric"])
def test_buffers_start_at_the_distance_from_an_aligned_address(
    thread_engines: ml.Engines, kind: str, in_place: bool
) -> None:
    def distances(comm: Any, step: Any) -> list[int]:
        group = with_windows(comm)[0] if kind == "symmetric" else comm
        found = [array.ctypes.data % 4096 for buffers in allocate([(group, step)] * 2) for array in buffers]
        release_buffers()
        return found

    for offset in (0, 4, 12):
        (step,) = steps(buffers=kind, alignment_bytes=offset, in_place=in_place)
        found = thread_engines.run(distances, arguments=(step,))["value"].tolist()
        if kind == "plain":
            assert found == [[offset] * 4] * 4
        else:  # numpy aligns the memory of the double, and NCCL that of a window to a page
            assert all((place - offset) % 16 == 0 for places in found for place in places)


def test_aggregated_calls_have_separate_buffers(thread_engines: ml.Engines) -> None:
    (step,) = steps(n_aggregated=3, sizes="1K")

    def measure(comm: Any) -> tuple[bool, Any]:
        sets = allocate([(comm, step)] * 3)
        arrays = [array for buffers in sets for array in buffers]
        shares = any(np.shares_memory(one, other) for place, one in enumerate(arrays) for other in arrays[:place])
        return shares, measure_step(comm, step, QUICK, True)

    for shares, measured in thread_engines.run(measure)["value"]:
        assert not shares
        assert measured.n_wrong == 0
        assert (measured.calls % 3 == 0).all()
    assert step.buffer_bytes == 3 * replace(step, n_aggregated=1).buffer_bytes


def test_a_rank_without_a_partner_registers_memory_too(thread_engines: ml.Engines) -> None:
    pairs = Plan("send_recv", "tp", sizes="64", grouping="pairs", buffers="symmetric").steps("tp=3")

    def measure(comm: Any) -> Any:
        group = comm.split(0 if comm.rank < 3 else None)
        if group is None:
            return []
        group, backend = with_windows(group)
        found = [measure_pair(group, step, QUICK, True) for step in pairs]
        release_buffers()
        return registered(backend.log), sum(one.n_wrong for one in found if one is not None)  # type: ignore[misc]

    for log, wrong in thread_engines.run(measure)["value"].tolist()[:3]:
        assert (len(log), wrong) == (1, 0)
