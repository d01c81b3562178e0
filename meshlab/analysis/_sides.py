"""The two sides of a comparison: their rows, their differences, and the columns by which their rows are matched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._launches import CONFIDENCE, LaunchTimes, student_quantile
from meshlab.base._backends import BACKENDS
from meshlab.base._errors import BenchError
from meshlab.frames._labels import GPU_SOURCES, is_wrong
from meshlab.frames._schema import CALL, LOAD, PAIR, plain_value
from meshlab.nccl_tests._reader import read as read_nccl_tests
from meshlab.plans._options import OPTIONS, UNKNOWN_IF_MISSING
from meshlab.runs._store import as_frames

if TYPE_CHECKING:
    import pandas as pd

KEYS = (*CALL, "axis", "group", *LOAD, *PAIR, "n_ranks", "size_bytes")
"""The columns in which two rows must be equal to be compared."""

_COLUMN_WORDS = {
    "n_ranks": "ranks",
    "in_place": "in place",
    "size_bytes": "sizes",
    "concurrent_axis": "concurrent axis",
    "concurrent_collective": "concurrent collective",
    "src_rank": "source rank",
    "dst_rank": "destination rank",
}

# A missing value of these columns is a value if the other column is known: there was no concurrent axis, or the library
# chose.
_NONE_IF_KNOWN = {
    "concurrent_axis": "grouping",
    "concurrent_collective": "grouping",
    **{name: "buffers" for name in OPTIONS if name not in UNKNOWN_IF_MISSING},
}
_NONE = "none"

# Times of meshlab and of nccl-tests on GPUs are comparable with each other, but times of a GPU and a CPU are not.
_KINDS = dict.fromkeys(GPU_SOURCES, "a GPU")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """A property, such as the GPU or a column, that differs between the two sides of a comparison."""

    what: str
    before: str
    after: str
    blocks: bool
    """True if times are comparable only if this property is equal, unless ``anyway=True`` is passed."""

    def __str__(self) -> str:
        return f"{self.what}: {self.before} before, {self.after} after"


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its results, and its label."""

    results: pd.DataFrame
    label: str

    @cached_property
    def time_us(self) -> Floats:
        """The comparable times of all rows, in µs. NaN for failed rows, wrong results, and rows without a time."""
        usable = ~self.results["status"].isin(["failed"]) & (self.results["time_us"] > 0) & ~self.is_wrong
        return self.results["time_us"].where(usable).to_numpy(dtype=np.float64)

    @cached_property
    def errors(self) -> Floats:
        """The standard errors of the logarithms of all times, from their intervals. 0 without an interval."""
        low, high = self.results[["time_us_lo", "time_us_hi"]].to_numpy(dtype=np.float64).T
        # A 95 % interval is 2 · 1.96 standard errors wide.
        has_interval = (low > 0) & (high >= low)
        width = np.log(np.divide(high, low, out=np.ones_like(low), where=has_interval))
        return np.asarray(width / (2 * student_quantile(CONFIDENCE, math.inf)))

    @cached_property
    def is_wrong(self) -> npt.NDArray[np.bool_]:
        """True for rows with a wrong result."""
        return is_wrong(self.results)

    @cached_property
    def launches(self) -> list[Any]:
        """An identity of the launch of each row: its set of processes, or else its run and launch."""
        # New communicators on the same processes repeat only half of what varies between launches. Runs of older
        # versions have no name of their processes, but used the same ones for all launches.
        processes = self.results["process_set"] if "process_set" in self.results else [None] * len(self.results)
        return [
            name if plain_value(name) is not None else (run if source in BACKENDS else (run, launch))
            for name, source, run, launch in zip(
                processes,
                *(map(plain_value, self.results[name]) for name in ("source", "run_id", "launch")),
                strict=True,
            )
        ]

    @property
    def oversubscribed(self) -> str:
        """A clause such as "4 ranks share 2 cores", or an empty string if every rank has its own."""
        return str(self.results.attrs.get("oversubscribed", ""))

    def groups(self, keys: Sequence[str]) -> dict[tuple[Any, ...], list[int]]:
        """Return the indices of the rows of each key: the repeats of a measurement."""
        rows: dict[tuple[Any, ...], list[int]] = {}
        columns = [[plain_value(value) for value in self.results[name].tolist()] for name in keys]
        for index, key in enumerate(zip(*columns, strict=True)):
            rows.setdefault(key, []).append(index)
        return rows

    def times(self, rows: Sequence[int]) -> LaunchTimes | None:
        """Return the times of these rows by launch, or None without a usable time."""
        timed = [row for row in rows if self.time_us[row] > 0]
        if not timed:
            return None
        by_launch: dict[Any, list[int]] = {}
        for row in timed:
            by_launch.setdefault(self.launches[row], []).append(row)
        log_times = np.array([np.log(self.time_us[indices]).mean() for indices in by_launch.values()])
        return LaunchTimes(log_times, float(np.sqrt(np.mean(self.errors[timed] ** 2))))


