"""Windows: all ranks agree before they register one, or all raise. They are given back once, but not after an abort."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import CommunicatorError, EngineError
from meshlab.comm._backend import Capabilities
from meshlab.comm._communicator import Communicator
from meshlab.comm._windows import SYMMETRIC, why_not_symmetric
from meshlab.comm.backends._nccl_memory import RegisteredBuffers
from tests.comm.threads_with_windows import with_windows

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def why(call: Callable[[], object]) -> str:
    try:
        call()
    except CommunicatorError as error:
        return str(error)
    return ""


def register(comm: Communicator, array: Any) -> None:
    with comm.registered(array, symmetric=True):
        pass


def refusals(comm: Communicator) -> dict[str, Any]:
    is_last = comm.rank == comm.size - 1
    return {
        "equal": why(lambda: comm.empty((2, 4), "float32", symmetric=True)),
        "sizes": why(lambda: comm.empty(8 + comm.rank, "float32", symmetric=True)),
        "dtypes": why(lambda: comm.empty(8, "float64" if is_last else "float32", symmetric=True)),
        "registered": why(lambda: register(comm, np.ones(4))),
        "registered sizes": why(lambda: register(comm, np.ones(4 + is_last))),
        "a list": why(lambda: register(comm, [1.0] if is_last else np.ones(4))),
        "afterwards": float(comm.all_reduce(np.ones(1))[0]),
    }


@pytest.mark.parametrize("checks", ["first", "off"])
@pytest.mark.parametrize("backend", ["threads", pytest.param("mpi", marks=pytest.mark.full)])
def test_all_ranks_refuse_a_window_of_unequal_size_before_the_backend_is_asked(backend: str, checks: Any) -> None:
    with ml.launch(3, backend=backend, checks=checks) as engines:
        *others, last = engines.run(refusals)["value"]
    for messages in (*others, last):
        assert messages["equal"] == messages["registered"]
        assert messages["equal"] == (
            f"{backend} cannot register symmetric memory: only NCCL has it, on GPUs; omit symmetric=True"
        )
        same = "a symmetric window must have the same size on all ranks of world, but rank 0 of the group has"
        assert messages["sizes"].startswith(f"{same} 32 bytes and rank 1 has 36; allocate the largest size")
        assert messages["dtypes"].startswith(f"{same} 32 bytes and rank 2 has 64")
        assert messages["registered sizes"].startswith(f"{same} 32 bytes and rank 2 has 40")
        assert messages["afterwards"] == 3
    assert last["a list"] == "registered() on world needs a numpy array, not list"
    for messages in others:
        assert messages["a list"] == "rank 2 passed something that is not an array of numpy; see its own error"


def different_calls(comm: Communicator) -> None:
    if comm.rank:
        comm.empty(1024, "float32", symmetric=True)
    else:
        comm.all_reduce(np.ones(4))


@pytest.mark.full
def test_a_rank_that_registers_a_window_disagrees_with_one_that_does_not(mpi_engines: ml.Engines) -> None:
    with pytest.raises(EngineError, match=r"rank 0 of the group calls all_reduce .* rank 1 calls window"):
        mpi_engines.run(different_calls)
    mpi_engines.restart()


def in_groups(comm: Communicator) -> list[str]:
    half = comm.split(comm.rank // 2)
    assert half is not None
    return [why(lambda: half.empty(8 + comm.rank, "float32", symmetric=True)) for _ in range(2)]


def test_the_sizes_are_those_of_the_group(thread_engines: ml.Engines) -> None:
    found = thread_engines.run(in_groups)["value"].tolist()
    assert "rank 0 of the group has 32 bytes and rank 1 has 36" in found[0][1]
    assert "rank 0 of the group has 40 bytes and rank 1 has 44" in found[3][1]


# -- a backend with windows --------------------------------------------------------------------------------------------


def lifetimes(comm: Communicator) -> list[str]:
    group, backend = with_windows(comm)
    x = group.empty(8, "float64", symmetric=True)
    y = group.empty(4, "float64")
    with group.registered(y, symmetric=True):
        backend.log.append("inside")
    group.empty((0, 4), "float64", symmetric=True)
    view = group._view(backend)
    view.empty(2, "float64", symmetric=True)
    group.close()
    assert x.size == 8
    return [entry for entry in backend.log if entry != "wait"]


def test_windows_are_given_back_at_the_end_of_the_block_and_of_the_communicator(thread_engines: ml.Engines) -> None:
    for log in thread_engines.run(lifetimes)["value"]:
        assert log[:5] == ["register 64", "register 32", "inside", "give back 32", "register 16"]
        assert sorted(log[5:]) == ["give back 16", "give back 64"]


def aborted(comm: Communicator) -> list[str]:
    group, backend = with_windows(comm)
    y = group.empty(4, "float64")
    with group.registered(y, symmetric=True):
        backend.is_aborted = True
        backend.log.clear()
    group.close()
    return backend.log


def test_nothing_is_given_back_after_an_abort(thread_engines: ml.Engines) -> None:
    assert thread_engines.run(aborted)["value"].tolist() == [[]] * 4


def one_rank_fails(comm: Communicator) -> list[str]:
    group, backend = with_windows(comm)
    if comm.rank == 2:
        backend.limit = 100
    found = [why(lambda: group.empty(200, "uint8", symmetric=True))]
    array = group.empty(4, "uint8") if comm.rank != 1 else np.empty(4, "uint8")
    return [*found, why(lambda: register(group, array)), " ".join(backend.log)]


def test_no_rank_registers_a_window_if_one_of_them_cannot(thread_engines: ml.Engines) -> None:
    found = thread_engines.run(one_rank_fails)["value"].tolist()
    allocation, window, logs = zip(*found, strict=True)
    assert allocation[2] == "cannot allocate 200 bytes"
    assert {allocation[rank] for rank in (0, 1, 3)} == {
        "rank 2 could not allocate 200 bytes for a symmetric array of world; see its own error"
    }
    assert window[1] == "the array cannot be a symmetric window of world: other GPUs cannot map its memory"
    assert {window[rank] for rank in (0, 2, 3)} == {
        "rank 1 passed an array that cannot be a symmetric window of world; see its own error"
    }
    assert not any("register" in log for log in logs)


def test_a_reason_is_what_follows_no() -> None:
    facts = {
        "yes": "",
        "unknown": "",
        "no: NCCL 2.26.5 has none, 2.27 is needed": "NCCL 2.26.5 has none, 2.27 is needed",
    }
    can = Capabilities("nccl", "NCCL", "", "", (), (), (), (), abort=True)
    assert {fact: why_not_symmetric(replace(can, facts={SYMMETRIC: fact})) for fact in facts} == facts


def test_a_registration_ends_once() -> None:
    log: list[int] = []
    buffers = RegisteredBuffers(lambda: True)
    first, second = buffers.add(lambda: log.append(1)), buffers.add(lambda: log.append(2))
    assert (len(buffers), first.is_open) == (2, True)
    first.end()
    first.end()
    buffers.end()
    assert (log, len(buffers), second.is_open) == ([1, 2], 0, False)
