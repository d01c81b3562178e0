"""Calls of different ranks are compared before a library starts them, also if the library would not notice."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import CommunicatorError, EngineError
from meshlab.comm._agreement import checksum, text_checksum
from meshlab.comm._backend import Call
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._threads import ThreadWorld
from meshlab.engines._call_board import CallBoard, _counts_text
from meshlab.engines._disagreement import describe_disagreement, find_disagreement
from meshlab.engines._positions import Positions, PositionWriter
from tests.examples import examples


class Unchecked:
    """A backend like NCCL: calls return immediately and are not compared. It only lists what it would launch."""

    xp, device, blocks = np, None, False

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.launched: list[str] = []
        self._capabilities = ThreadWorld(1).backend(0).capabilities()

    def capabilities(self) -> Any:
        return self._capabilities

    def comparer(self) -> None:
        return None

    def prepare(self, call: Call) -> Any:
        return lambda: self.launched.append(str(call))

    def prepare_batch(self, calls: Sequence[Call]) -> Any:
        return lambda: self.launched.extend(str(call) for call in calls)

    def runner(self, call: Call) -> Any:
        return lambda send, recv: self.launched.append(str(call))

    def close(self) -> None:
        pass


class Rank:
    def __init__(self, folder: Path, rank: int, size: int, checks: Any, should_abort: Any = None) -> None:
        board = CallBoard(size, folder / "board", rank, should_abort)
        self.writer: PositionWriter = Positions(size).writer(rank, board)
        self.backend = Unchecked(rank, size)
        monitor = self.writer.monitor("tp_0", "1 0")
        comparer = monitor.comparer(range(size))
        self.comm = Communicator(
            self.backend, name="tp_0", monitor=monitor, checks=checks, comparer=None if checks == "off" else comparer
        )
        self.error = ""

    def run(self, function: Callable[[Communicator], object]) -> None:
        try:
            function(self.comm)
        except CommunicatorError as error:
            self.error = str(error)


def run_ranks(
    folder: Path, function: Callable[[Communicator], object], size: int = 2, checks: Any = "first"
) -> list[Rank]:
    """Run a function on ranks in threads, each with its own backend. An error releases ranks that wait."""
    (folder / "board").unlink(missing_ok=True)
    CallBoard.create_file(folder / "board", size)
    ranks: list[Rank] = []
    ranks += [Rank(folder, rank, size, checks, lambda: any(rank.error for rank in ranks)) for rank in range(size)]
    threads = [threading.Thread(target=rank.run, args=(function,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return ranks


def opposite_order(comm: Communicator) -> None:
    x = np.ones(4, "float32")
    for call in (comm.all_reduce, comm.all_gather)[:: -1 if comm.rank else 1]:
        call(x)


def in_a_batch(comm: Communicator) -> None:
    with comm.batch() as batch:
        batch.send(np.ones(2), dest=1 - comm.rank)
        batch.recv(np.ones(2), source=1 - comm.rank)
        batch.all_gather(np.ones(2 + comm.rank))


def a_split(comm: Communicator) -> None:
    comm.split(0) if comm.rank else comm.barrier()


def counts(comm: Communicator) -> None:
    comm.all_to_all_v(np.ones(3), np.ones(3), send_counts=[1, 2], recv_counts=[[1, 2], [1, 2]][comm.rank])


MISMATCHES = {
    "unequal sizes": (
        lambda c: c.all_reduce(np.ones(1024 * (1 + c.rank), "float32")),
        "rank 0 of the group calls all_reduce count=1024 dtype=float32 op=sum, but rank 1 calls all_reduce count=2048 "
        "dtype=float32 op=sum; issue the same calls on every rank",
    ),
    "opposite order": (
        opposite_order,
        "rank 0 of the group calls all_reduce count=4 dtype=float32 op=sum, but rank 1 calls all_gather count=4",
    ),
    "dtypes": (lambda c: c.all_gather(np.ones(2, ["int8", "int32"][c.rank])), "all_gather count=2 dtype=int32"),
    "operations": (lambda c: c.reduce_scatter(np.ones(2), op=["sum", "max"][c.rank]), "op=max"),
    "roots": (lambda c: c.broadcast(np.ones(2), root=c.rank), "root=0, but rank 1 calls broadcast count=2 dtype=float"),
    "batches": (
        in_a_batch,
        "rank 0 of the group calls all_gather count=2 dtype=float64, but rank 1 calls all_gather c",
    ),
    "a split": (a_split, "rank 0 of the group calls barrier, but rank 1 calls split"),
    "counts": (counts, "rank 0 of the group sends 2 elements to rank 1, which expects 1"),
    "prepared calls": (
        lambda c: c.prepare("reduce", np.ones(2 + c.rank), np.ones(2 + c.rank)).enqueue(),
        "calls reduce count=2 dtype=float64 op=sum root=0, but rank 1 calls reduce count=3",
    ),
}


@pytest.mark.parametrize("checks", ["first", "all"])
@pytest.mark.parametrize(("function", "message"), MISMATCHES.values(), ids=MISMATCHES)
def test_a_mismatch_raises_on_all_ranks_before_the_launch(
    tmp_path: Path, function: Any, message: str, checks: str
) -> None:
    for rank in run_ranks(tmp_path, function, checks=checks):
        assert rank.error.startswith("ranks disagree: "), rank.error
        assert message in rank.error
        assert rank.backend.launched == []


def test_the_ranks_that_differ_are_named(tmp_path: Path) -> None:
    for rank in run_ranks(tmp_path, lambda c: c.all_reduce(np.ones(2 + (c.rank == 2))), size=4):
        assert "rank 0 of the group calls all_reduce count=2 " in rank.error
        assert "but rank 2 calls all_reduce count=3 " in rank.error


def test_without_checks_nothing_is_compared(tmp_path: Path) -> None:
    for rank in run_ranks(tmp_path, opposite_order, checks="off"):
        assert not rank.error
        assert len(rank.backend.launched) == 2


def test_a_rank_that_is_late_is_waited_for(tmp_path: Path) -> None:
    def late(comm: Communicator) -> None:
        time.sleep(0.05 * comm.rank)
        comm.all_reduce(np.ones(2))

    for rank in run_ranks(tmp_path, late, size=3):
        assert not rank.error
        assert len(rank.backend.launched) == 1


def repeat(order: Sequence[str]) -> Callable[[Communicator], None]:
    """All ranks call a and b, and then rank r calls order[r]."""

    def function(comm: Communicator) -> None:
        calls = {"a": lambda: comm.all_reduce(np.ones(2)), "b": lambda: comm.all_gather(np.ones(2))}
        calls |= {"c": lambda: comm.all_reduce(np.ones(3))}
        for name in "ab" + order[comm.rank]:
            calls[name]()

    return function


def test_repeated_calls_are_compared_when_the_function_has_returned(tmp_path: Path) -> None:
    ranks = run_ranks(tmp_path, repeat(["aab", "aba"]))
    assert [rank.error for rank in ranks] == ["", ""]
    calls = {
        3 + number: {key: history.summary() for key, history in rank.writer.histories.items()}
        for number, rank in enumerate(ranks)
    }
    key, involved = find_disagreement(calls) or (0, {})
    assert list(involved) == [3, 4]
    tails = {3 + number: rank.writer.histories[key].tail() for number, rank in enumerate(ranks)}
    assert describe_disagreement("tp_0", tails) == (
        "ranks disagree: as call 4 of tp_0, rank 3 called all_reduce count=2 dtype=float64 op=sum, but rank 4 called "
        "all_gather count=2 dtype=float64"
    )
    for rank in ranks:
        rank.writer.start_task()
        assert [history.summary().n for history in rank.writer.histories.values()] == [0]


def test_repeated_calls_are_compared_at_once_if_all_are(tmp_path: Path) -> None:
    for rank in run_ranks(tmp_path, repeat(["aab", "aba"]), checks="all"):
        assert "rank 0 of the group calls all_reduce count=2 dtype=float64 op=sum, but rank 1 calls all_g" in rank.error
        assert len(rank.backend.launched) == 3


@pytest.mark.parametrize("order", ["a", "aabb", ""])
def test_a_new_call_is_not_launched_while_another_rank_repeats_one(tmp_path: Path, order: str) -> None:
    CallBoard.create_file(tmp_path / "board", 2)
    ranks = [Rank(tmp_path, number, 2, "first") for number in range(2)]
    threads = [threading.Thread(target=rank.run, args=(repeat(["c", order]),), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    threads[1].join(60)
    if not order:  # the other rank may still come, until its communicator is gone
        assert threads[0].is_alive()
        assert not ranks[0].error
        del threads[1], ranks[1]
        gc.collect()
    threads[0].join(60)
    assert "rank 0 of the group calls all_reduce count=3 dtype=float64 op=sum" in ranks[0].error
    assert "but rank 1 " in ranks[0].error
    assert len(ranks[0].backend.launched) == 2


def test_messages_are_not_compared(tmp_path: Path) -> None:
    def talk(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.ones(2), dest=1)
            comm.send(np.ones(2), dest=1)

    assert [len(rank.backend.launched) for rank in run_ranks(tmp_path, talk)] == [2, 0]


def test_the_client_releases_a_rank_that_waits(tmp_path: Path) -> None:
    CallBoard.create_file(tmp_path / "board", 2)
    flag = threading.Event()
    rank, _ = Rank(tmp_path, 0, 2, "first", flag.is_set), Rank(tmp_path, 1, 2, "first")
    thread = threading.Thread(target=rank.run, args=(lambda c: c.barrier(),), daemon=True)
    thread.start()
    flag.set()
    thread.join(60)
    assert "aborted by the client" in rank.error
    assert rank.backend.launched == []


def test_areas_are_reused(tmp_path: Path) -> None:
    CallBoard.create_file(tmp_path / "board", 2)
    boards = [CallBoard(2, tmp_path / "board", rank) for rank in range(2)]
    for key in range(1, 3000):  # more than there are areas
        members = [board.join(key, (0, 1)) for board in boards]
        assert [member.area.tolist() for member in members] == [[0, 0]] * 2
        for member in members:
            member.area[member.index] = 5
            member.leave()
    comparers = [board.join(9000 + key, (0, 1)) for key in range(1024) for board in boards]
    assert len({id(member) for member in comparers}) == 2048
    with pytest.raises(CommunicatorError, match=r"1024 communicators are open .* checks='off'"):
        boards[0].join(1, (0, 1))


CALLS = {
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "max": lambda comm, x: comm.all_reduce(x, op="max"),
    "barrier": lambda comm, x: comm.barrier(),
    "broadcast": lambda comm, x: comm.broadcast(x, root=comm.size - 1),
    "prepared": lambda comm, x: comm.prepare("all_reduce", x, x)(),
}
SEQUENCE = st.lists(st.tuples(st.sampled_from(sorted(CALLS)), st.integers(1, 3)), min_size=1, max_size=15)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(sequence=SEQUENCE, checks=st.sampled_from(["first", "all"]), where=st.integers(0, 14))
def test_any_sequence_passes_and_any_difference_is_found(
    tmp_path: Path, sequence: list[tuple[str, int]], checks: str, where: int
) -> None:
    def run(comm: Communicator, differs: bool) -> None:
        for number, (name, size) in enumerate(sequence):
            is_other = differs and comm.rank == 1 and number == where % len(sequence)
            CALLS[name](comm, np.ones(size + is_other * 4))
            if is_other and name == "barrier":
                comm.barrier()

    equal = run_ranks(tmp_path, lambda comm: run(comm, False), checks=checks)
    assert [rank.error for rank in equal] == ["", ""]
    assert equal[0].backend.launched == equal[1].backend.launched
    histories = [next(iter(rank.writer.histories.values())).summary() for rank in equal]
    assert histories[0] == histories[1]
    if sequence[where % len(sequence)][0] != "barrier":
        # A size that no other call has is new on that rank, so the rank cannot launch it.
        different = run_ranks(tmp_path, lambda comm: run(comm, True), checks=checks)
        assert different[1].error  # also if the other rank was first to see the difference, which releases this one
        assert any("ranks disagree" in rank.error for rank in different)


def test_the_checksum_of_a_batch_depends_on_all_its_collectives() -> None:
    row = ml.comm.CATALOG["barrier"]
    barrier = Call(row, None, None, 0, None, None, None, False)
    assert len({checksum(()), checksum((barrier,)), checksum((barrier, barrier))}) == 3


def test_calls_that_mpi_does_not_tell_apart_raise_after_the_function(mpi_engines: ml.Engines) -> None:
    def different_operations(comm: Any) -> None:
        x = np.ones(4)
        calls = [comm.prepare("all_reduce", x, np.empty(4), op=op) for op in ("sum", "prod")]
        for call in (*calls, calls[comm.rank == 2]):
            call()

    with pytest.raises(
        EngineError,
        match=r"^ranks disagree: as call 3 of world, rank 0 called all_reduce count=4 dtype=float64 op=sum, but rank 2 "
        r"called all_reduce count=4 dtype=float64 op=prod while running different_operations; issue the same calls ",
    ):
        mpi_engines.run(different_operations)
    assert mpi_engines.run(lambda comm: comm.all_reduce(np.ones(1)).item())["value"].tolist() == [4.0] * 4


@pytest.mark.full
def test_all_checks_work_on_running_engines() -> None:
    def loop(comm: Any) -> float:
        x = np.ones(4)
        call = comm.prepare("all_reduce", x, np.empty(4))
        for _ in range(3):
            call()
            comm.all_reduce(x)
        with comm.split(0) as child:
            child.all_to_all_v(x[: child.size], send_counts=[1] * child.size)
            return float(child.all_reduce(x)[0])

    for backend, checks in (("threads", "all"), ("threads", "off"), ("mpi", "all")):
        with ml.launch(2, backend=backend, checks=checks) as engines:  # type: ignore[arg-type]
            assert engines.run(loop)["value"].tolist() == [2.0, 2.0]
    with pytest.raises(EngineError, match="unknown checks 'sometimes'; choose one of first, all, off"):
        ml.launch(2, checks="sometimes")  # type: ignore[arg-type]


def test_the_counts_of_the_first_calls_are_compared_if_not_all_fit() -> None:
    call: Any = SimpleNamespace(send_counts=list(range(100, 140)), recv_counts=list(range(140, 180)))
    text, _, checksum = _counts_text("3 7:", [call] * 50).rpartition("#")
    assert checksum == str(text_checksum(text))
    assert len(text) < 4096
    parts = text.removeprefix("3 7:").split(";")[:-1]
    assert 1 < len(parts) < 50
    assert set(parts) == {f"{','.join(map(str, call.send_counts))}|{','.join(map(str, call.recv_counts))}"}
