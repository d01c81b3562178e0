"""Run: a benchmark under way, or done. It measures in a thread of its own and keeps every row it has."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from meshlab.benchmark import environment
from meshlab.benchmark.assemble import results_frame, rows_of_failed_step, rows_of_step, samples_frame, samples_of_step
from meshlab.benchmark.card import run_card
from meshlab.benchmark.plan import Plan, Step
from meshlab.benchmark.timing import Measured, measure_step
from meshlab.engines.engines import Engines, Lease
from meshlab.errors import BenchError, EngineError, MeshlabError
from meshlab.mesh import DeviceMesh
from meshlab.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Progress", "Run"]

State = Literal["running", "done", "cancelled", "failed"]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Parameters
    ----------
    done, total : int
        Steps.
    step : str
        What is being measured now; empty when nothing is.
    elapsed_s, left_s : float
        Time so far, and the estimate of what is left, in seconds; NaN while there is none.
    """

    done: int
    total: int
    step: str
    elapsed_s: float
    left_s: float


class Run:
    """A benchmark under way, or done. Made by `bench`, or read back by `Run.load`.

    Rows that were measured are never lost: not by an error, a cancel, or the end of the engines.
    """

    _engines: Engines | None = None
    _deadline_s: float | None = None

    def __init__(self, engines: Engines, mesh: DeviceMesh, plan: Plan, *, deadline_s: float | None = None) -> None:
        self._init_values(mesh, plan)
        self._engines = engines
        self._deadline_s = deadline_s
        self._source = engines.backend
        self._where = engines.where
        self._same_host = len({fact.host for fact in engines.facts}) == 1
        leased = ExitStack()
        lease = leased.enter_context(engines.lease(f"a run of {len(self.steps)} steps"))
        name = f"meshlab run {self.run_id}"
        threading.Thread(target=self._work, args=(lease, leased), name=name, daemon=True).start()

    def _init_values(self, mesh: DeviceMesh, plan: Plan) -> None:
        self.mesh = mesh
        """The mesh that was measured on."""
        self.plan = plan
        """What was to be measured."""
        self.steps: tuple[Step, ...] = plan.steps(mesh)
        """The steps of the plan."""
        self.run_id = secrets.token_hex(6)
        """A unique name."""
        self.state: State = "running"
        """running, done, cancelled or failed."""
        self.error: MeshlabError | None = None
        """Why the run failed."""
        self.environment: dict[str, dict[str, str]] = {}
        """Where the run was made: sections of names and values."""
        self.log: list[str] = []
        """What happened, in sentences."""
        self._source, self._where, self._same_host = "", "", True
        self._lock = threading.RLock()
        self._is_over = threading.Event()
        self._rows: list[dict[str, Any]] = []
        self._sample_parts: list[dict[str, Any]] = []
        self._frames: dict[str, tuple[int, pd.DataFrame]] = {}
        self._presses = 0
        self._current: Step | None = None
        self._n_done = 0
        self._began = time.monotonic()
        self._ended: float | None = None
        self._listeners: list[Callable[[Run], None]] = []
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        """When it began, in UTC."""

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _work(self, lease: Lease, leased: ExitStack) -> None:
        try:
            with leased:
                self._go_through(lease)
        finally:
            self._is_over.set()

    def _go_through(self, lease: Lease) -> None:
        try:
            self.environment = self._describe(lease)
            for step in self.steps:
                if self._presses:
                    self._finish("cancelled")
                    return
                self._measure(lease, step)
            self._finish("done")
        except EngineError as error:
            self._finish_with(error)
        except Exception as error:  # a defect of ours must not look like a run that never ends
            self._finish_with(BenchError(f"the run stopped on an internal error: {type(error).__name__}: {error}"))

    def _describe(self, lease: Lease) -> dict[str, dict[str, str]]:
        capabilities = lease.engines.facts[0].capabilities
        settings = lease.call(environment.settings_of_rank)[0].value
        about = {"run": self.run_id, "started": self.started_at, "ranks": self._where, "mesh": str(self.mesh)}
        cores, n = environment.usable_cores(), lease.engines.world_size
        if capabilities.backend == "mpi" and self._same_host and n > cores:
            about["note"] = f"{n} ranks share {cores} cores, so times include waiting for a core."
        return {
            "Run": about,
            "Host": environment.describe_host(),
            "Library": {
                "backend": capabilities.backend,
                "library": capabilities.library,
                "loaded from": capabilities.path,
                **capabilities.facts,
            },
            "Software": environment.software_versions(),
            "Settings": settings or {},
        }

    def _measure(self, lease: Lease, step: Step) -> None:
        self._current = step
        lease.doing = f"step {step.index + 1} of {len(self.steps)}: {step}"
        self._tell()
        groups = self.mesh.group_set(step.axis)
        arguments = (step, self.plan.sampling, self.plan.check)
        try:
            replies = lease.call(measure_step, self.mesh, step.axis, arguments, deadline_s=self._deadline_s)
        except EngineError as error:
            self._add(rows_of_failed_step(step, groups, "cancelled" if self._presses else "failed", error.summary), [])
            raise
        failed = [reply for reply in replies if reply.error is not None]
        if failed:
            reason = f"rank {failed[0].rank}: {failed[0].error}"
            status = "cancelled" if failed[0].is_interrupt else "failed"
            self._note(f"step {step.index + 1}, {step}: {reason}")
            self._add(rows_of_failed_step(step, groups, status, reason), [])
        else:
            measured: dict[int, Measured] = {reply.rank: reply.value for reply in replies}
            self._add(
                rows_of_step(step, groups, measured, same_host=self._same_host),
                samples_of_step(step, groups, measured, same_host=self._same_host),
            )

    def _add(self, rows: list[dict[str, Any]], samples: list[dict[str, Any]]) -> None:
        with self._lock:
            self._rows += rows
            self._sample_parts += samples
            self._n_done += 1
        self._tell()

    def _finish(self, state: State) -> None:
        with self._lock:
            self._current = None
            self._ended = time.monotonic()
            self.state = state
        self._note(
            f"{state} after {self._n_done} of {len(self.steps)} steps, {format_seconds(self.progress.elapsed_s)}"
        )
        self._tell()

    def _finish_with(self, error: MeshlabError) -> None:
        if self._presses:
            self._note(str(error).splitlines()[0])
            self._finish("cancelled")
        else:
            self.error = error
            self._note(str(error).splitlines()[0])
            self._finish("failed")

    def _note(self, sentence: str) -> None:
        self.log.append(f"{datetime.now(UTC):%H:%M:%S} {sentence}")

    def _tell(self) -> None:
        for listener in list(self._listeners):
            try:
                listener(self)
            except Exception as error:
                self._note(f"a listener failed: {type(error).__name__}: {error}")

    # -- what it gives -------------------------------------------------------------------------------------------------

    @property
    def results(self) -> pd.DataFrame:
        """One row per step and group, as far as measured; `meshlab.benchmark.describe` lists the columns."""
        fixed = {
            "run_id": self.run_id,
            "launch": 0,
            "source": self._source,
            "mesh_fingerprint": self.mesh.fingerprint,
        }
        return self._frame("results", lambda: results_frame(self._rows, fixed=fixed, attrs=self._attrs))

    @property
    def samples(self) -> pd.DataFrame:
        """One row per step, rank and batch, as far as measured."""
        fixed = {"run_id": self.run_id, "launch": 0}
        return self._frame("samples", lambda: samples_frame(self._sample_parts, fixed=fixed, attrs=self._attrs))

    @property
    def _attrs(self) -> dict[str, str]:
        told = {
            "where": self._where,
            "library": self.environment.get("Library", {}).get("library", ""),
            "note": self.environment.get("Run", {}).get("note", ""),
        }
        return {name: text for name, text in told.items() if text}

    def _frame(self, name: str, build: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        with self._lock:
            known = self._frames.get(name)
            if known is None or known[0] != self._n_done:
                known = (self._n_done, build())
                self._frames[name] = known
        return known[1].copy()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        with self._lock:
            done, total = self._n_done, len(self.steps)
            elapsed = (time.monotonic() if self._ended is None else self._ended) - self._began
            step = str(self._current) if self._current is not None else ""
        left = 0.0 if self._ended is not None else elapsed / done * (total - done) if done else float("nan")
        return Progress(done, total, step, elapsed, left)

    @property
    def where(self) -> str:
        """What the numbers are numbers of: such as "4 ranks · MPI on this CPU"."""
        return self._where

    @property
    def cancel_presses(self) -> int:
        """How often `cancel` was called while it ran."""
        return self._presses

    def rows(self, start: int = 0) -> list[Row]:
        """The rows of the results as measured so far, from the given one on: cheap, for views that follow a run.

        They are plain dicts without the columns that are the same in all rows, and without bandwidth.
        """
        with self._lock:
            return self._rows[start:]

    def wait(self, timeout_s: float | None = None, *, progress: bool | None = None) -> pd.DataFrame:
        """Wait until the run ends.

        Parameters
        ----------
        timeout_s : float, optional
            At most so long.
        progress : bool, optional
            Whether to draw a progress bar on standard error; by default where that is a terminal and the environment
            variable MESHLAB_PROGRESS is not 0.

        Returns
        -------
        pandas.DataFrame
            The results, also of a run that was cancelled.

        Raises
        ------
        EngineError
            If a rank died or got stuck. The rows measured so far are in `results`.
        BenchError
            If the time is over and the run is not.
        """
        if progress is None:
            progress = sys.stderr.isatty() and os.environ.get("MESHLAB_PROGRESS") != "0"
        if progress:
            self._watch(timeout_s)
        # An event, because an interrupted join() takes a running thread for one that has ended.
        if not self._is_over.wait(timeout_s):
            raise BenchError(f"the run has not ended within {timeout_s} s; it goes on: wait again, or cancel() it")
        if self.error is not None:
            raise self.error
        return self.results

    def _watch(self, timeout_s: float | None) -> None:
        from tqdm import tqdm

        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        form = "{l_bar}{bar}| {n_fmt}/{total_fmt} steps [{elapsed}<{remaining}]{postfix}"
        with tqdm(total=len(self.steps), bar_format=form, dynamic_ncols=True, leave=False) as bar:
            while not self._is_over.wait(0.1) and time.monotonic() < deadline:
                now = self.progress
                bar.set_postfix_str(now.step, refresh=False)
                bar.update(now.done - bar.n)
                bar.refresh()

    def cancel(self) -> None:
        """Stop early. What was measured stays.

        The first call stops after the step, the second interrupts the ranks, the third ends them.
        """
        if self.state != "running" or self._engines is None:
            return
        self._presses += 1
        if self._presses == 1:
            self._note("cancel: stopping after this step")
        elif self._presses == 2:
            self._note("cancel: interrupting the ranks")
            self._engines.interrupt()
        else:
            self._note("cancel: ending the ranks")
            self._engines.kill()
        self._tell()

    def subscribe(self, listener: Callable[[Run], None]) -> Callable[[], None]:
        """Have a function called after every step and change of state, on the run's own thread.

        Returns
        -------
        callable
            Call it to end the subscription.
        """
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def save(self, folder: str | Path) -> Path:
        """Write the run into a folder: frames as Parquet and CSV, everything else as JSON.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        BenchError
            If it cannot be written; nothing half-written stays.
        """
        from meshlab.benchmark.store import save_run
        from meshlab.files import staged_folder

        with staged_folder(folder) as stage:
            save_run(self, stage)
        return Path(folder)

    def to_nccl_tests(self) -> str:
        """The results as text in the layout of nccl-tests, for tools that read that."""
        from meshlab.benchmark.nccl_tests import to_nccl_tests

        return to_nccl_tests(self.results)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run that `save` wrote. It has no engines any more, but everything else.

        Raises
        ------
        ParseError
            If the folder holds no run.
        """
        from meshlab.benchmark.store import load_run

        return load_run(cls, folder)

    @classmethod
    def _from_record(
        cls, mesh: DeviceMesh, plan: Plan, document: dict[str, Any], results: pd.DataFrame, samples: pd.DataFrame
    ) -> Run:
        run = cls.__new__(cls)
        run._init_values(mesh, plan)
        run.run_id, run.state, run.log = document["run_id"], document["state"], document["log"]
        run.environment, run.started_at = document["environment"], document["started_at"]
        run.error = None if document["error"] is None else BenchError(document["error"])
        run._n_done, run._began, run._ended = document["n_done"], 0.0, document["elapsed_s"]
        run._where = results.attrs.get("where", "")
        run._is_over.set()
        run._frames = {"results": (run._n_done, results), "samples": (run._n_done, samples)}
        return run

    # -- looks ---------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        now = self.progress
        return f"<Run {self.run_id}: {self.state}, {now.done} of {now.total} steps, {self._where}>"

    def _ipython_display_(self) -> None:
        from meshlab.widgets.live import show

        show(self)

    def _repr_html_(self) -> str:
        return run_card(self)
