"""The process that the chaos test attacks: it launches ranks, measures, saves and recovers, as a notebook does.

As a program, it reads one JSON document per line from standard input, each with a command, and writes events to
standard output. In a Jupyter kernel, the commands are the code of cells, and the events are appended to a file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import itertools
import json
import os
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import meshlab as ml
from meshlab.base._errors import MeshlabError
from meshlab.benchmark import _environments as comparing
from meshlab.benchmark.tuning import _search as tuning
from meshlab.frames import RunData
from meshlab.prediction._step_calls import StepCall

__all__ = ["HIT", "REPORTS", "describe_error", "digest", "main", "rows_of", "start_in_kernel"]

HIT = "-was-hit"
"""The end of the name of the file that a faulty function writes, beside its trigger."""

_SAVING_S = 1.2  # duration of the moment "save"

REPORTS = ("report.html", "report.md", "report.csv", "report.parquet", "report.xml", "report.json")
"""The files of the moment "report". The second one has figures beside it."""

# Two algorithms of MPICH, whose choice needs new ranks, and an environment variable of each backend that makes a
# difference.
_ALGORITHMS = ("recursive_doubling", "ring")
_SETTING = {
    "mpi": {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"},
    "nccl": {"NCCL_ALGO": "Ring"},
    "gloo": {"GLOO_SOCKET_IFNAME": "lo"},
}


def rows_of(run: RunData) -> list[list[Any]]:
    """Return the measured rows of a run, as launch, step, group and time."""
    results = run.results
    measured = results[results["status"].isin(["ok", "wrong"])]
    return [
        [int(launch), int(step), str(group), float(time_us)]
        for launch, step, group, time_us in zip(
            measured["launch"], measured["step"], measured["group"], measured["time_us"], strict=True
        )
    ]


def digest(run: RunData) -> list[Any]:
    """Return what tells two versions of a run apart, and a whole one from a part of it."""
    results, samples = run.results, run.samples
    return [run.state, len(results), len(samples), round(float(samples["time_us"].sum()), 3)]


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an error as plain data."""
    is_known = isinstance(error, MeshlabError)
    return {
        "type": type(error).__name__,
        "is_meshlab": is_known,
        "is_interrupt": isinstance(error, KeyboardInterrupt),
        "text": error.summary if isinstance(error, MeshlabError) else f"{type(error).__name__}: {error}",
        "rank": getattr(error, "rank", None),
    }


def work(comm: Any, trigger: str, kind: str, culprit: int) -> None:
    """Call a collective. If the trigger exists, one rank does something else instead."""
    if not os.path.exists(trigger) or comm.world_rank != culprit:  # noqa: PTH110 - called in a timed loop
        call_torch()
        comm.all_reduce(comm.xp.ones(64))
        return
    misbehave(comm, trigger, kind)


