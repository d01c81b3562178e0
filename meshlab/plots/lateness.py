"""Which rank comes late: a strip of starts per rank, and a heat map of ranks over batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis.stragglers import find_stragglers
from meshlab.errors import BenchError
from meshlab.frames.labels import where_text
from meshlab.frames.schema import STEP
from meshlab.frames.statistics import spike_limit
from meshlab.plots.style import PALETTE, PREVIOUS, QUANTITY, axes_size, set_title
from meshlab.units import format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["batches", "stragglers"]

_POINTS = 9.0
_ROW = 15.0  # points that a rank has in a figure of our own, until the figure is high enough
_HIGHEST = 480.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The samples of one step on one group, ranks down and batches across.

    Parameters
    ----------
    ranks : list of int
        The rows.
    values : numpy.ndarray
        In µs, of shape (ranks, batches): how late a rank starts, or how much longer than the fastest rank it takes.
    times : numpy.ndarray
        In µs, of the same shape: the times.
    is_warmup : numpy.ndarray
        For every batch.
    is_aligned : bool
        Whether `values` are starts.
    rows : pandas.DataFrame
        The row of the results that these samples belong to.
    verdict : str
        What there is to see, in words.
    floor : float
        Below which lateness says nothing; NaN unless aligned.
    late : set of int
        The stragglers.
    """

    ranks: list[int]
    values: Floats
    times: Floats
    is_warmup: npt.NDArray[np.bool_]
    is_aligned: bool
    rows: pd.DataFrame
    verdict: str
    floor: float
    late: set[int]

    @property
    def title(self) -> list[str]:
        """What was measured, where and how."""
        first = self.rows.iloc[0]
        sizes = self.rows["size_bytes"].dropna()
        parts = [
            " ".join([str(first["collective"]), *(format_size(size) for size in sizes[:1])]),
            f"{first['group']} ({len(self.ranks)} ranks)",
            where_text(self.rows),
            str(first["mode"]),
        ]
        return [part for part in parts if part]


