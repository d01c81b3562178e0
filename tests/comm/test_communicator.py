"""Wrong calls never reach a library: each is refused with an error that names argument, value and cure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshlab.comm import Communicator
from meshlab.comm.threads import ThreadWorld
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
            r"there is no dtype .*; there are float32, float64, int32, int64",
        ),
        (lambda c: c.all_reduce(np.ones(2), op="xor"), r"there is no reduce operation 'xor'; there are sum, min, max"),
        (
            lambda c: c.broadcast(np.ones(2), root=1),
            r"root 1 does not exist; roots are ranks of the group, 0 to 0 in tp_0",
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
    with comm:
        pass
    comm.close()
    with pytest.raises(CommunicatorError, match="the communicator of tp_0 is closed"):
        comm.all_reduce(np.ones(1))
    assert repr(comm) == "Communicator('tp_0', rank 0 of 1, closed)"


def test_a_group_and_a_library_of_different_size_do_not_match() -> None:
    with pytest.raises(CommunicatorError, match="should have 2 ranks, but the library says 1"):
        Communicator(ThreadWorld(1).backend(0), ranks=[0, 1])


def test_every_call_is_counted() -> None:
    counted: list[int] = []
    comm = Communicator(ThreadWorld(1).backend(0), on_enter=lambda: counted.append(1))
    comm.all_reduce(np.ones(1))
    comm.barrier()
    assert len(counted) == 2


def test_capabilities_say_what_there_is(engines: Any) -> None:
    can = engines.facts[0].capabilities
    assert can.backend == engines.backend
    assert can.library
    assert can.path
    assert "all_reduce" in can.collectives
    assert can.modes == ("isolated", "pipelined")
