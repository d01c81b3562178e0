"""The batches that the ranks measured in one step, and the rows and samples that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.comm._backend import Timings
from meshlab.frames._schema import CALL, LOAD
from meshlab.frames._statistics import FEWEST_FOR_SHAPE, find_modes, relative_trend, summarise
from meshlab.plans._steps import MeasuredGroup, Step

Floats = npt.NDArray[np.float64]

Row = dict[str, Any]
"""One row of the results, without the columns that all rows of a run share, and without bandwidth."""

Columns = dict[str, Any]
"""Some samples, as numpy arrays by column."""

_STEP_COLUMNS = (*CALL, "axis", *LOAD, "n_ranks", "count", "size_bytes")

_TOLERANCE_US = 1.0
"""The clocks of two cores may differ by a fraction of a microsecond although they are one clock."""

_MOST_POINTS = 200


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankSamples(Timings):
    """The timings of one rank in one step. The arrays have the names of the columns of the samples."""

    calls: npt.NDArray[np.int64]
    is_warmup: npt.NDArray[np.bool_]  # True for batches that are excluded from the statistics, also uncovered ones
    is_covered: npt.NDArray[np.bool_]  # False if the concurrent collective ended during the batch
    stop_reason: str  # precise, time or batches
    n_wrong: int | None = None  # wrong elements of this rank; None if unchecked
    # When this rank entered the first collective of a function in isolated mode. None if that is the start.
    arrive_us: Floats | None = None
    block: npt.NDArray[np.int64] | None = None  # from 0; None if the step was not measured in blocks


def join_blocks(blocks: Sequence[RankSamples]) -> RankSamples:
    """Join the blocks of one rank and one step. Only the first one was checked."""

    def joined(name: str) -> Any:
        arrays = [array for block in blocks if (array := getattr(block, name)) is not None]
        return np.concatenate(arrays) if arrays else None

    names = ("calls", "time_us", "host_us", "start_us", "is_warmup", "is_covered", "arrive_us")
    reasons = [block.stop_reason for block in blocks if block.stop_reason != "precise"]
    return replace(
        blocks[0],
        **{name: joined(name) for name in names},
        stop_reason=max(reasons, key=reasons.count, default="precise"),
        block=np.repeat(np.arange(len(blocks)), [len(block.time_us) for block in blocks]),
    )


def slowest_times(samples: Mapping[int, RankSamples], ranks: Sequence[int]) -> Floats:
    """Return the time of the slowest rank of a group in each batch of the statistics, in µs."""
    parts = [samples[rank] for rank in ranks]
    return np.asarray(np.stack([part.time_us for part in parts])[:, ~parts[0].is_warmup].max(axis=0))


def rows_of_step(
    step: Step, groups: Sequence[MeasuredGroup], samples: Mapping[int, RankSamples], hosts: Sequence[str]
) -> list[Row]:
    """Return one row of the results per group or pair. `hosts` has the host of every rank."""
    rows = []
    for group in groups:
        parts = [samples[rank] for rank in group.ranks]
        counts = ~parts[0].is_warmup  # the same for all ranks, because they vote
        if not counts.any():
            reason = f"{step.concurrent_collective} along {step.concurrent_axis} ended before every batch did"
            rows += rows_without_times(step, [group], "failed", reason)
            continue
        # A collective takes as long as its slowest rank. The maximum comes first, per batch: the maximum of the ranks'
        # medians would miss delays that hit a different rank in every batch.
        times = np.stack([part.time_us for part in parts])[:, counts]
        slowest = times.max(axis=0)
        wrong = [part.n_wrong for part in parts]
        n_wrong = None if None in wrong else sum(count or 0 for count in wrong)
        starts = _on_one_clock(parts, group.ranks, hosts)
        rows.append(
            _fixed_columns(step, group)
            | {
                "n_samples": len(slowest),
                "calls": int(parts[0].calls[-1]),
                **summarise(slowest),
                "skew_us": float(np.median(np.ptp(times, axis=0))),
                "n_modes": _n_modes(slowest),
                "trend": relative_trend(slowest),
                "alignment_us": math.nan if starts is None else float(np.median(np.ptp(starts[0][:, counts], axis=0))),
                "n_wrong": n_wrong,
                "status": "wrong" if n_wrong else "ok",
                "stop_reason": parts[0].stop_reason,
            }
        )
    return rows


def _n_modes(times: Floats) -> int | None:
    """Return the number of levels of the times, or None if they are too few to decide."""
    if len(times) < FEWEST_FOR_SHAPE:
        return None
    return 1 if find_modes(times) is None else 2


def rows_without_times(step: Step, groups: Sequence[MeasuredGroup], status: str, reason: str) -> list[Row]:
    """Return one row per group or pair of a step without times: failed, cancelled or skipped."""
    return [_fixed_columns(step, group) | {"status": status, "stop_reason": reason} for group in groups]


def _fixed_columns(step: Step, group: MeasuredGroup) -> Row:
    columns = {name: getattr(step, name) for name in _STEP_COLUMNS}
    return columns | {"step": step.index, "imbalance": step.imbalance} | _group_columns(group)


def _group_columns(group: MeasuredGroup) -> Row:
    src, dst = group.ranks if group.is_pair else (None, None)
    return {"group": group.name, "src_rank": src, "dst_rank": dst}


def _on_one_clock(
    parts: Sequence[RankSamples], ranks: Sequence[int], hosts: Sequence[str]
) -> tuple[Floats, Floats] | None:
    """Return starts and first collectives of ranks in µs, shape (ranks, batches), or None without a common clock."""
    # All processes of a host share CLOCK_MONOTONIC, but the clocks of two hosts differ by an unknown offset.
    starts_us = [part.start_us for part in parts]
    if any(start is None for start in starts_us) or len({hosts[rank] for rank in ranks}) > 1:
        return None
    starts: Floats = np.stack(starts_us)  # type: ignore[arg-type]
    ends = starts + np.stack([part.time_us * part.calls for part in parts])
    arrivals = [start if part.arrive_us is None else part.arrive_us for part, start in zip(parts, starts, strict=True)]
    errors = clock_errors(starts, ends)
    return starts - errors, np.stack(arrivals) - errors


def samples_of_step(
    step: Step, groups: Sequence[MeasuredGroup], samples: Mapping[int, RankSamples], hosts: Sequence[str]
) -> list[Columns]:
    """Return the samples of one step, as columns per rank."""
    columns = []
    for group in groups:
        ranks = group.ranks
        parts = [samples[rank] for rank in ranks]
        starts = _on_one_clock(parts, ranks, hosts)
        # Offsets from the first rank of each batch. Without comparable starts they remain NaN.
        offsets = np.full((len(ranks), len(parts[0].time_us)), np.nan) if starts is None else starts[1]
        for rank, part, offset in zip(ranks, parts, offsets - offsets.min(axis=0), strict=True):
            n = len(part.time_us)
            columns.append(
                {
                    "step": np.full(n, step.index),
                    "axis": np.full(n, step.axis, dtype=object),
                    "grouping": np.full(n, step.grouping, dtype=object),
                    "concurrent_axis": np.full(n, step.concurrent_axis, dtype=object),
                    **{key: np.full(n, value, dtype=object) for key, value in _group_columns(group).items()},
                    "rank": np.full(n, rank),
                    "batch": np.arange(n),
                    "block": np.full(n, None, dtype=object) if part.block is None else part.block.astype(object),
                    "calls": part.calls,
                    "time_us": part.time_us,
                    "host_us": part.host_us,
                    "start_offset_us": offset,
                    "is_warmup": part.is_warmup,
                    "status": np.where(part.is_covered, "wrong" if part.n_wrong else "ok", "uncovered").astype(object),
                }
            )
    return columns


def clock_errors(starts_us: Floats, ends_us: Floats) -> Floats:
    """Return each clock's error against the median of the ranks at each start, in µs, shape (ranks, batches)."""
    # No rank leaves a barrier before every rank has entered it. So the end of a rank's batch is earlier than the start
    # of the next batch on every other rank, and every batch bounds the difference of two clocks from both sides,
    # however late a rank is (as in the exchange of messages of D. L. Mills, Internet Time Synchronization, 1991). If
    # bounds exclude zero, the clocks differ, and the offset and the rate of the difference are the Theil-Sen line
    # through the centres of the narrower half of the bounds. Otherwise the error is zero.
    errors = np.zeros_like(starts_us)
    if starts_us.shape[1] < 2:
        return errors
    when = starts_us[0, 1:]
    for rank in range(1, len(starts_us)):
        low = ends_us[rank, :-1] - starts_us[0, 1:]
        high = starts_us[rank, 1:] - ends_us[0, :-1]
        if low.max() <= _TOLERANCE_US and high.min() >= -_TOLERANCE_US:
            continue
        width = high - low
        narrow = np.argsort(width, kind="stable")[: min(max(2, len(width) // 2), _MOST_POINTS)]
        offset, rate = _line(when[narrow], (low[narrow] + high[narrow]) / 2)
        errors[rank] = offset + rate * starts_us[0]
    centred: Floats = errors - np.median(errors, axis=0)
    return centred


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return the intercept and the slope of the Theil-Sen line."""
    first, second = np.triu_indices(len(x), 1)
    distance = x[second] - x[first]
    is_apart = distance != 0
    slope = float(np.median((y[second] - y[first])[is_apart] / distance[is_apart])) if is_apart.any() else 0.0
    return float(np.median(y - slope * x)), slope
