"""The controller and the launcher of the engines: named if they die, started again, and ended in time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import meshlab as ml
from meshlab.base._errors import EngineError
from meshlab.cli._output import error_text
from meshlab.engines._controller import bounded
from meshlab.engines._reaper import marked_processes


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
    "the proxy of the launcher is killed": (
        lambda engines: psutil.Process(wrapper(engines)).ppid(),
        signal.SIGKILL,
        r"^the proxy of the MPI launcher \(process PID\) (ended|was killed by signal 9) while",
    ),
    "the shell of a rank is killed": (
        wrapper,
        signal.SIGKILL,
        r"^rank 1 \(process .*\) was killed together with the shell that started it while",
    ),
    "the shell of the first rank is told to end": (
        lambda engines: engines.ranks[0].parent_pid,
        signal.SIGTERM,
        r"^rank 0 \(process .*\) was killed together with the shell that started it while",
    ),
    "a rank is told to end": (
        lambda engines: engines.ranks[1].pid,
        signal.SIGTERM,
        r"^rank 1 \(process PID on .*\) was killed by signal 15 while",
    ),
}
MARKS = {name: [pytest.mark.long] for name in FAULTS} | {
    "a scheduler is killed": [pytest.mark.full],
    "the launcher is killed": [],
    "the launcher is told to end": [pytest.mark.full],
    "the shell of the first rank is told to end": [pytest.mark.full],
    "a rank is told to end": [pytest.mark.full],
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in FAULTS])
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
    assert caught.value.rank == (int(message[6]) if message.startswith("^rank ") else None)
    mpi_engines.restart()
    assert mpi_engines.verify("dp=2, tp=2")["is_right"].all()
    assert len(mpi_engines.client.ids) == 4


@pytest.mark.full
@pytest.mark.slow
def test_a_controller_of_ranks_without_mpi_is_replaced(gloo_engines: ml.Engines) -> None:
    os.kill(hub(gloo_engines).pid, signal.SIGKILL)
    with pytest.raises(EngineError, match=CONTROLLER):
        gloo_engines.run(lambda comm: comm.barrier(), deadline_s=60)
    gloo_engines.restart()
    assert gloo_engines.verify("dp=2, tp=2")["is_right"].all()


def wait_for_the_end(pid: int) -> None:
    """Wait until a process that was killed is gone, or only its parent has to notice it."""
    deadline = time.monotonic() + 60
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_reaper_that_was_killed_is_replaced_before_the_next_task(mpi_engines: ml.Engines) -> None:
    reaper = mpi_engines._rank_set._reaper
    pid = reaper.pid
    os.kill(pid, signal.SIGKILL)
    wait_for_the_end(pid)
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
    monkeypatch.setattr("meshlab.engines._controller.command", lambda role, module: [sys.executable, "-c", program])
    expected = rf"^{CONTROLLER} did not start: it exited with code 3; .*\nno controller today"
    with pytest.raises(EngineError, match=expected):
        ml.launch(2, backend="mpi")


def test_a_start_that_needs_more_time_gets_it_by_an_argument_or_an_option() -> None:
    with pytest.raises(EngineError, match=f"^{CONTROLLER} did not start in time; pass a larger timeout_s") as caught:
        ml.launch(2, backend="mpi", timeout_s=0.01)
    assert error_text(caught.value).startswith(f"{CONTROLLER} did not start in time; pass a larger --timeout")


# A controller that selects ports and finds one of them bound. Its arguments are a folder in which each controller
# creates a file, the position of the port, and the controllers to which this happens: "1,2" are the first two.
LOSES_A_PORT = """
import pathlib, socket, sys
from ipyparallel import util
from meshlab.engines._lifeline import main

folder, number, losers = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
select, selected, bound = util.select_random_ports, [], []
marker = folder / str(len(list(folder.iterdir())) + 1)
marker.touch()

def select_random_ports(n):
    ports = select(n)
    selected.extend(ports)
    if marker.name in losers and len(selected) == number:
        bound.append(socket.create_server(("127.0.0.1", ports[-1])))
    return ports

util.select_random_ports = select_random_ports
main(*sys.argv[4:])
"""
# The ports are those of the hub, the relays of calls, output and control (which do not exit without one), and others.
N_PORTS = 17
PORTS_IN_CI = (1, 3)


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=pytest.mark.full if n in PORTS_IN_CI else pytest.mark.long) for n in range(1, N_PORTS + 1)],
)
def test_another_controller_is_started_if_one_of_its_ports_was_bound_by_another_process(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = [sys.executable, "-c", LOSES_A_PORT, str(tmp_path), str(number), "1"]
    monkeypatch.setattr("meshlab.engines._controller.command", lambda role, module: [*begin, role, module])
    with ml.launch(2, backend="mpi") as engines:
        assert engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.full
def test_a_start_that_never_gets_its_ports_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = [sys.executable, "-c", LOSES_A_PORT, str(tmp_path), "3", "1,2,3,4"]
    monkeypatch.setattr("meshlab.engines._controller.command", lambda role, module: [*begin, role, module])
    expected = rf"^another process bound a port that {CONTROLLER} had selected during start-up; start the engines again"
    with pytest.raises(EngineError, match=expected):
        ml.launch(2, backend="mpi")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.full
def test_engines_are_closed_in_time_if_nothing_responds_and_a_first_close_was_interrupted() -> None:
    before = set(threading.enumerate())
    engines = ml.launch(2, backend="mpi")
    rank_set: Any = engines._rank_set
    reaper, run = rank_set._reaper, rank_set._id
    files = [rank_set._folder, *(Path(path) for info in engines.ranks for path in info.segments)]
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
    deadline = time.monotonic() + 60
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_bounded_call_returns_raises_and_gives_up() -> None:
    assert bounded(lambda: 1 + 1, 30) == 2
    with pytest.raises(TimeoutError):
        bounded(threading.Event().wait, 0.1)
    with pytest.raises(TimeoutError, match="its own"):
        bounded(lambda: (_ for _ in ()).throw(TimeoutError("its own")), 30)

    def check() -> None:
        raise KeyError("no longer wanted")

    with pytest.raises(KeyError):
        bounded(threading.Event().wait, 30, check)
