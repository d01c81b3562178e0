"""The calls of NCCL that a communicator issues, on a library that records them."""

from __future__ import annotations

import gc
import weakref

import pytest

from meshlab.base._errors import CommunicatorError
from meshlab.comm.backends._nccl import _MOST_BOUND
from tests.comm.backends.fake_nccl import COMM, Array, FakeNccl, NcclError

FLOAT, SUM, USER = 7, 0, 0


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    return FakeNccl(monkeypatch)


def test_each_call_has_the_pointers_of_its_arrays(nccl: FakeNccl) -> None:
    """Also with more arrays than the calls that stay bound, and again in another order."""
    comm = nccl.communicator()
    arrays = [Array(8) for _ in range(2 * _MOST_BOUND + 3)]
    for x in [*arrays, *arrays[::-1], *arrays[:3] * 3]:
        for out in (x, arrays[0]):
            assert comm.all_reduce(x, out) is out
            assert nccl.taken() == [("all_reduce", x.data.ptr, out.data.ptr, 8, FLOAT, SUM, COMM, USER)]
    y = comm.all_reduce(arrays[1])
    assert nccl.taken() == [("all_reduce", arrays[1].data.ptr, y.data.ptr, 8, FLOAT, SUM, COMM, USER)]


def test_repeated_calls_follow_the_current_stream(nccl: FakeNccl) -> None:
    comm, x = nccl.communicator(), Array(8)
    for stream in (0, 7, 7, 0):
        nccl.user.ptr = stream
        comm.all_reduce(x, x)
        assert nccl.taken()[-1][-1] == stream


@pytest.mark.parametrize("number", [1, 2, 3])
def test_repeated_messages(nccl: FakeNccl, number: int) -> None:
    comm, x, out = nccl.communicator(), Array(8), Array(8)
    for _ in range(number):
        comm.send(x, 1)
        comm.recv(out, 1)
        comm.send_recv(x, out, dest=1, source=1)
        comm.send_recv(out, x, dest=1, source=1)
    send, recv = ("send", x.data.ptr, 8, FLOAT, 1, COMM, USER), ("recv", out.data.ptr, 8, FLOAT, 1, COMM, USER)
    back = ("send", out.data.ptr, *send[2:]), ("recv", x.data.ptr, *recv[2:])
    start, end = ("group_start",), ("group_end",)
    assert nccl.taken() == [send, recv, start, send, recv, end, start, *back, end] * number


def test_repeated_barriers(nccl: FakeNccl) -> None:
    comm = nccl.communicator()
    for _ in range(3):
        assert comm.barrier() is None
        [(name, *_)] = nccl.taken()
        assert name == "all_reduce"


def test_errors_of_repeated_calls_name_the_collective(nccl: FakeNccl) -> None:
    comm, x = nccl.communicator(), Array(8)
    calls = {"all_reduce": lambda: comm.all_reduce(x, x), "send": lambda: comm.send(x, 1), "barrier": comm.barrier}
    for name, call in calls.items():
        for _ in range(3):
            call()
        nccl.error = NcclError("broken")
        with pytest.raises(CommunicatorError, match=f"NCCL rejected {name}: broken"):
            call()
        nccl.error = None
        call()


def test_no_call_after_an_abort_or_a_close(nccl: FakeNccl) -> None:
    comm, x = nccl.communicator(), Array(8)
    prepared = comm.prepare("all_reduce", x, x)
    calls = [prepared, lambda: comm.all_reduce(x, x), lambda: comm.send(x, 1), comm.barrier]
    for call in calls * 2:
        call()
    nccl.taken()
    comm.backend.abort()
    for call in calls:
        with pytest.raises(CommunicatorError, match="aborted"):
            call()
    comm.abort()
    for call in calls:
        with pytest.raises(CommunicatorError, match="closed"):
            call()
    assert nccl.taken() == []


def test_no_call_of_a_view_after_its_owner_is_closed(nccl: FakeNccl) -> None:
    comm, x = nccl.communicator(), Array(8)
    view = comm._view(comm.backend)
    prepared = view.prepare("all_reduce", x, x)
    prepared()
    comm.abort()
    with pytest.raises(CommunicatorError, match="closed"):
        prepared()


def test_repeated_calls_keep_no_array_alive(nccl: FakeNccl) -> None:
    comm, x, out = nccl.communicator(), Array(8), Array(8)
    for _ in range(3):
        comm.all_reduce(x, out)
        comm.send(x, 1)
        comm.recv(out, 1)
    references = [weakref.ref(x), weakref.ref(out)]
    del x, out
    gc.collect()
    assert [reference() for reference in references] == [None, None]
