"""The line builder of plots, the live view and reports: it turns results into named lines against message size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import BenchError, did_you_mean
from meshlab.base._units import SEPARATOR
from meshlab.frames._labels import LABELLED, axis_label, is_wrong, value_label
from meshlab.frames._rows import Row
from meshlab.frames._schema import numbered_rows, require_columns
from meshlab.frames._statistics import LARGEST_NUMBER, bandwidth
from meshlab.plans._options import OPTIONS, UNKNOWN_IF_MISSING

if TYPE_CHECKING:
    import pandas as pd

Values = npt.NDArray[np.float64]

Quantity = Literal["busbw_gbs", "algbw_gbs", "time_us"]

# The columns in which all rows of a line agree. A step of a plan has fields with the same names.
KEYS = ("collective", *LABELLED, "n_ranks", "mode", *OPTIONS, "dtype", "op", "in_place", "root", "source", "run_id")
Key = tuple[Any, ...]  # the values of `KEYS`, None for a missing one

# The columns of an axis label count as one: "tp, one group at a time" is a different axis label than "tp".
_NAMED = ("collective", "axis", "n_ranks", "mode", *OPTIONS, "dtype", "op", "in_place", "root", "source", "run_id")

_NUMBERS = ("size_bytes", "launch", "time_us", "time_us_lo", "time_us_hi")

_NEEDED = (*KEYS, *_NUMBERS, *get_args(Quantity), "group", "src_rank", "dst_rank", "n_wrong", "status")

# The columns that identify a group of a line. The pairs of an axis have the same group, but other ranks.
MEMBER = ("group", "src_rank", "dst_rank")


def _nothing() -> Values:
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A quantity as a function of message size."""

    size: Values  # bytes, ascending; all arrays are float64
    value: Values
    low: Values  # bounds of the interval of each value, NaN if missing
    high: Values
    name: str = ""  # in a legend, empty for the only line of a plot
    keys: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # the columns `KEYS`
    wrong_size: Values = field(default_factory=_nothing)  # rows with a wrong result, which are not part of the line
    wrong_value: Values = field(default_factory=_nothing)
    # Positions of all rows in the results.
    rows: npt.NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    # Of shape (groups, sizes), NaN if missing; empty for one group, which is the line itself.
    groups: Values = field(default_factory=lambda: np.empty((0, 0)))
    n_groups: int = 1  # of which the line is the slowest
    n_launches: int = 1  # of which the line is the median

    @classmethod
    def of(
        cls,
        size: npt.ArrayLike,
        value: npt.ArrayLike,
        low: npt.ArrayLike | None = None,
        high: npt.ArrayLike | None = None,
    ) -> Line:
        """Build a line from points in any order."""
        if (low is None) != (high is None):
            raise BenchError("an interval needs two bounds; pass both low and high, or neither")
        columns = [np.atleast_1d(np.asarray(part, np.float64)) for part in (size, value, low, high) if part is not None]
        if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
            lengths = ", ".join(str(column.size) for column in columns)
            raise BenchError(f"size, value, low and high must have the same length, not {lengths}")
        if not np.all(columns[0] > 0):
            raise BenchError("size must be positive, because sizes are drawn on a logarithmic scale")
        order = np.argsort(columns[0], kind="stable")
        sizes, values, *bounds = (column[order] for column in columns)
        lowest, highest = bounds or np.full((2, sizes.size), np.nan)
        return cls(sizes, values, lowest, highest)

    def without_groups(self) -> Line:
        """Return the line without the values of its groups."""
        return replace(self, groups=self.groups[:0])

    def then(self, other: Line) -> Line:
        """Return a line with the points of both."""
        names = ("size", "value", "low", "high")
        return Line.of(*(np.append(getattr(self, name), getattr(other, name)) for name in names))

    def as_times(self) -> Line:
        """Return the times in µs of a line of bus bandwidth. They are missing if its collective is unknown."""
        collective, n_ranks = self.keys.get("collective"), self.keys.get("n_ranks")
        if collective is None or n_ranks is None:
            return replace(self, value=np.full_like(self.value, np.nan), low=self.low * np.nan, high=self.high * np.nan)
        ones, n = np.ones_like(self.size), len(self)
        moved = bandwidth([str(collective)] * n, self.size, ones * float(n_ranks), ones)[1]  # in one µs
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high, groups = moved / self.high, moved / self.low, moved / self.groups
            return replace(self, value=moved / self.value, low=low, high=high, groups=groups)

    @property
    def has_band(self) -> bool:
        """True if at least one point has an interval."""
        return bool(np.any(np.isfinite(self.low) & np.isfinite(self.high)))

    def tobytes(self) -> bytes:
        """Return the points as little-endian float64: all sizes, all values, with a band all bounds, and all groups."""
        parts = (self.size, self.value, self.low, self.high) if self.has_band else (self.size, self.value)
        return np.concatenate([*parts, self.groups.ravel()]).astype("<f8").tobytes()

    def __len__(self) -> int:
        return len(self.size)


