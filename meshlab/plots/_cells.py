"""The groups of an axis: one coloured cell per rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshError
from meshlab.base._units import SEPARATOR
from meshlab.mesh._describe import fastest_axis
from meshlab.mesh._groups import Groups
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plots._style import (
    PALETTE,
    Margins,
    axes_size,
    open_axes,
    rank_colors,
    reserve,
    room_right,
    set_title,
    text_colors,
    text_width,
    wrap_parts,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mask = npt.NDArray[np.bool_]

_TEXT = 9.0  # font size
_EVERY_CELL = 256  # up to this number of ranks, every cell is numbered; above it, every run of cells in one group
_MOST_TICKS = 32


@dataclass(frozen=True, slots=True)
class CellGrid:
    """The layout of ranks in a figure: row by row, in rank order."""

    columns: int  # cells per row
    rows: int
    outer: tuple[tuple[str, int, int], ...]  # of each axis that numbers the rows: name, size, steps per row
    inner: tuple[tuple[str, int], ...]  # name and size of the axes inside a row

    @classmethod
    def of(cls, mesh: DeviceMesh, columns: int | None = None) -> CellGrid:
        """Return the layout of a mesh, with complete axes per row if possible, and an aspect ratio near 3:2."""
        # The possible widths of a row, and for each the axis that it divides and the number of its steps per row.
        widths = {}
        for index, axis in enumerate(mesh.axes):
            inner = math.prod(mesh.shape[index + 1 :])
            steps = np.flatnonzero(axis.size % np.arange(1, axis.size + 1) == 0) + 1
            widths.update({inner * step: (index, step) for step in steps.tolist()})
        if columns is None:

            def cost(width: int) -> float:
                """Return the distance of the aspect ratio from 3:2, less a bonus for complete axes with all ticks."""
                index, step = widths[width]
                is_complete = step == 1 or step == mesh.shape[index]
                has_ticks = width <= _MOST_TICKS and mesh.world_size // width <= _MOST_TICKS
                bonus = math.log(16) if mesh.world_size <= 16 else math.log(3.5)
                return abs(math.log(width * width / mesh.world_size / 1.5)) - bonus * (is_complete and has_ticks)

            columns = min(sorted(widths, reverse=True), key=cost)
        if columns not in widths:
            raise MeshError(
                f"columns={columns} splits an axis of {mesh} unevenly",
                hint=f"choose one of {', '.join(map(str, sorted(widths)))}",
            )
        index, step = widths[columns]
        if step == mesh.shape[index]:
            index, step = index - 1, 1
        outer = [(axis.name, axis.size, 1) for axis in mesh.axes[: index + 1]]
        if outer:
            outer[-1] = (*outer[-1][:2], step)
        inner_axes = tuple((axis.name, axis.size) for axis in mesh.axes[index + 1 :])
        return cls(columns, mesh.world_size // columns, tuple(outer), inner_axes)

    @property
    def counts_columns(self) -> bool:
        """True if columns are labelled by offset, not by coordinate: a row has part of an axis, or too many ticks."""
        return self.columns > _MOST_TICKS or (bool(self.outer) and self.outer[-1][2] > 1)

    @property
    def column_parts(self) -> tuple[str, int, bool]:
        """The slowest axis along a row, its steps in the row, and whether other rows have other steps of it."""
        if self.outer and self.outer[-1][2] > 1:
            return self.outer[-1][0], self.outer[-1][2], True
        return (*self.inner[0], False)

    def row_names(self, rows: Sequence[int]) -> list[str]:
        """Return the names of rows: the coordinates of their ranks, and the first rank if `counts_columns`."""
        shape = [size // step for _, size, step in self.outer]
        names = []
        for row in rows:
            position = np.unravel_index(row, shape) if shape else ()
            parts = [
                f"{name} {int(number) * step}" + (f"–{int(number) * step + step - 1}" if step > 1 else "")
                for (name, _, step), number in zip(self.outer, position, strict=True)
            ]
            if self.counts_columns:
                parts.append(f"rank {row * self.columns}")
            names.append(SEPARATOR.join(parts))
        return names

    def figure_box(self, *, widest: float = 792.0) -> tuple[tuple[float, float], tuple[float, float, float, float]]:
        """Return the size of a figure for the cells and their names in inches, and the box of its axes."""
        width, height, margins = self.page(widest=widest)
        return (width / 72, height / 72), margins.box(width, height)

    def page(self, *, widest: float = 792.0) -> tuple[float, float, Margins]:
        """Return width and height of a figure with room for the cells and their names, and its margins, in points."""
        left = max(text_width(name, _TEXT) for name in self.row_names([0, self.rows - 1])) + 16
        above, below = 40.0, 66.0 + (len(self.inner) > 1) * 16
        cell = min(48.0, 640 / self.columns, 640 / self.rows, (widest - left - 8) / self.columns)
        width, height = max(288.0, left + cell * self.columns + 8), above + cell * self.rows + below
        return width, height, Margins(left, below, width - left - cell * self.columns, above)


def membership_title(groups: Groups) -> list[str]:
    """Return the parts of a title: axis, number and size of the groups, and number of ranks without a group."""
    ranks = f"{groups.size:,} rank{'s' * (groups.size != 1)}"
    parts = [f"{groups.name}: {len(groups):,} group{'s' * (len(groups) != 1)} of {ranks}"]
    left_out = groups.world_size - groups.array.size
    return parts + ([f"{left_out:,} rank{'s' * (left_out != 1)} in no group"] if left_out else [])


def membership(
    mesh: MeshLike, axis: str | Sequence[str] | None = None, *, ax: Axes | None = None, columns: int | None = None
) -> Axes:
    """Draw one cell per rank, coloured by its group.

    Ranks are in rank order, row by row, with the fastest axis along x. A gap separates cells of different groups,
    because colours repeat after eight groups. If there is room, cells contain the rank and the name of the group.
    Ranks without a group are hatched.

    Parameters
    ----------
    mesh : DeviceMesh or str
        A mesh, or text such as ``"dp=2, tp=4"``.
    axis : str or sequence of str, optional
        An axis, several axes, ``"world"``, or the name of a group. By default the fastest axis.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.
    columns : int, optional
        Number of ranks per row. By default the figure has an aspect ratio near 3:2.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MeshError
        If the axis or group is unknown.
        If `columns` splits an axis unevenly.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.membership("dp=2, tp=4", "tp", ax=Figure().add_subplot())
    >>> ax.get_title(loc="left")
    'tp: 2 groups of 4 ranks'
    """
    mesh = as_mesh(mesh)
    groups = mesh[axis or fastest_axis(mesh)]
    grid = CellGrid.of(mesh, columns)
    page = grid.page()
    ax = open_axes(ax, *page)
    reserve(ax, left=page[2].left, below=page[2].below)
    reserve(ax, above=set_title(ax, membership_title(groups)))
    color = groups.color.reshape(grid.rows, grid.columns)  # row-major ranks fill the rows in order
    width, height = axes_size(ax)
    cell = min(width / grid.columns, height / grid.rows)
    _draw_cells(ax, color, cell)
    notes = [_draw_numbers(ax, groups, color, cell)]
    if len(groups) > len(PALETTE):
        notes.append(f"colours repeat after {len(PALETTE)} groups")
    if groups.array.size < groups.world_size:
        notes.append("hatched: in no group")
    _name_cells(ax, grid, height / grid.rows, wrap_parts([note for note in notes if note], room_right(ax), _TEXT))
    return ax


def _draw_cells(ax: Axes, color: npt.NDArray[np.int32], cell: float) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    rows, columns = color.shape
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    if (color < 0).any():
        box = Rectangle((-0.5, -0.5), columns, rows, fill=False, hatch="////", linewidth=0, alpha=0.35, zorder=0)
        ax.add_patch(box)
    # One image for all cells, because a patch per rank would be too slow for large meshes. Without interpolation an SVG
    # contains one pixel per rank.
    pixels = (rank_colors(color) * 255).round().astype(np.uint8)  # matplotlib draws bytes faster than floats
    ax.imshow(pixels, extent=extent, interpolation="none", zorder=1)
    paper = ax.get_facecolor()
    if cell >= 8:
        everywhere = np.ones((rows, columns - 1), bool), np.ones((rows - 1, columns), bool)
        ax.add_collection(LineCollection(_edges(*everywhere), colors=[paper], linewidths=min(1.0, cell / 24), zorder=2))
    different = color[:, 1:] != color[:, :-1], color[1:] != color[:-1]
    ax.add_collection(LineCollection(_edges(*different), colors=[paper], linewidths=min(4.0, cell / 6), zorder=2))
    ax.set(xlim=extent[:2], ylim=extent[2:], aspect="equal")
    for spine in ax.spines.values():
        spine.set_visible(False)


def _edges(right: Mask, below: Mask) -> list[Any]:
    """Return line segments of shape (2, 2) along cell edges. Collinear edges that touch are one segment."""
    line, start, stop = _runs(right.T)
    vertical = np.stack([[line + 0.5, start - 0.5], [line + 0.5, stop - 0.5]]).transpose(2, 0, 1)
    line, start, stop = _runs(below)
    horizontal = np.stack([[start - 0.5, line + 0.5], [stop - 0.5, line + 0.5]]).transpose(2, 0, 1)
    return [*vertical, *horizontal]


def _runs(mask: Mask) -> tuple[Any, Any, Any]:
    """Return the runs of True in each row: the row, the first index, and the index after the last."""
    change = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    line, start = np.nonzero(change == 1)
    return line, start, np.nonzero(change == -1)[1]


def _draw_numbers(ax: Axes, groups: Groups, color: npt.NDArray[np.int32], cell: float) -> str:
    """Write group numbers and ranks if there is room, and return the explanation for the note below the figure."""
    import matplotlib as mpl

    from meshlab.plots._cell_texts import CellText, CellTexts

    inks = text_colors(rank_colors(color)).tolist()
    width = text_width(str(len(groups) - 1), _TEXT) + 2
    if cell < _TEXT * 1.3:
        return ""
    if color.size > _EVERY_CELL:
        y, x, span = _run_centres(color, within_cells=cell >= width)
        y, x = y[span * cell >= width], x[span * cell >= width]
        places = zip(y.tolist(), x.tolist(), strict=True)
        runs = [CellText(str(color[i, int(j)]), j, i, inks[i][int(j)]) for i, j in places]
        ax.add_artist(CellTexts(runs, _TEXT))
        return "number: group" if runs else ""
    rank_width = text_width(str(color.size - 1), _TEXT, weight="bold") + 4
    prefix = "rank " if cell >= rank_width + text_width("rank ", _TEXT, weight="bold") else ""
    # The name of a group, such as tp_0. "tp 0" would be a coordinate, as beside the rows.
    last = groups[len(groups) - 1].name
    has_name = cell >= text_width(last, _TEXT) + 4
    with_rank = cell >= max(rank_width, 2.6 * _TEXT)
    if not with_rank and cell < width:
        return ""
    texts = []
    for rank, number in enumerate(color.ravel().tolist()):
        row, column = divmod(rank, color.shape[1])
        line = 0.65 * _TEXT / cell if with_rank and number >= 0 else 0.0
        ink = inks[row][column] if number >= 0 else mpl.rcParams["text.color"]
        if number >= 0:
            name = groups[number].name if has_name else str(number)
            texts.append(CellText(name if with_rank else str(number), column, row + line, ink))
        if with_rank:
            texts.append(CellText(f"{prefix}{rank}", column, row - line, ink, is_bold=True))
    ax.add_artist(CellTexts(texts, _TEXT))
    if not with_rank:
        return "number: group"
    return "" if prefix and has_name else "bold: rank, below: group"


def _run_centres(color: npt.NDArray[np.int32], *, within_cells: bool) -> tuple[Any, Any, Any]:
    """Return y and x of the centre of every run of cells of one group, `within_cells` not on an edge, and its width."""
    # Runs follow rows, or columns if no row has two equal neighbours: the fastest axis is along x, so groups of an
    # outer axis have no adjacent cells in a row, but maybe in a column.
    along_rows = bool((color[:, 1:] == color[:, :-1]).any())
    lines = color if along_rows else color.T
    is_new = np.ones(lines.shape, bool)
    is_new[:, 1:] = lines[:, 1:] != lines[:, :-1]
    line, start = np.nonzero(is_new)
    stop = np.append(np.where(line[1:] == line[:-1], start[1:], lines.shape[1]), lines.shape[1])
    inside = lines[line, start] >= 0
    line, start, stop = line[inside], start[inside], stop[inside]
    if not along_rows:
        return (start + stop - 1) // 2, line, np.ones(len(line))
    return line, (start + stop - 1) // 2 if within_cells else (start + stop - 1) / 2, stop - start


def _name_cells(ax: Axes, grid: CellGrid, row_height: float, note: str) -> None:
    row_step = _tick_step(grid.rows, row_height, _TEXT * (1.5 if grid.rows <= _MOST_TICKS else 3))
    rows = list(range(0, grid.rows, row_step))
    ax.set_yticks(rows, grid.row_names(rows))
    if grid.counts_columns:
        name, parts, is_partial = grid.column_parts
        width = grid.columns // parts  # ranks of a part
        plus = "+" if is_partial else ""
        apart = _tick_step(parts, row_height * width, text_width(f"{name} {plus}{parts - 1}", _TEXT) + 6)
        ticks = list(range(0, parts, apart))
        ax.set_xticks([part * width + (width - 1) / 2 for part in ticks], [f"{name} {plus}{part}" for part in ticks])
        inside = SEPARATOR.join(f"{other} 0–{size - 1}" for other, size in grid.inner if other != name)
        label = f"each with {inside}" if inside else f"{name}: first of the row + column"
    else:
        fastest, size = grid.inner[-1]
        ax.set_xticks(range(grid.columns), [str(column % size) for column in range(grid.columns)])
        label = fastest
        if len(grid.inner) > 1:
            blocks = grid.columns // size
            shape = [other for _, other in grid.inner[:-1]]
            names = [
                SEPARATOR.join(
                    f"{name} {i}" for (name, _), i in zip(grid.inner, np.unravel_index(b, shape), strict=False)
                )
                for b in range(blocks)
            ]
            ax.set_xticks([block * size + (size - 1) / 2 for block in range(blocks)], names, minor=True)
            ax.tick_params(axis="x", which="minor", pad=_TEXT * 2)
    ax.tick_params(which="both", length=0, labelsize=_TEXT)
    ax.set_xlabel(f"{label}\n{note}", fontsize=_TEXT, loc="left")


def _tick_step(count: int, spacing: float, span: float) -> int:
    """Return the number of cells between ticks: the smallest power of two that spans `span` points."""
    return 1 << max(0, math.ceil(math.log2(span / spacing))) if count > 1 else 1
