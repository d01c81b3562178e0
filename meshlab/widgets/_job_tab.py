"""The tab Job: the trace of a job, its time by axis, and a timeline that zooms, or a job that is followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import RLock
from typing import Any

from meshlab.base._errors import BenchError, MeshError, MeshlabError
from meshlab.base._markup import escape, table
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plots._traces import figure_html, timeline_span
from meshlab.traces._live import LiveTrace
from meshlab.traces._sentences import axis_rows
from meshlab.traces._trace import Trace
from meshlab.widgets._background import in_background

_ZOOMS = {"in": 0.5, "out": 2.0}
_MOVES = {"earlier": -0.5, "later": 0.5}  # of the window
_SHORTEST_US = 20.0
_ALL = "all calls"


class JobTab:
    """The trace that a workbench shows. `show` receives the content of the tab at each change."""

    def __init__(self, lock: RLock, show: Callable[[dict[str, Any]], None], mesh: Callable[[], DeviceMesh]) -> None:
        self._lock, self._show, self._mesh = lock, show, mesh
        self._trace: Trace | LiveTrace | None = None
        self._is_own = False  # whether the tab began to follow the job
        self._machine: Any = None
        self._step: int | None = None
        self._window: tuple[float, float] | None = None

    @property
    def trace(self) -> Trace | LiveTrace | None:
        """The trace that is shown, or the job that is followed."""
        return self._trace

    def open(self, trace: Trace | LiveTrace | None, machine: Any = None, *, is_own: bool = False) -> None:
        """Show a trace or a job that is followed, and the calls of a trace on the curves of a machine."""
        if isinstance(self._trace, LiveTrace) and self._is_own and self._trace is not trace:
            self._trace.stop()
        self._trace, self._machine, self._step, self._window = trace, machine, None, None
        self._is_own = is_own
        if isinstance(trace, LiveTrace):
            trace.watch(self._update)
        self._show(self.content())

    def _update(self, live: LiveTrace) -> None:
        """Show the next interval of a job, on its thread."""
        with self._lock:
            if self._trace is live:
                self._show(self.content())

    def receive(self, message: Mapping[str, Any]) -> None:
        """Handle a message of the front end: a path to read or to follow, a step, or a move of the timeline."""
        if "path" in message:
            self._read(str(message["path"]).strip(), follows=bool(message.get("follow")))
            return
        with self._lock:
            if not isinstance(self._trace, Trace):
                return
            if "step" in message:
                text = str(message["step"])
                self._step, self._window = int(text) if text.isdecimal() else None, None
            else:
                self._move(str(message.get("move", "")))
            self._show(self.content())

    def _read(self, path: str, *, follows: bool) -> None:
        """Read the files of a folder, or one file, or begin to follow a folder, on a thread."""
        if not path:
            return
        self._show({**self.content(), "note": "reading …"})

        def work() -> None:
            try:
                trace = LiveTrace(path) if follows else Trace.read(Path(path).expanduser())
            except (MeshlabError, OSError) as error:
                with self._lock:
                    self._show({**self.content(), "note": str(error)})
            else:
                with self._lock:
                    self.open(trace, self._machine, is_own=True)

        in_background(work, "trace")

    def _move(self, move: str) -> None:
        """Zoom or move the window of the timeline within its step."""
        trace = self._trace
        if not isinstance(trace, Trace):
            return
        try:
            span = timeline_span(trace, None, self._step, None)
        except BenchError:
            return
        length = span.end - span.begin
        first, last = self._window or (0.0, length)
        middle, width = (first + last) / 2, last - first
        middle += _MOVES.get(move, 0.0) * width
        width = min(max(width * _ZOOMS.get(move, 1.0), _SHORTEST_US), length)
        first = min(max(middle - width / 2, 0.0), length - width)
        self._window = None if width >= length else (first, first + width)

    def content(self) -> dict[str, Any]:
        """Return the content of the tab: markup that Python made, the steps, and the step that is shown."""
        trace = self._trace
        if trace is None:
            return {"note": "", "html": "", "steps": [], "step": ""}
        if isinstance(trace, LiveTrace):
            if self._is_own:
                trace.prefer(self._mesh())
            return {"note": trace.title, "html": trace.html(), "steps": [], "step": ""}
        mesh = self._mesh_of(trace)
        steps = [str(step) for step in trace.frame()["step"].dropna().unique()]
        return {
            "note": trace.title,
            "html": self._html(trace, mesh),
            "steps": [["", "longest step" if steps else _ALL], *([step, f"step {step}"] for step in steps)],
            "step": "" if self._step is None else str(self._step),
        }

    def _mesh_of(self, trace: Trace) -> DeviceMesh | None:
        """Return the mesh of the workbench if it explains the groups of the job, otherwise None."""
        mesh = self._mesh()
        try:
            return mesh if trace.unexplained(mesh).empty else None
        except MeshError:
            return None

    def _html(self, trace: Trace, mesh: DeviceMesh | None) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in trace.sentences(mesh))
        header, *rows = axis_rows(trace.by_axis(mesh))
        parts = [
            lines,
            figure_html(trace, "axes", mesh=mesh),
            figure_html(trace, "timeline", mesh=mesh, step=self._step, window=self._window),
            figure_html(trace, "lateness", mesh=mesh),
        ]
        if self._machine is not None:
            parts.append(figure_html(trace, "curve", mesh=mesh, machine=self._machine))
        return "".join([*parts, table(header, rows, right=range(2, len(header)))])
