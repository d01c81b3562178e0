"""Ranks that die, raise or stop calling: detected in time, named in the error, and replaced by a restart."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import meshlab as ml
from meshlab.base._errors import CommunicatorError, EngineError, MeshError
from meshlab.comm.backends import _gloo as gloo
from meshlab.engines._lease import Lease
from meshlab.engines._local import LaunchedSet
from meshlab.engines._records import RANK_SHELL, RankRecords
from meshlab.engines._rounds import RankExit, Reply
from meshlab.plans._sampling import Sampling
from tests.conftest import FULL_ON_MPI
from tests.engines.test_controller import wait_for_the_end

MESH = ml.DeviceMesh("dp=2, tp=2")

# MPI ranks cannot be reused after a fault, so a test of a fault starts a new set. One of two similar faults is enough.
LONG_ON_MPI = pytest.param("mpi", marks=pytest.mark.long)


def assert_works(engines: ml.Engines) -> None:
    assert engines.state == "ready"
    assert engines.verify(MESH)["is_right"].all()


@pytest.mark.parametrize("engines", FULL_ON_MPI, indirect=True)
def test_a_rank_that_raises_is_named_and_restart_recovers(engines: ml.Engines) -> None:
    def raise_on_two(comm: Any) -> None:
        comm.barrier()
        if comm.world_rank == 2:
            raise KeyError("lost")
        comm.barrier()

    client = engines.client
    with pytest.raises(EngineError, match=r"rank 2 raised KeyError: 'lost' while running raise_on_two") as caught:
        engines.run(raise_on_two)
    assert caught.value.rank == 2
    assert isinstance(caught.value.__cause__, KeyError)
    assert "raise_on_two" in caught.value.log
    assert engines.state == "broken"
    with pytest.raises(
        EngineError, match=r"the engines are broken: rank 2 raised .*; call engines.restart\(\) to start new ranks"
    ):
        engines.run(lambda comm: 1)
    engines.restart()
    assert engines.client is client
    assert_works(engines)


@pytest.mark.parametrize(
    ("engines", "returns"),
    [
        pytest.param("threads", True, id="returns early on threads"),
        pytest.param("threads", False, id="sleeps on threads"),
        pytest.param("mpi", True, id="returns early on mpi", marks=pytest.mark.long),
        pytest.param("mpi", False, id="sleeps on mpi", marks=pytest.mark.full),
    ],
    indirect=["engines"],
)
def test_a_rank_that_never_calls_is_named_at_the_deadline(
    engines: ml.Engines, returns: bool, deadline_at: Callable[..., None]
) -> None:
    def stay_away(comm: Any) -> None:
        comm.barrier()
        if comm.world_rank == 1:
            for _ in range(0 if returns else 1200):
                time.sleep(0.05)
            if returns:
                return
        comm.barrier()

    deadline_at(2, 1, 2, 2, n_responses=int(returns))
    with pytest.raises(EngineError, match=r"^rank 1 entered 1 of its group's 2 collective calls within 1.0") as caught:
        engines.run(stay_away, deadline_s=1.0)
    assert caught.value.rank == 1
    engines.restart()
    assert_works(engines)


@pytest.mark.parametrize("engines", ["threads", LONG_ON_MPI], indirect=True)
def test_a_rank_is_compared_with_its_own_group_and_only_since_the_call_began(
    engines: ml.Engines, deadline_at: Callable[..., None]
) -> None:
    def make(comm: Any, many: int, few: int, culprit: int) -> None:
        for _ in range(many if culprit in comm.ranks else few):
            comm.barrier()
        if comm.world_rank == culprit:
            time.sleep(60)
        if culprit in comm.ranks:
            comm.barrier()

    engines.run(make, MESH, axis="tp", arguments=(9, 2, -1))
    for culprit, few, entered in ((3, 2, (2, 2, 11, 10)), (0, 20, (10, 11, 20, 20))):
        deadline_at(*entered, n_responses=2)
        with pytest.raises(
            EngineError, match=rf"^rank {culprit} entered 10 of its group's 11 collective calls within 2.0"
        ):
            engines.run(make, MESH, axis="tp", arguments=(10, few, culprit), deadline_s=2.0)
        engines.restart()
    engines.run(lambda comm: [comm.barrier() for _ in range(30 * (0 in comm.ranks))], MESH, axis="tp")
    deadline_at(0, 1, 1, 1, n_responses=2)
    with pytest.raises(EngineError, match=r"^rank 0 entered 0 of its group's 1 collective call within 2.0"):
        engines.run(
            lambda comm: time.sleep(60 * (comm.world_rank == 0)) or comm.barrier(), MESH, axis="dp", deadline_s=2
        )


@pytest.mark.parametrize("engines", ["threads", LONG_ON_MPI], indirect=True)
def test_split_communicators_in_different_orders_are_named(
    engines: ml.Engines, deadline_at: Callable[..., None]
) -> None:
    def cross(comm: Any) -> None:
        first, second = comm.split(0, name="first"), comm.split(0, name="second")
        for child in (first, second) if comm.rank == 0 else (second, first):
            child.all_reduce(np.ones(4))

    deadline_at(5, 5, 5, 5)
    with pytest.raises(
        EngineError,
        match=r"rank 0 waits in all_reduce .* of first; ranks 1, 2, 3 wait in all_reduce .* of second; the ranks use "
        r"the communicators in different orders; use the same order on all ranks",
    ):
        engines.run(cross, deadline_s=2)


def _return_early(comm: Any) -> None:
    first, second = comm.split(0, name="first"), comm.split(0, name="second")
    if comm.rank != 2:
        for child in (first, second) if comm.rank == 0 else (second, first):
            child.all_reduce(np.ones(4))


@pytest.mark.parametrize("engines", ["threads"], indirect=True)
def test_the_order_of_communicators_is_not_blamed_for_a_missing_rank(
    engines: ml.Engines, deadline_at: Callable[..., None]
) -> None:
    deadline_at(5, 5, 4, 5, n_responses=1)
    with pytest.raises(EngineError) as caught:
        engines.run(_return_early, deadline_s=2)
    assert "different orders" not in str(caught.value)


DIFFERENT_ORDERS = (
    lambda rank: "tp dp" if rank in (0, 3) else "dp tp",
    r"no progress within 1.0.s while running two_calls: rank 0 waits in all_reduce \(call 2\) of tp_0; "
    r"rank 1 waits in all_reduce \(call 1\) of dp_1; rank 2 waits in all_reduce \(call 1\) of dp_0; "
    r"rank 3 waits in all_reduce \(call 2\) of tp_1; the ranks use the communicators in different orders; "
    r"use the same order on all ranks, and call engines.restart\(\)",
    0,
    (2, 2, 2, 2),
    0,
)
A_RANK_RETURNS = (
    lambda rank: "tp" if rank == 2 else "tp dp",
    r"rank 0 waits in all_reduce \(call 1\) of dp_0; rank 2 has returned; issue the same calls on every rank, and ",
    2,
    (3, 3, 2, 3),
    3,
)
A_RANK_COMPUTES = (
    lambda rank: "tp sleep dp" if rank == 3 else "tp dp",
    r"rank 1 waits in all_reduce \(call 1\) of dp_1; rank 3 last called all_reduce \(call 2\) of tp_1; "
    "rank 3 is not in a call",
    3,
    (3, 3, 3, 2),
    2,
)


@pytest.mark.parametrize(
    ("engines", "order", "message", "culprit", "entered", "n_responses"),
    [
        pytest.param("threads", *DIFFERENT_ORDERS, id="different orders on threads"),
        pytest.param("mpi", *DIFFERENT_ORDERS, id="different orders on mpi", marks=pytest.mark.full),
        pytest.param("threads", *A_RANK_RETURNS, id="a rank returns"),
        pytest.param("threads", *A_RANK_COMPUTES, id="a rank computes"),
    ],
    indirect=["engines"],
)
def test_the_error_at_the_deadline_names_the_calls_and_the_cause(
    engines: ml.Engines,
    order: Any,
    message: str,
    culprit: int,
    entered: tuple[int, ...],
    n_responses: int,
    deadline_at: Callable[..., None],
) -> None:
    def two_calls(tp: Any, dp: Any, orders: list[str]) -> None:
        x = np.ones(4)
        tp.all_reduce(x)
        for name in orders[tp.world_rank].split():
            if name == "sleep":
                time.sleep(60)
            else:
                {"tp": tp, "dp": dp}[name].all_reduce(x)

    orders = [order(rank) for rank in range(4)]
    deadline_at(*entered, n_responses=n_responses)
    with (
        pytest.raises(EngineError, match=message) as caught,
        Lease(engines, "running two_calls") as lease,
    ):
        lease.round(two_calls, MESH, "tp", (orders,), also=("dp",), deadline_s=1.0).run()
    assert caught.value.rank == culprit
    engines.restart()


def test_a_call_that_has_returned_is_not_one_in_which_a_rank_waits(
    thread_engines: ml.Engines, deadline_at: Callable[..., None]
) -> None:
    gate = threading.Event()

    def call_and_hang(comm: Any) -> None:
        comm.barrier()
        with suppress(ml.errors.CommunicatorError):
            comm.broadcast(np.ones(2), root=comm.rank)
        gate.wait(60)

    deadline_at(2, 2, 2, 2, n_inside=0)
    expected = r"^no progress within 0.5.s while running call_and_hang: ranks 0, 1, 2, 3 last called broadcast"
    with pytest.raises(EngineError, match=expected):
        thread_engines.run(call_and_hang, deadline_s=0.5)
    gate.set()


def test_ranks_that_still_call_are_not_stuck(thread_engines: ml.Engines) -> None:
    is_over = threading.Event()

    def call_forever(comm: Any) -> None:
        with suppress(ml.errors.CommunicatorError):
            while not is_over.is_set():
                comm.barrier()

    expected = r"^ranks 0, 1, 2, 3 did not finish within 0.5.s while running call_forever, but still called collectives"
    with pytest.raises(EngineError, match=expected):
        thread_engines.run(call_forever, deadline_s=0.5)
    is_over.set()


def test_all_ranks_that_hang_are_named(thread_engines: ml.Engines) -> None:
    gate = threading.Event()
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"^ranks 0, 1, 2, 3 did not respond within 0\.2"):
        thread_engines.run(lambda comm: gate.wait(60), deadline_s=0.2)
    assert time.monotonic() - began < 25  # less than the deadline of the engines
    gate.set()


@pytest.mark.long  # the test of a rank that is killed in a benchmark is similar
@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "killed by signal 9"), (signal.SIGSEGV, "signal 11")])
def test_a_killed_rank_is_named(mpi_engines: ml.Engines, number: int, how: str) -> None:
    def die(comm: Any) -> None:
        comm.barrier()
        if comm.world_rank == 2:
            os.kill(os.getpid(), number)
        comm.barrier()

    pid = mpi_engines.ranks[2].pid
    began = time.monotonic()
    with pytest.raises(EngineError, match=rf"rank 2 \(process {pid} on .*\) was .*{how}") as caught:
        mpi_engines.run(die)
    assert caught.value.rank == 2
    assert caught.value.log.strip() not in ("Killed", "Segmentation fault")
    assert time.monotonic() - began < 20  # less than the deadline of the engines
    mpi_engines.restart()
    assert len(mpi_engines.client.ids) == 4
    assert_works(mpi_engines)


@pytest.mark.full
def test_a_rank_that_died_while_idle_is_named_at_the_next_call(mpi_engines: ml.Engines) -> None:
    # As after a restart that reused all ranks, which only NCCL ranks can be: each still records its exit in the file of
    # its own start.
    rank_set = mpi_engines._rank_set
    rank_set._starts.append(RankRecords(rank_set._folder, rank_set._n_starts + 1))
    os.kill(mpi_engines.ranks[3].pid, signal.SIGKILL)
    wait_for_the_end(mpi_engines.ranks[3].pid)
    time.sleep(0.3)  # the check has a period
    with pytest.raises(EngineError, match=r"rank 3 \(process .*\) was killed by signal 9"):
        mpi_engines.run(lambda comm: comm.barrier())
    mpi_engines.restart()
    assert_works(mpi_engines)


@pytest.mark.full
def test_a_rank_whose_process_is_removed_slowly_is_named(thread_engines: ml.Engines) -> None:
    # A process that is not waited for stays a zombie, as one does while the kernel releases its GPU memory.
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rank_set = LaunchedSet(1, "mpi")
    rank_set._starts.append(RankRecords(rank_set._folder, 1))
    rank_set._infos = (dataclasses.replace(thread_engines.ranks[0], pid=process.pid, parent_pid=os.getpid()),)
    process.kill()
    wait_for_the_end(process.pid)

    def reap() -> None:
        time.sleep(2.0)  # longer than the shell of a process without a GPU takes
        (rank_set._folder / "exits-1").write_text(f"{os.getpid()} 137\n")
        process.communicate()

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        assert rank_set.first_exit() == RankExit(0, "killed by signal 9")
        thread.join()
        (rank_set._folder / "exits-1").unlink()
        assert rank_set.first_exit() is None  # the process is gone, and nothing was written
    finally:
        thread.join()
        rank_set.close()


def test_exits_are_found_in_the_files_of_all_starts(thread_engines: ml.Engines) -> None:
    rank_set = LaunchedSet(2, "mpi")
    try:
        info = thread_engines.ranks[0]
        old = rank_set._folder / "exits-1"
        old.write_text("50 137\n")  # a rank that was lost and replaced
        rank_set._starts += [RankRecords(rank_set._folder, number) for number in (1, 2)]
        rank_set._starts[0].skip()
        # Rank 0 survived the first start, and rank 1 is new.
        rank_set._infos = tuple(
            dataclasses.replace(info, rank=rank, pid=os.getpid(), parent_pid=parent)
            for rank, parent in enumerate((51, 60))
        )
        with old.open("a") as file:
            file.write("52 143\n51 137\n")  # the shell of a rank that was replaced writes late
        assert rank_set.first_exit() == RankExit(0, "killed by signal 9")
        (rank_set._folder / "exits-2").write_text("60 3\n")
        assert rank_set.first_exit() == RankExit(1, "exited with code 3")
    finally:
        rank_set.close()


@pytest.mark.parametrize(
    ("exits", "text"),
    [
        ("51 137\n50 -1\n52 -1\n", "rank 1 (process 61) was killed by signal 9"),
        ("51 137\n50 137\n52 -1\n", "rank 1 (process 61) and rank 0 (process 60) were killed by signal 9"),
        ("52 143\n9 139\n51 1\n", "rank 2 (process 62) was killed by signal 15, and an engine was killed by signal 11"),
        ("52 -1\n51 -1\n", "rank 2 (process 62) was killed together with the shell that started it"),
    ],
)
def test_every_rank_that_is_killed_in_a_start_is_named(tmp_path: Path, exits: str, text: str) -> None:
    records = RankRecords(tmp_path, 1)
    (tmp_path / "processes-1").write_text("50 60 0\n51 61 1\n52 62 2\n")
    (tmp_path / "exits-1").write_text(exits)
    lost = records.lost()
    assert lost is not None
    assert lost.text == text


def test_the_shells_of_ranks_without_mpi_share_out_their_numbers(tmp_path: Path) -> None:
    records = RankRecords(tmp_path, 1)
    environment = os.environ | records.environment([0, 2, 3, 5])
    command = [*RANK_SHELL, "/bin/sh", "-c", 'echo "number $MESHLAB_RANK of $$"']
    shells = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [shell.wait() for shell in shells] == [0] * 4
    processes = records.processes()
    assert sorted(process.rank for process in processes if process.rank is not None) == [0, 2, 3, 5]
    assert {process.shell for process in processes} == {shell.pid for shell in shells}
    lines = records.log_file.read_text().splitlines()
    assert sorted(lines) == sorted(f"number {process.rank} of {process.pid}" for process in processes)


@pytest.mark.parametrize(
    ("victims", "text"), [((1,), r"rank 1 \([^)]*\) was killed by signal 9 while"), ((0, 1), None)]
)
def test_every_rank_that_is_killed_is_named_and_no_other(victims: tuple[int, ...], text: str | None) -> None:
    # mpiexec kills the other ranks as soon as one has ended.
    with ml.launch(3, backend="mpi", timeout_s=120) as engines:
        proxy = psutil.Process(psutil.Process(engines.ranks[0].parent_pid).ppid())
        proxy.suspend()  # so that it kills none between the signals
        for rank in victims:
            os.kill(engines.ranks[rank].pid, signal.SIGKILL)
        proxy.resume()
        with pytest.raises(EngineError, match=text) as caught:
            engines.run(lambda comm: comm.barrier(), deadline_s=60)
    named = {int(number) for number in re.findall(r"rank (\d+)", str(caught.value))}
    assert named == set(victims)


@pytest.mark.full
@pytest.mark.slow
def test_every_rank_without_mpi_that_is_killed_is_named_and_no_other(gloo_engines: ml.Engines) -> None:
    for rank in (1, 3):
        os.kill(gloo_engines.ranks[rank].pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="were killed by signal 9 while") as caught:
        gloo_engines.run(lambda comm: comm.barrier(), deadline_s=60)
    assert {int(number) for number in re.findall(r"rank (\d+)", str(caught.value))} == {1, 3}
    gloo_engines.restart()
    assert gloo_engines.verify("dp=2, tp=2")["is_right"].all()


def test_a_rank_sends_the_start_of_a_long_message() -> None:
    reply = Reply.of_error(1, ValueError("x" * 10_000_000))
    assert len(pickle.dumps(reply)) < 1_000_000
    assert reply.error is not None
    assert reply.error.startswith("ValueError: xxx")


def test_a_rank_killed_in_a_benchmark_keeps_the_measured_rows(mpi_engines: ml.Engines) -> None:
    run = ml.bench(mpi_engines, MESH, ["all_reduce", "broadcast"], sizes="1K:16M", sampling=Sampling(max_s=0.1))
    while run.progress.done < 5:
        time.sleep(0.01)
    pid = mpi_engines.ranks[1].pid
    os.kill(pid, signal.SIGKILL)
    expected = rf"rank 1 \(process {pid} on .*\) (was killed by signal 9|ended) while step \d+ of \d+: \w+ "
    with pytest.raises(EngineError, match=expected) as caught:
        run.wait(60)
    assert caught.value.rank == 1
    assert caught.value.log.strip() != "Killed"
    assert run.state == "failed"
    results = run.results
    assert (results["status"] == "ok").sum() >= 10
    assert results.loc[results["status"] == "failed", "stop_reason"].str.contains("rank 1").all()
    assert results["time_us"].notna().sum() == (results["status"] == "ok").sum()
    began = time.monotonic()
    mpi_engines.restart()
    print(f"restart took {time.monotonic() - began:.2f} s")
    assert len(mpi_engines.client.ids) == 4
    assert_works(mpi_engines)
    assert ml.bench(mpi_engines, MESH, "all_reduce", axis="tp", sizes="1K").wait(60)["status"].tolist() == ["ok"] * 2


@pytest.mark.usefixtures("patient_rounds")
def test_interrupt_stops_ranks_that_compute(engines: ml.Engines, tmp_path: Path) -> None:
    def spin(comm: Any) -> None:
        (tmp_path / str(comm.rank)).touch()
        while True:
            time.sleep(0.01)

    def interrupt() -> None:
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        engines.interrupt()

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    frame = engines.run(spin, deadline_s=60, check=False)
    thread.join()
    assert frame["error"].tolist() == ["interrupted"] * 4
    assert_works(engines)


def test_close_releases_a_caller_that_waits() -> None:
    engines = ml.launch(2, backend="threads")
    is_running, gate = threading.Event(), threading.Event()
    refused: list[EngineError] = []

    def close() -> None:
        is_running.wait()
        try:
            engines.close()
        except EngineError as error:
            refused.append(error)
        engines.close(cancel=True)

    threading.Thread(target=close, daemon=True).start()
    with pytest.raises(EngineError, match="the engines were closed while running"):
        engines.run(lambda comm: (is_running.set(), gate.wait(60)), deadline_s=60)
    gate.set()
    assert [str(error) for error in refused] == [
        "cannot close the engines, which are busy with running <lambda>; wait for it, or call "
        "engines.close(cancel=True)"
    ]


def test_a_failed_start_shows_the_log_and_cleans_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = tmp_path / "mpiexec"
    program.write_text("#!/bin/sh\necho no ranks today\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("MESHLAB_MPIEXEC", str(program))
    with pytest.raises(
        EngineError, match=r"^the MPI launcher \(process \d+\) exited with code 3 during start-up"
    ) as caught:
        ml.launch(2, timeout_s=60)
    assert str(caught.value).endswith("; start the engines again\nno ranks today")
    assert [entry.name for entry in tmp_path.iterdir()] == ["mpiexec"]


FULL_DISK = """
import os, resource, sys, tempfile
from pathlib import Path
import meshlab as ml