def stragglers(
    samples: pd.DataFrame,
    results: pd.DataFrame,
    *,
    step: int | None = None,
    group: str | None = None,
    launch: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw how late every rank starts, one dot per batch, with the median as a bar.

    In isolated mode starts are aligned, and the grey band reaches to the floor below which lateness says nothing; see
    `meshlab.benchmark.find_stragglers`. A straggler's name is bold, with a mark in front. Without aligned starts,
    the dots say how much longer than the fastest rank a rank took, which is no lateness: a rank that comes late takes
    *less*.

    Parameters
    ----------
    samples, results : pandas.DataFrame
        The frames of a run.
    step, group, launch : optional
        Which row of the results; by default the one with the latest rank.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure without it.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If there are no such samples.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from meshlab.benchmark.api import bench
    >>> from meshlab.engines.launcher import launch
    >>> with launch(2, backend="threads") as engines:
    ...     run = bench(engines, "tp=2", axis="tp", sizes="1K", mode="isolated")
    ...     results = run.wait()
    >>> ax = stragglers(run.samples, results, ax=Figure((7, 4)).add_subplot())
    >>> [label.get_text().removeprefix("▸ ") for label in ax.get_yticklabels()]
    ['rank 0', 'rank 1']
    """
    part = _choose(samples, results, step, group, launch)
    if ax is None:
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(7.2, _height(len(part.ranks)) / 72), layout="constrained")[1]
    values = part.values[:, ~part.is_warmup]
    n = len(part.ranks)
    told = "dots: batches · bar: median"
    if np.isfinite(part.floor):
        ax.axvspan(0, part.floor, color=PREVIOUS, alpha=0.22, linewidth=0)
        told += f" · grey: below the floor of {format_time_us(part.floor)}"
    places = np.repeat(np.arange(n), values.shape[1])
    wobble = np.tile(np.linspace(-0.28, 0.28, values.shape[1]), n)
    ax.plot(values.ravel(), places + wobble, ".", color=PALETTE[4], markersize=4.5, alpha=0.75, zorder=2)
    medians = np.median(values, axis=1)
    ax.vlines(medians, np.arange(n) - 0.4, np.arange(n) + 0.4, color=PALETTE[5], linewidth=2.4, zorder=3)
    _name_ranks(ax, part)
    ax.set_ylim(n - 0.5, -0.5)
    ax.set_xlabel(f"{'start after the first rank' if part.is_aligned else 'time beyond the fastest rank'}   ({told})")
    _scale_time(ax, values)
    ax.grid(axis="x", alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    set_title(ax, part.title)
    _say(ax, part)
    return ax


def batches(
    samples: pd.DataFrame,
    results: pd.DataFrame,
    *,
    step: int | None = None,
    group: str | None = None,
    launch: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw ranks over batches as a heat map: how late a rank starts, or how much longer than the fastest it takes.

    Triangles above the map are spikes, batches that took far longer than the others. Batches left of the dashed line,
    and those with a dash below them, are warm-up.

    Parameters
    ----------
    samples, results : pandas.DataFrame
        The frames of a run.
    step, group, launch : optional
        Which row of the results; by default the one with the latest rank.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure without it.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If there are no such samples.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from meshlab.benchmark.api import bench
    >>> from meshlab.engines.launcher import launch
    >>> with launch(2, backend="threads") as engines:
    ...     run = bench(engines, "tp=2", axis="tp", sizes="1K", mode="isolated")
    ...     results = run.wait()
    >>> ax = batches(run.samples, results, ax=Figure((7, 4)).add_subplot())
    >>> ax.get_images()[0].get_array().shape[0]
    2
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    part = _choose(samples, results, step, group, launch)
    if ax is None:
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(7.2, _height(len(part.ranks)) / 72), layout="constrained")[1]
    settled = part.values[:, ~part.is_warmup]
    # One hiccup must not make all else look alike.
    top = float(np.quantile(settled, 0.99)) or 1.0
    image = ax.imshow(
        part.values, aspect="auto", cmap=QUANTITY, vmin=0, vmax=top, interpolation="nearest", interpolation_stage="data"
    )
    n_warm, n_first = int(part.is_warmup.sum()), int(np.argmin(part.is_warmup))
    if n_first:
        ax.axvline(n_first - 0.5, color="white", linewidth=1.6, linestyle=(0, (3, 2)))
    later = np.flatnonzero(part.is_warmup[n_first:]) + n_first
    ax.plot(
        later, np.zeros(len(later)), "_", markersize=6, markeredgewidth=2, color=PREVIOUS, clip_on=False,
        transform=ax.get_xaxis_transform(),
    )  # fmt: skip
    slowest = part.times.max(axis=0)
    spikes = np.flatnonzero((slowest > spike_limit(slowest[~part.is_warmup])) & ~part.is_warmup)
    ax.plot(
        spikes, np.full(len(spikes), 1.0), "v", markersize=6, color=PALETTE[5], clip_on=False,
        transform=ax.get_xaxis_transform(),
    )  # fmt: skip
    _name_ranks(ax, part)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    told = [f"{n_warm} for warm-up" if n_warm else "", f"▼ {len(spikes)} spike{'s' * (len(spikes) != 1)}"]
    ax.set_xlabel(f"batch ({', '.join(part for part in told if part)})")
    figure = ax.get_figure(root=True)
    if figure is not None:
        label = "start after the first rank" if part.is_aligned else "time beyond the fastest"
        extend: Any = "max" if part.values.max() > top else "neither"
        bar = figure.colorbar(image, ax=ax, extend=extend, pad=0.02, fraction=0.05)
        bar.set_label(label, fontsize=_POINTS)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda time, _: format_time_us(time) if time else "0"))
        bar.ax.tick_params(labelsize=_POINTS)
    set_title(ax, part.title)
    _say(ax, part)
    return ax


def _choose(samples: pd.DataFrame, results: pd.DataFrame, step: int | None, group: str | None, launch: int) -> _Part:
    late = find_stragglers(samples, results)
    late = late[late["launch"] == launch]
    wanted = {"launch": launch, "step": step, "group": group}
    if step is None and group is None and len(late):
        wanted |= {"step": late["step"].iloc[0], "group": late["group"].iloc[0]}
    chosen = samples
    for name, value in wanted.items():
        if value is None and len(chosen):
            value = chosen[name].iloc[0]
        chosen = chosen[chosen[name] == value]
        late = late[late[name] == value]
    if not len(chosen):
        raise BenchError(f"there are no samples of step {step}, group {group}, launch {launch}; run.samples has those")
    chosen = chosen[chosen["axis"] == chosen["axis"].iloc[0]]
    is_aligned = bool(chosen["start_offset_us"].notna().all())
    times = chosen.pivot(index="rank", columns="batch", values="time_us")
    values = chosen.pivot(index="rank", columns="batch", values="start_offset_us").to_numpy() if is_aligned else (
        times.to_numpy() - times.to_numpy().min(axis=0)
    )  # fmt: skip
    key = chosen.iloc[0][list(STEP)]
    rows = results[(results[list(STEP)] == key.to_numpy()).all(axis=1).to_numpy(dtype=bool)]
    return _Part(
        ranks=[int(rank) for rank in times.index],
        values=values,
        times=times.to_numpy(),
        is_warmup=chosen.groupby("batch")["is_warmup"].first().to_numpy(dtype=bool),
        is_aligned=is_aligned,
        rows=rows,
        verdict=_verdict(late, is_aligned),
        floor=float(late["floor_us"].iloc[0]) if is_aligned and len(late) else float("nan"),
        late=set(late.loc[late["is_straggler"], "rank"].tolist()),
    )


def _verdict(late: pd.DataFrame, is_aligned: bool) -> str:
    if not is_aligned or late.empty:
        return "starts are not aligned: a rank that comes late takes less time here, not more"
    worst = late.iloc[0]
    if not worst["is_straggler"]:
        return f"no rank is late beyond the floor of {format_time_us(worst['floor_us'])}"
    share = 100 * worst["last_share"]
    return f"rank {worst['rank']} is {format_time_us(worst['late_us'])} late, last in {share:.0f} % of the batches"


def _say(ax: Axes, part: _Part) -> None:
    """Put the verdict over the title, where it is read first."""
    ax.set_title(f"{part.verdict[:1].upper()}{part.verdict[1:]}\n{ax.get_title(loc='left')}", loc="left")


def _height(n_ranks: int) -> float:
    return min(110 + _ROW * max(n_ranks, 4), _HIGHEST)


def _name_ranks(ax: Axes, part: _Part) -> None:
    """Name as many ranks as there is room for, stragglers always."""
    n = len(part.ranks)
    apart = max(1, int(np.ceil(1.3 * _POINTS * n / max(axes_size(ax)[1], 1))))
    shown = sorted({*range(0, n, apart), *(index for index, rank in enumerate(part.ranks) if rank in part.late)})
    shown = [index for index in shown if part.ranks[index] in part.late or not _is_near(index, part, apart)]
    ax.set_yticks(shown, [f"{'▸ ' * (part.ranks[index] in part.late)}rank {part.ranks[index]}" for index in shown])
    ax.tick_params(axis="y", labelsize=_POINTS, length=0)
    for index, label in zip(shown, ax.get_yticklabels(), strict=True):
        if part.ranks[index] in part.late:
            label.set_fontweight("bold")


def _is_near(index: int, part: _Part, apart: int) -> bool:
    return any(0 < abs(index - other) < apart for other, rank in enumerate(part.ranks) if rank in part.late)


def _scale_time(ax: Axes, values: Floats) -> None:
    """From 0 to the largest value; where a few are far away, linear at first and logarithmic then."""
    from matplotlib.ticker import FuncFormatter

    largest, usual = float(values.max()), float(np.quantile(values, 0.9))
    if usual > 0 and largest > 20 * usual:
        ax.set_xscale("symlog", linthresh=max(usual, 1.0))
    ax.set_xlim(left=0 if largest else -1)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda time, _: format_time_us(time) if time else "0"))
