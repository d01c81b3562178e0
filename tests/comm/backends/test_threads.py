"""Checks that only the reference backend performs: mismatched calls and deadlocks raise an error."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import CommunicatorError, EngineError
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._threads import ThreadWorld


def one(rank: int, of_even: Any, of_odd: Any) -> Any:
    return of_odd if rank % 2 else of_even


@pytest.mark.usefixtures("patient_rounds")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda c: c.all_reduce(np.ones(1 + c.rank % 2)), ["count=1", "count=2"]),
        (lambda c: c.all_reduce(np.ones(1, one(c.rank, "float32", "float64"))), ["dtype=float32", "dtype=float64"]),
        (lambda c: c.all_reduce(np.ones(1), op=one(c.rank, "sum", "max")), ["op=sum", "op=max"]),
        (lambda c: c.broadcast(np.ones(1), root=c.rank % 2), ["root=0", "root=1"]),
        (lambda c: c.reduce(np.ones(1), root=c.rank % 2), ["root=0", "root=1"]),
        (lambda c: c.gather(np.ones(1 + c.rank % 2)), ["count=1", "count=2"]),
        (lambda c: c.scatter(np.ones(4), np.ones(1), root=c.rank % 2), ["root=0", "root=1"]),
        (lambda c: c.all_to_all(np.ones(4 * (1 + c.rank % 2))), ["count=1", "count=2"]),
        (
            lambda c: c.all_to_all_v(
                np.ones(4), np.ones(4), send_counts=[1] * 4, recv_counts=[[1] * 4, [2, 0, 1, 1]][c.rank % 2]
            ),
            ["rank 0 of the group sends 1 elements to rank 1, which expects 2"],
        ),
        (lambda c: c.barrier() if c.rank else c.all_reduce(np.ones(1)), ["calls all_reduce", "calls barrier"]),
        (lambda c: c.barrier() if c.rank else c.split(0), ["calls split", "calls barrier"]),
    ],
)
def test_mismatched_calls_raise_on_every_rank(thread_engines: ml.Engines, function: Any, message: list[str]) -> None:
    frame = thread_engines.run(function, check=False)
    assert frame["error"].notna().all()
    assert frame["error"].str.contains("ranks disagree").all()
    assert all(word in frame["error"][0] for word in message), frame["error"][0]


@pytest.mark.usefixtures("patient_rounds")
def test_batches_that_differ_raise_on_every_rank(thread_engines: ml.Engines) -> None:
    def without_the_last(comm: Any) -> None:
        with comm.batch() as batch:
            batch.all_reduce(np.ones(2))
            if comm.rank:
                batch.broadcast(np.ones(2))

    errors = thread_engines.run(without_the_last, deadline_s=60, check=False)["error"]
    assert errors.str.contains(
        r"ranks disagree: rank 0 of the group calls all_reduce count=2 dtype=float64 op=sum, but "
        r"rank \d calls all_reduce count=2 dtype=float64 op=sum, broadcast count=2"
    ).all(), errors.tolist()


def to_the_right(comm: Any, **other: Any) -> Any:
    arguments = {"dest": (comm.rank + 1) % 4, "source": (comm.rank - 1) % 4} | other
    return comm.send_recv(np.ones(2), **arguments)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda c: (c.send(np.ones(2), c.rank ^ 1), c.recv(np.ones(2), c.rank ^ 1)),
            r"deadlock: rank 0 sends to rank 1 \(count=2 dtype=float64\), rank 1 sends to rank 0 .*; post both sides",
        ),
        (lambda c: c.recv(np.ones(2), (c.rank + 1) % 4), "rank 0 receives from rank 1 .* rank 3 receives from rank 0"),
        (lambda c: to_the_right(c, source=(c.rank + 1) % 4), "deadlock: rank . sends to rank "),
        (lambda c: to_the_right(c, dest=(c.rank + 2) % 4), "deadlock: rank . sends to rank "),
        (
            lambda c: c.recv(np.ones(1), 0) if c.rank else c.barrier(),
            "rank 0 calls barrier, rank . receives from rank 0",
        ),
        (
            lambda c: c.send_recv(np.ones(1 + c.rank % 2), dest=c.rank ^ 1, source=c.rank ^ 1),
            r"ranks disagree: rank . sends to rank . \(count=. dtype=float64\), but rank . receives from",
        ),
        (
            lambda c: c.send(np.ones(2), 1) if c.rank == 0 else c.recv(np.ones(2, "int64"), 0) if c.rank == 1 else None,
            r"rank 0 sends to rank 1 \(count=2 dtype=float64\), but rank 1 receives from rank 0 \(.* dtype=int64\)",
        ),
    ],
)
def test_messages_that_never_match_raise(thread_engines: ml.Engines, function: Any, message: str) -> None:
    try:
        text = "\n".join(thread_engines.run(function, deadline_s=60, check=False)["error"].dropna())
    except EngineError as error:  # if ranks outside the cycle wait for one inside
        text = str(error)
    assert re.search(message, text), text


@pytest.mark.usefixtures("patient_rounds")
def test_the_engines_keep_working_after_a_mismatch(thread_engines: ml.Engines) -> None:
    thread_engines.run(lambda c: c.all_reduce(np.ones(1 + c.rank % 2)), check=False)
    thread_engines.run(lambda c: c.recv(np.ones(2), (c.rank + 1) % 4), check=False)
    assert thread_engines.run(lambda c: float(c.all_reduce(np.ones(1))[0]))["value"].tolist() == [4.0] * 4


def test_waiting_for_a_busy_rank_is_not_a_deadlock(thread_engines: ml.Engines) -> None:
    def chain(comm: Any) -> float:
        x = np.zeros(1)
        if comm.rank:
            comm.recv(x, comm.rank - 1)
        else:
            time.sleep(0.2)
        x += 1
        if comm.rank < 3:
            comm.send(x, comm.rank + 1)
        comm.barrier()
        return x.item()

    assert thread_engines.run(chain)["value"].tolist() == [1, 2, 3, 4]


def test_a_rank_that_never_calls_is_named(thread_engines: ml.Engines, deadline_at: Callable[..., None]) -> None:
    deadline_at(1, 1, 0, 1)
    with pytest.raises(EngineError, match="rank 2 entered 0 of its group's 1 collective call within") as caught:
        thread_engines.run(lambda c: time.sleep(20) if c.rank == 2 else c.barrier(), deadline_s=1.0)
    assert caught.value.rank == 2


def test_a_missing_message_is_not_blamed_on_other_ranks(
    thread_engines: ml.Engines, deadline_at: Callable[..., None]
) -> None:
    deadline_at(0, 0, 0, 0, n_inside=1, n_responses=3)
    with pytest.raises(
        EngineError, match=r"no progress within 0.3.s while running <lambda>: rank 1 waits in recv of world;"
    ):
        thread_engines.run(lambda c: c.recv(np.ones(1), 0) if c.rank == 1 else None, deadline_s=0.3)


def test_abort_releases_ranks_that_wait_in_a_group_and_its_children() -> None:
    world = ThreadWorld(2)
    comms = [Communicator(world.backend(rank)) for rank in range(2)]
    errors: list[str] = []
    is_split = threading.Event()  # a split ends with a call in the child, for which the rank also waits

    def wait(comm: Communicator, in_message: bool) -> None:
        child = comm.split(0)
        assert child is not None
        try:
            if comm.rank == 0:
                is_split.set()
                child.recv(np.ones(1), 1) if in_message else child.barrier()
        except CommunicatorError as error:
            errors.append(str(error))

    for in_message in (True, False):
        threads = [threading.Thread(target=wait, args=(comm, in_message)) for comm in comms]
        for thread in threads:
            thread.start()
        threads[1].join(60)
        assert is_split.wait(60)
        while not any(child._waiting for child in world._descendants):  # until the other rank waits
            time.sleep(0.01)
        world.abort()
        threads[0].join(60)
        assert not threads[0].is_alive()
        world.reset()
        is_split.clear()
    assert errors == ["the group was aborted while this rank waited for the others"] * 2


def test_a_group_is_freed_when_its_ranks_drop_it() -> None:
    world = ThreadWorld(1)
    comm = Communicator(world.backend(0))
    for _ in range(10):
        comm.split(0).split(0).close()
    gc.collect()
    assert len(world._descendants) == 0
