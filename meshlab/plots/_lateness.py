"""Figures of stragglers: a strip of starts per rank, and a heat map of ranks over batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._stragglers import by_batch, find_stragglers
from meshlab.base._errors import BenchError
from meshlab.base._units import format_size, format_time_us
from meshlab.frames._labels import axis_label, pair_label, where_text
from meshlab.frames._schema import STEP
from meshlab.frames._statistics import spike_limit
from meshlab.plots._style import (
    PALETTE,
    PREVIOUS,
    QUANTITY,
    axes_size,
    color_bar,
    font_size,
    label_room,
    light_grid,
    open_axes,
    reserve,
    set_title,
    text_width,
    wrap_parts,
)
from meshlab.runs._store import as_frames

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_POINTS = 9.0
_ROW = 15.0  # points per rank in a new figure, up to _HIGHEST
_WIDTH, _HIGHEST = 518.0, 480.0  # points of a new figure
_BELOW, _BAR_TEXT = 38.0, 44.0  # points for the label below the axes, and for the colour bar beside its numbers

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The samples behind one row of the results: ranks down and batches across."""

    ranks: list[int]
    values: Floats  # µs, of shape (ranks, batches): start after the first rank, or excess over the fastest
    times: Floats  # µs, of the same shape
    is_warmup: npt.NDArray[np.bool_]  # of each batch
    is_aligned: bool  # whether `values` are starts
    rows: pd.DataFrame  # the row of the results
    verdict: str  # a sentence without the full stop
    floor: float  # the smallest measurable lateness in µs, NaN unless starts are aligned
    late: set[int]  # the stragglers

    @property
    def title(self) -> list[str]:
        """The parts of the title: collective, group, system and mode."""
        if self.rows.empty:
            return []
        row = self.rows.iloc[0].astype(object)
        first = {str(name): value for name, value in row.where(row.notna(), None).items()}
        sizes = self.rows["size_bytes"].dropna()
        load = "" if first["axis"] is None else _load_text(first)
        parts = [
            " ".join([str(first["collective"]), *(format_size(size) for size in sizes[:1])]),
            f"{first['group']} ({len(self.ranks)} ranks{load})",
            where_text(self.rows),
            str(first["mode"]),
        ]
        return [part for part in parts if part]


