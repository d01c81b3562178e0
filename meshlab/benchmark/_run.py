"""Run: a benchmark that measures in its own thread, and the part of an earlier run that it resumes."""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._visibility import visibility_of
from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._errors import BenchError
from meshlab.base._forwarding import implementation
from meshlab.base._hints import Argument, Hint
from meshlab.benchmark._estimate import Estimate, MeasuredAxis, Pace, RepeatedBlocks, seconds_per_step
from meshlab.benchmark._executor import Executor
from meshlab.benchmark._progress import has_lines, progress_bar, shows_progress
from meshlab.benchmark.on_ranks._host_counters import slowdown_of_load
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease
from meshlab.engines._memory import local_buffer_bytes
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import n_blocks
from meshlab.plans._steps import Step, axes_of, turns
from meshlab.runs._recorder import Recorder
from meshlab.runs._redact import current_user
from meshlab.runs._rundata import Progress, RunData, columns_of_samples, rows_of_results

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.widgets._live import LiveView

_BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} steps [{elapsed}]{postfix}"
_ESTIMATE_S = 10.0  # time to wait for the probes

_KEPT = ("ok", "wrong")  # measured; failed, cancelled and skipped steps are tried again


class Run(RunData):
    """A running or finished benchmark, created by `bench`. It measures in a background thread.

    Rows that have been measured survive errors, cancellation and closed engines. `Run.load` reads a saved run, which
    is a `RunData`: it has everything but the engines.

    Parameters
    ----------
    engines : Engines
        The ranks. They are busy until the run ends.
    mesh : DeviceMesh
        The mesh to measure on.
    plan : Plan
        The plan to measure.
    deadline_s : float, optional
        Time limit of a step beyond the `max_s` of its sampling, in seconds. By default that of the engines.
    resume : RunData, optional
        An earlier run whose measured steps are taken over.
    out : path, optional
        The folder that the run is written to while it is measured.
    overwrite : bool, default False
        Whether to replace a different run in `out`.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     run = ml.bench(engines, sizes="1K, 4K")
    ...     results = run.wait()
    >>> run.state, run.progress.done, results["size_bytes"].tolist()
    ('done', 2, [1024, 4096])
    """

    def __init__(
        self,
        engines: Engines,
        mesh: DeviceMesh,
        plan: Plan,
        *,
        deadline_s: float | None = None,
        resume: RunData | None = None,
        out: str | Path | None = None,
        overwrite: bool = False,
    ) -> None:
        run_id = secrets.token_hex(6) if resume is None else resume.run_id
        where = engines.where_of(mesh, plan.axis)
        super().__init__(plan, mesh, run_id=run_id, source=engines.backend, where=where, user=current_user())
        self._recorder = None if out is None else Recorder(self, Path(out), overwrite=overwrite)
        self._engines = engines
        self._is_over = threading.Event()
        self._listeners: list[Callable[[Run], None]] = []
        self._thread: threading.Thread | None = None
        self.cancel_level = 0
        """0 if the run was not cancelled, 1 if it stops after the current step, 2 if its ranks are killed."""
        self._may_go = threading.Event()
        self._may_go.set()
        self._room_bytes = local_buffer_bytes(engines)
        self._is_estimated = threading.Event()
        self._view: LiveView | None = None
        self._view_lock = threading.Lock()
        self._axes = {axis: MeasuredAxis(engines.backend_of(mesh, axis), len(mesh[axis])) for axis in axes_of(plan)}
        seconds = self._estimate_steps({})
        self._executor = Executor(
            self,
            self._axes,
            seconds,
            set() if resume is None else self._take_over(resume),
            deadline_s=deadline_s,
            n_cancels=lambda: self.cancel_level,
            may_go=self._may_go,
            on_change=self._notify,
            on_paces=self._use_paces,
        )
        leased, total = ExitStack(), self.progress.total
        lease = leased.enter_context(
            Lease(engines, f"a run of {total} step{'s' * (total != 1)}", cancel=self._cancel_for_close)
        )

        if self._recorder is not None:
            try:
                self._recorder.start()
            except BaseException:
                leased.close()
                raise

        def work() -> None:
            try:
                with leased:
                    self._executor.run(lease)
                # Release the engines before notifying listeners: a callback may start another run right away.
                self._executor.finish()
                if self._recorder is not None:
                    self._recorder.finish()
            finally:
                self._is_estimated.set()
                self._is_over.set()

        self._thread = threading.Thread(target=work, name=f"meshlab run {self.run_id}", daemon=True)
        self._thread.start()

    def __getstate__(self) -> dict[str, Any]:
        raise BenchError("cannot pickle a live run; save it with run.save(folder), and read it with Run.load(folder)")

    def _relabelled(self) -> None:
        if self._recorder is not None:
            self._recorder.relabel()

    def _take_over(self, old: RunData) -> set[tuple[int, int]]:
        """Take over the rows and samples of all steps that were measured before. Return their launches and indices."""
        results, samples = old.results, old.samples
        # The new plan may be larger or in a different order, so steps are matched by their fields. A step is taken over
        # only if all of its groups were measured, because its groups are measured together.
        indices = _new_indices(old.steps, self.steps)
        # An older version expanded some plans into fewer steps, so its indices may mean other steps.
        names = ["collective", "axis", "grouping"]
        moved = {
            int(step)
            for step, *values in results[["step", *names]].drop_duplicates().itertuples(index=False, name=None)
            if values not in [[getattr(part, name) for name in names] for part in old.steps[int(step)].parts]
        }
        is_kept = results["status"].isin(_KEPT).groupby([results["launch"], results["step"]]).all()
        done = {
            (int(launch), int(step))
            for launch, step in is_kept.index[is_kept]
            if step in indices and launch < self.plan.launches and step not in moved
        }
        # Steps that a cancel cut off have fewer blocks. A row of an older run without blocks has none, and is kept.
        blocks = samples.groupby(["launch", "step"])["block"].nunique()
        is_cut_off = (blocks > 0) & (blocks < n_blocks(old.plan.sampling))
        cut_off = {(int(launch), int(step)) for launch, step in blocks.index[is_cut_off]}
        # Alternatives are compared block by block, so all of them are from the same measurement.
        new = {(launch, indices[step]): (launch, step) for launch, step in done}
        for launch in range(self.plan.launches):
            for group in turns(self.steps):
                keys = [(launch, step.index) for step in group]
                if not all(key in new and new[key] not in cut_off for key in keys):
                    done -= {new[key] for key in keys if key in new}
        for frame in (results, samples):
            frame.attrs = {}
        results, samples = (
            # As an array, because pandas would take the empty list of an empty frame for a list of columns.
            frame[
                np.array([key in done for key in zip(frame["launch"], frame["step"], strict=True)], dtype=bool)
            ].assign(step=lambda rows: rows["step"].map(indices).astype("Int64"))
            for frame in (results, samples)
        )
        self.add(rows_of_results(results), [columns_of_samples(samples)] if len(samples) else [])
        self.started_at, self.hosts, self.elapsed_s = old.started_at, old.hosts, old.progress.elapsed_s
        self.rank_rows = old.rank_rows
        self._name, self._notes = old.name, old.notes
        self.device_rows = [row for row in old.device_rows if row["when"] == "before"]
        self.condition_rows = [{**row, "step": indices.get(row.get("step", -1))} for row in old.condition_rows]
        self.log += old.log
        self.note(f"resumed with {len(done)} of {self.plan.launches * len(self.steps)} steps")
        return {(launch, indices[step]) for launch, step in done}

    def _estimate_steps(
        self, paces: Mapping[str, Pace], blocks: RepeatedBlocks | None = None, before_s: float = 0.0
    ) -> npt.NDArray[np.float64]:
        """Estimate the cost of the plan, and return the range of each step in seconds, as `seconds_per_step` does."""
        plan, backend, room_bytes = self.plan, self.source, self._room_bytes
        seconds = seconds_per_step(plan, self.steps, self._axes, paces=paces, room_bytes=room_bytes)
        if not paces and backend not in GPU_BACKENDS:
            # Nothing was measured yet, but ranks on a busy host share its cores.
            seconds[:, 2] *= slowdown_of_load(self.engines.world_size)
        visible = None
        if blocks is not None:
            log_times = np.log(blocks.time_us).tolist()
            visible = visibility_of(blocks.step, log_times, blocks.log_pairs)
        self._estimate = Estimate.of(
            plan, self.steps, seconds, backend=backend, room_bytes=room_bytes, before_s=before_s, visible=visible
        )
        return seconds

    def _use_paces(self, paces: Mapping[str, Pace], blocks: RepeatedBlocks | None) -> npt.NDArray[np.float64]:
        seconds = self._estimate_steps(paces, blocks, self.progress.elapsed_s)
        if self._estimate.visible is not None:
            about = {**self.environment.get("Run", {}), "visible now": str(self._estimate.visible)}
            self.environment = {**self.environment, "Run": about}
        self._is_estimated.set()
        return seconds

    def _next_steps(self) -> str:
        return super()._next_steps() if self.has_ended else ".wait(), .pause(), .cancel()"

    @property
    def out(self) -> Path | None:
        """The folder that the run is written to while it is measured, or None."""
        return None if self._recorder is None else self._recorder.folder

    @property
    def out_problem(self) -> str:
        """The reason why `out` does not have all rows, such as a full disk. Empty if it has."""
        return "" if self._recorder is None else self._recorder.problem

    def save(self, folder: str | Path, *, overwrite: bool = False, redact: bool = False, csv: bool = False) -> Path:
        """Write the run to a folder. See `RunData.save`.

        While the run is being measured, its folder `out` is up to date anyway. For it, `redact` and `csv` then raise.
        """
        recorder = self._recorder
        if recorder is None or not recorder.is_open or Path(folder).absolute() != recorder.folder.absolute():
            return super().save(folder, overwrite=overwrite, redact=redact, csv=csv)
        if redact or csv:
            raise BenchError(
                f"the run is still being written to this folder{', with all names' if redact else ''}",
                hint=f"call wait() first, or save a {'redacted ' if redact else ''}copy to another folder",
            )
        recorder.update()
        if recorder.problem:
            raise BenchError(recorder.problem)
        return Path(folder)

    @property
    def engines(self) -> Engines:
        """The engines that measure."""
        return self._engines

    @property
    def is_estimated(self) -> bool:
        """True if `estimate` does not have to wait."""
        return self._is_estimated.is_set()

    @property
    def estimate(self) -> Estimate:
        """The estimated cost of the plan. A longer run first measures a few steps, and this waits briefly for them."""
        if self._thread is not None and not self._is_estimated.wait(_ESTIMATE_S):
            self._is_estimated.set()  # wait only once
        return self._estimate

    def _notify(self) -> None:
        if self._recorder is not None:
            self._recorder.update()
        for listener in list(self._listeners):
            try:
                listener(self)
            except Exception as error:
                self.note(f"a listener failed: {type(error).__name__}: {error}")

    @property
    def progress(self) -> Progress:
        """The progress of the run."""
        return self._executor.progress

    def check_ended(self) -> None:
        """Raise a `BenchError` if the run is still running, because its results are not final."""
        if not self.has_ended:
            progress = self.progress
            raise BenchError(
                f"still {self.state} ({progress.done} of {progress.total} steps)",
                hint="call .wait()" if self.state == "running" else "call .resume() and .wait()",
            )

    def wait(self, timeout_s: float | None = None, *, progress: bool | None = None) -> pd.DataFrame:
        """Wait until the run ends.

        Parameters
        ----------
        timeout_s : float, optional
            Maximum time to wait, in seconds. By default there is no limit.
        progress : bool, optional
            Whether to draw a progress bar on standard error. By default only on a terminal, and only if the environment
            variable MESHLAB_PROGRESS is not 0.

        Returns
        -------
        pandas.DataFrame
            The results, also of a cancelled run.

        Raises
        ------
        EngineError
            If a rank died or got stuck. The rows measured so far are in `results`.
        BenchError
            If the run is still running after `timeout_s`.
            If every attempted step failed.
        KeyboardInterrupt
            If the caller is interrupted. The run continues. IPython prints one sentence instead of a traceback.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     results = ml.bench(engines, sizes="1K").wait(timeout_s=30)
        >>> results[["collective", "n_ranks", "n_wrong", "status"]]
           collective  n_ranks  n_wrong status
        0  all_reduce        2        0     ok
        """
        try:
            if shows_progress(progress) or (progress is None and has_lines()):
                with progress_bar(progress, unit="step", total=self.progress.total, bar_format=_BAR) as bar:
                    self._draw_progress(bar, timeout_s)
            # An event instead of Thread.join(): an interrupted join() marks a thread that still runs as finished.
            is_over = self._is_over.wait(timeout_s)
        except KeyboardInterrupt:
            # Only in IPython: Python ends a script with the exit code of SIGINT if the exception has exactly this type.
            if not self.has_ended and _is_in_ipython():
                raise WaitInterrupted from None
            raise
        if not is_over:
            raise BenchError(
                f"the run did not finish within {timeout_s} s and is still {self.state}; call "
                f"{'wait() again' if self._may_go.is_set() else 'resume()'}, or cancel()"
            )
        if self.error is not None:
            raise self.error
        return self.results

    def _draw_progress(self, bar: Any, timeout_s: float | None) -> None:
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_over.wait(0.1) and time.monotonic() < deadline:
            progress = self.progress
            bar.set_postfix_str(", ".join(filter(None, [progress.left_text, progress.step])), refresh=False)
            bar.update(progress.done - bar.n)
            bar.refresh()

    @property
    def is_pausing(self) -> bool:
        """True if the run pauses after the current step."""
        return self.state == "running" and not self._may_go.is_set()

    def pause(self) -> None:
        """Pause the run after the current step, until `resume` or `cancel` is called.

        The ranks stay reserved for the run, but are idle. The pause does not count as time of the run. The call
        has no effect if the run is paused, cancelled or has ended.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     run = ml.bench(engines, sizes="1K:64M")
        ...     run.pause()
        ...     run.resume()
        ...     results = run.wait()
        >>> run.state, run.is_pausing
        ('done', False)
        """
        if self.has_ended or not self._may_go.is_set():
            return
        self._may_go.clear()
        if self.cancel_level:  # checked last: if another thread cancels the run now, it must not wait for a resume
            self._may_go.set()
        else:
            self._notify()

    def resume(self) -> None:
        """Continue a paused run, or keep a run from pausing after the current step."""
        if not self._may_go.is_set():
            was_pausing = self.is_pausing
            self._may_go.set()
            if was_pausing:  # otherwise the worker thread reports that it continues
                self._notify()

    def cancel(self, *, now: bool = False) -> None:
        """Cancel the run and keep the rows measured so far.

        A second call has no further effect, unless `now` is True.

        Parameters
        ----------
        now : bool, default False
            If False, stop after the current step. If True, kill the ranks immediately: the current step is lost,
            and the engines need `Engines.restart`.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     run = ml.bench(engines, sizes="1K:64M")
        ...     run.cancel()
        ...     results = run.wait()
        >>> run.state, len(results) < len(run.steps)
        ('cancelled', True)
        """
        level = 2 if now else 1
        if self.has_ended or self.cancel_level >= level:
            return
        self.cancel_level = level
        self._may_go.set()
        self.note(f"cancel: {'killing the ranks' if now else 'stopping after this step'}")
        self._notify()  # before the ranks end, because that may take seconds
        if now:
            self._engines.kill()

    def _cancel_for_close(self) -> threading.Event:
        """Cancel the run because its engines are being closed. Return an event that is set when the run has ended."""
        self.cancel_level = 2
        self._may_go.set()
        self.note("cancel: the engines are being closed")
        if threading.current_thread() is not self._thread:
            return self._is_over
        # A listener closes the engines, and the run cannot end before its listener returns.
        is_over = threading.Event()
        is_over.set()
        return is_over

    def subscribe(self, listener: Callable[[Run], None]) -> Callable[[], None]:
        """Register a callback. The run's worker thread calls it after every step and state change.

        Returns
        -------
        callable
            Call it to remove the callback.
        """
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    @property
    def view(self) -> LiveView:
        """The live view of the run, a widget. It is the same one at every display."""
        with self._view_lock:
            if self._view is None:
                self._view = self._new_view()
        return self._view

    def _new_view(self) -> LiveView:
        return implementation(Run._new_view)(self)

    def _ipython_display_(self) -> None:
        implementation(Run._ipython_display_)(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        # For front ends that format a value instead of displaying it. IPython itself calls the method above.
        return self.view._repr_mimebundle_(**kwargs)

    def _display_(self) -> LiveView:
        # marimo calls this method. It ignores the other two.
        return self.view


class WaitInterrupted(KeyboardInterrupt):
    """An interrupt of `Run.wait` in IPython, which does not stop the run."""

    def __str__(self) -> str:
        return "The run continues in the background; call run.cancel() to stop it."

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines instead of the traceback, which would only show how the run waits for its thread.
        return [str(self)]


def _is_in_ipython() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def check_resumable(run: RunData, engines: Engines, mesh: DeviceMesh, plan: Plan) -> None:
    """Raise a `BenchError` unless a run can be resumed: one run must not mix numbers of two systems or samplings."""
    # A folder that was saved while its run was measuring has this state forever, so it can be resumed.
    if isinstance(run, Run) and not run.has_ended:
        raise BenchError(f"the run to resume is still {run.state}; wait() for it or cancel() it first")
    for what, before, current in (
        ("mesh", run.mesh, mesh),
        ("machine", run.where, engines.where_of(mesh, plan.axis)),
        ("sampling", run.plan.sampling, plan.sampling),
        ("check", run.plan.check, plan.check),
    ):
        if before != current:
            raise BenchError(
                f"cannot resume with a different {what}: the saved run has {before!r}, this one {current!r}",
                hint=Hint("start a new run without {}", Argument("resume")),
            )


def _new_indices(old: Sequence[Step], new: Sequence[Step]) -> dict[int, int]:
    """Map the index of each step of the old plan to its index in the new plan."""

    def bare(step: Step) -> Step:
        concurrent = None if step.concurrent is None else replace(step.concurrent, index=0)
        return replace(step, index=0, concurrent=concurrent)

    positions = {bare(step): step.index for step in new}
    return {step.index: positions[bare(step)] for step in old if bare(step) in positions}