def line_key(row: Any) -> Key:
    """Return the key of the line that a row of the results, or a step of a plan, belongs to."""
    return tuple(row.get(name) if isinstance(row, Mapping) else getattr(row, name, None) for name in KEYS)


def line_names(keys: Iterable[Key]) -> dict[Key, str]:
    """Name lines by the few columns that distinguish them."""
    distinct_keys = list(dict.fromkeys(keys))
    words = [_words(dict(zip(KEYS, key, strict=True))) for key in distinct_keys]
    distinguishing: list[str] = []
    distinct = 1
    for column in _NAMED:
        if column in UNKNOWN_IF_MISSING and len({key[KEYS.index(column)] for key in distinct_keys} - {None}) < 2:
            continue  # some lines do not record the option, which is no reason to name the others by it
        n_names = len({tuple(row[name] for name in (*distinguishing, column)) for row in words})
        if n_names > distinct:
            distinguishing.append(column)
            distinct = n_names
    return {
        key: SEPARATOR.join(row[name] for name in distinguishing) for key, row in zip(distinct_keys, words, strict=True)
    }


def _words(values: Mapping[str, Any]) -> dict[str, str]:
    words = {name: value_label(name, values[name]) for name in _NAMED}
    if values["axis"] is not None:
        words["axis"] = axis_label(*(values[name] for name in LABELLED))
    return words


def lines_of(results: pd.DataFrame, quantity: Quantity, *, names: Mapping[Key, str] | None = None) -> list[Line]:
    """Split results into lines, one for each combination of collective, axis, mode, dtype and the other `KEYS`."""
    # The time of a group is the median over its launches. Its interval ranges from the lowest to the highest bound of
    # their 95 % intervals. The value and the interval at a size are those of the slowest group at this size, or the
    # bandwidths that follow from them. So the band of a line never contains the interval of a group that is not on it.
    # Only rows with the status ok count.
    return lines_by_quantity(results, (quantity,), names=names)[quantity]


def lines_by_quantity(
    results: pd.DataFrame, quantities: Sequence[Quantity], *, names: Mapping[Key, str] | None = None
) -> dict[Quantity, list[Line]]:
    """Return the lines of several quantities, see `lines_of`. The rows are split only once."""
    choices = get_args(Quantity)
    for quantity in (quantity for quantity in quantities if quantity not in choices):
        similar = did_you_mean(
            quantity, choices, synonyms={"busbw": "busbw_gbs", "algbw": "algbw_gbs", "time": "time_us"}
        )
        raise BenchError(f"unknown quantity {quantity!r}{similar}; choose one of {', '.join(choices)}")
    require_columns(results, _NEEDED)
    rows_by_key = _rows_by_key(results)
    names = line_names(rows_by_key) if names is None else names
    # Convert the columns once for all lines: a plot may have dozens of lines, and each slice of a frame costs 1 ms.
    columns = {name: results[name].to_numpy("float64", na_value=np.nan) for name in {*_NUMBERS, *quantities}}
    columns["member"] = _members(results)
    wrong = is_wrong(results)
    ok = ~wrong & results["status"].eq("ok").fillna(value=False).to_numpy(bool)
    by_quantity: dict[Quantity, list[Line]] = {quantity: [] for quantity in quantities}
    for key, rows in rows_by_key.items():
        values = {name: column[rows] for name, column in columns.items()}
        for quantity, lines in by_quantity.items():
            lines.append(line_from_columns(names.get(key, ""), key, rows, values, quantity, ok[rows], wrong[rows]))
    return by_quantity


