"""Live view of a run: progress and a growing chart while it measures, and a static figure afterwards."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ipywidgets

from meshlab import markup
from meshlab.errors import BenchError
from meshlab.frames.labels import LABELLED, axis_label
from meshlab.frames.rundata import Row, results_frame
from meshlab.frames.table import run_html
from meshlab.plots.curves import run_figure
from meshlab.plots.lines import Key, Line, line_key, line_names, lines_of
from meshlab.plots.style import figure_png, figure_svg
from meshlab.units import SEPARATOR, format_seconds
from meshlab.widgets.curve import Curve

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.run import Run
    from meshlab.frames.rundata import RunData

__all__ = ["LiveView", "show", "static_bundle"]

_TICK_S = 0.5
_SHARE = 0.1
"""Maximum share of the time that is spent on drawing, because the client needs the processor for its ranks."""

_MOST_REMEMBERED = 8
_NO_RUN = dict.fromkeys(("source", "run_id"))
"""The columns of `KEYS` that a step of a plan lacks, as missing values."""

_BAD = "color:var(--jp-error-color1,#c62828)"
_STOP = "Stop after this step"
_END = "End the ranks"
_QUESTION = "End the ranks? The current step is lost, and the engines must be restarted."

# The lines and the results of the last finished run on each mesh and machine, for the grey lines of the next run there.
# Only a few are kept, because each has a frame.
_last: dict[tuple[str, str], tuple[Mapping[Key, Line], pd.DataFrame]] = {}
_last_lock = threading.Lock()


class LiveView(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets is untyped
    """Progress, a growing chart and buttons that cancel a run that is measuring.

    A run displays its live view if it is the last expression of a cell. The view changes on the run's worker thread and
    on its own thread, so it only sets traits.

    Parameters
    ----------
    run : Run
        The run.
    """

    def __init__(self, run: Run) -> None:
        if not hasattr(run, "subscribe"):
            raise BenchError(f"run must be a live Run, not {type(run).__name__}", hint="display a saved run as it is")
        self.run = run
        self._lock = threading.Lock()
        self._n_drawn = 0
        self._rows: dict[Key, list[Row]] = {}
        self._is_finishing = False
        self._is_over = threading.Event()
        self._when_over: list[Callable[[], None]] = []
        self._status = ipywidgets.HTML()
        self._stop = _button(_STOP, "Finish the current step, then stop. The results are kept.")
        self._end = _button(_END, "Kill the ranks now. The results of finished steps are kept. Asks first.")
        self._really = _button(_END, "Kill the ranks now. Call engines.restart() to start new ones.", style="danger")
        self._keep = _button("Keep running", "Close this question.")
        self._question = ipywidgets.HBox(
            [ipywidgets.HTML(f"<b>{_QUESTION}</b>"), self._really, self._keep],
            layout={"display": "none", "flex_flow": "row wrap", "align_items": "center", "overflow": "visible"},
        )
        self._stop.on_click(lambda _: self.run.cancel())
        self._end.on_click(lambda _: self._ask(True))
        self._keep.on_click(lambda _: self._ask(False))
        self._really.on_click(lambda _: self._end_ranks())
        buttons = ipywidgets.VBox(
            [ipywidgets.HBox([self._stop, self._end], layout={"flex_flow": "row wrap"}), self._question],
            layout={"margin": "0 0 8px", "overflow": "visible"},
        )
        sizes = [float(step.size_bytes) for step in run.steps if step.size_bytes is not None] or [1.0]
        self.curve = Curve(
            title=_title(run), x_range=(min(sizes), max(sizes)) if min(sizes) < max(sizes) else None, height=320
        )
        self.previous: pd.DataFrame | None = None
        """The results of the previous run that the grey lines show."""
        # Name the lines by the plan's steps, so that names do not change as more lines appear.
        names = line_names(line_key(part) for step in run.steps for part in step.parts)
        self._names = {
            key: name or str(key[0]) for key, name in names.items()
        }  # a single line is named after its collective
        with _last_lock:
            lines, results = _last.get(_place(run), ({}, None))
        shared = [key for key in self._names if key in lines]
        if results is not None and shared:
            self.curve.previous = {self._names[key]: lines[key] for key in shared}
            self.previous = results.iloc[sorted(row for key in shared for row in lines[key].rows)]
        super().__init__([self._status, buttons, self.curve], layout={"max_width": "960px", "overflow": "hidden"})
        self.add_class("meshlab-live")
        self._unsubscribe: Callable[[], None] = lambda: None  # the run may end before subscribe() returns
        self._unsubscribe = run.subscribe(self._update)
        self._update(run)
        threading.Thread(target=self._tick, name="meshlab live view", daemon=True).start()

    def when_over(self, act: Callable[[], None]) -> None:
        """Call a function on the run's thread when the run ends, or immediately if it has ended already."""
        with self._lock:
            if not self._is_over.is_set():
                self._when_over.append(act)
                return
        act()

    def _update(self, run: Run) -> None:
        """Handle a step or a change of state. Lines are drawn by `_tick`, because steps may take only milliseconds."""
        self._show_status()
        if run.state != "running":
            self._finish()

    def _tick(self) -> None:
        pause_s = _TICK_S
        while not self._is_over.wait(pause_s):
            begin = time.perf_counter()
            self._draw()
            self._show_status()
            pause_s = max(_TICK_S, (time.perf_counter() - begin) / _SHARE)

    def _draw(self) -> None:
        """Draw the lines that have new rows."""
        with self._lock:
            rows = self.run.rows(self._n_drawn)
            self._n_drawn += len(rows)
            changed: dict[Key, list[Row]] = {}
            for row in rows:
                key = line_key({**row, **_NO_RUN})
                changed[key] = self._rows.setdefault(key, [])
                changed[key].append(row)
            if changed:
                # All rows of the changed lines, because a line shows the slowest group, which a new row may change.
                results = results_frame([row for known in changed.values() for row in known], fixed={}, attrs={})
                self.curve.update_series({line.name: line for line in _lines(results, self._names)})

    def _finish(self) -> None:
        # A run that ends while the constructor runs is noticed twice: by the run's thread and by the constructor.
        with self._lock:
            if self._is_finishing:
                return
            self._is_finishing = True
        self._unsubscribe()
        try:
            self._draw()
            self._remember()
        finally:
            # Also after an error in a chart, because the notebook needs its static figure. The functions run without
            # the lock, which one that calls `when_over` would wait for.
            with self._lock:
                self._is_over.set()
                acts, self._when_over = self._when_over, []
            for act in acts:
                act()

    def _remember(self) -> None:
        """Keep the lines for the next run on the same mesh and machine."""
        if not self.curve.series:
            return
        results = self.run.results
        lines = {tuple(line.keys.values()): line for line in _lines(results, self._names)}
        with _last_lock:
            # A dict keeps the position of a key that is set again. Removed first, it becomes the newest.
            _last.pop(_place(self.run), None)
            _last[_place(self.run)] = lines, results
            while len(_last) > _MOST_REMEMBERED:
                del _last[next(iter(_last))]

    def _ask(self, is_asked: bool) -> None:
        """Show or hide the question whether to end the ranks."""
        self._question.layout.display = "flex" if is_asked else "none"

    def _end_ranks(self) -> None:
        self._ask(False)
        # Killing the ranks may take seconds, so it must not run on the kernel's main thread.
        threading.Thread(target=self.run.cancel, kwargs={"now": True}, daemon=True).start()

    def _show_status(self) -> None:
        self._status.value = _status(self.run)
        level, is_over = self.run.cancel_level, self.run.state != "running"
        self._stop.disabled = is_over or level > 0
        self._end.disabled = is_over or level > 1
        if self._end.disabled:
            self._ask(False)

    def __repr__(self) -> str:
        return f"LiveView({self.run!r})"