tempfile.tempdir = sys.argv[1]
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)


def attempt(action):
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))  # the kernel lets no file grow, as on a full disk
    try:
        action()
    except ml.MeshlabError as error:
        print(error, flush=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


attempt(lambda: ml.launch(1, backend="mpi"))
print(os.listdir(tempfile.tempdir), flush=True)
with ml.launch(1, backend="mpi", timeout_s=120) as engines:
    engines.kill()
    attempt(engines.restart)
    engines.restart()
    print(engines.run(lambda comm: comm.size)["value"].tolist(), flush=True)
print(os.listdir(tempfile.tempdir))
"""


@pytest.mark.full
@pytest.mark.slow
def test_a_start_on_a_full_disk_raises_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    problem = f"the engines cannot be started: File too large; make {tmp_path} writable, or set TMPDIR to a different"
    first, left, second, values, left_at_the_end = done.stdout.splitlines() or [done.stderr]
    assert first.startswith(problem), done.stderr
    assert second.startswith(problem)
    assert (left, values, left_at_the_end) == ("[]", "[1]", "[]")


STEPPED_CLOCK = """
import sys, threading, time
import meshlab as ml

clock, offset_s = time.time, 0.0
time.time = lambda: clock() + offset_s


def step(delay_s, by_s):
    def jump():
        global offset_s
        time.sleep(delay_s)
        offset_s += by_s

    threading.Thread(target=jump, daemon=True).start()


began = time.monotonic()
step(1.0, -3600)
with ml.launch(2, backend="mpi", timeout_s=120) as engines:
    step(0.3, -3600)
    sampling = ml.Sampling(max_s=0.1, precision=1e-9, min_batches=6)
    run = ml.bench(engines, "tp=2", sizes="1K:32K", sampling=sampling, out=sys.argv[1])
    print(run.wait(120)["time_us"].gt(0).sum(), run.state, 0 < run.progress.elapsed_s < 120)
    engines.kill()
    step(0.5, 3600)
    engines.restart()
print(time.monotonic() - began < 600)
"""


@pytest.mark.full
@pytest.mark.slow
def test_a_clock_that_is_set_back_delays_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STEPPED_CLOCK, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    assert done.stdout.splitlines() == ["6 done True", "True"]
    assert ml.Run.load(tmp_path / "run").state == "done"


def test_an_interrupt_while_idle_does_not_affect_the_next_call(engines: ml.Engines) -> None:
    assert engines.run(lambda comm: comm.rank, MESH, axis="tp")["value"].tolist() == [0, 1, 0, 1]
    engines.interrupt()
    frame = engines.run(lambda comm: float(comm.all_reduce(comm.xp.ones(1))[0]), MESH, axis="tp", deadline_s=60)
    assert frame["value"].tolist() == [2.0] * 4


@pytest.mark.usefixtures("patient_rounds")
def test_every_call_gets_replies_whenever_it_is_interrupted(thread_engines: ml.Engines) -> None:
    for number in range(60):
        timer = threading.Timer(number * 1e-5, thread_engines.interrupt)
        timer.start()
        frame = thread_engines.run(lambda comm: sum(range(2000)), deadline_s=60, check=False)
        timer.join()
        assert frame["error"].fillna("interrupted").eq("interrupted").all()
    assert_works(thread_engines)


@pytest.mark.usefixtures("patient_rounds")
def test_a_function_that_exits_is_an_error_of_its_rank(engines: ml.Engines) -> None:
    frame = engines.run(lambda comm: sys.exit(comm.rank), check=False)
    assert frame["error"].tolist() == [f"SystemExit: {rank}" for rank in range(4)]
    assert_works(engines)


# -- the ranks that are left -------------------------------------------------------------------------------------------


def die_as_rank_one(comm: Any) -> None:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.to_host(comm.all_reduce(comm.xp.ones(4)))


@pytest.mark.long
def test_engines_shrink_to_the_ranks_that_are_left() -> None:
    """With Gloo in the place of NCCL, whose ranks survive the fault of another one."""
    try:
        gloo.check_installed()
    except CommunicatorError as error:
        pytest.skip(error.message)
    with ml.launch(3, backend="gloo", timeout_s=180) as engines:
        rank_set: Any = engines._rank_set
        rank_set._facts = dataclasses.replace(rank_set._facts, survives=True)
        pids = [info.pid for info in engines.ranks]
        with pytest.raises(EngineError, match=r"rank 1 .* was killed by signal 9"):
            engines.run(die_as_rank_one)
        with pytest.raises(MeshError, match="dp=3 has 3 ranks, but there are 2 engines"):
            engines.shrink(mesh="dp=3")
        assert engines.shrink(mesh="dp=-1") == ("rank 1",)
        assert [info.pid for info in engines.ranks] == [pids[0], pids[2]]
        assert engines.verify("dp=2")["is_right"].all()
        with pytest.raises(EngineError, match=r"rank 1 .* was killed by signal 9"):
            engines.run(die_as_rank_one)
        engines.restart()
        assert engines.world_size == 2
        assert engines.verify("dp=2")["is_right"].all()


@pytest.mark.long
def test_a_stuck_rank_is_killed_before_the_others_abort() -> None:
    """With Gloo in the place of NCCL, whose abort may wait for the stuck rank."""
    try:
        gloo.check_installed()
    except CommunicatorError as error:
        pytest.skip(error.message)

    def stay_away(comm: Any) -> None:
        comm.barrier()
        if comm.rank == 1:
            time.sleep(600)
        comm.to_host(comm.all_reduce(comm.xp.ones(4)))

    with ml.launch(3, backend="gloo", timeout_s=180) as engines:
        rank_set: Any = engines._rank_set
        rank_set._facts = dataclasses.replace(rank_set._facts, survives=True)
        pids = [info.pid for info in engines.ranks]
        with pytest.raises(EngineError, match="rank 1"):
            engines.run(stay_away, deadline_s=1)
        assert engines.shrink() == ("rank 1",)
        assert [info.pid for info in engines.ranks] == [pids[0], pids[2]]


def test_threads_have_no_ranks_that_are_left(thread_engines: ml.Engines) -> None:
    with pytest.raises(EngineError, match="the engines have no hosts to leave out"):
        thread_engines.shrink()