def _members(results: pd.DataFrame) -> npt.NDArray[np.intp]:
    """Return a number for each row, which is the same for the rows of the same group or pair of ranks."""
    number = np.zeros(len(results), dtype=np.intp)
    for name in MEMBER:
        codes = results[name].factorize()[0].astype(np.intp) + 1  # 0 for a missing value
        number = number * (codes.max(initial=0) + 1) + codes
    return number


def _rows_by_key(results: pd.DataFrame) -> dict[Key, npt.NDArray[np.intp]]:
    """Return the positions of the rows of each line."""
    numbers, keys = numbered_rows(results, KEYS)
    if not keys:
        return {}
    order = np.argsort(numbers, kind="stable")
    return dict(zip(keys, np.split(order, np.searchsorted(numbers[order], np.arange(1, len(keys)))), strict=True))


def line_from_columns(
    name: str,
    key: Key,
    rows: npt.NDArray[np.intp],
    columns: Mapping[str, npt.NDArray[Any]],
    quantity: Quantity,
    ok: npt.NDArray[np.bool_],
    wrong: npt.NDArray[np.bool_],
) -> Line:
    """Build a line from its rows: size, launch, time and its bounds, the quantity, and a number of each group."""
    size, launch, time, low, high = (columns[column] for column in _NUMBERS)
    drawn = columns[quantity]
    drawable = (size > 0) & (time > 0) & (time < LARGEST_NUMBER) & (np.abs(drawn) < LARGEST_NUMBER)
    ok, crosses = ok & drawable, wrong & drawable
    keys = MappingProxyType(dict(zip(KEYS, key, strict=True)))
    cross = size[crosses], drawn[crosses]
    if not ok.any():
        nothing = _nothing()
        return Line(nothing, nothing, nothing, nothing, name, keys, *cross, rows)
    sizes, place = np.unique(size[ok], return_inverse=True)
    members, member = np.unique(columns["member"][ok], return_inverse=True)
    # One cell per size and group. Its rows are the launches, so sort them by time within each cell to find the median.
    cell = place * members.size + member
    order = np.lexsort((time[ok], cell))
    cells, first, count = np.unique(cell[order], return_index=True, return_counts=True)
    sorted_time = time[ok][order]
    times, lowest, highest = np.full((3, sizes.size * members.size), np.nan)
    times[cells] = (sorted_time[first + (count - 1) // 2] + sorted_time[first + count // 2]) / 2
    lowest[cells] = np.fmin.reduceat(low[ok][order], first)
    highest[cells] = np.fmax.reduceat(high[ok][order], first)
    times = times.reshape(sizes.size, members.size)
    slowest = np.arange(sizes.size) * members.size + np.nanargmax(times, axis=1)
    value = times.ravel()[slowest]
    lowest, highest = np.minimum(lowest[slowest], value), np.maximum(highest[slowest], value)  # NaN stays NaN
    groups = times.T if members.size > 1 else times.T[:0]
    if quantity != "time_us":
        # Bandwidth times time is the same for all groups of a size: the bytes that count.
        moved = np.full(sizes.size, np.nan)
        np.fmax.at(moved, place, drawn[ok] * time[ok])
        value, lowest, highest, groups = moved / value, moved / highest, moved / lowest, moved / groups
    n_launches = len(np.unique(np.nan_to_num(launch[ok])))
    return Line(
        sizes, value, lowest, highest, name, keys, *cross, rows, np.ascontiguousarray(groups), members.size, n_launches
    )


_NO_RUN = dict.fromkeys(("source", "run_id"))  # the columns of `KEYS` that a step of a plan lacks, as missing values


class GrowingLines:
    """The lines of a run against message size, as `lines_of` draws them, for a view that follows the run."""

    # A frame of the results costs several milliseconds, of which the ranks on the same host would be robbed at every
    # update. So each line has the columns of its rows, and only the lines with new rows are computed again.

    def __init__(self, names: Mapping[Key, str]) -> None:
        self._names = names
        self._columns: dict[Key, dict[str, Values]] = {}
        self._members: dict[tuple[Any, ...], int] = {}
        self._n_rows = 0

    def add(self, rows: Iterable[Row]) -> dict[Key, Line]:
        """Add the next rows of the run, and return the lines that have changed."""
        additions: dict[Key, list[Row]] = {}
        for row in rows:
            additions.setdefault(line_key({**row, **_NO_RUN}), []).append({**row, "position": self._n_rows})
            self._n_rows += 1
        return {key: self._line(key, new_rows) for key, new_rows in additions.items()}

    def _line(self, key: Key, rows: list[Row]) -> Line:
        new = {name: _numbers(row.get(name) for row in rows) for name in (*_NUMBERS, "n_ranks", "position")}
        collectives = [row["collective"] for row in rows]
        new["busbw_gbs"] = bandwidth(collectives, new["size_bytes"], new["n_ranks"], new["time_us"])[1]
        members = (tuple(row.get(name) for name in MEMBER) for row in rows)
        new["member"] = _numbers(self._members.setdefault(member, len(self._members)) for member in members)
        for status in ("ok", "wrong"):
            new[status] = _numbers(row["status"] == status for row in rows)
        old = self._columns.get(key)
        columns = new if old is None else {name: np.append(old[name], values) for name, values in new.items()}
        self._columns[key] = columns
        name = self._names.get(key) or str(key[KEYS.index("collective")])
        position = columns["position"].astype(np.intp)
        return line_from_columns(name, key, position, columns, "busbw_gbs", columns["ok"] > 0, columns["wrong"] > 0)


def _numbers(values: Iterable[Any]) -> Values:
    """Return numbers as an array. None becomes NaN."""
    return np.array(list(values), dtype=np.float64)


def with_groups(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with their groups, or without them if there are so many lines that groups would hide them."""
    is_crowded = sum(1 for line in lines if len(line)) > _MOST_WITH_GROUPS
    return [line.without_groups() for line in lines] if is_crowded else list(lines)


_MOST_WITH_GROUPS = 5  # the groups of more lines than this are not drawn


def stroke_note(lines: Iterable[Line]) -> list[str]:
    """Explain the strokes of a chart of lines, in parts."""
    drawn = [line for line in lines if len(line)]
    interval = "95 % intervals of all launches" if any(line.n_launches > 1 for line in drawn) else "95 % interval"
    bands = [interval] if any(line.has_band for line in drawn) else []
    if all(line.n_groups == 1 for line in drawn):
        return [f"band: {text}" for text in bands]
    has_thin = any(len(line.groups) for line in drawn)
    member = "pair" if all(line.keys.get("grouping") == "pairs" for line in drawn) else "group"
    thin = [f"thin: every {member}"] if has_thin else []
    slowest = f"{'thick' if has_thin else 'line'}: slowest {member} at each size"
    return [slowest, *(f"band: its {text}" for text in bands), *thin]


# A line with more groups than this has no thin lines, because each update sends the values of all groups.
_MOST_PACKED_GROUPS = 64
_NO_LINES: Mapping[str, Line] = MappingProxyType({})


def pack_lines(
    series: Mapping[str, Line],
    *,
    previous: Mapping[str, Line] = _NO_LINES,
    predicted: Mapping[str, Line] = _NO_LINES,
    overlaid: Mapping[str, Line] = _NO_LINES,
) -> dict[str, Any]:
    """Return lines by name in the format of js/curve.js: a list of their shapes, the points of all, and a note."""
    drawn = [
        (name, line if len(line.groups) <= _MOST_PACKED_GROUPS else line.without_groups(), "")
        for name, line in zip(series, with_groups(list(series.values())), strict=True)
    ]
    note = SEPARATOR.join(stroke_note(line for _, line, _ in drawn))
    for kind, lines in (("previous", previous), ("predicted", predicted), ("overlaid", overlaid)):
        drawn += [(name, line.without_groups(), kind) for name, line in lines.items()]
    return {
        "lines": [
            {"name": name, "kind": kind, "points": len(line), "band": line.has_band, "groups": len(line.groups)}
            for name, line, kind in drawn
        ],
        "points": b"".join(line.tobytes() for _, line, _ in drawn),
        "note": note,
    }
