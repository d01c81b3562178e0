"""RunFollower: everything that a view shows of a run, kept up to date while the run measures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import traitlets

from meshlab.base._errors import BenchError, EngineError
from meshlab.base._units import SEPARATOR, format_seconds, format_size, format_time_us
from meshlab.benchmark._run import Run
from meshlab.frames._labels import LABELLED, axis_label
from meshlab.plans._options import OPTIONS, option_texts
from meshlab.plots._lines import GrowingLines, Key, Line, line_key, line_names, pack_lines
from meshlab.plots._style import PALETTE
from meshlab.widgets._details import details_of
from meshlab.widgets._readings import load_state

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.frames._rows import Columns
    from meshlab.runs._rundata import RunData

_TICK_S = 0.5
_SHARE = 0.1  # maximum share of the time that is spent on drawing, because the client needs the processor for its ranks
_MOST_REMEMBERED = 8
_MOST_WITH_PREVIOUS = 4  # lines of a run beyond which those of the previous run would hide them
_MOST_BARS = 512
_NO_LINES: Mapping[str, Line] = MappingProxyType({})
_DOING = ("running", "stopping after this step", "killing the ranks")

# The lines and the results of the last finished run on each mesh and machine, for the grey lines of the next run there.
# Only a few are kept, because each has a frame.
_last: dict[tuple[str, str], tuple[Mapping[Key, Line], pd.DataFrame]] = {}
_last_lock = threading.Lock()


class RunView(Protocol):
    """A widget with the traits of `run_traits`, which may be set on any thread."""

    _run: dict[str, Any]  # State, progress, errors and possible actions. See `run_state`.
    # The chart, in one trait, because new points with the names of the old lines would be misread.
    _curve: dict[str, Any]
    _late: dict[str, Any]  # The lateness of every rank in the latest step with aligned starts. Empty without one.
    _details: list[dict[str, Any]]  # the tabs of a run that has ended, see `details_of`
    _load: dict[str, Any]  # the record of the hosts during the run, see `load_state`

    def hold_sync(self) -> AbstractContextManager[None]: ...


def run_traits() -> tuple[Any, Any, Any, Any, Any]:
    """Return new synced traits for `_run`, `_curve`, `_late`, `_details` and `_load` of a widget class."""
    run, curve, late, load = (traitlets.Dict().tag(sync=True) for _ in range(4))
    return run, curve, late, traitlets.List(traitlets.Dict()).tag(sync=True), load


class RunFollower:
    """Keeps the traits of a view up to date with a run, which it holds until the run ends."""

    # A run reports its steps on its own thread, and steps may take only milliseconds. So the follower draws on a
    # separate thread, at most twice per second and for at most a tenth of the time.

    def __init__(
        self,
        run: Run,
        view: RunView,
        *,
        predicted: Mapping[str, Line] = _NO_LINES,  # by the name of the measured line
        references: Mapping[str, float] = MappingProxyType({}),  # in GB/s
        overlaid: Mapping[str, Line] | None = None,  # lines of other runs. None for those of the previous run, in grey
    ) -> None:
        if not isinstance(run, Run):
            raise BenchError(f"run must be a live Run, not {type(run).__name__}", hint="display a saved run as it is")
        self._run: Run | None = run
        self._view = view
        self._lock = threading.Lock()
        self._n_rows = self._n_parts = self._n_readings = 0
        self._is_finishing = self._is_left = False
        self.is_over = threading.Event()
        self._when_over: list[Callable[[], None]] = []
        # Name the lines by the plan's steps, so that names do not change as more lines appear.
        names = line_names(line_key(part) for step in run.steps for part in step.parts)
        # A single line is named after its collective.
        self._names = {key: name or str(key[0]) for key, name in names.items()}
        self._growing = GrowingLines(self._names)
        self._lines: dict[Key, Line] = {}
        self._predicted, self._references = predicted, references
        self._overlaid: Mapping[str, Line] = overlaid or _NO_LINES
        with _last_lock:
            lines, results = _last.get(_place(run), ({}, None)) if overlaid is None else ({}, None)
        shared = [key for key in self._names if key in lines]
        self._previous_lines = {self._names[key]: lines[key] for key in shared} if results is not None else {}
        self.previous: pd.DataFrame | None = None
        """The results of the previous run that the grey lines show."""
        if results is not None and shared:
            self.previous = results.iloc[sorted(row for key in shared for row in lines[key].rows)]
        sizes = [float(step.size_bytes) for step in run.steps if step.size_bytes is not None] or [1.0]
        self._range = (min(sizes), max(sizes)) if min(sizes) < max(sizes) else None
        self._title = _title(run)
        with view.hold_sync():
            view._late, view._details, view._load = {}, [], {}
            self._show_curve()
        self._unsubscribe: Callable[[], None] = lambda: None  # the run may end before subscribe() returns
        self._unsubscribe = run.subscribe(self._update)
        self._update(run)
        if self.is_over.is_set():  # maybe before subscribe() returned, and then its function would hold the run
            self._unsubscribe = lambda: None
        threading.Thread(target=self._tick, name="meshlab live view", daemon=True).start()

    @property
    def series(self) -> dict[str, Line]:
        """The measured lines by name."""
        with self._lock:
            return {line.name: line for line in self._lines.values() if len(line)}

    @property
    def earlier(self) -> Mapping[str, Line]:
        """The grey lines of the previous run, by the name of the measured line."""
        return self._previous_lines

    def when_over(self, act: Callable[[], None]) -> None:
        """Call a function on the run's thread when the run ends, or immediately if it has ended already."""
        with self._lock:
            if not self.is_over.is_set():
                self._when_over.append(act)
                return
        act()

    def overlay(self, lines: Mapping[str, Line]) -> None:
        """Draw lines of other runs, in place of those so far."""
        with self._lock:
            self._overlaid = lines
            if not self._is_left:
                self._show_curve()

    def leave(self) -> None:
        """Stop following: the view shows another run."""
        self._is_left = True
        self._unsubscribe()

    def _update(self, run: Run) -> None:
        """Handle a step or a change of state. Lines are drawn by `_tick`, because steps may take only milliseconds."""
        self.show(run)
        if run.has_ended:
            self._finish(run)

    def _tick(self) -> None:
        pause_s = _TICK_S
        while not self.is_over.wait(pause_s) and not self._is_left:
            run = self._run
            if run is None:
                return
            begin = time.perf_counter()
            self._draw(run)
            self.show(run)
            pause_s = max(_TICK_S, (time.perf_counter() - begin) / _SHARE)

    def _draw(self, run: Run) -> None:
        """Draw the lines and the lateness of the rows and samples that are new."""
        with self._lock:
            rows, parts = run.rows(self._n_rows), run.sample_parts(self._n_parts)
            self._n_rows += len(rows)
            self._n_parts += len(parts)
            if self._is_left or not rows:
                return
            self._lines |= self._growing.add(rows)
            late = _lateness(run, parts)
            with self._view.hold_sync():
                self._show_curve()
                if late:
                    self._view._late = late
                self._show_load(run)

    def _show_load(self, run: Run) -> None:
        if len(run.condition_rows) != self._n_readings:
            self._n_readings = len(run.condition_rows)
            self._view._load = load_state(run)

    def _show_curve(self) -> None:
        self._view._curve = curve_state(
            self._title,
            {line.name: line for line in self._lines.values() if len(line)},
            previous=self._previous_lines if len(self._names) <= _MOST_WITH_PREVIOUS else {},
            predicted=self._predicted,
            overlaid=self._overlaid,
            references=self._references,
            x_range=self._range,
        )

    def _finish(self, run: Run) -> None:
        # A run that ends while the constructor runs is noticed twice: by the run's thread and by the constructor.
        with self._lock:
            if self._is_finishing:
                return
            self._is_finishing = True
        self._unsubscribe()
        try:
            self._draw(run)
            self._remember(run)
            if not self._is_left:
                self._view._details = details_of(run)
                self._show_load(run)
        finally:
            # Also after an error in a chart, because the notebook needs its static figure. The functions run without
            # the lock, which one that calls `when_over` would wait for.
            with self._lock:
                self.is_over.set()
                acts, self._when_over = self._when_over, []
            for act in acts:
                act()
            self._run, self._unsubscribe = None, lambda: None  # the second one holds the run too

    def _remember(self, run: Run) -> None:
        """Keep the lines for the next run on the same mesh and machine."""
        lines = {key: line for key, line in self._lines.items() if len(line)}
        if not lines:
            return
        with _last_lock:
            # A dict keeps the position of a key that is set again. Removed first, it becomes the newest.
            _last.pop(_place(run), None)
            _last[_place(run)] = lines, run.results
            while len(_last) > _MOST_REMEMBERED:
                del _last[next(iter(_last))]

    def show(self, run: Run) -> None:
        """Show the state of the run, also after it has ended."""
        if not self._is_left:
            self._view._run = run_state(run)


