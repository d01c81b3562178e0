"""Curve: live lines with an interval band over message sizes."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets

from meshlab.errors import BenchError
from meshlab.markup import escape
from meshlab.plots.style import PALETTE, PREVIOUS
from meshlab.units import format_size

__all__ = ["Curve", "Line"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The points of one line, ascending in x.

    Parameters
    ----------
    x, y : numpy.ndarray
        float64 of equal length.
    lo, hi : numpy.ndarray or None
        The interval around y, of the same length; None for a line without a band.
    """

    x: Floats
    y: Floats
    lo: Floats | None = None
    hi: Floats | None = None

    @classmethod
    def of(
        cls, x: npt.ArrayLike, y: npt.ArrayLike, lo: npt.ArrayLike | None = None, hi: npt.ArrayLike | None = None
    ) -> Line:
        """Make a line of anything that numpy reads as numbers; missing values are nan.

        Raises
        ------
        BenchError
            If the lengths differ, only one end of the interval is given, or a size is not above zero.
        """
        if (lo is None) != (hi is None):
            raise BenchError("an interval has two ends; give both lo and hi, or neither")
        columns = [np.atleast_1d(np.asarray(part, dtype=np.float64)) for part in (x, y, lo, hi) if part is not None]
        if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
            lengths = ", ".join(str(column.size) for column in columns)
            raise BenchError(f"x, y, lo and hi must have the same length, not {lengths}")
        if not np.all(columns[0] > 0):
            raise BenchError("sizes lie on a logarithmic axis, so every x must be above 0 bytes")
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))

    def then(self, other: Line) -> Line:
        """Add the points of another line."""
        x, y = np.append(self.x, other.x), np.append(self.y, other.y)
        if self.lo is None or self.hi is None or other.lo is None or other.hi is None:
            return Line.of(x, y)
        return Line.of(x, y, np.append(self.lo, other.lo), np.append(self.hi, other.hi))

    def tobytes(self) -> bytes:
        """x, y and, where there is a band, lo and hi, one behind the other: little-endian float64."""
        parts = (self.x, self.y) if self.lo is None or self.hi is None else (self.x, self.y, self.lo, self.hi)
        return np.concatenate(parts).astype("<f8").tobytes()

    def __len__(self) -> int:
        return len(self.x)


