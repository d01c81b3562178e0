"""The topology figure: one cell per device, in one block per host, coloured by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.mesh.mesh import MeshLike
from meshlab.plots.style import (
    PALETTE,
    axes_size,
    rank_colors,
    room_right,
    set_title,
    text_colors,
    text_width,
    wrap_parts,
)
from meshlab.topology.model.cluster import Ints
from meshlab.topology.model.presets import ClusterLike
from meshlab.topology.placement.placement import Placement
from meshlab.topology.placement.view import View, make_view
from meshlab.units import SEPARATOR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["topology"]

Pixels = npt.NDArray[np.uint8]

_IDLE = (128, 128, 128, 60)  # a device without a rank: pale on white and on black
_GAP = 0.36  # between blocks, in cells
_WIDTH, _HEIGHT = 10.0, 6.4  # inches for the blocks of a new figure
_TALL = 9.0  # height if every block lists its groups
_LARGEST_CELL = 0.8  # inches
_SEAM = 0.025  # inches
_POINTS = 9.0  # font size
_LINE = _POINTS * 1.35 / 72  # height of a line in inches
_CHAR = _POINTS * 0.64 / 72  # width of a character in inches
_MOST_TEXTS = 1300
_COLUMNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The layout of blocks and cells in pixels of the image."""

    wide: int  # cells of a block
    high: int
    columns: int  # blocks
    rows: int
    side: int  # pixels of a cell; one of them is the seam
    label: int  # pixels above a block for its name
    inch: float  # inches per pixel
    spans: bool  # True if the groups of a block are listed below its name

    @property
    def gap(self) -> int:
        return max(1, round(_GAP * self.side))

    @property
    def block_size(self) -> tuple[int, int]:
        return self.wide * self.side + self.gap, self.high * self.side + self.gap + self.label

    @property
    def shape(self) -> tuple[int, int]:
        across, down = self.block_size
        return self.rows * down, self.columns * across

    @property
    def cell(self) -> float:
        """Side of a cell in inches."""
        return self.side * self.inch


