"""Mismatched calls raise an error before any data moves, although MPI itself does not detect them."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._mpi import MpiBackend

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def engines_keep_working_afterwards(mpi_engines: ml.Engines) -> Any:
    yield
    total = mpi_engines.run(lambda c: c.all_reduce(np.array([1.0 + c.rank])).item())
    assert total["value"].tolist() == [10.0] * 4


@pytest.mark.usefixtures("patient_rounds")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda c: c.all_reduce(np.ones(4 + 3 * (c.rank % 2))), "rank 0 of the group calls all_reduce count=4 "),
        (lambda c: c.all_gather(np.ones(4 + 3 * (c.rank % 2))), "rank 1 calls all_gather count=7 dtype=float64"),
        (lambda c: c.scatter(np.ones(4 * (1 + c.rank % 2))), "rank 1 calls scatter count=2 dtype=float64 root=0"),
        (lambda c: c.all_to_all(np.ones(4 * (1 + c.rank % 2))), "rank 1 calls all_to_all count=2"),
        (
            lambda c: c.all_reduce(np.ones(2, ["float64", "int64"][c.rank // 2])),
            "rank 2 calls all_reduce count=2 dtype=i",
        ),
        (lambda c: c.all_reduce(np.ones(2), op=["sum", "max"][c.rank // 3]), "rank 3 calls .* op=max"),
        (lambda c: c.broadcast(np.ones(2), root=c.rank), "rank 1 calls broadcast count=2 dtype=float64 root=1"),
        (
            lambda c: c.barrier() if c.rank else c.all_reduce(np.ones(2)),
            "calls all_reduce .* but rank 1 calls barrier; issue the same calls on every rank",
        ),
        (lambda c: c.split(0) if c.rank else c.all_reduce(np.ones(2)), "calls all_reduce .* rank 1 calls split"),
        (
            lambda c: c.all_to_all_v(
                np.ones(4), np.ones(4), send_counts=[1] * 4, recv_counts=[1] * 4 if c.rank != 2 else [2, 0, 1, 1]
            ),
            "rank 0 of the group sends 1 elements to rank 2, which expects 2",
        ),
        (
            lambda c: c.prepare("reduce", np.ones(2 + c.rank), np.ones(2 + c.rank)).measure("pipelined", 10, 10),
            "rank 1 calls reduce count=3",
        ),
    ],
)
@pytest.mark.parametrize("compares_itself", [False, True], ids=["engines compare", "mpi compares"])
def test_mismatched_calls_raise_on_every_rank(
    mpi_engines: ml.Engines, function: Any, message: str, compares_itself: bool
) -> None:
    def run(comm: Any) -> None:  # on several hosts, the ranks share no memory, and MPI compares the calls
        function(Communicator(MpiBackend(comm.backend.comm.Dup())) if compares_itself else comm)

    errors = mpi_engines.run(run, check=False)["error"]
    assert errors.str.contains("ranks disagree: rank 0 of the group").all(), errors.tolist()
    assert errors.str.contains(message).all(), errors.tolist()


@pytest.mark.usefixtures("patient_rounds")
def test_an_error_about_a_group_names_it_and_its_global_ranks(mpi_engines: ml.Engines) -> None:
    def run(comm: Any) -> None:
        comm.all_reduce(np.ones(3 if comm.ranks[comm.rank] == 2 else 2))

    errors = mpi_engines.run(run, "dp=2, tp=2", axis="dp", check=False)["error"]
    message = "ranks disagree: in dp_0, rank 0 calls all_reduce count=2 dtype=float64 op=sum, but rank 2 calls"
    assert errors[[0, 2]].str.contains(message).all(), errors.tolist()
    assert errors[[1, 3]].isna().all()


def batches_that_differ(comm: Any) -> None:
    with comm.batch() as batch:
        batch.all_gather(np.ones(2))
        if comm.rank:
            batch.barrier()


@pytest.mark.usefixtures("patient_rounds")
def test_mismatched_batches_raise_on_every_rank(mpi_engines: ml.Engines) -> None:
    errors = mpi_engines.run(batches_that_differ, check=False)["error"]
    assert errors.str.contains("rank 1 calls all_gather count=2 dtype=float64, barrier").all()


@pytest.mark.usefixtures("patient_rounds")
@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize(
    ("sent", "received", "message"),
    [
        (
            np.ones(2),
            np.ones(3),
            "rank 0 of the group sends 2 elements of float64, but this rank receives 3 of float64",
        ),
        (
            np.ones(0),
            np.ones(3),
            "rank 0 of the group sends 0 elements of float64, but this rank receives 3 of float64",
        ),
        (np.ones(2), np.ones(2, "int64"), "sends 2 elements of float64, but this rank receives 2 of int64"),
        (np.ones(4, "int8"), np.ones(1, "float32"), "of int8, but this rank receives 1 of float32"),
        (
            np.ones(3),
            np.ones(2),
            "rank 0 of the group sends more than the 2 elements of float64 that this rank receives; pass",
        ),
    ],
)
def test_mismatched_messages_raise(
    mpi_engines: ml.Engines, sent: Any, received: Any, message: str, in_batch: bool
) -> None:
    def exchange(comm: Any) -> None:
        if comm.rank == 0:
            comm.send(sent, 1)
        if comm.rank == 1:
            if not in_batch:
                comm.recv(received, 0)
            else:
                with comm.batch() as batch:
                    batch.recv(received, 0)

    errors = mpi_engines.run(exchange, check=False)["error"]
    assert errors.drop(1).isna().all(), errors.tolist()
    assert errors.str.contains(message)[1], errors[1]


class Counting:
    """A comparer that only counts."""

    def __init__(self) -> None:
        self.n = 0

    def compare(self, calls: Any, by_all: bool) -> None:
        self.n += 1

    def compare_counts(self, calls: Any) -> None:
        raise NotImplementedError


def test_a_prepared_call_is_compared_once(mpi_engines: ml.Engines) -> None:
    def count_comparisons(comm: Any, checks: str) -> list[int]:
        counting = Counting()
        own = Communicator(MpiBackend(comm.backend.comm.Dup()), checks=checks, comparer=counting)
        call = own.prepare("all_reduce", np.ones(1), np.empty(1))
        seen = [counting.n]
        for _ in range(3):
            call()
            call.measure("pipelined", 2, 2)
        seen.append(counting.n)
        for _ in range(3):
            own.all_reduce(np.ones(1))
            own.all_reduce(np.ones(2))
        own.close()
        return [*seen, counting.n]

    for checks, expected in (("first", [0, 1, 7]), ("all", [0, 6, 12]), ("off", [0, 0, 0])):
        assert mpi_engines.run(count_comparisons, arguments=(checks,))["value"].tolist() == [expected] * 4


def test_capabilities_list_the_operations_that_mpi_lacks(mpi_engines: ml.Engines) -> None:
    facts = mpi_engines.ranks[0].capabilities.facts
    assert facts["avg"] == "MPI_SUM, then each rank divides"
    assert facts["pre_mul_sum"] == "each rank multiplies, then MPI_SUM"
    assert facts["bfloat16 reductions"] in ("native", "user-defined MPI operation in numpy")
