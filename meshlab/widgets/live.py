"""The live view of a run: what a notebook shows while it measures, and the picture that stays when it is done."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np

from meshlab import markup
from meshlab.frames.labels import axis_words
from meshlab.frames.schema import bandwidth
from meshlab.frames.table import PICTURE, run_card
from meshlab.units import format_seconds
from meshlab.widgets.curve import Curve, Line

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.run import Run
    from meshlab.frames.rundata import Row

__all__ = ["LiveView", "show", "static_bundle"]

_TICK_S = 0.5
_TELLING = ("collective", "axis", "dtype", "op", "mode", "in_place")
_IDENTITY = (*_TELLING, "root")
_MOST_REMEMBERED = 8
_BAD = "color:var(--jp-error-color1,#c62828)"
_PRESSES = (
    ("Cancel", "Stop after this step; the rows stay"),
    (
        "Interrupt the ranks",
        "Do not wait for the step; the rows stay. Ranks inside MPI do not hear it: that mostly ends the set, and "
        "engines.restart() gives a fresh one",
    ),
    ("End the ranks", "Kill the set of ranks; the rows stay, engines.restart() gives a fresh set"),
)

_Identity = tuple[Any, ...]
"""What was measured: two lines are about the same only where all of it agrees, also what is constant in their runs."""

# The lines and the results of the last finished run on a mesh and a machine, for the grey curves of the next one; of
# the last few of these, because each holds a frame.
_last: dict[tuple[Any, ...], tuple[Mapping[_Identity, Line], pd.DataFrame]] = {}
_last_lock = threading.Lock()


class LiveView(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets is untyped
    """Progress, a growing curve and a Cancel button for a run that is under way.

    A run shows it by itself as the last line of a cell. All changes come from the run's own thread and set traits only.

    Parameters
    ----------
    run : Run
        The run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._rows_shown = 0
        self._is_over = threading.Event()
        self._when_over: list[Any] = []
        self._status = ipywidgets.HTML()
        self._button = ipywidgets.Button(
            description=_PRESSES[0][0],
            tooltip=_PRESSES[0][1],
            layout={"width": "auto", "align_self": "flex-start", "margin": "0 0 8px"},
        )
        self._button.on_click(lambda _: threading.Thread(target=self._press, daemon=True).start())
        sizes = [float(step.size_bytes) for step in run.steps if step.size_bytes is not None] or [1.0]
        self.curve = Curve(
            title=_title(run), x_range=(min(sizes), max(sizes)) if min(sizes) < max(sizes) else None, height=320
        )
        self.previous: pd.DataFrame | None = None
        self._names = _line_names(run)
        with _last_lock:
            lines, results = _last.get(_place(run), ({}, None))
        shared = [identity for identity in self._names if identity in lines]
        if results is not None and shared:
            self.curve.previous = {self._names[identity]: lines[identity] for identity in shared}
            self.previous = _rows_about(results, shared)
        super().__init__([self._status, self._button, self.curve], layout={"max_width": "960px", "overflow": "hidden"})
        self.add_class("meshlab-live")
        self._unsubscribe = run.subscribe(self._update)
        self._update(run)
        threading.Thread(target=self._tick, name="meshlab live view", daemon=True).start()

    def when_over(self, act: Any) -> None:
        """Call ``act()`` when the run has ended, on the run's thread; at once if it has."""
        with self._lock:
            if not self._is_over.is_set():
                self._when_over.append(act)
                return
        act()

    def _press(self) -> None:
        self.run.cancel()

    def _tick(self) -> None:
        while not self._is_over.wait(_TICK_S):
            self._show_status()

    def _update(self, run: Run) -> None:
        with self._lock:
            rows = run.rows(self._rows_shown)
            self._rows_shown += len(rows)
            for name, *point in _points(run, rows):
                self.curve.append(name, *point)
        self._show_status()
        if run.state != "running":
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            if self._is_over.is_set():
                return
            self._is_over.set()
            acts, self._when_over = self._when_over, []
        self._unsubscribe()
        series = self.curve.series
        if series:
            lines = {identity: series[name] for identity, name in self._names.items() if name in series}
            with _last_lock:
                _last.pop(_place(self.run), None)
                _last[_place(self.run)] = lines, self.run.results
                while len(_last) > _MOST_REMEMBERED:
                    del _last[next(iter(_last))]
        for act in acts:
            act()

    def _show_status(self) -> None:
        self._status.value = _status(self.run)
        presses = min(self.run.cancel_presses, len(_PRESSES) - 1)
        with self._button.hold_sync():
            self._button.description, self._button.tooltip = _PRESSES[presses]
            self._button.disabled = self.run.state != "running"

    def __repr__(self) -> str:
        return f"LiveView({self.run!r})"


def show(run: Run) -> None:
    """Display a run in a notebook: live while it measures, then as a picture and a table that stay in the file."""
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
    handle = display({**data, **static_bundle(run)}, raw=True, display_id=True)
    view.when_over(lambda: _leave_picture(view, handle))


def _leave_picture(view: LiveView, handle: Any) -> None:
    """Put the static picture where the widget was: a widget is blank when the saved notebook is opened again."""
    handle.update(static_bundle(view.run, previous=view.previous), raw=True)
    view.close()