def topology(
    mesh: MeshLike | Placement | ClusterLike | None = None,
    cluster: ClusterLike | None = None,
    *,
    axis: str | Sequence[str] | None = None,
    devices: Sequence[int] | Ints | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw hosts and their devices, coloured by the groups of an axis.

    Adjacent cells of one group are joined, and a seam separates groups. Colours repeat after eight groups, so cells
    also contain the number of the group. If they are too small, the groups of each host are listed next to its name.

    Parameters
    ----------
    mesh : DeviceMesh, str, Placement or Cluster, optional
        A mesh, text such as ``"dp=2, tp=4"``, or a placement. If `cluster` is omitted, also a cluster or the name of a
        preset.
    cluster : Cluster or str, optional
        A cluster, or the name of a preset. By default the ranks are drawn without hardware.
    axis : str or sequence of str, optional
        An axis such as ``"tp"``, several such as ``"dp-cp"``, the name of a group, or a level of the cluster such as
        ``"leaf"``. By default the fastest axis or, without a mesh, the outermost level with several domains.
    devices : sequence of int, optional
        The device of every rank. By default rank r uses device r.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TopologyError
        If neither a mesh nor a cluster is given.
        If the mesh has more ranks than the cluster has devices.
    MeshError
        If the axis or group is unknown.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.topology("dp=2, tp=8", ml.preset("dgx-h100", nodes=2), axis="dp", ax=Figure((12, 4)).add_subplot())
    >>> ax.get_title(loc="left")
    'dp (8 groups of 2) · 2 nodes · 16 × H100 80GB · NVLink domains of 8'
    >>> ml.plot.topology("dgx-h100", ax=Figure((12, 4)).add_subplot()).get_title(loc="left")
    'DGX H100 · 1 node · 8 × H100 80GB · NVLink domains of 8'
    """
    view = make_view(mesh, cluster, axis, devices)
    if ax is None:
        ax, grid = _new_axes(view)
    else:
        width, height = axes_size(ax)
        grid = _fit(view, width / 72, height / 72)
    _draw(view, grid, ax)
    return ax


def _new_axes(view: View) -> tuple[Axes, _Blocks]:
    from matplotlib import pyplot as plt

    grid = _fit(view, _WIDTH, _HEIGHT, _TALL)
    high, wide = (side * grid.inch for side in grid.shape)
    left = 0.3 if grid.label else 0.3 + _width_of(_row_names(view, grid, _needs_spans(view, grid))) / 72
    top, bottom = 0.55, 0.5 + 0.25 * _has_legend(view, grid)
    width, height = max(left + wide + 0.2, 5.5), top + high + bottom
    figure = plt.figure(figsize=(width, height))
    return figure.add_axes((left / width, bottom / height, wide / width, high / height)), grid


def _fit(view: View, width: float, height: float, tall: float | None = None) -> _Blocks:
    """Choose the grid with the largest cells. Blocks have their names above them if all names fit.

    If colours repeat and cells have no room for numbers, blocks also list their groups, on up to `tall` inches.
    """
    grid = _largest(view, width, height, view.blocks)
    if not _needs_spans(view, grid) or len(view.blocks) > _MOST_TEXTS:
        return grid
    return _largest(view, width, tall or height, [*view.blocks, *_spans(view)], spans=True)


def _largest(view: View, width: float, height: float, labels: Sequence[str], *, spans: bool = False) -> _Blocks:
    cells = int(np.bincount(view.block_of, minlength=1).max())
    blocks = len(view.blocks)
    longest = max(len(label) for label in labels)
    lines = 1 + spans
    best = 0.0, _grid(cells, 1, 1, blocks, 0, width / cells)
    for wide in _block_widths(cells):
        high = -(-cells // wide)
        for columns in [count for count in _COLUMNS if count <= blocks]:
            rows = -(-blocks // columns)
            for labelled in (lines, 0):
                across = width / columns / (wide + _GAP)
                down = (height / rows - labelled * _LINE) / (high + _GAP)
                cell = min(across, down, _LARGEST_CELL)
                if cell <= 0 or (labelled and cell * wide < longest * _CHAR):
                    continue
                # Heuristic weights: a line of text is worth a third of the cell size, complete rows are worth 10 %, and
                # wide blocks win ties.
                score = cell * (1 + 0.34 * labelled) * (1.1 if blocks % columns == 0 else 1) * (1 + 0.02 * wide / cells)
                if score > best[0]:
                    best = score, _grid(wide, high, columns, rows, labelled, cell)
    return best[1]


def _grid(wide: int, high: int, columns: int, rows: int, lines: int, cell: float) -> _Blocks:
    side = min(32, max(5, round(cell / _SEAM)))
    inch = cell / side
    return _Blocks(wide, high, columns, rows, side, math.ceil(lines * _LINE / inch), inch, spans=lines > 1)


def _spans(view: View) -> list[str]:
    """Return the groups of every block, such as ``dp 0–7``."""
    order = np.argsort(view.block_of, kind="stable")
    ends = np.searchsorted(view.block_of[order], np.arange(1, len(view.blocks)))
    return [_span(view.word, groups) for groups in np.split(view.group_of[order], ends)]


def _span(word: str, groups: Ints) -> str:
    held = np.unique(groups[groups >= 0]).tolist()
    if not held:
        return "no rank"
    if len(held) == 1:
        return f"{word} {held[0]}"
    if held[-1] - held[0] == len(held) - 1:
        return f"{word} {held[0]}–{held[-1]}"
    return f"{word} {held[0]}, {held[1]}{', …' * (len(held) > 2)}"


def _needs_spans(view: View, grid: _Blocks) -> bool:
    """Return whether colours repeat and no numbers distinguish the groups."""
    return view.n_groups > len(PALETTE) and not _numbers_cells(view, grid) and not _numbers_blocks(view, grid)


def _row_names(view: View, grid: _Blocks, spans: bool) -> list[str]:
    """Return the labels at the left if blocks have no room for their names: the first block of some rows."""
    firsts = range(0, grid.rows * grid.columns, _lines_apart(grid) * grid.columns)
    names = [view.blocks[first] for first in firsts]
    if not spans:
        return names
    groups = (view.group_of[view.block_of == first] for first in firsts)
    return [f"{name} · {_span(view.word, held)}" for name, held in zip(names, groups, strict=True)]


def _lines_apart(grid: _Blocks) -> int:
    return math.ceil(_LINE / (grid.block_size[1] * grid.inch))


def _width_of(texts: Sequence[str]) -> float:
    return text_width(max(texts, key=len), _POINTS)


def _block_widths(cells: int) -> list[int]:
    widths = [wide for wide in range(1, min(cells, 64) + 1) if cells % wide == 0 and wide * wide >= cells]
    return widths or [math.ceil(math.sqrt(cells))]


def _digits(view: View) -> int:
    return len(str(max(view.n_groups - 1, 0)))


def _numbers_cells(view: View, grid: _Blocks) -> bool:
    return len(view.group_of) <= _MOST_TEXTS and grid.cell >= max((_digits(view) + 0.8) * _CHAR, _LINE)


def _numbers_blocks(view: View, grid: _Blocks) -> bool:
    if len(view.blocks) > _MOST_TEXTS or len(view.blocks) == len(view.group_of):
        return False
    roomy = grid.wide * grid.cell >= (_digits(view) + 0.8) * _CHAR and grid.high * grid.cell >= _LINE
    lowest = np.full(len(view.blocks), view.n_groups)
    highest = np.full(len(view.blocks), -1)
    np.minimum.at(lowest, view.block_of, view.group_of)
    np.maximum.at(highest, view.block_of, view.group_of)
    return roomy and bool(np.all(lowest == highest))


def _meaning(view: View, grid: _Blocks) -> str:
    """Return the note below the figure, which explains colours and numbers."""
    numbered = " and number" if _numbers_cells(view, grid) or _numbers_blocks(view, grid) else ""
    repeats = f", repeating after {len(PALETTE)}" if view.n_groups > len(PALETTE) else ""
    left = " · at the left: first host of the row" if _needs_spans(view, grid) and not grid.label else ""
    below = f" · below the name: {view.word} groups of the host" if grid.spans else ""
    idle = " · pale: no rank" if (view.group_of < 0).any() else ""
    return f"{view.subtitle} · colour{numbered}: {view.word}{repeats}{below}{left}{idle}"


def _has_legend(view: View, grid: _Blocks) -> bool:
    numbered = _numbers_cells(view, grid) or _numbers_blocks(view, grid)
    return not numbered and view.n_groups <= len(view.group_names)


def _draw(view: View, grid: _Blocks, ax: Axes) -> None:
    high, wide = grid.shape
    column, row = _corners(view, grid)
    colors = (rank_colors(view.group_of) * 255).round().astype(np.uint8)
    colors[view.group_of < 0] = _IDLE
    ax.imshow(_paint(view, grid, colors), interpolation="antialiased", extent=(0, wide, high, 0), aspect="equal")
    ax.set(xlim=(0, wide), ylim=(high, 0), xticks=[], yticks=[], anchor="NW")
    ax.spines[:].set_visible(False)
    ax.patch.set_visible(False)
    if _numbers_cells(view, grid):
        _write_cells(view, grid, colors, column, row, ax)
    elif _numbers_blocks(view, grid):
        _write_block_numbers(view, grid, colors, ax)
    _write_blocks(view, grid, ax)
    set_title(ax, view.title.replace(", ", SEPARATOR).split(SEPARATOR))
    pad = _write_legend(view, ax) if _has_legend(view, grid) else 0.0
    note = wrap_parts(_meaning(view, grid).split(SEPARATOR), room_right(ax), _POINTS)
    ax.set_xlabel(note, fontsize=_POINTS, loc="left", labelpad=4 + pad)


def _corners(view: View, grid: _Blocks) -> tuple[Ints, Ints]:
    """Return the upper left pixel of every cell: column and row."""
    across, down = grid.block_size
    column = view.block_of % grid.columns * across + view.slot_of % grid.wide * grid.side
    row = view.block_of // grid.columns * down + view.slot_of // grid.wide * grid.side + grid.label
    return column, row


def _paint(view: View, grid: _Blocks, colors: Pixels) -> Pixels:
    """Return the RGBA image. Each cell has a seam at the right and below: dark inside a group, clear between groups."""
    high, wide = grid.shape
    down_cells, across_cells = grid.rows * grid.high, grid.columns * grid.wide
    # A dense grid with one entry per cell, without gaps and labels; -2 for positions without a device.
    dense_row = view.block_of // grid.columns * grid.high + view.slot_of // grid.wide
    dense_column = view.block_of % grid.columns * grid.wide + view.slot_of % grid.wide
    group = np.full((down_cells, across_cells), -2, dtype=np.int64)
    group[dense_row, dense_column] = view.group_of
    color = np.zeros((down_cells, across_cells, 4), dtype=np.uint8)
    color[dense_row, dense_column] = colors

    same_right = np.zeros_like(group, dtype=bool)
    same_right[:, :-1] = group[:, :-1] == group[:, 1:]
    same_right[:, grid.wide - 1 :: grid.wide] = False
    same_below = np.zeros_like(group, dtype=bool)
    same_below[:-1] = group[:-1] == group[1:]
    same_below[grid.high - 1 :: grid.high] = False

    tiles = np.repeat(np.repeat(color, grid.side, axis=0), grid.side, axis=1).reshape(
        down_cells, grid.side, across_cells, grid.side, 4
    )
    darker = color.copy()
    if _numbers_cells(view, grid):  # in smaller cells, dark seams inside a group only cause moiré
        darker[..., :3] = (color[..., :3] * 0.8).astype(np.uint8)
    clear = np.zeros(4, dtype=np.uint8)
    tiles[:, :, :, -1] = np.where(same_right[..., None], darker, clear)[:, None]
    tiles[:, -1, :, :-1] = np.where(same_below[..., None], darker, clear)[:, :, None]
    tiles[:, -1, :, -1][~(same_below & same_right)] = 0
    image = np.zeros((high, wide, 4), dtype=np.uint8)
    across, down = grid.block_size
    blocks = image.reshape(grid.rows, down, grid.columns, across, 4)
    blocks[:, grid.label : grid.label + grid.high * grid.side, :, : grid.wide * grid.side] = tiles.reshape(
        grid.rows, grid.high * grid.side, grid.columns, grid.wide * grid.side, 4
    )
    return image


def _inks(view: View, colors: Pixels) -> list[str]:
    """Return the text colour of every cell. A pale cell uses the text colour of the figure."""
    from matplotlib import rcParams

    inks = text_colors(colors / 255).astype(object)
    inks[view.group_of < 0] = rcParams["text.color"]
    return inks.tolist()  # type: ignore[no-any-return]


def _write_cells(view: View, grid: _Blocks, colors: Pixels, column: Ints, row: Ints, ax: Axes) -> None:
    """Write the number of the group into every cell, and the rank above it if there is room."""
    longest = max(len(f"{view.word} {view.n_groups - 1}"), len(f"rank {view.rank_of.max()}")) + 0.5
    worded = grid.cell >= max(longest * _CHAR, 2 * _LINE)
    middle = (grid.side - 1) / 2
    places = zip((column + middle).tolist(), (row + middle).tolist(), strict=True)
    facts = zip(view.group_of.tolist(), view.rank_of.tolist(), _inks(view, colors), strict=True)
    for (x, y), (group, rank, ink) in zip(places, facts, strict=True):
        text = "–" if group < 0 else str(group)
        if worded:
            head = f"rank {rank}\n" if rank >= 0 else ""
            text = f"{head}{view.word} {text}" if group >= 0 else f"{head}idle" if rank < 0 else f"{head}–"
        ax.text(x, y, text, ha="center", va="center", fontsize=_POINTS, color=ink)


def _write_block_numbers(view: View, grid: _Blocks, colors: Pixels, ax: Axes) -> None:
    """Write one number per block, if all cells of every block belong to one group."""
    across, down = grid.block_size
    _, first = np.unique(view.block_of, return_index=True)
    inks = np.array(_inks(view, colors), dtype=object)[first].tolist()
    for block, group, ink in zip(view.block_of[first].tolist(), view.group_of[first].tolist(), inks, strict=True):
        x = block % grid.columns * across + grid.wide * grid.side / 2
        y = block // grid.columns * down + grid.label + grid.high * grid.side / 2
        text = "–" if group < 0 else str(group)
        ax.text(x, y, text, ha="center", va="center", fontsize=_POINTS, color=ink)


def _write_blocks(view: View, grid: _Blocks, ax: Axes) -> None:
    """Write the name of every block above it or, if there is no room, name the first block of some rows at the left."""
    across, down = grid.block_size
    if grid.label:
        lower = 0.03 / grid.inch
        for index, name in enumerate(view.blocks):
            x, y = index % grid.columns * across, index // grid.columns * down + grid.label - lower
            ax.text(x, y - grid.spans * grid.label / 2, name, fontsize=_POINTS, ha="left", va="bottom")
        for index, span in enumerate(_spans(view) if grid.spans else ()):
            x, y = index % grid.columns * across, index // grid.columns * down + grid.label - lower
            ax.text(x, y, span, fontsize=_POINTS, ha="left", va="bottom")
        return
    every = _lines_apart(grid)
    names = _row_names(view, grid, _needs_spans(view, grid))
    figure = ax.get_figure(root=True)
    room = 0.0 if figure is None else ax.get_position().x0 * figure.get_size_inches()[0] * 72
    if _width_of(names) + 4 > room:  # axes of the caller may have room for the names only
        names = _row_names(view, grid, False)
    for number, name in enumerate(names):
        y = number * every * down + grid.high * grid.side / 2
        ax.text(-0.06 / grid.inch, y, name, fontsize=_POINTS, ha="right", va="center")


def _write_legend(view: View, ax: Axes) -> float:
    """Draw the legend below the figure, and return its height in points."""
    from matplotlib.patches import Patch

    handles = [
        Patch(color=color, label=name)
        for color, name in zip(rank_colors(np.arange(view.n_groups)), view.group_names, strict=True)
    ]
    each = max(text_width(name, _POINTS) for name in view.group_names) + 5 * _POINTS
    columns = max(1, min(len(handles), int(room_right(ax) / each)))
    corner: Any = {"loc": "upper left", "bbox_to_anchor": (0, 0), "borderpad": 0, "frameon": False}
    ax.legend(handles=handles, ncols=columns, fontsize=_POINTS, **corner)
    return 1.6 * _POINTS * math.ceil(len(handles) / columns)