def show(run: Run) -> None:
    """Display a run in a notebook: live while it measures, then as a figure and a table that the notebook saves."""
    import IPython

    display: Any = IPython.display.display
    shell = IPython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        display({"text/plain": repr(run)}, raw=True)
        return
    if run.state != "running":
        display(static_bundle(run), raw=True)
        return
    view = LiveView(run)
    bundle = view._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    # Front ends show the HTML if they cannot draw the widget, such as after the kernel has died during the run.
    handle = display({**data, **static_bundle(run)}, raw=True, display_id=True)
    view.when_over(lambda: _leave_figure(view, handle))


def _leave_figure(view: LiveView, handle: Any) -> None:
    """Replace the widget by the static figure, because a widget is blank when the saved notebook is opened again."""
    # The widget is not closed: a front end that is still drawing it would report that its model was not found.
    handle.update(static_bundle(view.run, previous=view.previous), raw=True)


def static_bundle(run: RunData, *, previous: pd.DataFrame | None = None) -> dict[str, str]:
    """Return a run by MIME type for front ends without JavaScript: HTML with figure and table, PNG, and text.

    Parameters
    ----------
    run : RunData
        The run.
    previous : pandas.DataFrame, optional
        Results of an earlier run, drawn in grey.
    """
    bundle, svg = {"text/plain": repr(run)}, ""
    figure = run_figure(run, previous=previous)
    if figure is not None:
        svg = figure_svg(figure, label=str(figure.get_label()))
        bundle["image/png"] = base64.b64encode(figure_png(figure)).decode()
    bundle["text/html"] = run_html(run, svg)
    return bundle