def call_torch() -> None:
    """Call a collective of torch, if the engines have opened its default process group."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_initialized():
        data = torch.ones(64)
        torch.distributed.all_reduce(data)
        assert data[0] == torch.distributed.get_world_size()


def misbehave(comm: Any, trigger: str, kind: str) -> None:
    """Do what a faulty function does, and leave a file that shows that it did."""
    import numpy as np

    Path(trigger + HIT).touch()
    if kind == "raise":
        raise ValueError("planted")
    if kind == "stay_away":
        while True:
            time.sleep(0.05)
    if kind == "other_call":
        comm.broadcast(comm.xp.ones(64), root=0)
    if kind == "sys_exit":
        sys.exit(3)
    if kind == "os_exit":
        os._exit(3)
    if kind == "abort":
        os.abort()
    if kind == "memory":
        np.empty(1 << 50)


def call_for_a_while(comm: Any, trigger: str, kind: str, culprit: int, n: int) -> float:
    """Call collectives for at least `n` × 10 ms."""
    for _ in range(n):
        work(comm, trigger, kind, culprit)
        time.sleep(0.01)
    return float(comm.all_reduce(comm.xp.ones(1)).item())


class Client:
    """The commands. Each one runs on the main thread, where an interrupt arrives."""

    def __init__(self, settings: dict[str, Any], events: int = 1) -> None:
        # Python cannot repeat an import of it that an interrupt has ended. Ranks, which import this module, need none.
        importlib.import_module("matplotlib.pyplot")
        self._settings = settings
        self._events = events  # the file descriptor that they are written to
        self._engines: Any = None
        self._run: Any = None
        self._saved: Any = None
        self._writing = threading.Lock()
        self._commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._may_interrupt = False
        self._mesh = ml.DeviceMesh(settings["mesh"])

    # -- protocol ------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Run commands until the input ends."""
        signal.signal(signal.SIGINT, self._interrupt)
        threading.Thread(target=self._read, name="chaos commands", daemon=True).start()
        self._tell("ready", pid=os.getpid())
        while (command := self._commands.get()) is not None:
            name = command.pop("command")
            if name == "leave":
                # Without closing anything: the exit of the interpreter has to.
                self.leave()
                return
            self._execute(name, command)

    def execute(self, name: str, arguments: str) -> None:
        """Run a command in a cell. The kernel has its own handler of interrupts outside of cells."""
        signal.signal(signal.SIGINT, self._interrupt)
        self._execute(name, json.loads(arguments))

    def leave(self) -> None:
        """Report that the client is about to exit."""
        self._tell("begin", command="leave")

    def _execute(self, name: str, arguments: dict[str, Any]) -> None:
        error, value = None, None
        began = time.monotonic()
        try:
            try:
                self._may_interrupt = name != "settle"
                self._tell("begin", command=name)
                value = getattr(self, name)(**arguments)
            finally:
                self._may_interrupt = False
        except BaseException as raised:
            error = describe_error(raised)
        self._tell("end", command=name, value=value, error=error, seconds=time.monotonic() - began)

    def _interrupt(self, *_: Any) -> None:
        """Raise KeyboardInterrupt within a command, as Python does by default, but not in the code of the protocol."""
        if self._may_interrupt:
            self._may_interrupt = False
            raise KeyboardInterrupt

    def _read(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        self._commands.put(None)

    def _tell(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **values}, default=str) + "\n"
        with self._writing:
            os.write(self._events, line.encode())

    # -- engines -------------------------------------------------------------------------------------------------------

    def launch(self) -> dict[str, Any]:
        """Launch the ranks."""
        options = {name: self._settings[name] for name in ("backend", "deadline_s", "timeout_s")}
        if self._settings.get("devices"):
            options["devices"] = self._settings["devices"]
        if self._settings.get("env"):
            options["env"] = self._settings["env"]
        self._engines = None
        self._engines = ml.launch(self._settings["ranks"], **options)
        if self._settings.get("torch"):
            self._engines.torch(self._mesh)
        return self.describe()

    def describe(self) -> dict[str, Any]:
        """Return the state of the engines, and their processes."""
        if self._engines is None:
            return {"state": "closed", "pids": [], "n_threads": threading.active_count()}
        state = self._engines.state
        pids = [] if state == "closed" else [info.pid for info in self._engines.ranks]
        return {"state": state, "pids": pids, "n_threads": threading.active_count()}

    def kill(self) -> None:
        """Break the engines, so that they can be restarted."""
        self._engines.kill()

    def restart(self) -> dict[str, Any]:
        """Start new ranks."""
        self._engines.restart()
        return self.describe()

    def close(self) -> dict[str, Any]:
        """Close the engines."""
        self._engines.close(cancel=True)
        return self.describe()

    def verify(self) -> bool:
        """Return whether the ranks form the groups of the mesh, and their sums are right."""
        engines = self._engines
        if not engines.verify(self._mesh)["is_right"].all():
            return False
        for axis in self._mesh.axis_names:
            frame = engines.run(
                lambda comm: comm.all_reduce(comm.xp.full(16, 1.0 + comm.world_rank)).tolist(), self._mesh, axis=axis
            )
            for group in self._mesh[axis]:
                expected = [float(sum(1 + rank for rank in group.ranks))] * 16
                if any(frame["value"][rank] != expected for rank in group.ranks):
                    return False
        return True

    def call(self, trigger: str, kind: str = "", culprit: int = -1, n: int = 60) -> None:
        """Run a function that calls collectives."""
        frame = self._engines.run(call_for_a_while, self._mesh, arguments=(trigger, kind, culprit, n))
        if set(frame["value"]) != {float(self._settings["ranks"])}:
            raise AssertionError(f"wrong sums: {frame['value'].tolist()}")

    # -- runs ----------------------------------------------------------------------------------------------------------

    def sweep(
        self, folder: str, trigger: str, kind: str, culprit: int, hold_after: int, hold_file: str, mode: str
    ) -> dict[str, Any]:
        """Measure, and write the rows to a folder while measuring. After a step, wait until a file is removed."""

        def planted(comm: Any) -> Callable[[], None] | None:
            # Calls of a graph are captured once, so a function of a graph decides here.
            if mode == "graph":
                x = comm.xp.ones(64)
                if os.path.exists(trigger) and comm.world_rank == culprit:  # noqa: PTH110
                    misbehave(comm, trigger, kind)
                    return None
                return comm.prepare("all_reduce", x, x)
            return lambda: work(comm, trigger, kind, culprit)

        # All backends but threads have blocks of samples; without precision, a step takes all of its time.
        sampling = ml.Sampling(max_s=self._settings["step_s"], precision=1e-9, min_batches=6)
        self._run = None
        self._run = run = ml.bench(
            self._engines,
            self._mesh,
            ["all_reduce", planted, "broadcast"],
            sizes="1K, 32K",
            mode=mode,
            sampling=sampling,
            out=folder,
        )
        self._follow(run, hold_after, hold_file)
        run.wait()
        return self.report()

    def _follow(self, run: Any, hold_after: int, hold_file: str) -> None:
        seen = -1

        def tell(_: Any) -> None:
            nonlocal seen
            done = run.progress.done
            if done != seen:
                seen = done
                self._tell("step", done=done, measured=len(rows_of(run)))
                end = time.monotonic() + 30
                while done == hold_after and Path(hold_file).exists() and time.monotonic() < end:
                    time.sleep(0.01)

        run.subscribe(tell)

    def report(self) -> dict[str, Any]:
        """Return the rows of the run, and the number that a complete one has."""
        run = self._run
        if run is None:
            return {"state": "", "rows": [], "expected": 0, "failed": None}
        parts = [part for step in run.steps for part in step.parts]
        expected = run.plan.launches * sum(len(part.measured_groups(run.mesh[part.axis])) for part in parts)
        results = run.results
        # If a function raises on all ranks of a group, only its step fails. Its reason begins with the first rank.
        reasons = results.loc[results["status"] == "failed", "stop_reason"].tolist()
        found = re.match(r"rank (\d+)(?:: | has returned)", reasons[0]) if reasons else None
        failed = None if found is None else describe_error(ml.errors.EngineError(reasons[0], rank=int(found[1])))
        return {"state": run.state, "rows": rows_of(run), "expected": expected, "failed": failed}

    def settle(self) -> dict[str, Any]:
        """End a run that is still measuring, as a person does after an interrupt, and return its rows."""
        if self._run is not None and not self._run.has_ended:
            self._run.cancel()
            with contextlib.suppress(MeshlabError):
                self._run.wait(20)
        return self.report()

    def resume(self, source: str = "", folder: str = "") -> dict[str, Any]:
        """Resume the run, from memory or from its folder. Return its rows before and after."""
        earlier: Any = self._run
        if source:
            earlier = ml.Run.load(source)
        elif folder:
            self._run.save(folder, overwrite=True)
            earlier = ml.Run.load(folder)
        before = [] if earlier is None else rows_of(earlier)
        missing = [name for name, function in earlier.plan.functions.items() if function is None]
        given = {"collective": [healthy]} if missing else {}
        # A run that was being written to its folder goes on there.
        self._run = ml.bench(self._engines, resume=earlier, **given, **({"out": source} if source else {}))
        self._run.wait(60)
        if source:
            self._run = ml.Run.load(source)
        return {"before": before, **self.report()}

    def save(self, folder: str) -> None:
        """Save two versions of a run to one folder, in turns."""
        versions = self._versions()
        self._tell("versions", digests=[digest(version) for version in versions])
        end = time.monotonic() + _SAVING_S
        number = 0
        while time.monotonic() < end or number % 2 == 0:
            versions[number % 2].save(folder, overwrite=True)
            self._tell("saved", number=number)
            number += 1

    def save_once(self, folder: str) -> list[Any]:
        """Save one version of a run, and return its digest."""
        version = self._versions()[1]
        version.save(folder, overwrite=True)
        return digest(version)

    # -- other measurements --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watched(self, module: ModuleType) -> Iterator[None]:
        """Report the starts and the ends of ranks that a module launches."""
        launch = module.launch  # type: ignore[attr-defined]
        numbers = itertools.count()

        def watched(n: int, **options: Any) -> Any:
            self._tell("starting", number=next(numbers))
            options["deadline_s"], options["timeout_s"] = self._settings["deadline_s"], self._settings["timeout_s"]
            try:
                engines = launch(n, **options)
            except MeshlabError as error:
                self._tell("not started", error=describe_error(error))
                raise
            pids = [info.pid for info in engines.ranks]
            self._tell("started", ranks=pids)
            close = engines.close

            def closing(**arguments: Any) -> None:
                self._tell("closing", ranks=pids)
                close(**arguments)

            engines.close = closing
            return engines

        module.launch = watched  # type: ignore[attr-defined]
        try:
            yield
        finally:
            module.launch = launch  # type: ignore[attr-defined]

    def tune(self) -> dict[str, Any]:
        """Search for the fastest options of a call. Some of them need new ranks, whose failure is a row."""
        options = _ALGORITHMS if self._settings["backend"] == "mpi" else None
        with self._watched(tuning), self._measured():
            frame = ml.tune(
                self._engines,
                self._mesh,
                axis=self._mesh.axis_names[-1],
                sizes="1K",
                options=options,
                rounds=4,
                progress=False,
            ).trials
        messages = list(dict.fromkeys(frame.loc[frame["status"] == "failed", "message"]))
        return {"messages": messages, "failed": _failure(messages), "rows": len(frame)}

    def compare_env(self) -> dict[str, Any]:
        """Compare two settings, on ranks of their own."""
        backend = self._settings["backend"]
        sampling = ml.Sampling(max_s=self._settings["step_s"], precision=1e-9, min_batches=6)
        with self._watched(comparing), self._measured():
            comparison = ml.compare_env(
                self._mesh,
                {"default": {}, "other": _SETTING[backend]},
                rounds=1,
                backend=backend,
                devices=self._settings["devices"] or None,
                axis=self._mesh.axis_names[-1],
                sizes="1K, 32K",
                sampling=sampling,
                progress=False,
            )
        _check_rows(comparison)
        return {"rows": len(comparison.results)}

    def rehearse(self) -> dict[str, Any]:
        """Rehearse a step with a call along each axis."""
        calls = [
            StepCall((axis,), "all_reduce", 4096, "float32", "activations", "forward", 0, 2, 1, 4e8, "nothing", 0.0)
            for axis in self._mesh.axis_names
        ]
        with self._measured():
            rehearsal = ml.rehearse(self._engines, self._mesh, calls, rounds=6, steps=6, progress=False)
        return {"rows": len(rehearsal.frame())}

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        """Read what an error has of the measurement, as a person does."""
        try:
            yield
        except (MeshlabError, KeyboardInterrupt) as error:
            if (measured := getattr(error, "measured", None)) is not None:
                _check_rows(measured)
            raise

    # -- reports -------------------------------------------------------------------------------------------------------

    def write_report(self, folder: str) -> None:
        """Write the reports of two versions of a run over each other, in turns."""
        versions = self._versions()
        self._tell("versions", digests=[len(version.results) for version in versions])
        end = time.monotonic() + _SAVING_S
        number = 0
        while time.monotonic() < end or number % 2 == 0:
            self._write_all(versions[number % 2], Path(folder))
            self._tell("saved", number=number)
            number += 1

    def report_once(self, folder: str) -> int:
        """Write the reports of one version of a run, and return the number of its results."""
        version = self._versions()[1]
        self._write_all(version, Path(folder))
        return len(version.results)

    @staticmethod
    def _write_all(version: RunData, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        report = ml.Report(version)
        for name in REPORTS:
            report.save(folder / name, pictures=name.endswith(".md"))

    def _versions(self) -> tuple[RunData, RunData]:
        if self._saved is None:
            with ml.launch(2, backend="threads") as engines:
                run = ml.bench(engines, sizes="1K:64K", sampling=ml.Sampling(max_s=0.05))
                run.wait(60)
            results, samples = run.results, run.samples
            half = results["step"] < len(run.steps) // 2
            about = {"run_id": run.run_id, "source": run.source, "where": run.where}
            part = samples[samples["step"] < len(run.steps) // 2]
            self._saved = (
                RunData(run.plan, run.mesh, **about, state="cancelled", results=results[half], samples=part),
                RunData(run.plan, run.mesh, **about, state="done", results=results, samples=samples),
            )
        return self._saved


def _failure(messages: list[str]) -> dict[str, Any] | None:
    """Return the first failure of ranks among the messages of trials, as an error."""
    for message in messages:
        if re.search(r"\b(killed|stopped|ended|exited|respond|disconnected|closed|in time)\b", message):
            found = None if "during start-up" in message else re.match(r"rank (\d+)\b", message)
            return describe_error(ml.errors.EngineError(message, rank=int(found[1]) if found else None))
    return None


def _check_rows(measured: Any) -> None:
    """Raise unless a result can be read, and each row that was measured has its time."""
    frame = measured.results if hasattr(measured, "results") else None
    if frame is None:
        frame = measured.trials if hasattr(measured, "trials") else measured.frame()
    if "status" in frame and frame.loc[frame["status"] == "ok", "time_us"].isna().any():
        raise AssertionError(f"a row without a time:\n{frame.to_string()}")
    str(measured)


def healthy(comm: Any) -> Callable[[], None]:
    """Stand in for the function of a run that was loaded from its folder, which has no functions."""
    x = comm.xp.ones(64)
    return comm.prepare("all_reduce", x, x)


healthy.__name__ = "planted"


def main(settings: str, events: int = 1) -> Client:
    """Return a client. The settings are a JSON document."""
    options = json.loads(settings)
    stacks = Path(options["stacks"]).open("w")  # noqa: SIM115 - open as long as the process runs
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    return Client(options, events)


def start_in_kernel(settings: str, events: str) -> Client:
    """Return a client whose commands are cells. It appends its events to a file."""
    client = main(settings, os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    client._tell("ready", pid=os.getpid())
    return client


if __name__ == "__main__":
    main(sys.argv[1]).serve()
