"""The controller and the launcher of the engines: named if they die, started again, and ended in time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import meshlab as ml
from meshlab.engines.controller import bounded
from meshlab.engines.reaper import marked_processes
from meshlab.errors import EngineError


def hub(engines: ml.Engines) -> psutil.Process:
    return psutil.Process(engines._rank_set._controller._cluster.controller.process.pid)


def scheduler(engines: ml.Engines) -> int:
    return sorted(process.pid for process in hub(engines).children())[1]


def launcher(engines: ml.Engines) -> int:
    return engines._rank_set._launcher.pid


def wrapper(engines: ml.Engines) -> int:
    return engines.ranks[1].parent_pid


CONTROLLER = "the controller of the engines"
FAULTS = {
    "a scheduler is killed": (
        scheduler,
        signal.SIGKILL,
        rf"^{CONTROLLER} \(process PID\) was killed by signal 9 while",
    ),
    "the hub is killed": (
        lambda engines: hub(engines).pid,
        signal.SIGKILL,
        rf"^{CONTROLLER} \(process PID\) was killed by signal 9 while",
    ),
    "a scheduler is stopped": (scheduler, signal.SIGSTOP, rf"^{CONTROLLER} \(process PID\) was stopped by a signal"),
    "the launcher is killed": (
        launcher,
        signal.SIGKILL,
        r"^the MPI launcher \(process PID\) was killed by signal 9 while",
    ),
    "the launcher is told to end": (launcher, signal.SIGTERM, r"^the MPI launcher \(process PID\) ended while"),
    "the shell of a rank is killed": (
        wrapper,
        signal.SIGKILL,
        r"^rank 1 \(process .*\) was killed together with the shell that started it while",
    ),
    "a rank is told to end": (
        lambda engines: engines.ranks[1].pid,
        signal.SIGTERM,
        r"^rank 1 \(process PID on .*\) was killed by signal 15 while",
    ),
}
QUICK = ("a scheduler is killed", "the launcher is killed", "a rank is told to end")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.long) for n in FAULTS])
def test_a_part_that_fails_is_named_and_replaced(mpi_engines: ml.Engines, name: str, tmp_path: Path) -> None:
    find, number, message = FAULTS[name]
    pid = find(mpi_engines)

    def wait(comm: Any) -> None:
        (tmp_path / str(comm.rank)).touch()
        while True:
            comm.barrier()
            time.sleep(0.001)

    def act() -> None:
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        os.kill(pid, number)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    with pytest.raises(EngineError, match=message.replace("PID", str(pid))) as caught:
        mpi_engines.run(wait, deadline_s=60)  # much longer than it takes to notice the fault
    thread.join()
    assert caught.value.rank == (1 if message.startswith("^rank 1") else None)
    mpi_engines.restart()
    assert mpi_engines.verify("dp=2, tp=2")["is_right"].all()
    assert len(mpi_engines.client.ids) == 4


def test_a_reaper_that_was_killed_is_replaced_before_the_next_task(mpi_engines: ml.Engines) -> None:
    reaper = mpi_engines._rank_set._reaper
    pid = reaper.pid
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)  # the check has a period
    mpi_engines.run(lambda comm: comm.barrier())
    assert reaper.pid != pid
    assert psutil.pid_exists(reaper.pid)


def test_a_client_that_was_closed_is_named(mpi_engines: ml.Engines) -> None:
    client = mpi_engines._rank_set._controller._cluster.connect_client_sync()
    with ml.attach(client) as attached:
        assert attached.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]
        client.close()
        with pytest.raises(EngineError, match="the client of the engines was closed while"):
            attached.run(lambda comm: comm.rank)
    assert mpi_engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]


def test_a_controller_that_does_not_start_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('no controller today'); sys.exit(3)"
    monkeypatch.setattr("meshlab.engines.controller.command", lambda role, module: [sys.executable, "-c", program])
    expected = rf"^{CONTROLLER} did not start: it exited with code 3; .*\nno controller today"
    with pytest.raises(EngineError, match=expected):
        ml.launch(2, backend="mpi")


def test_engines_are_closed_in_time_if_nothing_responds_and_a_first_close_was_interrupted() -> None:
    before = set(threading.enumerate())
    engines = ml.launch(2, backend="mpi")
    made: Any = engines._rank_set
    reaper, run = made._reaper, made._id
    files = [made._folder, *(Path(path) for info in engines.ranks for path in info.segments)]
    release, calls = reaper.release, []

    def interrupted() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        release()

    reaper.release = interrupted
    for pid in (engines.ranks[0].pid, hub(engines).pid, scheduler(engines), launcher(engines), reaper.pid):
        os.kill(pid, signal.SIGSTOP)
    os.kill(scheduler(engines), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engines.close()
    assert engines.state == "closing"
    assert marked_processes("MESHLAB_RUN", run)
    with pytest.raises(EngineError, match="the engines are closed"):
        engines.run(lambda comm: 1)
    engines.close()
    took = time.monotonic() - began
    assert engines.state == "closed"
    assert took < 10
    assert marked_processes("MESHLAB_RUN", run) == []
    assert [path for path in files if path.exists()] == []
    deadline = time.monotonic() + 30
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_bounded_call_returns_raises_and_gives_up() -> None:
    with pytest.raises(TimeoutError, match="its own"):
        bounded(lambda: (_ for _ in ()).throw(TimeoutError("its own")), 30)

    def check() -> None:
        raise KeyError("no longer wanted")

    with pytest.raises(KeyError):
        bounded(threading.Event().wait, 30, check)
