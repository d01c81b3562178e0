"""Figure of a comparison: the time after over the time before at each size, with its interval and verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis.comparison import Comparison, distinguishing_columns, row_name
from meshlab.errors import BenchError
from meshlab.plots.curves import spread_labels
from meshlab.plots.style import PALETTE, PREVIOUS, WRONG
from meshlab.units import format_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["comparison"]

# Shape and colour are redundant, so that either is enough. Mid tones are visible on white and on black.
_MARKERS: dict[str, dict[str, Any]] = {
    "WRONG": {"marker": "x", "color": WRONG, "label": "WRONG"},
    "SLOWER": {"marker": "^", "color": PALETTE[5], "label": "slower"},
    "FASTER": {"marker": "v", "color": PALETTE[0], "label": "faster"},
    "UNCLEAR": {"marker": "o", "color": PREVIOUS, "label": "unclear", "markerfacecolor": "none"},
    "SAME": {"marker": "o", "color": PREVIOUS, "label": "the same"},
}
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1.5, 2)), (0, (8, 2)))
_FONT = 9.0
_RATIOS = (
    (1.7, (0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.3)),
    (8.0, (0.25, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4)),
    (float("inf"), tuple(digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5))),
)
"""Ticks of the ratio scale, by the maximum quotient of the largest and the smallest ratio."""


def comparison(comparison: Comparison, *, ax: Axes | None = None) -> Axes:
    """Draw the ratio of the times after and before against message size.

    Triangles are clearly slower (up) or faster (down), dots are the same, and rings are unclear. Bars are 95 %
    intervals, if available. Differences inside the band are too small to matter. There is one line per collective,
    placement and other column that varies. Wrong results have no ratio. The title counts them.

    Parameters
    ----------
    comparison : Comparison
        The result of `meshlab.compare`.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `comparison` is not a Comparison.
        If no row has a ratio.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> graph = ml.example().query("mode == 'graph' and collective == 'all_reduce'")
    >>> slower = graph.assign(**{name: 2 * graph[name] for name in ("time_us", "time_us_lo", "time_us_hi")})
    >>> ax = ml.plot.comparison(ml.compare(graph, slower), ax=Figure((7, 4)).add_subplot())
    >>> ax.get_ylabel()
    'time after / before  (above 1 is slower)'
    """
    given: Any = comparison
    if not isinstance(given, Comparison):
        raise BenchError(
            f"comparison must be a Comparison, not {type(given).__name__}; pass ml.compare(before, after), which "
            "accepts runs, folders and results frames"
        )
    frame = comparison.rows[comparison.rows["ratio"].notna() & (comparison.rows["size_bytes"] > 0)]
    if not len(frame):
        notes = ", ".join(str(note) for note in comparison.rows["note"].unique() if note)
        raise BenchError(f"nothing to draw: no row has a ratio ({notes or 'the rows have no message size'})")
    if ax is None:
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")[1]
    ax.axhspan(1 / (1 + comparison.effect), 1 + comparison.effect, color=PREVIOUS, alpha=0.18, linewidth=0)
    ax.axhline(1, color=PREVIOUS, linewidth=1)
    ends = []
    for index, (name, rows) in enumerate(_lines(frame)):
        sizes, ratio = rows["size_bytes"].to_numpy(dtype=np.float64), rows["ratio"].to_numpy(dtype=np.float64)
        ax.plot(sizes, ratio, color=PREVIOUS, linewidth=1, linestyle=_DASHES[index % len(_DASHES)], zorder=2)
        ends.append((name, float(sizes[-1]), float(ratio[-1])))
    _draw_rows(ax, frame)
    _scale(ax, frame, comparison.effect)
    _name_ends(ax, ends)
    ax.set_xlabel("message size")
    ax.set_ylabel("time after / before  (above 1 is slower)")
    ax.grid(visible=True, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(_title(comparison), loc="left", fontsize=11, parse_math=False)
    legend = ax.legend(loc="best", fontsize=_FONT, ncols=2, framealpha=0.8)
    legend.set_zorder(5)
    return ax


def _lines(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the rows of each line, by size."""
    columns = distinguishing_columns(frame)
    if not columns:
        yield "", frame.sort_values("size_bytes")
        return
    for _, rows in frame.groupby(columns, dropna=False, sort=False):
        yield row_name(rows.iloc[0], columns, is_line=True), rows.sort_values("size_bytes")


