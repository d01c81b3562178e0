"""The bytes between ranks, or between hosts, of an uneven all-to-all: a heat map with the sums of rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._units import format_number, format_size
from meshlab.mesh._axes import as_integer
from meshlab.mesh._traffic import Traffic, TrafficLike, as_traffic
from meshlab.plots._style import (
    QUANTITY,
    Margins,
    axes_size,
    color_bar,
    figure_svg,
    open_axes,
    reserve,
    set_title,
    shortened,
    text_colors,
    text_width,
)
from meshlab.plots._theme import current_theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 9.0
_CELL, _LEAST, _MOST = 52.0, 190.0, 440.0  # points per cell, and of the side of the matrix
_BAR, _GAP = 56.0, 8.0  # points of the longest bar of a sum, and between the matrix and the bars
_COLOR_BAR = 92.0
_ABOVE, _LONGEST = 96.0, 140.0  # points of the title, and of the longest name of a host
_MOST_CELLS = 256  # per side; those of more ranks are drawn together, with the largest number of each block
_EVEN = 1.005  # up to which no rank decides
_UNIT = 1 << 30  # bytes per rank of a pattern, which is drawn as shares


class _Cells(NamedTuple):
    """The matrix to draw, with the words for its rows and its numbers."""

    traffic: Traffic  # between ranks or hosts
    what: str  # rank or host
    names: Sequence[str]
    write: Callable[[float], str]


def traffic(
    traffic: TrafficLike, *, hosts: int | Sequence[Hashable] | npt.NDArray[Any] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the bytes between the ranks of a group, or between hosts, and the sums of each rank. Light cells have most.

    A cell has the bytes from its row to its column, and the bars are the bytes that each rank sends (right) and
    receives (below), with a line at the mean. The longest bar, and the pair of ranks with most bytes, have a different
    colour. A pattern for a number of ranks, such as that of a router, is drawn in percent of the bytes that a rank
    sends on average.

    Parameters
    ----------
    traffic : Traffic, str, path or numpy.ndarray
        The traffic of a group.
    hosts : int or sequence, optional
        Ranks per host, or the host of each rank, to draw the traffic between hosts.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MeshError
        If the traffic is a pattern without a number of ranks.
        If there is not one host per rank.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.traffic(ml.Traffic.zipf(1.2).of(8, "64M"), ax=Figure((7, 6)).add_subplot())
    >>> ax.get_title(loc="left").splitlines()[0].replace(chr(0x2009), " ")
    'Rank 2 receives 219.46 MiB, 3.43 × the mean'
    """
    whole = as_traffic(traffic)
    cells = _cells(whole, hosts)
    n = len(cells.names)
    widest = max(text_width(name, _POINTS) for name in cells.names[:: max(1, n - 1) if cells.what == "rank" else 1])
    width, height, margins = _layout(n, widest)
    ax = open_axes(ax, width, height, margins)
    reserve(ax, left=margins.left, right=margins.right, below=margins.below)
    ax.set_anchor("NW")  # the cells are squares, and the title begins at their left edge
    is_flat = _is_flat(widest, n, min(axes_size(ax)))
    of_names = _POINTS if is_flat else widest
    title = [f"{whole.name} traffic", f"{whole.n_ranks} rank{'s' * (whole.n_ranks != 1)}"]
    title += [f"{n} hosts"] if cells.what == "host" else []
    above = set_title(ax, title, verdict=_verdict(cells), note=_notes(cells), gap=of_names + 2.4 * _POINTS)
    reserve(ax, above=above)
    _draw_cells(ax, cells, widest, is_flat=is_flat)
    _draw_sums(ax, cells)
    return ax


def _layout(n: int, widest: float) -> tuple[float, float, Margins]:
    """Return the width, the height and the margins of the figure of n rows with names up to `widest`, in points."""
    side = float(np.clip(_CELL * n, _LEAST, _MOST))
    above = _ABOVE + (0.0 if _is_flat(widest, n, side) else widest)
    margins = Margins(widest + 34, _BAR + _GAP + 26, _BAR + _GAP + _COLOR_BAR, above)
    return margins.left + side + margins.right, margins.above + side + margins.below, margins


