"""Batches: invalid ones are rejected before any call starts, and the calls of a batch run together."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import CommunicatorError
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._threads import ThreadWorld
from tests.examples import examples


@pytest.fixture
def comm() -> Communicator:
    return Communicator(ThreadWorld(1).backend(0), name="tp_0")


def ring_both_ways(comm: Any) -> list[list[float]]:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine = np.array([float(comm.rank)])
    with comm.batch() as batch:
        batch.send(mine, dest=right)
        batch.send(10 * mine, dest=left)
        from_left = batch.recv(np.empty(1), source=left)
        from_right = batch.recv(np.empty(1), source=right)
        total = batch.all_reduce(mine)
    return [from_left.tolist(), from_right.tolist(), total.tolist()]


def test_a_batch_may_mix_messages_and_collectives(engines: ml.Engines) -> None:
    assert engines.run(ring_both_ways)["value"].tolist() == [
        [[(rank - 1) % 4], [10 * ((rank + 1) % 4)], [6]] for rank in range(4)
    ]


def in_order(comm: Any) -> list[float]:
    if comm.rank == 0:
        with comm.batch() as batch:
            for number in (1.0, 2.0, 3.0):
                batch.send(np.array([number]), dest=3)
        return []
    outs = []
    with comm.batch() as batch:
        if comm.rank == 3:
            outs = [batch.recv(np.empty(1), source=0) for _ in range(3)]
    return [out.item() for out in outs]


def test_messages_match_in_order_and_a_rank_may_have_none(engines: ml.Engines) -> None:
    assert engines.run(in_order)["value"].tolist() == [[], [], [], [1.0, 2.0, 3.0]]


def prepared_many_times(comm: Any) -> list[float]:
    x, total = np.ones(1), np.empty(1)
    batch = comm.batch()
    batch.send_recv(x, y := np.empty(1), dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    batch.all_reduce(x, total, op="avg")
    call = batch.prepare()
    seen = []
    for number in range(3):
        x[:] = comm.rank * number
        call()
        seen += [y.item(), total.item()]
    return seen


def test_a_prepared_batch_runs_repeatedly(engines: ml.Engines) -> None:
    values = engines.run(prepared_many_times)["value"].tolist()
    assert values == [[0, 0, (rank - 1) % 4, 1.5, 2 * ((rank - 1) % 4), 3.0] for rank in range(4)]


def test_a_block_that_raises_issues_no_call(comm: Communicator) -> None:
    out = np.zeros(3)

    def body() -> None:
        with comm.batch() as batch:
            batch.all_reduce(np.ones(3), out)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert out.tolist() == [0, 0, 0]


def test_a_block_with_an_invalid_call_issues_no_call(comm: Communicator) -> None:
    out = np.zeros(3)

    def body() -> None:
        with comm.batch() as batch:
            batch.all_reduce(np.ones(3), out)
            batch.broadcast(np.ones(3), root=7)

    with pytest.raises(CommunicatorError, match="root must be a rank of the group, 0 to 0, not 7"):
        body()
    assert out.tolist() == [0, 0, 0]


def test_no_rank_stops_half_way_if_the_block_raises_on_one(thread_engines: ml.Engines) -> None:
    outs = [np.zeros(1) for _ in range(4)]

    def half(comm: Any) -> None:
        with comm.batch() as batch:
            batch.all_reduce(np.ones(1), outs[comm.rank])
            if comm.rank == 2:
                raise ValueError("not today")
            batch.barrier()

    with pytest.raises(ml.errors.EngineError, match=r"rank 2 raised ValueError: not today .* still waited for it"):
        thread_engines.run(half)
    assert [out.item() for out in outs] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (
            lambda b, x: (b.all_reduce(x, x), b.all_gather(x)),
            "its buffer overlaps a buffer of all_.* in the same batch, and one of them is written; calls",
        ),
        (
            lambda b, x: (b.all_gather(x), b.all_reduce(np.ones(2), x[2:4])),
            "its buffer overlaps a buffer of all_gather",
        ),
        (
            lambda b, x: (b.recv(x[:3], 0), b.recv(x[2:], 0), b.send(np.ones(3), 0)),
            "its buffer overlaps a buffer of recv",
        ),
        (
            lambda b, x: b.send(x, 0),
            r"sends 1 message\(s\) to itself, but posts 0 receive\(s\) from itself, which would deadlock; put",
        ),
        (
            lambda b, x: (b.send(x, 0), b.recv(np.empty(2), 0)),
            "this rank sends 4 elements of float64 to itself, but receives 2 of float64",
        ),
        (
            lambda b, x: (b.send(x, 0), b.recv(np.empty(4, "int64"), 0)),
            "sends 4 elements of float64 to itself, but receives 4 of int64",
        ),
        (lambda b, x: None, "the batch on tp_0 is empty; add calls to it"),
    ],
)
def test_calls_that_conflict_in_one_batch_are_rejected(comm: Communicator, fill: Any, message: str) -> None:
    batch = comm.batch()
    fill(batch, np.ones(4))
    with pytest.raises(CommunicatorError, match=message):
        batch.prepare()


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4), st.booleans()), min_size=2, max_size=7))
@settings(deadline=None, max_examples=examples(200))
def test_exactly_the_overlaps_with_a_written_buffer_are_rejected(spans: list[tuple[int, int, bool]]) -> None:
    buffer = np.zeros(12)
    batch = Communicator(ThreadWorld(1).backend(0)).batch()
    for start, length, is_written in spans:
        part = buffer[start : start + length]
        if is_written:
            batch.all_reduce(np.empty(length), part)
        else:
            batch.all_reduce(part)
    clash = any(
        (first[2] or second[2]) and max(first[0], second[0]) < min(first[0] + first[1], second[0] + second[1])
        for number, first in enumerate(spans)
        for second in spans[:number]
    )
    if clash:
        with pytest.raises(CommunicatorError, match="overlaps"):
            batch.prepare()
    else:
        batch.prepare()()


def test_calls_may_read_the_same_buffer_and_use_adjacent_ones(comm: Communicator) -> None:
    x = np.arange(4.0)
    with comm.batch() as batch:
        batch.all_reduce(x[:2])
        twice = batch.all_reduce(x[:2], op="pre_mul_sum(2)")
        batch.all_reduce(x[2:], x[2:], op="pre_mul_sum(10)")
    assert twice.tolist() == [0, 2]
    assert x.tolist() == [0, 1, 20, 30]


def test_a_batch_runs_once(comm: Communicator) -> None:
    with comm.batch() as batch:
        batch.barrier()
    with pytest.raises(CommunicatorError, match=re.escape("this batch has already run; start a new one with batch()")):
        batch.barrier()
    assert repr(batch) == "<batch on tp_0: barrier count=0, done>"
    assert len(batch) == 1


def test_a_batch_requires_recv_counts(comm: Communicator) -> None:
    with pytest.raises(CommunicatorError, match="recv_counts= is required"):
        comm.batch().all_to_all_v(np.ones(1), send_counts=[1])