def _button(label: str, tooltip: str, *, style: str = "") -> ipywidgets.Button:
    return ipywidgets.Button(
        description=label, tooltip=tooltip, button_style=style, layout={"width": "auto", "flex": "0 0 auto"}
    )


def _title(run: Run) -> str:
    """Return the columns that all steps share, and the system."""
    parts = [part for step in run.steps for part in step.parts]
    labels = [axis_label(*(getattr(part, name) for name in LABELLED)) for part in parts]
    columns = ([part.collective for part in parts], labels, [part.mode for part in parts])
    return SEPARATOR.join([*(values[0] for values in columns if len(set(values)) == 1), run.where])


def _place(run: Run) -> tuple[str, str]:
    """Return the mesh and the system of a run. The keys of its lines contain everything else."""
    return run.mesh.fingerprint, run.where


def _lines(results: pd.DataFrame, names: Mapping[Key, str]) -> list[Line]:
    """Return the lines that have points, with the keys of the plan's steps, so that two runs have equal keys."""
    return [line for line in lines_of(results.assign(**_NO_RUN), "busbw_gbs", names=names) if len(line)]


def _status(run: Run) -> str:
    now = run.progress
    doing = ("running", "stopping after this step", "ending the ranks")[run.cancel_level]
    state = f"{doing} · step {min(now.done + 1, now.total)} of {now.total}" if run.state == "running" else run.state
    times = [f"{format_seconds(now.elapsed_s)} elapsed"]
    if run.state == "running":
        times.append(f"about {format_seconds(now.left_s)} left" if now.done else str(run.estimate))
    text = SEPARATOR.join([state, *times])
    step = f'<div style="min-height:1.5em">{markup.escape(now.step)}</div>'
    if run.error is not None:
        step = _alert("Failed:", str(run.error).splitlines()[0])
    if run.alert:
        step += _alert(run.alert)
    return f"<div><b>{markup.escape(text)}</b></div>{markup.bar(now.done / max(now.total, 1), state)}{step}"


def _alert(bold: str, text: str = "") -> str:
    return (
        f'<div role="alert" style="line-height:1.45"><b style="{_BAD}">{markup.escape(bold)}</b> '
        f"{markup.escape(text)}</div>"
    )
