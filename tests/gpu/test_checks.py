"""Unequal calls on real GPUs: NCCL itself finishes without an error, and with wrong sums."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

import meshlab as ml
from meshlab.base._errors import EngineError
from tests.gpu.launching import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def two_ranks(n_ranks: int) -> Iterator[ml.Engines]:
    with launch(2) as engines:
        yield engines


def add_up(comm: Any) -> float:
    return float(comm.all_reduce(comm.xp.ones(4, "float32"))[0])


def works(engines: ml.Engines) -> bool:
    return engines.run(add_up)["value"].tolist() == [2.0, 2.0]


def unequal_sizes(comm: Any) -> float:
    return float(comm.all_reduce(comm.xp.ones(1 << 20 if comm.rank else (1 << 20) + 1024, "float32")).sum())


def opposite_order(comm: Any) -> float:
    x = comm.xp.ones(1 << 10, "float32")
    calls = [lambda: comm.all_reduce(x), lambda: comm.all_gather(x)]
    return sum(float(call().sum()) for call in (calls if comm.rank else calls[::-1]))


def unequal_prepared(comm: Any) -> None:
    x = comm.xp.ones(512 * (1 + comm.rank), "float32")
    comm.prepare("all_reduce", x, x).measure("graph", 20, 3)


def unequal_counts(comm: Any) -> None:
    xp = comm.xp
    comm.all_to_all_v(xp.ones(3), xp.ones(3), send_counts=[1, 2], recv_counts=[1, 2])


def unequal_splits(comm: Any) -> None:
    comm.split(0) if comm.rank else comm.barrier()


@pytest.mark.parametrize(
    ("function", "messages"),
    [
        (
            unequal_sizes,
            ["rank 0 of the group calls all_reduce count=1049600 dtype=float32 op=sum, but rank 1 calls"],
        ),
        (
            opposite_order,
            ["rank 0 of the group calls all_gather count=1024 dtype=float32, but rank 1 calls all_r"],
        ),
        (unequal_prepared, ["all_reduce count=512 dtype=float32 op=sum, but rank 1 calls all_reduce count=1024 "]),
        (unequal_counts, ["sends 2 elements to rank 1, which expects", "sends 1 elements to rank 0, which expects"]),
        (unequal_splits, ["rank 0 of the group calls barrier, but rank 1 calls split"]),
    ],
)
def test_unequal_calls_raise_on_both_ranks_and_the_engines_go_on(
    gpu_engines: ml.Engines, function: Any, messages: list[str]
) -> None:
    if gpu_engines.world_size != 2:
        pytest.skip("written for two ranks")
    began = time.monotonic()
    errors = gpu_engines.run(function, check=False, deadline_s=20)["error"]
    assert time.monotonic() - began < 10
    assert errors.str.contains("ranks disagree: ").all(), errors.tolist()
    assert all(any(message in error for message in messages) for error in errors), errors.tolist()
    assert works(gpu_engines)


def known_in_opposite_order(comm: Any) -> None:
    x = comm.xp.ones(1 << 10, "float32")
    calls = [lambda: comm.all_reduce(x), lambda: comm.all_reduce(x, op="max")]
    for call in (*calls, *(calls if comm.rank else calls[::-1])):
        call()


def one_call_more(comm: Any) -> None:
    x = comm.xp.ones(1 << 10, "float32")
    for _ in range(3 + comm.rank):
        comm.all_reduce(x, x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (known_in_opposite_order, r"as call 3 of world, rank 0 called .* op=max, but rank 1 called .* op=sum"),
        (one_call_more, r"as call 4 of world, rank 0 called nothing, but rank 1 called all_reduce count=1024"),
    ],
)
def test_known_calls_that_differ_raise_when_the_function_has_returned(
    two_ranks: ml.Engines, function: Any, message: str
) -> None:
    began = time.monotonic()
    with pytest.raises(EngineError, match=message):
        two_ranks.run(function)
    assert time.monotonic() - began < 20
    pids = [info.pid for info in two_ranks.ranks]
    two_ranks.restart()
    assert works(two_ranks)
    assert [info.pid for info in two_ranks.ranks] == pids


def test_all_checks_find_known_calls_before_they_start(n_ranks: int) -> None:
    with launch(2, checks="all") as engines:
        errors = engines.run(known_in_opposite_order, check=False)["error"]
        assert errors.str.contains("op=max, but rank 1 calls all_reduce count=1024 dtype=float32 op=sum").all()
        assert works(engines)


def one_returns_early(comm: Any) -> None:
    if comm.rank:
        add_up(comm)


def test_a_rank_that_never_calls_is_named_at_the_deadline(two_ranks: ml.Engines) -> None:
    with pytest.raises(EngineError, match=r"rank 0 entered 0 of its group's 1 collective call within 3"):
        two_ranks.run(one_returns_early, deadline_s=3)
    two_ranks.restart()
    assert works(two_ranks)


def captured(comm: Any) -> list[float]:
    """Capture calls that run for the first time, after calls in other streams."""
    xp, stream = comm.xp, comm.backend.stream
    comm.all_reduce(xp.ones(778, "float32"))  # NCCL connects the ranks, which it cannot do during a capture
    x = xp.full(777, comm.rank + 1.0, "float32")
    call = comm.prepare("all_reduce", x, x)
    stream.synchronize()
    xp.cuda.Stream.null.synchronize()
    stream.begin_capture()
    call.enqueue()  # its comparison is on the host, and not captured
    graph = stream.end_capture()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    found = [float(x[0])]
    del graph

    user = xp.cuda.Stream(non_blocking=True)
    with user:
        y = xp.full(777, comm.rank + 1.0, "float32")
        out = xp.empty_like(y)
        comm.all_reduce(y, out)
        user.synchronize()
        user.begin_capture()
        y += 1
        comm.all_reduce(y, out)
        graph = user.end_capture()
        for _ in range(2):
            graph.launch(user)
        user.synchronize()
        found.append(float(out[0]))
        del graph
    return [*found, add_up(comm)]


def test_calls_can_be_captured_in_either_stream(gpu_engines: ml.Engines) -> None:
    n = gpu_engines.world_size
    first = sum(range(1, n + 1))
    expected = [float(first * n * n), float(first + 2 * n), float(n)]
    assert gpu_engines.run(captured)["value"].tolist() == [expected] * n


def in_several_streams(comm: Any) -> int:
    """Use two communicators in changing streams, eagerly and enqueued. Return the number of wrong results."""
    xp, wrong = comm.xp, 0
    streams = [xp.cuda.Stream.null, xp.cuda.Stream(non_blocking=True), comm.backend.stream]
    with comm.split(0) as other:
        for number in range(300):
            with streams[number % 3]:
                x = xp.full(1 << 18, number + comm.rank, "float32")
                y = (comm if number % 2 else other).all_reduce(x)
                z = xp.empty_like(y)
                call = other.prepare("all_reduce", y, z)
                call()
                wrong += int((z != comm.size * sum(number + rank for rank in range(comm.size))).sum())
            if number % 7 == 0:
                call.enqueue()
        # A stream that is freed after a call, whose handle CUDA may use again.
        for number in range(50):
            with xp.cuda.Stream(non_blocking=True) as stream:
                x = xp.full(1 << 16, number, "float32")
                total = comm.all_reduce(x)
                wrong += int((total != number * comm.size).sum())
                stream.synchronize()
    return wrong


def test_calls_of_all_streams_are_ordered(gpu_engines: ml.Engines) -> None:
    assert set(gpu_engines.run(in_several_streams)["value"]) == {0}


def test_a_rank_without_its_gpu_is_named_before_the_others_time_out(n_ranks: int) -> None:
    started_s = time.monotonic()
    with pytest.raises(EngineError, match=r"could not open its communicator: .*not 99"):
        launch(2, devices=[0, 99], timeout_s=60)
    assert time.monotonic() - started_s < 50