class Curve(anywidget.AnyWidget):
    """Lines over message sizes that can grow while one looks at them.

    Points say their values under the pointer or with the arrow keys. All methods may be called from any thread.

    Parameters
    ----------
    title : str, default ""
        What, where and how, in one line above the picture.
    y_label, y_unit : str, default "busbw" and "GB/s"
        What y is.
    y_scale : {"linear", "log"}, default "linear"
        A linear scale starts at 0.
    x_label : str, default "message size"
        What x is; always in bytes, on a scale of powers of two.
    x_range : tuple of two numbers, optional
        The sizes to keep room for, so that a growing line does not move the scale.
    references : mapping of str to float, optional
        Levels to compare with, such as a link rate; dashed, with the text at the line.
    height : int, default 320
        In CSS pixels; the picture keeps it whatever it shows.

    Examples
    --------
    >>> curve = Curve(references={"NVLink 450 GB/s": 450.0}, x_range=(1024, 2**26))
    >>> curve.set_series("tp", [1024, 2048], [3.1, 6.0], [2.9, 5.8], [3.4, 6.1])
    >>> curve.append("tp", 4096, 11.2, 10.9, 11.6)
    >>> curve.series["tp"].y.tolist()
    [3.1, 6.0, 11.2]
    """

    _esm = Path(__file__).parent / "curve.js"
    _css = Path(__file__).parent / "curve.css"

    title = traitlets.Unicode("").tag(sync=True)
    x_label = traitlets.Unicode("message size").tag(sync=True)
    y_label = traitlets.Unicode("busbw").tag(sync=True)
    y_unit = traitlets.Unicode("GB/s").tag(sync=True)
    y_scale = traitlets.Enum(["linear", "log"], "linear").tag(sync=True)
    x_range = traitlets.Tuple(traitlets.Float(), traitlets.Float(), default_value=None, allow_none=True).tag(sync=True)
    references = traitlets.Dict(key_trait=traitlets.Unicode(), value_trait=traitlets.Float()).tag(sync=True)
    height = traitlets.Int(320, min=160).tag(sync=True)

    _lines = traitlets.List(traitlets.Dict()).tag(sync=True)
    """For every line its name, number of points, and whether it has a band and belongs to the previous run."""

    _points = traitlets.Bytes(b"").tag(sync=True)
    """The points of all lines, one behind the other, as `Line.tobytes` writes them."""

    _palette = traitlets.List(traitlets.Unicode(), list(PALETTE)).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._lock = threading.RLock()
        self._series: dict[str, Line] = {}
        self._previous: dict[str, Line] = {}
        super().__init__(**traits)

    @property
    def series(self) -> Mapping[str, Line]:
        """The lines by name, in the order in which they came."""
        with self._lock:
            return MappingProxyType(dict(self._series))

    @property
    def previous(self) -> Mapping[str, Line]:
        """The lines of an earlier run, drawn in grey behind the others; set it to ``{name: (x, y)}`` or to lines."""
        with self._lock:
            return MappingProxyType(dict(self._previous))

    @previous.setter
    def previous(self, lines: Mapping[str, Line | Sequence[npt.ArrayLike]]) -> None:
        taken = {name: line if isinstance(line, Line) else Line.of(*line) for name, line in lines.items()}
        with self._lock:
            self._previous = taken
            self._send_lines()

    def set_series(
        self,
        name: str,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        lo: npt.ArrayLike | None = None,
        hi: npt.ArrayLike | None = None,
    ) -> None:
        """Set all points of one line, whether it is new or not.

        Parameters
        ----------
        name : str
            Which line.
        x : array_like
            Sizes in bytes, in any order.
        y, lo, hi : array_like
            Values and the interval around them, in `y_unit`; nan for a missing one.

        Raises
        ------
        BenchError
            If the lengths differ, only one end of the interval is given, or a size is not above zero.
        """
        line = Line.of(x, y, lo, hi)
        with self._lock:
            self._series[name] = line
            self._send_lines()

    def append(
        self,
        name: str,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        lo: npt.ArrayLike | None = None,
        hi: npt.ArrayLike | None = None,
    ) -> None:
        """Add one or several points to a line; a new name begins a new line. The parameters are those of `set_series`.

        A line keeps its band only as long as all its points have an interval.
        """
        more = Line.of(x, y, lo, hi)
        with self._lock:
            self._series[name] = self._series[name].then(more) if name in self._series else more
            self._send_lines()

    def clear(self) -> None:
        """Remove all lines; the previous run stays."""
        with self._lock:
            self._series = {}
            self._send_lines()

    def _send_lines(self) -> None:
        both = [(n, line, False) for n, line in self._series.items()]
        both += [(n, line, True) for n, line in self._previous.items()]
        with self.hold_sync():  # one message, so that the front end never sees half of it
            self._lines = [
                {"name": name, "points": len(line), "band": line.lo is not None, "previous": previous}
                for name, line, previous in both
            ]
            self._points = b"".join(line.tobytes() for _, line, _ in both)

    def __repr__(self) -> str:
        lines = ", ".join(f"{name} ({len(line)} points)" for name, line in self.series.items())
        return f"Curve({self.title!r}: {lines or 'no points yet'})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:  # the widget was closed
            return None
        data, metadata = bundle
        caption = escape(self.title or f"{self.y_label} in {self.y_unit} over {self.x_label}")
        if not self.series and not self.previous:
            data["text/html"] = f"<p>{caption}: no points yet</p>"
            return data, metadata
        picture = base64.b64encode(self._picture()).decode()
        data["text/html"] = f'<img alt="{caption}" style="max-width:100%" src="data:image/png;base64,{picture}">'
        data["image/png"] = picture
        return data, metadata

    def _picture(self) -> bytes:
        """The lines as a PNG, for places without JavaScript."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, NullLocator

        figure = Figure(figsize=(8, self.height / 80), dpi=100, layout="constrained")
        axes = figure.add_subplot()
        for name, line in self.previous.items():
            axes.plot(line.x, line.y, color=PREVIOUS, label=f"{name}, previous")
        for index, (name, line) in enumerate(self.series.items()):
            colour = PALETTE[index % len(PALETTE)]
            axes.plot(line.x, line.y, color=colour, marker="osD^vPX*"[index % 8], markersize=4, label=name)
            if line.lo is not None and line.hi is not None:
                axes.fill_between(line.x, line.lo, line.hi, color=colour, alpha=0.2, linewidth=0)
        for name, level in self.references.items():
            axes.axhline(level, color="#666666", linestyle="--", linewidth=1)
            axes.annotate(name, (0.01, level), xycoords=("axes fraction", "data"), va="bottom", fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_yscale(self.y_scale)
        if self.y_scale == "linear":
            axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(size)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(self.title, loc="left", fontsize=11)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(f"{self.y_label} ({self.y_unit})")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()
