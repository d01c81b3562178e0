"""Run: a benchmark under way, or done. It measures in a thread of its own and keeps every row it has."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.benchmark.estimate import Estimate, seconds_per_step
from meshlab.benchmark.executor import Clock, Conductor, Progress
from meshlab.engines.engines import Engines
from meshlab.engines.memory import room_here
from meshlab.errors import BenchError, MeshlabError
from meshlab.frames.plan import Plan, Step
from meshlab.frames.rundata import Record, Row, State, columns_of_samples, rows_of_results
from meshlab.frames.table import run_card
from meshlab.mesh.mesh import DeviceMesh

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Earlier", "Run"]


_KEPT = ("ok", "wrong")  # these were measured; what failed, was cancelled or skipped is tried again


class Earlier:
    """The part of a run that was measured before.

    Parameters
    ----------
    run : Run
        A run that has ended, or was read from disk.

    Raises
    ------
    BenchError
        If the run has not ended.
    """

    def __init__(self, run: Run) -> None:
        if run.state == "running":
            raise BenchError("the run has not ended; wait for it, or cancel() it, and resume it then")
        self.run_id: str = run.run_id
        self.elapsed_s = run.progress.elapsed_s
        self._run = run

    def check(self, engines: Engines, mesh: DeviceMesh, plan: Plan) -> None:
        """Refuse what would put two kinds of numbers into one run.

        Raises
        ------
        BenchError
            If the mesh, the machine or the way of measuring is another.
        """
        old = self._run
        for what, before, now in (
            ("mesh", old.mesh, mesh),
            ("machine", old.where, engines.where),
            ("sampling", old.plan.sampling, plan.sampling),
            ("check", old.plan.check, plan.check),
        ):
            if before != now:
                raise BenchError(
                    f"the run cannot go on with another {what}: it has {before!r}, now it would be {now!r}; "
                    "start a new run without resume"
                )

    def take_into(self, record: Record, steps: Sequence[Step]) -> set[tuple[int, int]]:
        """Put the rows and samples of all steps that were measured into a record.

        Returns
        -------
        set of (int, int)
            Launches and steps that are done.
        """
        old = self._run
        results, samples = old.results, old.samples
        numbers = _numbers(old.steps, steps)
        n_launches = record.clock.total // max(len(steps), 1)
        is_kept = results["status"].isin(_KEPT).groupby([results["launch"], results["step"]]).all()
        done = {
            (int(launch), int(step))
            for launch, step in is_kept.index[is_kept]
            if step in numbers and launch < n_launches
        }
        kept = {(launch, numbers[step]) for launch, step in done}
        for frame in (results, samples):
            frame.attrs = {}
        results, samples = (
            frame[[key in done for key in zip(frame["launch"], frame["step"], strict=True)]].assign(
                step=lambda rows: rows["step"].map(numbers).astype("Int64")
            )
            for frame in (results, samples)
        )
        record.keep(rows_of_results(results), [columns_of_samples(samples)] if len(samples) else [])
        record.started_at, record.hosts = old.started_at, old._record.hosts
        record.devices = [row for row in old._record.devices if row["when"] == "before"]
        record.log += old.log
        record.note(f"resumed with {len(kept)} of {record.clock.total} steps")
        for _, step in kept:
            record.clock.skip(step)
        return kept


def _numbers(old: Sequence[Step], new: Sequence[Step]) -> dict[int, int]:
    """From the number of a step in the old plan to its number in the new one."""

    def bare(step: Step) -> Step:
        beside = None if step.beside is None else replace(step.beside, index=0)
        return replace(step, index=0, beside=beside)

    places = {bare(step): step.index for step in new}
    return {step.index: places[bare(step)] for step in old if bare(step) in places}


class Run:
    """A benchmark under way, or done. Made by `bench`, or read back by `Run.load`.

    Rows that were measured are never lost: not by an error, a cancel, or the end of the engines.

    Examples
    --------
    >>> from meshlab.benchmark.api import bench
    >>> from meshlab.engines.launcher import launch
    >>> with launch(2, backend="threads") as engines:
    ...     run = bench(engines, sizes="1K, 4K")
    ...     results = run.wait()
    >>> run.state, run.progress.done, results["size_bytes"].tolist()
    ('done', 2, [1024, 4096])
    """

    _engines: Engines | None = None

    def __init__(
        self,
        engines: Engines,
        mesh: DeviceMesh,
        plan: Plan,
        *,
        deadline_s: float | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self._init_values(mesh, plan, engines.backend, engines.where, earlier, room_here(engines))
        self._engines = engines
        known = earlier.take_into(self._record, self.steps) if earlier is not None else set()
        conductor = Conductor(
            self._record, mesh, plan, self.steps, known, deadline_s, presses=lambda: self.cancel_presses
        )
        leased = ExitStack()
        lease = leased.enter_context(engines.lease(f"a run of {self._record.clock.total} steps"))

        def work() -> None:
            try:
                with leased:
                    conductor.conduct(lease)
                conductor.finish()  # who hears of the end may use the ranks at once
            finally:
                self._is_over.set()

        threading.Thread(target=work, name=f"meshlab run {self.run_id}", daemon=True).start()

    def _init_values(
        self, mesh: DeviceMesh, plan: Plan, source: str, where: str, earlier: Earlier | None, room_bytes: int | None
    ) -> None:
        self.mesh = mesh
        """The mesh that was measured on."""
        self.plan = plan
        """What was to be measured."""
        self.steps: tuple[Step, ...] = plan.steps(mesh)
        """The steps of the plan."""
        self.cancel_presses = 0
        """How often `cancel` was called while it ran."""
        seconds = seconds_per_step(plan, self.steps, mesh, backend=source, room_bytes=room_bytes)
        self.estimate = Estimate.of(plan, self.steps, seconds, room_bytes)
        """What the plan was thought to cost when it began."""
        run_id = earlier.run_id if earlier is not None else secrets.token_hex(6)
        fixed = {"run_id": run_id, "source": source, "mesh_fingerprint": mesh.fingerprint}
        clock = Clock(seconds[:, 0], plan.launches, earlier.elapsed_s if earlier is not None else 0.0)
        self._record = Record(run_id, clock, fixed, where)
        self._record.on_change = self._tell
        self._is_over = threading.Event()
        self._listeners: list[Callable[[Run], None]] = []

    def _tell(self) -> None:
        for listener in list(self._listeners):
            try:
                listener(self)
            except Exception as error:
                self._record.note(f"a listener failed: {type(error).__name__}: {error}")

    # -- what it gives -------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """A unique name; a run that goes on where another stopped has the same."""
        return self._record.run_id

    @property
    def state(self) -> State:
        """running, done, cancelled or failed."""
        return self._record.state

    @property
    def error(self) -> MeshlabError | None:
        """Why the run failed."""
        return self._record.error

    @property
    def results(self) -> pd.DataFrame:
        """One row per launch, step and group, as far as measured; `meshlab.describe` lists the columns."""
        return self._record.results

    @property
    def samples(self) -> pd.DataFrame:
        """One row per launch, step, rank and batch, as far as measured."""
        return self._record.samples

    @property
    def devices(self) -> pd.DataFrame:
        """One row per GPU, before and after the run: clocks, temperature, power, what holds clocks down, errors."""
        from meshlab.frames.schema import devices_frame

        return devices_frame(self._record.devices)

    @property
    def environment(self) -> dict[str, dict[str, str]]:
        """Where the run was made: sections of names and values."""
        return self._record.environment

    @property
    def log(self) -> list[str]:
        """What happened, in sentences."""
        return self._record.log

    @property
    def started_at(self) -> str:
        """When it began, in UTC."""
        return self._record.started_at

    @property
    def where(self) -> str:
        """What the numbers are numbers of: such as "4 ranks · MPI on this CPU"."""
        return self._record.where

    @property
    def alert(self) -> str:
        """Which results are wrong, in a sentence; empty while none is."""
        return self._record.alert

    @property
    def progress(self) -> Progress:
        """How far it is."""
        current = self._record.current
        return self._record.clock.read("" if current is None else str(current))

    def rows(self, start: int = 0) -> list[Row]:
        """The rows of the results as measured so far, from the given one on: cheap, for views that follow a run.

        They are plain dicts without the columns that are the same in all rows, and without bandwidth.
        """
        return self._record.rows(start)

    # -- what follows from it ------------------------------------------------------------------------------------------

    def spikes(self) -> pd.DataFrame:
        """Batches that took far longer than the others; see `meshlab.benchmark.find_spikes`."""
        from meshlab.analysis.stragglers import find_spikes

        return find_spikes(self.samples, self.results)

    def stragglers(self) -> pd.DataFrame:
        """Which rank comes late; see `meshlab.benchmark.find_stragglers`."""
        from meshlab.analysis.stragglers import find_stragglers

        return find_stragglers(self.samples, self.results)

    def contention(self) -> pd.DataFrame:
        """How groups of an axis slow each other down; see `meshlab.benchmark.contention`."""
        from meshlab.analysis.concurrency import contention

        return contention(self.results)

    def interference(self) -> pd.DataFrame:
        """How two axes slow each other down; see `meshlab.benchmark.interference`."""
        from meshlab.analysis.concurrency import interference

        return interference(self.results)

    def pairs(self) -> pd.DataFrame:
        """Every pair of ranks that was measured, and which are slow; see `meshlab.benchmark.pair_table`."""
        from meshlab.analysis.pairs import pair_table

        return pair_table(self.results)

    def matrix(self, collective: str = "send_recv", **choice: Any) -> pd.DataFrame:
        """Pairs as a matrix, ranks down and across; see `meshlab.benchmark.pair_matrix`.

        Examples
        --------
        >>> from meshlab.benchmark.api import bench_pairs
        >>> from meshlab.engines.launcher import launch
        >>> with launch(3, backend="threads") as engines:
        ...     run = bench_pairs(engines, sizes="1K")
        ...     results = run.wait()
        >>> run.matrix("send").notna()
        to        0      1      2
        from
        0     False   True   True
        1      True  False   True
        2      True   True  False
        """
        from meshlab.analysis.pairs import pair_matrix

        return pair_matrix(self.results, collective, **choice)

    # -- life ----------------------------------------------------------------------------------------------------------

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
            If the time is over and the run is not; or if nothing at all could be measured, because every step failed.

        Examples
        --------
        >>> from meshlab.benchmark.api import bench
        >>> from meshlab.engines.launcher import launch
        >>> with launch(2, backend="threads") as engines:
        ...     results = bench(engines, sizes="1K").wait(timeout_s=30)
        >>> results[["collective", "n_ranks", "n_wrong", "status"]]
           collective  n_ranks  n_wrong status
        0  all_reduce        2        0     ok
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
        with tqdm(total=self.progress.total, bar_format=form, dynamic_ncols=True, leave=False) as bar:
            while not self._is_over.wait(0.1) and time.monotonic() < deadline:
                now = self.progress
                bar.set_postfix_str(now.step, refresh=False)
                bar.update(now.done - bar.n)
                bar.refresh()

    def cancel(self) -> None:
        """Stop early. What was measured stays.

        The first call stops after the step, the second interrupts the ranks, the third ends them. A rank of MPI that
        waits inside the library does not hear an interrupt: on MPI the second call ends the set of ranks too in most
        cases, and `Engines.restart` gives a fresh one.

        Examples
        --------
        >>> from meshlab.benchmark.api import bench
        >>> from meshlab.engines.launcher import launch
        >>> with launch(2, backend="threads") as engines:
        ...     run = bench(engines, sizes="1K:64M")
        ...     run.cancel()
        ...     results = run.wait()
        >>> run.state, len(results) < len(run.steps)
        ('cancelled', True)
        """
        if self.state != "running" or self._engines is None:
            return
        self.cancel_presses += 1
        if self.cancel_presses == 1:
            self._record.note("cancel: stopping after this step")
        elif self.cancel_presses == 2:
            self._record.note("cancel: interrupting the ranks")
            self._engines.interrupt()
        else:
            self._record.note("cancel: ending the ranks")
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

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, overwrite: bool = False, redact: bool = False) -> Path:
        """Write the run into a folder: frames as Parquet and CSV, everything else as JSON.

        Parameters
        ----------
        folder : path
            Where. The same run may be written there again, such as one that went on where it had stopped.
        overwrite : bool, default False
            Whether another run in the folder is replaced, with its report and pictures. Other files stay.
        redact : bool, default False
            Whether to write hashes for the names of hosts and users, for addresses and for the UUIDs of GPUs.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        BenchError
            If the folder holds another run, or cannot be written; nothing half-written stays.

        Examples
        --------
        >>> import tempfile
        >>> from meshlab.benchmark.api import bench
        >>> from meshlab.engines.launcher import launch
        >>> with launch(2, backend="threads") as engines:
        ...     run = bench(engines, sizes="1K")
        ...     results = run.wait()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run.save(folder).is_dir(), Run.load(folder).run_id == run.run_id
        (True, True)
        """
        from meshlab.files import staged_folder
        from meshlab.frames.store import FILES, check_free, run_id_in, save_run

        if not overwrite:
            check_free(folder, self.run_id)
        replaces = () if run_id_in(folder) == self.run_id else FILES  # the report of the same run stays
        with staged_folder(folder, replaces=replaces) as stage:
            save_run(self.redacted() if redact else self, stage)
        return Path(folder)

    def redacted(self) -> Run:
        """The same run with hashes for the names of hosts and users, for addresses and for the UUIDs of GPUs.

        One name gets one hash all over the run, and another one the next time.
        """
        from meshlab.frames.redact import redact_run

        return redact_run(self)

    def to_nccl_tests(self) -> str:
        """The results as text in the layout of nccl-tests, for tools that read that."""
        from meshlab.nccl_tests.writer import write as to_nccl_tests

        return to_nccl_tests(self.results)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run that `save` wrote. It has no engines any more, but everything else.

        Raises
        ------
        ParseError
            If the folder holds no run, or one that is not whole. Where a Parquet file is broken or missing and the CSV
            beside it is whole, that is read, and a warning and the log say so.
        """
        from meshlab.frames.store import load_run

        return load_run(cls, folder)

    @classmethod
    def _from_record(
        cls, mesh: DeviceMesh, plan: Plan, document: dict[str, Any], results: pd.DataFrame, samples: pd.DataFrame
    ) -> Run:
        run = cls.__new__(cls)
        run._init_values(mesh, plan, document["source"], results.attrs.get("where", document["where"]), None, None)
        run._record.restore(document, results, samples)
        for frame in (results, samples):
            if not frame.attrs:  # a CSV carries none
                frame.attrs = dict[Any, Any](run._record.attrs)
        run._is_over.set()
        return run

    # -- looks ---------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        now = self.progress
        wrong = ", with WRONG results" if self.alert else ""
        return f"<Run {self.run_id}: {self.state}, {now.done} of {now.total} steps, {self.where}{wrong}>"

    def _ipython_display_(self) -> None:
        from meshlab.widgets.live import show

        show(self)

    def _repr_html_(self) -> str:
        return run_card(self)