def stragglers(
    run: Any,
    results: pd.DataFrame | None = None,
    *,
    step: int | None = None,
    group: str | None = None,
    launch: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw how late each rank enters a collective: one dot per batch, and a bar at the median.

    In isolated mode starts are aligned, and the grey band ends at the floor of the latest rank: a smaller lateness
    cannot be measured, see `meshlab.analysis.find_stragglers`. The name of a straggler is bold and has a mark. Without
    aligned starts, the dots are the excess time over the fastest rank. This is not lateness: a rank that enters late
    takes *less* time.

    Parameters
    ----------
    run : RunData, path, pair of DataFrames (results, samples), or DataFrame
        A run or its folder, its two frames, or its samples if `results` is passed too.
    results : pandas.DataFrame, optional
        The results that belong to the samples in `run`.
    step : int, optional
        Number of the step in the plan. By default the step with the latest rank.
    group : str, optional
        The name of the group. By default the group with the latest rank.
    launch : int, default 0
        Number of the launch, counted from 0.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `run` has no samples, or none of that step, group and launch with a rank and a batch.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> with ml.launch(2, backend="threads") as engines:
    ...     results = (run := ml.bench(engines, "tp=2", axis="tp", sizes="1K", mode="isolated")).wait()
    >>> ax = ml.plot.stragglers(run, ax=Figure((7, 4)).add_subplot())
    >>> [label.get_text().removeprefix("▸ ") for label in ax.get_yticklabels()]
    ['rank 0', 'rank 1']
    """
    part = _choose(run, results, step, group, launch)
    values = part.values[:, ~part.is_warmup]
    if not values.size:
        raise BenchError("all batches of this step are warm-up; choose another step, or pass the samples as measured")
    ax = _open(ax, part)
    from matplotlib import rcParams

    n = len(part.ranks)
    label = ["start after the first rank" if part.is_aligned else "excess time over the fastest rank"]
    label += ["dots: batches", "bar: median"]
    if np.isfinite(part.floor):
        ax.axvspan(0, part.floor, color=PREVIOUS, alpha=0.22, linewidth=0)
        label.append(f"grey: below the floor of {format_time_us(part.floor)}")
    positions = np.repeat(np.arange(n), values.shape[1])
    spread = np.tile(np.linspace(-0.28, 0.28, values.shape[1]), n)  # so that dots with equal values do not overlap
    ax.plot(values.ravel(), positions + spread, ".", color=PALETTE[4], markersize=4.5, alpha=0.75, zorder=2)
    medians = np.median(values, axis=1)
    ax.vlines(medians, np.arange(n) - 0.4, np.arange(n) + 0.4, color=PALETTE[5], linewidth=2.4, zorder=3)
    ax.set_ylim(n - 0.5, -0.5)
    lines = wrap_parts(label, label_room(ax), font_size(rcParams["axes.labelsize"]))
    reserve(ax, below=_BELOW + 12 * lines.count("\n"))
    ax.set_xlabel(lines)
    _scale_time(ax, values)
    light_grid(ax, "x")
    return ax


def batches(
    run: Any,
    results: pd.DataFrame | None = None,
    *,
    step: int | None = None,
    group: str | None = None,
    launch: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw a heat map of ranks and batches: the start after the first rank, or the excess time over the fastest.

    Triangles above the map are spikes, batches that took far longer than the others. Warm-up batches are to the left of
    the dashed line, or have a dash below them.

    Parameters
    ----------
    run, results, step, group, launch, ax
        As in `stragglers`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `run` has no samples, or none of that step, group and launch with a rank and a batch.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> with ml.launch(2, backend="threads") as engines:
    ...     results = (run := ml.bench(engines, "tp=2", axis="tp", sizes="1K", mode="isolated")).wait()
    >>> ax = ml.plot.batches(run, ax=Figure((7, 4)).add_subplot())
    >>> ax.get_images()[0].get_array().shape[0]
    2
    """
    from matplotlib.ticker import MaxNLocator

    part = _choose(run, results, step, group, launch)
    ax = _open(ax, part)
    settled = part.values[:, ~part.is_warmup]
    # The 99th percentile, because a single outlier would give all other cells the same colour.
    settled = settled[np.isfinite(settled)]
    top = (float(np.quantile(settled, 0.99)) if settled.size else 0.0) or 1.0
    image = ax.imshow(
        part.values, aspect="auto", cmap=QUANTITY, vmin=0, vmax=top, interpolation="nearest", interpolation_stage="data"
    )
    n_warm, n_first = int(part.is_warmup.sum()), int(np.argmin(part.is_warmup))
    if n_first:
        ax.axvline(n_first - 0.5, color="white", linewidth=1.6, linestyle=(0, (3, 2)))
    later = np.flatnonzero(part.is_warmup[n_first:]) + n_first
    edge: Any = {"markersize": 6, "clip_on": False, "transform": ax.get_xaxis_transform()}
    ax.plot(later, np.zeros(len(later)), "_", markeredgewidth=2, color=PREVIOUS, **edge)
    slowest = part.times.max(axis=0)
    spikes = np.flatnonzero((slowest > spike_limit(slowest[~part.is_warmup])) & ~part.is_warmup)
    ax.plot(spikes, np.ones(len(spikes)), "v", color=PALETTE[5], **edge)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    counts = [f"{n_warm} warm-up" if n_warm else "", f"▼ {len(spikes)} spike{'s' * (len(spikes) != 1)}"]
    ax.set_xlabel(f"batch ({', '.join(filter(None, counts))})")
    label = "start after the first rank" if part.is_aligned else "excess time over the fastest"
    extend: Any = "max" if part.values.max() > top else "neither"
    widest = max(text_width(format_time_us(time), _POINTS) for time in (top, 0.888 * top))
    reserve(ax, right=_BAR_TEXT + widest)
    color_bar(ax, image, lambda time: format_time_us(time) if time else "0", label=label, extend=extend)
    return ax


def _choose(run: Any, results: pd.DataFrame | None, step: int | None, group: str | None, launch: int) -> _Part:
    """Choose the samples behind one row of the results: by default those with the latest rank."""
    results, samples, _ = as_frames(run, results)
    if samples.empty:
        raise BenchError(
            "run has no samples, but the figure needs the times of each rank; pass the run, its folder, or the pair "
            "(run.results, run.samples)"
        )
    if samples["run_id"].nunique() > 1:
        raise BenchError(f"run contains {samples['run_id'].nunique()} runs, but the figure shows one; pass one of them")
    choice = {"step": step, "group": group, "launch": launch}
    chosen = samples[_matches(samples, choice)]
    if chosen.empty:
        named = ", ".join(f"{column} {value}" for column, value in choice.items() if value is not None)
        raise BenchError(f"no samples of {named}; choose values from run.samples[['step', 'group', 'launch']]")
    late = find_stragglers((results, samples))
    late = late[_matches(late, choice)]
    # A step has several rows: one per group, pair or concurrent axis. All columns of `STEP` together select one.
    first = (late if len(late) else chosen).iloc[0]
    key = {column: first[column] for column in STEP if column != "run_id"}
    chosen, late, rows = (frame[_matches(frame, key, missing=True)] for frame in (chosen, late, results))
    is_aligned = bool(chosen["start_offset_us"].notna().all())
    times = by_batch(chosen, "time_us").T
    if not times.size:
        raise BenchError("the samples of this step have no rank or no batch; pass the samples as measured")
    if is_aligned:
        values = by_batch(chosen, "start_offset_us").T.to_numpy()
    else:
        values = times.to_numpy() - times.to_numpy().min(axis=0)
    return _Part(
        ranks=[int(rank) for rank in times.index],
        values=values,
        times=times.to_numpy(),
        is_warmup=chosen.groupby("batch")["is_warmup"].first().fillna(value=False).to_numpy(dtype=bool),
        is_aligned=is_aligned,
        rows=rows,
        verdict=_verdict(late, is_aligned),
        floor=float(late["floor_us"].iloc[0]) if is_aligned and len(late) else float("nan"),
        late=set(late.loc[late["is_straggler"], "rank"].tolist()),
    )


def _matches(frame: pd.DataFrame, choice: dict[str, Any], *, missing: bool = False) -> npt.NDArray[np.bool_]:
    """Select the rows with these values. A missing value matches any value or, if `missing`, missing values only."""
    import pandas as pd

    selected = np.ones(len(frame), dtype=bool)
    for column, value in choice.items():
        if not pd.isna(value):
            selected &= frame[column].eq(value).fillna(value=False).to_numpy(bool)
        elif missing:
            selected &= frame[column].isna().to_numpy(bool)
    return selected


def _load_text(row: dict[str, Any]) -> str:
    """Describe the load, unless it is all groups of one axis together."""
    if row["src_rank"] is not None:
        return f", {pair_label(row['collective'], row['src_rank'], row['dst_rank'])}"
    label = axis_label(str(row["axis"]), row["grouping"], row["concurrent_axis"], row["concurrent_collective"])
    return label.removeprefix(str(row["axis"]))


def _verdict(late: pd.DataFrame, is_aligned: bool) -> str:
    if not is_aligned or late.empty:
        return "starts are not aligned: a rank that enters late takes less time here, not more"
    worst = late.iloc[0]
    if worst["late_us"] <= worst["floor_us"]:
        return f"no rank is late by more than the floor of {format_time_us(worst['floor_us'])}"
    but = "" if worst["is_straggler"] else " but not consistently,"
    text = f"rank {worst['rank']} is {format_time_us(worst['late_us'])} late,{but}"
    return f"{text} last in {100 * worst['last_share']:.0f} % of the batches"


def _open(ax: Axes | None, part: _Part) -> Axes:
    """Return the axes with their title and the names of the ranks."""
    ax = open_axes(ax, _WIDTH, min(120 + _ROW * max(len(part.ranks), 5), _HIGHEST))
    # The markers of spikes are on the upper edge of the map.
    above = set_title(ax, part.title, verdict=f"{part.verdict[:1].upper()}{part.verdict[1:]}", gap=5.0)
    left = text_width(f"▸ rank {max(part.ranks)}", _POINTS, weight="bold") + 10
    reserve(ax, left=left, above=above, below=_BELOW)
    _name_ranks(ax, part)
    return ax


def _name_ranks(ax: Axes, part: _Part) -> None:
    """Label all stragglers, and as many other ranks as there is room for."""
    distance = max(1, int(np.ceil(1.3 * _POINTS * len(part.ranks) / max(axes_size(ax)[1], 1))))
    late = [index for index, rank in enumerate(part.ranks) if rank in part.late]
    spaced = range(0, len(part.ranks), distance)
    others = [index for index in spaced if all(abs(index - other) >= distance for other in late)]
    ticks = sorted({*late, *others})
    ax.set_yticks(ticks, [f"{'▸ ' * (index in late)}rank {part.ranks[index]}" for index in ticks])
    ax.tick_params(axis="y", labelsize=_POINTS, length=0)
    for index, label in zip(ticks, ax.get_yticklabels(), strict=True):
        if index in late:
            label.set_fontweight("bold")


def _scale_time(ax: Axes, values: Floats) -> None:
    """Scale time linearly from 0, and logarithmically above most values if a few are much larger."""
    from matplotlib.ticker import FuncFormatter

    largest, usual = float(values.max()), float(np.quantile(values, 0.9))
    if usual > 0 and largest > 20 * usual:
        ax.set_xscale("symlog", linthresh=max(usual, 1.0))
    ax.set_xlim(left=0 if largest else -1)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda time, _: format_time_us(time) if time else "0"))