def curve_state(
    title: str,
    series: Mapping[str, Line],
    *,
    previous: Mapping[str, Line] = _NO_LINES,
    predicted: Mapping[str, Line] = _NO_LINES,
    overlaid: Mapping[str, Line] = _NO_LINES,
    references: Mapping[str, float] = MappingProxyType({}),
    x_range: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return a chart of bus bandwidth for the trait `_curve`, and as ``latency`` what is different in one of times."""
    kinds = {"previous": previous, "predicted": predicted, "overlaid": overlaid}
    times = {kind: {name: line.as_times() for name, line in lines.items()} for kind, lines in kinds.items()}
    latency = pack_lines({name: line.as_times() for name, line in series.items()}, **times)
    return {
        "title": title,
        "x_label": "message size",
        "y_label": "busbw",
        "y_unit": "GB/s",
        "y_scale": "linear",
        "x_range": x_range,
        "references": dict(references),
        "height": 320,
        "palette": list(PALETTE),
        **pack_lines(series, **kinds),
        "latency": {"y_label": "time", "y_unit": "µs", "y_scale": "log", "references": {}, **latency},
    }


def run_state(run: RunData) -> dict[str, Any]:
    """Return the state of a run as plain data."""
    live = run if isinstance(run, Run) else None  # a run that was read from a folder has no engines and no controls
    progress, level = run.progress, 0 if live is None else live.cancel_level
    is_pausing = live is not None and live.is_pausing
    if run.state == "running":
        doing = "pausing after this step" if is_pausing and not level else _DOING[level]
        headline = f"{doing} · step {min(progress.done + 1, progress.total)} of {progress.total}"
    else:
        headline = f"{run.state} · {progress.done} of {progress.total} steps"
    times = [f"{format_seconds(progress.elapsed_s)} elapsed"]
    if not run.has_ended:
        if progress.done:
            times.append(progress.left_text)
        elif live is not None and live.is_estimated:
            times.append(str(live.estimate))
        else:
            times.append("estimating")
    error, uncertainty = run.error, run.uncertainty
    verdict = uncertainty.rstrip(".") if run.state == "done" else ""
    about = run.environment.get("Run", {})
    visible = about.get("visible now", "")
    notes = [
        "" if verdict else uncertainty,
        about.get("note", ""),
        f"Visible now: {visible}." if visible and not run.has_ended else "",
    ]
    can_restart = live is not None and isinstance(error, EngineError) and live.engines.state == "broken"
    return {
        "id": run.run_id,
        "state": run.state,
        # It precedes the headline, with another sign: a tick would be read as a verdict about the times.
        "verdict": verdict,
        "headline": SEPARATOR.join([headline, *times]),
        "step": progress.step,
        "share": progress.done / max(progress.total, 1),
        "level": level,
        "is_pausing": is_pausing,
        "has_ended": run.has_ended,
        "error": "" if error is None else str(error).splitlines()[0],
        "can_restart": can_restart,
        "alert": run.alert,
        "note": " ".join(filter(None, notes)),
    }


def _lateness(run: RunData, parts: list[Columns]) -> dict[str, Any]:
    """Return how late every rank entered the last step among these samples. Empty without aligned starts."""
    if not parts:
        return {}
    last = parts[-1]["step"][0]
    late: dict[int, float] = {}
    for part in parts:
        if part["step"][0] == last:
            offsets = part["start_offset_us"][~part["is_warmup"].astype(bool)]
            if offsets.size and np.isfinite(offsets).all():
                late[int(part["rank"][0])] = float(np.median(offsets))
    if len(late) < 2:
        return {}
    step = run.steps[int(last)]
    ranks = sorted(late)
    worst = max(ranks, key=late.__getitem__)
    size = "" if step.size_bytes is None else f" {format_size(step.size_bytes)}"
    values = np.array([late[rank] for rank in ranks], dtype="<f4")
    # Of neighbouring ranks, the latest one is drawn.
    buckets = np.array_split(np.arange(len(ranks)), min(len(ranks), _MOST_BARS))
    return {
        "text": f"rank {worst} enters last, {format_time_us(late[worst])} after the first",
        "step": f"{step.collective} on {step.axis}{size}",
        "ranks": [ranks[int(bucket[values[bucket].argmax()])] for bucket in buckets],
        "values": [float(values[bucket].max()) for bucket in buckets],
    }


def _title(run: RunData) -> str:
    """Return the columns that all steps share, and the system."""
    parts = [part for step in run.steps for part in step.parts]
    labels = [axis_label(*(getattr(part, name) for name in LABELLED)) for part in parts]
    columns = ([part.collective for part in parts], labels, [part.mode for part in parts])
    shared = [values[0] for values in columns if len(set(values)) == 1]
    options = [option_texts({name: getattr(part, name) for name in OPTIONS}) for part in parts]
    if options and all(texts == options[0] for texts in options):
        shared += options[0]
    return SEPARATOR.join([*shared, run.where])


def _place(run: RunData) -> tuple[str, str]:
    """Return the mesh and the system of a run. The keys of its lines contain everything else."""
    return run.mesh.fingerprint, run.where