def _draw_rows(ax: Axes, frame: pd.DataFrame) -> None:
    for verdict, style in _MARKERS.items():
        rows = frame[frame["verdict"] == verdict]
        if not len(rows):
            continue
        ratio = rows["ratio"].to_numpy(dtype=np.float64)
        low, high = (rows[name].to_numpy(dtype=np.float64) for name in ("ratio_lo", "ratio_hi"))
        bars = np.nan_to_num(np.stack([ratio - low, high - ratio]))
        label = f"{style['label']}: {len(rows)} {'row' if len(rows) == 1 else 'rows'}"
        ax.errorbar(
            rows["size_bytes"].to_numpy(dtype=np.float64),
            ratio,
            yerr=bars,
            linestyle="none",
            markersize=7 if verdict in ("SLOWER", "FASTER") else 5,
            elinewidth=1,
            zorder=3,
            **style | {"label": label},
        )


def _scale(ax: Axes, frame: pd.DataFrame, effect: float) -> None:
    """Scale sizes by powers of two, and ratios logarithmically, so that half and twice have the same distance to 1."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ends = frame[["ratio", "ratio_lo", "ratio_hi"]].to_numpy(dtype=np.float64)
    low, high = min(float(np.nanmin(ends)), 1 / (1 + 2 * effect)), max(float(np.nanmax(ends)), 1 + 2 * effect)
    room = (high / low) ** 0.08
    ax.set_yscale("log")
    ax.set_ylim(low / room, high * room)
    ticks = next(ticks for most, ticks in _RATIOS if high / low <= most)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}×"))
    ax.yaxis.set_minor_locator(NullLocator())
    sizes = frame["size_bytes"].to_numpy(dtype=np.float64)
    ax.set_xscale("log", base=2)
    octaves = np.log2(sizes.max() / sizes.min())
    step = next(step for step in (1, 2, 3, 5, 10) if octaves / step <= 9 or step == 10)
    powers = 2.0 ** np.arange(np.ceil(np.log2(sizes.min()) / step) * step, np.log2(sizes.max()) + 0.01, step)
    powers = powers if powers.size else np.array([sizes.min()])
    ax.set_xticks(powers, [format_size(size) for size in powers])
    ax.xaxis.set_minor_locator(NullLocator())


def _name_ends(ax: Axes, ends: Sequence[tuple[str, float, float]]) -> None:
    """Label up to five lines at their right ends, moved apart if they would overlap."""
    named = [end for end in ends if end[0]]
    if not named or len(named) > 5:
        return
    bottom, top = np.log(ax.get_ylim())
    gap = (top - bottom) * 0.055
    moved = spread_labels(np.log([ratio for _, _, ratio in named]), gap, bottom + gap / 2, top - gap / 2)
    x = max(size for _, size, _ in named)
    for (name, _, _), place in zip(named, moved, strict=True):
        ax.annotate(
            name,
            (x, float(np.exp(place))),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=_FONT,
            annotation_clip=False,
            parse_math=False,
        )


def _title(comparison: Comparison) -> str:
    counts = ", ".join(f"{count} {_MARKERS[verdict]['label']}" for verdict, count in comparison.counts.items() if count)
    lines = [f"{counts[:1].upper()}{counts[1:]}", f"{comparison.before} → {comparison.after}"]
    # A comparison across these differences was forced with anyway=True, so the title must name them.
    lines += [f"{one.what}: {one.before} → {one.after}" for one in comparison.differences if one.blocks]
    return "\n".join(line if len(line) <= 90 else f"{line[:89]}…" for line in lines)