def _tick_distance(n: int, side: float, room: float) -> int:
    """Return the cells from one name to the next, a power of two, so that each name has `room` points."""
    return 1 << (max(1, int(np.ceil(room * n / max(side, 1)))) - 1).bit_length()  # as the ranks of a host


def _is_flat(widest: float, n: int, side: float) -> bool:
    """Return whether the names of the columns are horizontal: they fit between the names of the rows."""
    return widest + 4 < _tick_distance(n, side, 2.2 * _POINTS) * side / n


def _cells(traffic: Traffic, hosts: Any) -> _Cells:
    is_shares = traffic.is_pattern and traffic.n_ranks is not None
    if is_shares and traffic.n_ranks is not None:
        traffic = traffic.of(traffic.n_ranks, _UNIT)
    between = traffic if hosts is None else traffic.per_node(hosts)
    n = len(between.array)
    names = [str(number) for number in range(n)]
    if hosts is not None and as_integer(hosts) is None:
        names = _short_names([str(host) for host in dict.fromkeys(hosts)])
    mean = between.mean_bytes or 1.0
    return _Cells(
        between,
        "rank" if hosts is None else "host",
        names,
        (lambda value: f"{format_number(100 * value / mean)} %") if is_shares else format_size,
    )


def _short_names(names: Sequence[str]) -> list[str]:
    """Return names of hosts without their domains if these do not distinguish them, and of limited width."""
    bare = [name.partition(".")[0] for name in names]
    is_enough = len(set(bare)) == len(names) and not any(name.isdecimal() for name in bare)  # unlike addresses
    return [shortened(name, _LONGEST, _POINTS) for name in (bare if is_enough else names)]


def _verdict(cells: _Cells) -> str:
    """Name the rank that decides the time of the call."""
    busiest = cells.traffic.busiest
    factor = format_number(cells.traffic.imbalance)
    if cells.traffic.imbalance < _EVEN:
        return f"Every {cells.what} sends and receives {cells.write(cells.traffic.mean_bytes)}"
    name = f"{cells.what.capitalize()} {cells.names[busiest.rank]}"
    return f"{name} {busiest.direction} {cells.write(busiest.n_bytes)}, {factor} × the mean"


def _notes(cells: _Cells) -> list[str]:
    traffic = cells.traffic
    sender, receiver = traffic.largest_pair
    share = float(traffic.self_bytes.sum()) / (traffic.total_bytes or 1)
    percent = "less than 1" if 0 < share < 0.005 else f"{100 * share:.0f}"
    notes = [f"{percent} % stays on its {cells.what}"]
    if sender != receiver:
        pair = f"{cells.names[sender]} → {cells.names[receiver]}"
        notes.insert(0, f"largest pair {pair}: {cells.write(float(traffic.array[sender, receiver]))}")
    return notes


