"""Curve: a chart of lines against message size, which grows while a run measures."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets

from meshlab.base._markup import escape
from meshlab.plots._curves import curve_box, draw_lines
from meshlab.plots._lines import Line, pack_lines, stroke_note, with_groups
from meshlab.plots._style import PALETTE, figure_png, reserve, set_title
from meshlab.widgets._assets import script, style, with_fallback

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Curve(anywidget.AnyWidget):
    """Lines against message size, which can grow while they are displayed.

    The pointer and the arrow keys show the values of a point. All methods can be called from any thread.

    Parameters
    ----------
    title : str, default ""
        The line above the chart: collective, system and mode.
    y_label, y_unit : str, default "busbw" and "GB/s"
        Name and unit of the values.
    y_scale : {"linear", "log"}, default "linear"
        Scale of the values. A linear scale starts at 0.
    x_label : str, default "message size"
        Label of the sizes, which are in bytes on a scale of powers of two.
    x_range : tuple of float, optional
        Smallest and largest size on the scale, so that a growing line does not change it. By default the sizes of the
        points.
    references : mapping of str to float, optional
        Levels to compare with, such as the rate of a link. They are dashed and labelled with their names.
    height : int, default 320
        The fixed height of the chart, in CSS pixels.

    Examples
    --------
    >>> curve = Curve(references={"NVLink 450 GB/s": 450.0}, x_range=(1024, 2**26))
    >>> curve.set_series("tp", [1024, 2048], [3.1, 6.0], [2.9, 5.8], [3.4, 6.1])
    >>> curve.append("tp", 4096, 11.2, 10.9, 11.6)
    >>> curve.series["tp"].value.tolist()
    [3.1, 6.0, 11.2]
    """

    _bundle = "curve"
    _esm = script(_bundle)
    _css = style(_bundle)

    title = traitlets.Unicode("").tag(sync=True)
    x_label = traitlets.Unicode("message size").tag(sync=True)
    y_label = traitlets.Unicode("busbw").tag(sync=True)
    y_unit = traitlets.Unicode("GB/s").tag(sync=True)
    y_scale = traitlets.Enum(["linear", "log"], "linear").tag(sync=True)
    x_range = traitlets.Tuple(traitlets.Float(), traitlets.Float(), default_value=None, allow_none=True).tag(sync=True)
    references = traitlets.Dict(key_trait=traitlets.Unicode(), value_trait=traitlets.Float()).tag(sync=True)
    height = traitlets.Int(320, min=160).tag(sync=True)

    # Name, kind, number of points and of groups of each line, and whether it has a band. See `pack_lines`.
    _lines = traitlets.List(traitlets.Dict()).tag(sync=True)
    # The points of all lines, concatenated, in the format of `Line.tobytes`.
    _points = traitlets.Bytes(b"").tag(sync=True)
    _note = traitlets.Unicode("").tag(sync=True)  # an explanation of thick lines, thin lines and bands
    _palette = traitlets.List(traitlets.Unicode(), list(PALETTE)).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._lock = threading.RLock()  # reentrant, because `append` holds it while it calls `update_series`
        self._series: dict[str, Line] = {}
        self._previous: dict[str, Line] = {}
        super().__init__(**traits)

    @property
    def series(self) -> Mapping[str, Line]:
        """The lines by name, in the order in which they were added."""
        with self._lock:
            return MappingProxyType(dict(self._series))

    @property
    def previous(self) -> Mapping[str, Line]:
        """The lines of an earlier run, drawn in grey. Set it to lines by name, or to ``{name: (size, value)}``."""
        with self._lock:
            return MappingProxyType(dict(self._previous))

    @previous.setter
    def previous(self, lines: Mapping[str, Line | Sequence[npt.ArrayLike]]) -> None:
        previous = {name: line if isinstance(line, Line) else Line.of(*line) for name, line in lines.items()}
        with self._lock:
            self._previous = previous
            self._send_lines()

    def set_series(
        self,
        name: str,
        size: npt.ArrayLike,
        value: npt.ArrayLike,
        low: npt.ArrayLike | None = None,
        high: npt.ArrayLike | None = None,
    ) -> None:
        """Set all points of a line, which may be a new one.

        Parameters
        ----------
        name : str
            The name of the line.
        size : array_like
            Message sizes in bytes, in any order.
        value : array_like
            Values in `y_unit`; NaN for a missing one.
        low, high : array_like, optional
            The bounds of the interval around each value, NaN for a missing one. By default there is no band.

        Raises
        ------
        BenchError
            If the lengths differ.
            If only one bound is given.
            If a size is not positive.
        """
        self.update_series({name: Line.of(size, value, low, high)})

    def append(
        self,
        name: str,
        size: npt.ArrayLike,
        value: npt.ArrayLike,
        low: npt.ArrayLike | None = None,
        high: npt.ArrayLike | None = None,
    ) -> None:
        """Add one or more points to a line. A new name starts a new line.

        Parameters
        ----------
        name, size, value
            As in `set_series`.
        low, high : array_like, optional
            The bounds of the interval around each value. By default the points have no interval, and the band has a
            gap there.

        Raises
        ------
        BenchError
            If the lengths differ.
            If only one bound is given.
            If a size is not positive.
        """
        more = Line.of(size, value, low, high)
        with self._lock:
            self.update_series({name: self._series[name].then(more) if name in self._series else more})

    def update_series(self, lines: Mapping[str, Line]) -> None:
        """Set several lines by name in one update. Other lines are not changed."""
        with self._lock:
            self._series |= lines
            self._send_lines()

    def clear(self) -> None:
        """Remove all lines except those of the previous run."""
        with self._lock:
            self._series = {}
            self._send_lines()

    def _send_lines(self) -> None:
        packed = pack_lines(self._series, previous=self._previous)
        # One message for all traits: the front end would misread new bytes with the old list of lines.
        with self.hold_sync():
            self._lines, self._points, self._note = packed["lines"], packed["points"], packed["note"]

    def __repr__(self) -> str:
        lines = ", ".join(f"{name} ({len(line)} points)" for name, line in self.series.items())
        return f"Curve({self.title!r}: {lines or 'no points yet'})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_fallback(super()._repr_mimebundle_(**kwargs), self._fallback)

    def _fallback(self) -> dict[str, str]:
        caption = escape(self.title or f"{self.y_label} in {self.y_unit} against {self.x_label}")
        if not self.series and not self.previous:
            return {"text/html": f"<p>{caption}: no points yet</p>"}
        picture = base64.b64encode(figure_png(self._figure(), dpi=100)).decode()
        image = f'<img alt="{caption}" style="max-width:100%" src="data:image/png;base64,{picture}">'
        return {"text/html": image, "image/png": picture}

    def _figure(self) -> Figure:
        """Return the chart as a figure, for front ends without JavaScript."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, self.height / 80))
        ax = figure.add_axes(curve_box((8, self.height / 80)))
        lines = with_groups([replace(line, name=name) for name, line in self.series.items()])
        earlier = [replace(line, name=name) for name, line in self.previous.items()]
        parts = [np.array([*self.references.values()], dtype=np.float64), *(line.value for line in earlier)]
        parts += [part.ravel() for line in lines for part in (line.value, line.low, line.high, line.groups)]
        values = np.concatenate(parts)
        is_log = self.y_scale == "log"
        values = values[np.isfinite(values) & ((values > 0) | (not is_log))]
        low, high = (values.min(), values.max()) if values.size else (1.0, 1.0)
        ax.set_yscale(self.y_scale)
        ax.set_ylim((low / 1.3, high * 1.3) if is_log else (min(low * 1.08, 0), high * 1.08 if high > 0 else 1))
        ax.grid(alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xlabel(self.x_label)
        ax.set_ylabel(f"{self.y_label} ({self.y_unit})")
        for name, level in self.references.items():
            ax.axhline(level, color="#666666", linestyle="--", linewidth=1)
            ax.annotate(name, (0.01, level), xycoords=("axes fraction", "data"), va="bottom", fontsize=9)
        reserve(ax, above=set_title(ax, [self.title], note=stroke_note(lines)))
        draw_lines(ax, lines, earlier)
        return figure