def load_side(source: Any, label: str) -> Side:
    """Return one side of a comparison from anything that `compare` accepts."""
    results, _, name = as_frames(source, read_other=read_nccl_tests, needs_end=True)
    if not len(results):
        raise BenchError(f"{name or label} has no results to compare")
    return Side(results.reset_index(drop=True), name or label)


def differences(before: Side, after: Side) -> tuple[Difference, ...]:
    """Return the differences between two sides. Those that block a comparison come first."""
    different = [
        difference
        for what, name in (("GPU", "gpu"), ("library", "library"))
        if (difference := _attr_difference(what, *(side.results.attrs.get(name) for side in (before, after))))
    ]
    different += _source_difference(before, after) or _axis_differences(before, after)
    different += [difference for name in KEYS if (difference := _column_difference(name, before, after))]
    old, new = (side.results.attrs.get("environment") or {} for side in (before, after))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            before_text, after_text = (str(values.get(name, "not recorded")) for values in (old, new))
            different.append(Difference(name, before_text, after_text, blocks=False))
    return tuple(sorted(different, key=lambda difference: not difference.blocks))


def _attr_difference(what: str, old: Any, new: Any) -> Difference | None:
    """Compare an entry of `attrs`. Only two known GPUs block the comparison."""
    if not (old or new) or old == new:
        return None
    return Difference(what, str(old or "unknown"), str(new or "unknown"), what == "GPU" and bool(old and new))


def _source_difference(before: Side, after: Side) -> list[Difference]:
    old, new = ({str(value) for value in side.results["source"].dropna()} for side in (before, after))
    if old == new or not old or not new:
        return []
    blocks = {_KINDS.get(name, name) for name in old} != {_KINDS.get(name, name) for name in new}
    return [Difference("source", ", ".join(sorted(old)), ", ".join(sorted(new)), blocks)]


def _axis_differences(before: Side, after: Side) -> list[Difference]:
    """Compare the sources of each axis, which may be the same in total although two axes have exchanged theirs."""
    old, new = (
        {str(axis): set(rows.dropna()) for axis, rows in side.results.groupby("axis")["source"]}
        for side in (before, after)
    )
    return [
        Difference(f"source of {axis}", ", ".join(sorted(old[axis])), ", ".join(sorted(new[axis])), blocks=True)
        for axis in old.keys() & new.keys()
        if {_KINDS.get(name, name) for name in old[axis]} != {_KINDS.get(name, name) for name in new[axis]}
        and (len(old) > 1 or len(new) > 1)
    ]


def _column_difference(name: str, before: Side, after: Side) -> Difference | None:
    """Compare the values of a column. It blocks the comparison if both sides have values, but none in common."""
    # Sides that share some sizes are compared at those, so different ranges of sizes are not worth mentioning.
    old, new = (_values(side, name) for side in (before, after))
    if old == new or (name == "size_bytes" and old & new):
        return None
    unknown = name != "collective" and not (old and new)
    if unknown and name not in ("mode", "n_ranks", "dtype"):
        return None
    # Numbers, and the word for a missing one.
    before_text, after_text = (
        ", ".join(map(str, sorted(values, key=lambda value: (isinstance(value, str), value)))) or "unknown"
        for values in (old, new)
    )
    return Difference(_COLUMN_WORDS.get(name, name), before_text, after_text, blocks=not old & new and not unknown)


def _values(side: Side, name: str) -> set[Any]:
    """Return the known values of a column."""
    column = side.results[name]
    values = set(column.dropna().unique().tolist())
    # In a run with a grouping, a missing concurrent axis means that there was none: such rows must not match the rows
    # of a run on the other side that had one. The same applies to rows for which the library chose the algorithm.
    if name in _NONE_IF_KNOWN and side.results[_NONE_IF_KNOWN[name]].notna().any() and column.isna().any():
        values.add(_NONE)
    return values


def matching_keys(before: Side, after: Side, *, anyway: bool) -> list[str]:
    """Return the columns with values on both sides, which match rows. With `anyway`, with common values."""
    keys = []
    for name in KEYS:
        old, new = _values(before, name), _values(after, name)
        has_values = bool(old) and bool(new) and old | new != {_NONE}
        if name in ("collective", "size_bytes") or (has_values and (old & new or not anyway)):
            keys.append(name)
    return keys