def _draw_cells(ax: Axes, cells: _Cells, widest: float, *, is_flat: bool) -> None:
    from matplotlib.patches import Rectangle

    values, n = cells.traffic.array.astype(np.float64), len(cells.names)
    most, ends = float(values.max()) or 1.0, (-0.5, n - 0.5, n - 0.5, -0.5)
    # Without blocks, the column of a popular rank could be between two pixels.
    starts = np.arange(0, n, -(-n // _MOST_CELLS))
    blocks = np.maximum.reduceat(np.maximum.reduceat(values, starts, axis=0), starts, axis=1)
    cells_with_bytes = np.ma.masked_equal(blocks, 0.0)
    options: dict[str, Any] = {"interpolation": "nearest", "aspect": "equal", "extent": ends}
    image = ax.imshow(cells_with_bytes, cmap=QUANTITY, vmin=0, vmax=most, **options)
    theme = current_theme()
    sender, receiver = cells.traffic.largest_pair
    # In larger matrices a cell is smaller than its frame.
    if sender != receiver and n <= 128 and cells.traffic.imbalance >= _EVEN:
        frame = Rectangle((receiver - 0.46, sender - 0.46), 0.92, 0.92, fill=False, linewidth=2)
        frame.set_edgecolor(theme.conflict)
        ax.add_patch(frame)
    if n <= _MOST_CELLS:
        _write(ax, values, image.cmap(image.norm(values)), cells.write)
    room = max(2.2 * _POINTS, widest + 4 if is_flat else 0.0)
    ticks = range(0, n, _tick_distance(n, min(axes_size(ax)), room))
    labels = [cells.names[tick] for tick in ticks]
    ax.set_xticks(ticks, labels, rotation=0 if is_flat else 90)
    ax.set_yticks(ticks, labels)
    ax.tick_params(length=0, labelsize=_POINTS, top=True, bottom=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_color(theme.line)
    ax.set_ylabel(f"from {cells.what}")
    ax.xaxis.set_label_position("top")
    ax.set_xlabel(f"to {cells.what}")
    width = axes_size(ax)[0]
    bar = ax.inset_axes(((width + _BAR + 3 * _GAP) / width, 0.0, 12.0 / width, 1.0))
    color_bar(ax, image, cells.write, cax=bar, ticks=most * np.linspace(0, 1, 5))


def _write(ax: Axes, values: npt.NDArray[np.float64], colors: Any, write: Callable[[float], str]) -> None:
    """Write the numbers into the cells if there is room."""
    cell = min(axes_size(ax)) / len(values)
    if cell < 2 * _POINTS:
        return
    texts = [[write(value) if value else "" for value in row] for row in values.tolist()]
    if cell < max(text_width(text, _POINTS) for row in texts for text in row) + 6:
        return
    for (i, j), ink in np.ndenumerate(text_colors(colors)):
        if texts[i][j]:
            ax.text(j, i, texts[i][j], color=str(ink), fontsize=_POINTS, ha="center", va="center")


def _draw_sums(ax: Axes, cells: _Cells) -> None:
    """Draw the bytes that each rank sends and receives as bars at the ends of its row and of its column."""
    theme, busiest, n = current_theme(), cells.traffic.busiest, len(cells.names)
    width, height = axes_size(ax)
    edges = np.arange(n + 1) - 0.5
    most = cells.traffic.size_bytes or 1
    for direction, sums, box in (
        ("sends", cells.traffic.sent_bytes, ((width + _GAP) / width, 0.0, _BAR / width, 1.0)),
        ("receives", cells.traffic.received_bytes, (0.0, -(_BAR + _GAP) / height, 1.0, _BAR / height)),
    ):
        is_row = direction == "sends"
        bars = ax.inset_axes(box)
        bars.stairs(sums, edges, fill=True, color=theme.load, orientation="horizontal" if is_row else "vertical")
        if direction == busiest.direction and cells.traffic.imbalance >= _EVEN:
            ends = edges[busiest.rank : busiest.rank + 2]
            bars.stairs(
                [busiest.n_bytes],
                ends + np.array([-1, 1]) * 0.002 * n,  # visible among many
                fill=True,
                color=theme.conflict,
                orientation="horizontal" if is_row else "vertical",
            )
        mean = cells.traffic.mean_bytes
        (bars.axvline if is_row else bars.axhline)(mean, color=theme.ink2, linewidth=1, linestyle=(0, (3, 2)))
        if is_row:
            bars.set(xlim=(0, most), ylim=(n - 0.5, -0.5))
            bars.text(0, 1.0, "sent", transform=bars.transAxes, fontsize=_POINTS, va="bottom")
        else:
            bars.set(xlim=(-0.5, n - 0.5), ylim=(most, 0))
            bars.text(1 + _GAP / width, 1, "received", transform=bars.transAxes, fontsize=_POINTS, va="top")
        bars.set(xticks=[], yticks=[])
        bars.spines[:].set_visible(False)
        bars.patch.set_alpha(0)


def figure_html(traffic: Traffic) -> str:
    """Return the figure as an ``<svg>`` element. Empty for a pattern without a number of ranks."""
    if traffic.n_ranks is None:
        return ""
    figure = figure_of(traffic)
    return figure_svg(figure, label=figure.axes[0].get_title(loc="left"))


def figure_of(between: Traffic) -> Figure:
    """Return the figure of a traffic between ranks, without registering it with pyplot."""
    from matplotlib.figure import Figure

    n = between.n_ranks or 1
    width, height, margins = _layout(n, text_width(str(n - 1), _POINTS))
    figure = Figure((width / 72, height / 72))
    traffic(between, ax=figure.add_axes(margins.box(width, height)))
    return figure
