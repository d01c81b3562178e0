"""Live view of a run: progress, controls and a growing chart while it measures, and a static figure afterwards."""

from __future__ import annotations

import base64
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget

from meshlab.base import _markup as markup
from meshlab.base._errors import EngineError
from meshlab.base._units import SEPARATOR
from meshlab.frames._table import run_html
from meshlab.plots._curves import run_figure
from meshlab.plots._style import figure_png, figure_svg
from meshlab.widgets._assets import script, style, with_fallback
from meshlab.widgets._following import RunFollower, run_traits

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark._run import Run
    from meshlab.runs._rundata import RunData


class LiveView(anywidget.AnyWidget):
    """Progress, a growing chart, and buttons that pause or cancel a run that is measuring.

    A run displays its live view if it is the last expression of a cell. After the run, the tabs of the view show
    stragglers, pairs of ranks, contention and spikes.

    Parameters
    ----------
    run : Run
        The run. The view holds it until it ends.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     run = ml.bench(engines, sizes="1K, 4K")
    ...     view = ml.widgets.LiveView(run)
    ...     results = run.wait()
    >>> view._run["state"], [line.size.tolist() for line in view.follower.series.values()]
    ('done', [[1024.0, 4096.0]])
    """

    _bundle = "live"
    _esm = script(_bundle)
    _css = style(_bundle)
    _run, _curve, _late, _details, _load = run_traits()

    def __init__(self, run: Run) -> None:
        super().__init__()
        # ipywidgets keeps every widget, so a view that held its run would keep all samples. The follower lets it go.
        self._run_reference = weakref.ref(run)
        self.follower = RunFollower(run, self)
        """Draws the run. Its `previous` has the results that the grey lines show."""
        self.on_msg(self._receive)

    @property
    def run(self) -> Run | None:
        """The run, or None if it has ended and nothing else holds it."""
        return self._run_reference()

    def when_over(self, act: Callable[[], None]) -> None:
        """Call a function on the run's thread when the run ends, or immediately if it has ended already."""
        self.follower.when_over(act)

    def save(self, path: str | Path) -> Path:
        """Write the view as one page for readers without Python: interactive, without a kernel or a network.

        Parameters
        ----------
        path : path
            The file, such as ``"run.html"``.

        Returns
        -------
        pathlib.Path
            The file.
        """
        from meshlab.widgets._page import save_page

        return save_page(self, path, title=f"Run {self._run['id']}", note="A saved view of a run of meshlab.")

    def _receive(self, _: Any, message: dict[str, Any], buffers: Any) -> None:
        """Act on a button of the front end."""
        run = self.run
        if run is not None:
            control_run(run, str(message.get("type")), then=lambda: self.follower.show(run))

    def __repr__(self) -> str:
        return f"LiveView({self._run['id']}, {self._run['state']})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_fallback(super()._repr_mimebundle_(**kwargs), self._fallback)

    def _fallback(self) -> dict[str, str]:
        run = self.run
        if run is None:
            parts = filter(None, [self._run.get("verdict"), self._run["headline"]])
            headline = f"Run {self._run['id']}: {SEPARATOR.join(parts)}"
            return {"text/html": f"<p>{markup.escape(headline)}</p>"}
        return static_bundle(run, previous=self.follower.previous)


def control_run(run: Run, action: str, then: Callable[[], None] = lambda: None) -> None:
    """Pause, resume, stop or end a run, or restart its engines, and return immediately. A restart calls `then`."""

    def restart() -> None:
        with suppress(EngineError):  # the state of the engines shows it
            run.engines.restart()
        then()

    if action == "run.restart":
        threading.Thread(target=restart, name="meshlab restart", daemon=True).start()
    elif action == "run.end":
        # Killing the ranks may take seconds, so it must not run on the kernel's main thread.
        threading.Thread(target=run.cancel, kwargs={"now": True}, daemon=True).start()
    elif action == "run.stop":
        run.cancel()
    elif action == "run.pause":
        run.pause()
    elif action == "run.resume":
        run.resume()


def show(run: Run) -> None:
    """Display a run in a notebook: live while it measures, then as a figure and a table that the notebook saves."""
    import IPython

    display: Any = IPython.display.display
    shell = IPython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        display({"text/plain": repr(run)}, raw=True)
        return
    if run.has_ended:
        display(static_bundle(run), raw=True)
        return
    view = run.view
    data, _ = view._repr_mimebundle_()
    # Front ends show the HTML if they cannot draw the widget, such as after the kernel has died during the run.
    handle = display(data, raw=True, display_id=True)
    view.when_over(lambda: _leave_figure(view, handle))


def _leave_figure(view: LiveView, handle: Any) -> None:
    """Replace the widget by the static figure, because a widget is blank when the saved notebook is opened again."""
    # The widget is not closed. Voilà and a front end that is still drawing it would report "model not found".
    run = view.run
    if run is not None:
        handle.update(static_bundle(run, previous=view.follower.previous), raw=True)


def static_bundle(run: RunData, *, previous: pd.DataFrame | None = None) -> dict[str, str]:
    """Return a run by MIME type for front ends without JavaScript: HTML with figure and table, PNG, and text."""
    bundle, svg = {"text/plain": repr(run)}, ""
    figure = run_figure(run, previous=previous)
    if figure is not None:
        svg = figure_svg(figure, label=str(figure.get_label()))
        bundle["image/png"] = base64.b64encode(figure_png(figure)).decode()
    bundle["text/html"] = run_html(run, svg)
    return bundle
