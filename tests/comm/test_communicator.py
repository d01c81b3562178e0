"""Invalid calls never reach a library. Each raises an error that names the argument, its value and the fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import Capabilities
from meshlab.comm._communicator import Communicator
from meshlab.comm._elements import pre_mul_sum
from meshlab.comm._streams import Event
from meshlab.comm.backends._hierarchical import Hierarchical
from meshlab.comm.backends._threads import ThreadBackend, ThreadWorld


@pytest.fixture
def comm() -> Communicator:
    return Communicator(ThreadWorld(1).backend(0), name="tp_0", ranks=[5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.all_reduce([1, 2]),
            r"all_reduce on tp_0: the input must be a numpy array, not list; convert it with numpy.asarray\(\)",
        ),
        (
            lambda c: c.all_reduce(np.ones((4, 4))[:, ::2]),
            r"the input must be contiguous, but has shape \(4, 2\) and strides \(32, 16\); copy it",
        ),
        (
            lambda c: c.all_reduce(np.ones(2), np.ones(3)),
            r"out has 3 elements, but must have 2: the input has 2, and tp_0 has 1 rank$",
        ),
        (lambda c: c.all_reduce(np.ones(2), np.ones(2, "float32")), r"out is float32, but the input is float64"),
        (
            lambda c: c.all_reduce(np.ones(2, "complex64")),
            r"unknown dtype .*; choose one of float32, float64, float16, int8",
        ),
        (lambda c: c.all_reduce(np.ones(2), op="xor"), r"unknown reduce operation 'xor'; choose one of sum, prod"),
        (
            lambda c: c.broadcast(np.ones(2), root=1),
            r"broadcast on tp_0: root must be a rank of the group, 0 to 0, not 1",
        ),
        (lambda c: c.broadcast(np.ones(2), root="a"), r"root must be an integer, not 'a'"),
        (lambda c: c.prepare("all_to_everyone"), r"unknown collective 'all_to_everyone'; choose one of all_reduce"),
        (lambda c: c.prepare("all_reduce", np.ones(2)), r"prepare\(\) requires out="),
        (
            lambda c: c.prepare("all_gather", np.ones(2), np.ones(2), op="sum"),
            r"the collective does not reduce, but op='sum' was given; omit op=",
        ),
        (
            lambda c: c.prepare("all_reduce", np.ones(2), np.ones(2), root=0),
            r"the collective has no root, but root=0 was given; omit root=",
        ),
        (lambda c: c.all_reduce(np.ones(2, ">f8")), r"unknown dtype dtype\('>f8'\)"),
        (lambda c: c.all_reduce(np.ones(2), op="pre_mul_sum"), r"pre_mul_sum needs a scalar"),
        (lambda c: c.all_reduce(np.ones(2, int), op="pre_mul_sum(0.5)"), r"pre_mul_sum\(0.5\) does not support int64"),
        (
            lambda c: c.all_reduce(np.ones(2, "uint8"), dtype="float8_e5m2"),
            r"all_reduce on tp_0: threads does not support reductions of float8_e5m2; choose one of bfloat16, float16",
        ),
        (
            lambda c: c.all_gather(np.ones(2, "float32"), dtype="float64"),
            r"dtype=float64 requires arrays of float64 or uint64, not float32",
        ),
        (lambda c: c.send(np.ones(2), 1), r"send on tp_0: dest must be a rank of the group, 0 to 0, not 1"),
        (lambda c: c.send(np.ones(2), None), r"dest= is required; pass a rank of the group, 0 to 0"),
        (
            lambda c: c.send(np.ones(2), 0),
            r"this rank sends 1 message\(s\) to itself, but posts 0 receive\(s\) from itself",
        ),
        (
            lambda c: c.recv(np.ones(2), 0),
            r"this rank sends 0 message\(s\) to itself, but posts 1 receive\(s\) from itself",
        ),
        (
            lambda c: c.send_recv(np.ones(2), dest=0, source=0, tag=-1),
            r"send_recv on tp_0: tag must be a non-negative integer, not -1",
        ),
        (lambda c: c.send(np.ones(2), 0, tag="a"), r"send on tp_0: tag must be a non-negative integer, not 'a'"),
        (lambda c: c.recv(np.ones(2), 0, tag=True), r"recv on tp_0: tag must be a non-negative integer, not True"),
        (
            lambda c: c.recv(np.ones(2), 0, tag=1 << 31),
            r"tag must be at most 2147483647, the largest tag of numpy \S+, not 2147483648",
        ),
        (
            lambda c: c.prepare("all_reduce", np.ones(2), np.ones(2), tag=3),
            r"all_reduce on tp_0: only messages have tags, but tag=3 was given; omit tag=",
        ),
        (lambda c: c.recv([2], 0), r"out must be a numpy array, not list"),
        (lambda c: c.recv(None, 0), r"out= is required; pass the array that receives the data"),
        (
            lambda c: c.prepare("recv", np.ones(2), np.ones(2), source=0),
            r"the collective has no input, but one was given",
        ),
        (
            lambda c: c.prepare("send", np.ones(2), np.ones(2), dest=0),
            r"the collective has no output, but out= was given",
        ),
        (lambda c: c.prepare("barrier", np.ones(2)), r"the collective has no input, but one was given"),
        (lambda c: c.prepare("barrier", op="sum"), r"the collective does not reduce, but op='sum' was given"),
        (
            lambda c: c.prepare("send", np.ones(2), dest=0, source=0),
            r"send on tp_0: the collective has no source, but source=0 was given; omit source=",
        ),
        (lambda c: c.prepare("barrier", dest=0), r"barrier on tp_0: the collective has no dest, but dest=0 was given"),
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
            r"send_counts must be 1 non-negative integer, one per rank of tp_0, not \[1, 1\]",
        ),
        (lambda c: c.all_to_all_v(np.ones(2), send_counts=[-2]), r"send_counts must be 1 non-negative integer, "),
        (lambda c: c.all_to_all_v(np.ones(2), send_counts=[2.0]), r"send_counts must be 1 non-negative integer, "),
        (lambda c: c.prepare("all_to_all_v", np.ones(2), np.ones(2), send_counts=[2]), r"recv_counts= is required"),
        (
            lambda c: c.prepare("all_to_all", np.ones(2), np.ones(2), send_counts=[2]),
            r"all chunks have the same size, but counts were given; omit send_counts= and recv_counts=",
        ),
        (lambda c: c.split(-1), r"split of tp_0: color must be a non-negative integer or None, not -1"),
        (lambda c: c.split(0, key="a"), r"split of tp_0: key must be an integer, not 'a'"),
    ],
)
def test_an_invalid_call_is_rejected(comm: Communicator, call: Any, message: str) -> None:
    with pytest.raises(CommunicatorError, match=message):
        call(comm)


class WithoutTags(ThreadBackend):
    """A library that matches messages in order, as NCCL does."""

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), largest_tag=0)


def test_a_library_without_tags_accepts_only_tag_0() -> None:
    comm = Communicator(WithoutTags(ThreadWorld(1), 0), name="tp_0")
    assert comm.send_recv(np.arange(3), dest=0, source=0, tag=0).tolist() == [0, 1, 2]
    with pytest.raises(
        CommunicatorError, match=r"send_recv on tp_0: tag must be 0, not 5: threads has no tags and"
    ) as e:
        comm.send_recv(np.arange(3), dest=0, source=0, tag=5)
    assert "omit tag=, and receive messages in the order in which they are sent" in str(e.value)


def test_the_messages_of_a_rank_to_itself_match_by_tag(comm: Communicator) -> None:
    with comm.batch() as batch:
        outs = [batch.recv(np.empty(1), 0, tag=tag) for tag in (2, 0, 1)]
        for tag in (0, 1, 2):
            batch.send(np.full(1, 1.0 * tag), 0, tag=tag)
    assert [out.item() for out in outs] == [2, 0, 1]
    batch = comm.batch()
    batch.send(np.ones(1), 0, tag=1)
    batch.recv(np.ones(1), 0, tag=2)
    with pytest.raises(CommunicatorError, match=r"sends 1 elements of float64 with tag 1 to itself, but .* with tag 2"):
        batch.prepare()


def in_streams(comm: Any) -> list[Any]:
    """The same lines run with GPUs, where they overlap."""
    x = comm.xp.full(4, comm.rank + 1.0)
    total = comm.xp.empty_like(x)
    call = comm.prepare("all_reduce", x, total)
    with comm.stream:
        call.enqueue()
    ready = comm.record(comm.current_stream)
    comm.wait(ready)
    call.enqueue()
    done = comm.record()
    comm.wait(done, comm.current_stream)
    done.wait()
    comm.sync()
    return [ready.done, done.done, comm.to_host(total).tolist()]


def test_streams_and_events_are_there_if_calls_block(engines: Any) -> None:
    assert engines.run(in_streams)["value"].tolist() == [[True, True, [10.0] * 4]] * 4


def in_streams_of_two_levels(comm: Any) -> list[Any]:
    with Hierarchical.cut(comm, 2) as levels:
        return in_streams(levels)


def test_hierarchical_communicators_have_streams(thread_engines: Any) -> None:
    assert thread_engines.run(in_streams_of_two_levels)["value"].tolist() == [[True, True, [10.0] * 4]] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.record("main"), "stream must be comm.stream, not 'main': calls of threads run on the CPU"),
        (lambda c: c.wait(c.record(), 7), "stream must be comm.stream, not 7: calls of threads run on the CPU"),
        (lambda c: c.wait(None), r"event must be the result of record\(\) of this communicator, not None"),
    ],
)
def test_something_else_than_a_stream_or_an_event_is_rejected(comm: Communicator, call: Any, message: str) -> None:
    with pytest.raises(CommunicatorError, match=message):
        call(comm)
    comm.close()
    for use in (comm.sync, comm.record, lambda: comm.wait(Event())):
        with pytest.raises(CommunicatorError, match="the communicator of tp_0 is closed"):
            use()


def test_a_read_only_output_is_rejected(comm: Communicator) -> None:
    out = np.ones(2)
    out.flags.writeable = False
    with pytest.raises(CommunicatorError, match="out is read-only; pass a writable array"):
        comm.all_reduce(np.ones(2), out)


@pytest.mark.parametrize("call", ["all_to_all", "send_recv", "all_to_all_v"])
def test_in_place_calls_are_rejected_if_unsupported(comm: Communicator, call: str) -> None:
    x = np.ones(4)
    arguments = {"send_recv": {"dest": 0, "source": 0}, "all_to_all_v": {"send_counts": [4], "recv_counts": [4]}}
    with pytest.raises(CommunicatorError, match=f"the input and out overlap, but {call} cannot work in place"):
        getattr(comm, call)(x, x, **arguments.get(call, {}))


@pytest.mark.usefixtures("patient_rounds")
def test_indivisible_sizes_are_rejected(thread_engines: Any) -> None:
    messages = {
        "reduce_scatter": "the first dimension of the input is 6, which is not divisible by the 4 ranks of world; pad "
        "it, or pass out=",
        "scatter": "the first dimension of the input is 6, which is not divisible by the 4 ranks",
        "all_to_all": "the input has 6 elements, which is not divisible by the 4 ranks of world",
    }
    for name, message in messages.items():
        errors = thread_engines.run(lambda c, name=name: getattr(c, name)(np.ones(6)), check=False)["error"]
        assert errors.str.contains(message, regex=False).all()


@pytest.mark.usefixtures("patient_rounds")
def test_scatter_requires_an_output_or_an_input_on_other_ranks(thread_engines: Any) -> None:
    errors = thread_engines.run(lambda c: c.scatter() if c.rank == 1 else None, check=False)["error"]
    assert "out= is required on this rank; pass the array that receives the data, or an input with" in errors[1]


def test_unsigned_integers_can_hold_elements_of_the_same_size() -> None:
    comm = Communicator(ThreadWorld(1).backend(0))
    values = np.array([1.5, -2.0], "float16")
    result = comm.all_reduce(values.view("uint16"), op=pre_mul_sum(2), dtype="float16")
    assert result.dtype == np.uint16
    assert result.view("float16").tolist() == [3.0, -4.0]


def test_partly_overlapping_buffers_are_rejected(comm: Communicator) -> None:
    buffer = np.ones(10)
    with pytest.raises(
        CommunicatorError,
        match=r"overlap, but out must start at byte \+0 of the input to work in place, not at byte \+16;",
    ):
        comm.all_reduce(buffer[:5], buffer[2:7])


def test_interleaved_views_do_not_count_as_overlapping(comm: Communicator) -> None:
    buffer = np.ones((2, 4))
    assert comm.all_reduce(buffer[0], buffer[1]).tolist() == [1, 1, 1, 1]


def test_the_error_carries_collective_group_and_rank(comm: Communicator) -> None:
    with pytest.raises(CommunicatorError) as caught:
        comm.broadcast(np.ones(2), root=9)
    assert (caught.value.collective, caught.value.group, caught.value.rank) == ("broadcast", "tp_0", 5)


def test_a_closed_communicator_raises(comm: Communicator) -> None:
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
        with pytest.raises(CommunicatorError, match="the communicator of tp_0 is closed; create a new one"):
            use()
    assert repr(comm) == "Communicator('tp_0', rank 0 of 1, closed)"


def test_the_number_of_ranks_must_match_the_library() -> None:
    with pytest.raises(
        CommunicatorError,
        match="group 'world' was given 2 ranks, but its communicator has 1; pass one global rank per member",
    ):
        Communicator(ThreadWorld(1).backend(0), ranks=[0, 1])


def test_every_call_is_counted() -> None:
    counted: list[int] = []
    comm = Communicator(ThreadWorld(1).backend(0), on_enter=lambda: counted.append(1))
    comm.all_reduce(np.ones(1))
    comm.barrier()
    with comm.batch() as batch:
        batch.barrier()
        batch.all_gather(np.ones(1))
    comm.send_recv(np.ones(1), dest=0, source=0)  # involves only two ranks, so it is not counted
    assert len(counted) == 3


def test_capabilities_are_complete(engines: Any) -> None:
    can = engines.ranks[0].capabilities
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
        (
            lambda c: c.all_to_all(np.ones(1)),
            "limited does not support all_to_all; choose one of all_reduce, all_gather, broadcast",
        ),
        (lambda c: c.all_gather(np.ones(1)), "limited does not support float64; choose one of float32, int8"),
        (
            lambda c: c.all_reduce(np.ones(1, "int8")),
            "limited does not support reductions of int8; choose one of float32",
        ),
        (
            lambda c: c.all_reduce(np.ones(1, "float32"), op="avg"),
            "limited does not support op='avg'; choose one of sum, max",
        ),
        (
            lambda c: c.all_reduce(np.ones(1, "float32"), op=pre_mul_sum(2)),
            "limited does not support op='pre_mul_sum'; choose one of sum",
        ),
    ],
)
def test_unsupported_calls_are_rejected_and_never_replaced(call: Any, message: str) -> None:
    comm = Communicator(Limited(ThreadWorld(1), 0))
    with pytest.raises(CommunicatorError, match=message):
        call(comm)
    assert comm.all_gather(np.ones(1, "int8")).tolist() == [1]
