"""Wrong calls never reach a library: each is refused with an error that names argument, value and cure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshlab.comm.backend import Capabilities
from meshlab.comm.backends.threads import ThreadBackend, ThreadWorld
from meshlab.comm.communicator import Communicator
from meshlab.comm.elements import pre_mul_sum
from meshlab.errors import CommunicatorError


@pytest.fixture
def comm() -> Communicator:
    return Communicator(ThreadWorld(1).backend(0), name="tp_0", ranks=[5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.all_reduce([1, 2]),
            r"all_reduce on tp_0: the input must be a numpy array, not list; numpy.asarray",
        ),
        (
            lambda c: c.all_reduce(np.ones((4, 4))[:, ::2]),
            r"not contiguous \(shape \(4, 2\), strides \(32, 16\)\); copy it",
        ),
        (
            lambda c: c.all_reduce(np.ones(2), np.ones(3)),
            r"out has 3 elements, but the input with 2 on 1 ranks needs 2",
        ),
        (lambda c: c.all_reduce(np.ones(2), np.ones(2, "float32")), r"out is float32, but the input is float64"),
        (
            lambda c: c.all_reduce(np.ones(2, "complex64")),
            r"there is no dtype .*; there are float32, float64, float16, int8",
        ),
        (lambda c: c.all_reduce(np.ones(2), op="xor"), r"there is no reduce operation 'xor'; there are sum, prod"),
        (
            lambda c: c.broadcast(np.ones(2), root=1),
            r"root 1 does not exist; give a rank of the group, 0 to 0 in tp_0",
        ),
        (lambda c: c.broadcast(np.ones(2), root="a"), r"the root must be a whole number, not 'a'"),
        (lambda c: c.prepare("all_to_everyone"), r"there is no collective 'all_to_everyone'; there are all_reduce"),
        (lambda c: c.prepare("all_reduce", np.ones(2)), r"prepare\(\) needs out="),
        (
            lambda c: c.prepare("all_gather", np.ones(2), np.ones(2), op="sum"),
            r"it reduces nothing, so op='sum' has no",
        ),
        (
            lambda c: c.prepare("all_reduce", np.ones(2), np.ones(2), root=0),
            r"it has no root, so root=0 has no meaning",
        ),
        (lambda c: c.all_reduce(np.ones(2, ">f8")), r"there is no dtype dtype\('>f8'\)"),
        (lambda c: c.all_reduce(np.ones(2), op="pre_mul_sum"), r"pre_mul_sum needs its scalar"),
        (lambda c: c.all_reduce(np.ones(2, int), op="pre_mul_sum(0.5)"), r"pre_mul_sum\(0.5\) does not work on int64"),
        (
            lambda c: c.all_reduce(np.ones(2, "uint8"), dtype="float8_e5m2"),
            r"all_reduce on tp_0: threads does not reduce float8_e5m2; it does bfloat16, float16",
        ),
        (
            lambda c: c.all_gather(np.ones(2, "float32"), dtype="float64"),
            r"dtype=float64 can be carried by arrays of float64 or uint64, not float32",
        ),
        (lambda c: c.send(np.ones(2), 1), r"send on tp_0: dest 1 does not exist; give a rank of the group, 0 to 0"),
        (lambda c: c.send(np.ones(2), None), r"it needs dest=, a rank of the group, 0 to 0 in tp_0"),
        (lambda c: c.send(np.ones(2), 0), r"this rank sends itself 1 message\(s\), and receives 0 from itself"),
        (lambda c: c.recv(np.ones(2), 0), r"this rank sends itself 0 message\(s\), and receives 1 from itself"),
        (lambda c: c.recv([2], 0), r"out must be a numpy array, not list"),
        (lambda c: c.recv(None, 0), r"it needs out="),
        (lambda c: c.prepare("recv", np.ones(2), np.ones(2), source=0), r"it sends nothing"),
        (lambda c: c.prepare("send", np.ones(2), np.ones(2), dest=0), r"it receives nothing"),
        (lambda c: c.prepare("barrier", np.ones(2)), r"it sends nothing"),
        (lambda c: c.prepare("barrier", op="sum"), r"it reduces nothing"),
        (
            lambda c: c.prepare("send", np.ones(2), dest=0, source=0),
            r"send on tp_0: it has no source, so source=0 has no meaning; leave it out",
        ),
        (lambda c: c.prepare("barrier", dest=0), r"barrier on tp_0: it has no dest, so dest=0 has no meaning"),
        (
            lambda c: c.all_to_all_v(np.ones((2, 3)), send_counts=[2]),
            r"send_counts add up to 2, but the input has 6 elements \(shape \(2, 3\): counts are elements, not rows\)",
        ),
        (
            lambda c: c.all_to_all_v(np.ones(2), np.ones(3), send_counts=[2], recv_counts=[2]),
            r"recv_counts add up to 2, but out has 3 elements",
        ),
        (
            lambda c: c.all_to_all_v(np.ones(2), send_counts=[1, 1]),
            r"send_counts must be 1 whole numbers, one for each rank of tp_0, not \[1, 1\]",
        ),
        (lambda c: c.all_to_all_v(np.ones(2), send_counts=[-2]), r"send_counts must be 1 whole numbers"),
        (lambda c: c.all_to_all_v(np.ones(2), send_counts=[2.0]), r"send_counts must be 1 whole numbers"),
        (lambda c: c.prepare("all_to_all_v", np.ones(2), np.ones(2), send_counts=[2]), r"it needs recv_counts"),
        (
            lambda c: c.prepare("all_to_all", np.ones(2), np.ones(2), send_counts=[2]),
            r"all parts have the same size; leave send_counts and recv_counts out",
        ),
        (lambda c: c.split(-1), r"split of tp_0: color must be a whole number, not -1"),
        (lambda c: c.split(0, key="a"), r"split of tp_0: key must be a whole number, not 'a'"),
    ],
)
def test_a_wrong_call_is_refused(comm: Communicator, call: Any, message: str) -> None:
    with pytest.raises(CommunicatorError, match=message):
        call(comm)


def test_a_read_only_output_is_refused(comm: Communicator) -> None:
    out = np.ones(2)
    out.flags.writeable = False
    with pytest.raises(CommunicatorError, match="out is read-only"):
        comm.all_reduce(np.ones(2), out)


@pytest.mark.parametrize("call", ["all_to_all", "send_recv", "all_to_all_v"])
def test_what_cannot_work_in_place_is_refused(comm: Communicator, call: str) -> None:
    x = np.ones(4)
    arguments = {"send_recv": {"dest": 0, "source": 0}, "all_to_all_v": {"send_counts": [4], "recv_counts": [4]}}
    with pytest.raises(CommunicatorError, match="the input and out overlap, and it cannot work in place"):
        getattr(comm, call)(x, x, **arguments.get(call, {}))


def test_sizes_that_do_not_divide_are_refused(thread_engines: Any) -> None:
    messages = {
        "reduce_scatter": "first dimension is 6, which does not divide by the 4 ranks of world; pad it, or give out=",
        "scatter": "first dimension is 6, which does not divide by the 4 ranks",
        "all_to_all": "the input has 6 elements, which do not divide by the 4 ranks of world",
    }
    for name, message in messages.items():
        errors = thread_engines.run(lambda c, name=name: getattr(c, name)(np.ones(6)))["error"]
        assert errors.str.contains(message, regex=False).all()


def test_a_rank_that_cannot_know_what_it_gets_is_told(thread_engines: Any) -> None:
    errors = thread_engines.run(lambda c: c.scatter() if c.rank == 1 else None)["error"]
    assert "this rank needs out=, or an input of the root's shape" in errors[1]


def test_a_small_type_can_be_carried_by_bytes_of_its_size() -> None:
    comm = Communicator(ThreadWorld(1).backend(0))
    values = np.array([1.5, -2.0], "float16")
    carried = comm.all_reduce(values.view("uint16"), op=pre_mul_sum(2), dtype="float16")
    assert carried.dtype == np.uint16
    assert carried.view("float16").tolist() == [3.0, -4.0]


def test_buffers_that_overlap_in_part_are_refused(comm: Communicator) -> None:
    whole = np.ones(10)
    with pytest.raises(CommunicatorError, match="overlap, but not at the place that in-place calls have"):
        comm.all_reduce(whole[:5], whole[2:7])


def test_interleaved_views_do_not_count_as_overlapping(comm: Communicator) -> None:
    whole = np.ones((2, 4))
    assert comm.all_reduce(whole[0], whole[1]).tolist() == [1, 1, 1, 1]


def test_the_error_carries_collective_group_and_rank(comm: Communicator) -> None:
    with pytest.raises(CommunicatorError) as caught:
        comm.broadcast(np.ones(2), root=9)
    assert (caught.value.collective, caught.value.group, caught.value.rank) == ("broadcast", "tp_0", 5)


def test_a_closed_communicator_says_so(comm: Communicator) -> None:
    prepared = comm.prepare("all_reduce", np.ones(1), np.ones(1))
    batch = comm.batch()
    batch.all_reduce(np.ones(1))
    with comm:
        pass
    comm.close()
    for use in (
        lambda: comm.all_reduce(np.ones(1)),
        lambda: comm.prepare("barrier"),
        lambda: comm.split(0),
        comm.barrier,
        comm.batch,
        prepared,
        batch.prepare,
    ):
        with pytest.raises(CommunicatorError, match="the communicator of tp_0 is closed; make a new one"):
            use()
    assert repr(comm) == "Communicator('tp_0', rank 0 of 1, closed)"


def test_a_group_and_a_library_of_different_size_do_not_match() -> None:
    with pytest.raises(CommunicatorError, match="should have 2 ranks, but the library says 1"):
        Communicator(ThreadWorld(1).backend(0), ranks=[0, 1])


def test_every_call_is_counted() -> None:
    counted: list[int] = []
    comm = Communicator(ThreadWorld(1).backend(0), on_enter=lambda: counted.append(1))
    comm.all_reduce(np.ones(1))
    comm.barrier()
    with comm.batch() as batch:
        batch.barrier()
        batch.all_gather(np.ones(1))
    comm.send_recv(np.ones(1), dest=0, source=0)  # concerns two ranks, so it does not say how far the group is
    assert len(counted) == 3


def test_capabilities_say_what_there_is(engines: Any) -> None:
    can = engines.facts[0].capabilities
    assert can.backend == engines.backend
    assert can.library
    assert can.path
    assert "all_reduce" in can.collectives
    assert can.modes == ("isolated", "pipelined")


class Limited(ThreadBackend):
    def capabilities(self) -> Capabilities:
        return replace(
            super().capabilities(),
            backend="limited",
            collectives=("all_reduce", "all_gather", "broadcast"),
            dtypes=("float32", "int8"),
            ops=("sum", "max"),
            reduce_dtypes=("float32",),
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.all_to_all(np.ones(1)), "limited has no all_to_all; it has all_reduce, all_gather, broadcast"),
        (lambda c: c.all_gather(np.ones(1)), "limited does not carry float64; it does float32, int8"),
        (lambda c: c.all_reduce(np.ones(1, "int8")), "limited does not reduce int8; it does float32"),
        (lambda c: c.all_reduce(np.ones(1, "float32"), op="avg"), "limited has no avg; it has sum, max"),
        (lambda c: c.all_reduce(np.ones(1, "float32"), op=pre_mul_sum(2)), "limited has no pre_mul_sum; it has sum"),
    ],
)
def test_what_the_library_lacks_is_refused_and_nothing_is_put_in_its_place(call: Any, message: str) -> None:
    comm = Communicator(Limited(ThreadWorld(1), 0))
    with pytest.raises(CommunicatorError, match=message):
        call(comm)
    assert comm.all_gather(np.ones(1, "int8")).tolist() == [1]