def static_bundle(run: Run, *, previous: pd.DataFrame | None = None) -> dict[str, str]:
    """A run for places without JavaScript: as HTML with a picture and the table, as PNG, and as text."""
    bundle = {"text/plain": repr(run)}
    results = run.results
    picture = ""
    if results["time_us"].notna().any():
        from matplotlib.figure import Figure

        from meshlab.plots.curves import bandwidth as plot_bandwidth
        from meshlab.plots.style import figure_png, figure_svg

        figure = Figure(figsize=(8, 3.6), layout="constrained")
        plot_bandwidth(results, ax=figure.add_subplot(), previous=previous)
        picture = figure_svg(figure, label=_title(run))
        bundle["image/png"] = base64.b64encode(figure_png(figure)).decode()
    bundle["text/html"] = run_card(run).replace(PICTURE, picture)
    return bundle


def _title(run: Run) -> str:
    plan = run.plan
    constant = [values[0] for values in (plan.collective, plan.axis, plan.mode) if len(values) == 1]
    return " · ".join([*constant, run.where])


def _several(run: Run) -> list[str]:
    """What a run has several of."""
    parts = [part for step in run.steps for part in step.parts]
    return [name for name in _TELLING if len({getattr(part, name) for part in parts} - {None}) > 1]


def _line_name(run: Run, several: list[str], row: Row) -> str:
    """What tells the lines of a run apart: whatever it has several of."""
    told = {**row, "axis": axis_words(row["axis"], _doing(run, row["axis"]))}
    parts = [str(told[name]) for name in several if name != "in_place" and told[name] is not None]
    if "in_place" in several:
        parts.append("in place" if row["in_place"] else "out of place")
    if run.plan.launches > 1:
        parts.append(f"launch {row['launch']}")
    return " · ".join(parts) or str(row["collective"])


def _doing(run: Run, axis: str) -> str:
    """What the other axis does meanwhile; empty where it does one thing after the other."""
    other = axis.partition("+")[2]
    does = [dict(run.plan.beside)[other]] if other in dict(run.plan.beside) else list(run.plan.collective)
    return does[0] if other and len(does) == 1 else ""


def _line_names(run: Run) -> dict[_Identity, str]:
    """The name of every line of a run, by what was measured."""
    several, n = _several(run), run.plan.launches
    rows = [{name: getattr(part, name) for name in _IDENTITY} for step in run.steps for part in step.parts]
    return {
        (*row.values(), launch): _line_name(run, several, row | {"launch": launch})
        for row in rows
        for launch in range(n)
    }


def _place(run: Run) -> tuple[Any, ...]:
    """Where a run was made: its mesh, its machine, and what other axes did meanwhile."""
    return run.mesh.fingerprint, run.where, run.plan.beside


def _rows_about(results: pd.DataFrame, identities: list[_Identity]) -> pd.DataFrame:
    """The rows of the lines that these identities name."""
    known = set(identities)
    columns = [results[name].astype(object).where(results[name].notna(), None) for name in (*_IDENTITY, "launch")]
    return results[[key in known for key in zip(*columns, strict=True)]]


def _points(run: Run, rows: list[Row]) -> list[tuple[str, float, float, float, float]]:
    """One point per step that was measured: name, size, bus bandwidth of the slowest group and its interval."""
    several = _several(run)
    steps: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["status"] == "ok" and row["size_bytes"] is not None:
            steps.setdefault((row["launch"], row["step"], row["axis"]), []).append(row)
    points: list[tuple[str, float, float, float, float]] = []
    for group_rows in steps.values():
        first = group_rows[0]
        times = [
            np.max([row["time_us"] for row in group_rows]),
            np.max([row["time_us_hi"] for row in group_rows]),
            np.min([row["time_us_lo"] for row in group_rows]),
        ]
        name, size, n = first["collective"], first["size_bytes"], first["n_ranks"]
        _, busbw = bandwidth([name] * 3, [size] * 3, [n] * 3, times)
        if np.isfinite(busbw[0]):
            value, low, high = (float(part) for part in busbw)
            points.append((_line_name(run, several, first), float(size), value, low, high))
    return points


def _status(run: Run) -> str:
    now = run.progress
    says = f"{run.state} · step {min(now.done + 1, now.total)} of {now.total}" if run.state == "running" else run.state
    parts = [f"{format_seconds(now.elapsed_s)} elapsed"]
    if run.state == "running":
        parts.append(f"about {format_seconds(now.left_s)} left" if now.done else str(run.estimate))
    text = " · ".join([says, *parts])
    step = f'<div style="min-height:1.5em">{markup.escape(now.step)}</div>'
    if run.error is not None:
        sentence = markup.escape(str(run.error).splitlines()[0])
        step = f'<div role="alert" style="line-height:1.45"><b style="{_BAD}">Failed:</b> {sentence}</div>'
    if run.alert:
        step += f'<div role="alert" style="line-height:1.45"><b style="{_BAD}">{markup.escape(run.alert)}</b></div>'
    return f"<div><b>{markup.escape(text)}</b></div>{markup.bar(now.done / max(now.total, 1), says)}{step}"
