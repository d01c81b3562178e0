"""The rows of an nccl-tests table, as columns and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["IterationTimes", "Row", "Table", "Timing"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timing:
    """One placement of one row, as printed.

    `n_wrong` is None when the result was not checked. `error` is the largest relative error of the old layout, which
    is not a count. The last four exist only with per-iteration timing (``-I``).
    """

    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    n_wrong: int | None = None
    error: float | None = None
    min_us: float | None = None
    max_us: float | None = None
    p99_us: float | None = None
    cv_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; a placement that the line does not have is None."""

    line: int | None
    size_bytes: int
    count: int
    type: str
    op: str | None
    root: int | None
    out_of_place: Timing | None
    in_place: Timing | None
    timestamp: str | None = None


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """Times of the single iterations of one row and placement (JSON since version 2).

    Parameters
    ----------
    row : int
        The row in the section, from 0.
    in_place : bool
        Which placement.
    skipped : int
        How many leading iterations the tool's own summary leaves out.
    times_us : numpy.ndarray
        One time per iteration: the slowest process.
    per_process_us : numpy.ndarray or None
        Shape (processes, iterations): the slowest GPU of each process.
    """

    row: int
    in_place: bool
    skipped: int
    times_us: Floats
    per_process_us: Floats | None


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a section as columns; placement 0 is out of place, 1 is in place.

    Parameters
    ----------
    line, size_bytes, count, root : numpy.ndarray
        One whole number per row; line 0 and root -1 mean that there is none.
    type, op, timestamp : sequence of str
        One text per row; an empty text means that there is none. `timestamp` is empty where rows have none.
    values : numpy.ndarray
        Shape (rows, 2, 4): time, algbw, busbw and the last column (wrong elements or error).
    iteration : numpy.ndarray or None
        Shape (rows, 2, 4): fastest, slowest, 99th percentile in µs and coefficient of variation in percent.
    present : numpy.ndarray
        Shape (rows, 2): whether the placement was printed.
    counted : bool
        True when the last column counts wrong elements, False when it is the old layout's error.
    op_column : bool
        Whether there is a column for the reduce operation; the old layout has one only in some tests.
    cpu_time : bool
        True when the time is the host's (``-C``), so that it does not belong to the bandwidths beside it.
    """

    line: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    root: npt.NDArray[np.int64]
    type: Sequence[str]
    op: Sequence[str]
    timestamp: Sequence[str]
    values: Floats
    iteration: Floats | None
    present: npt.NDArray[np.bool_]
    counted: bool = True
    op_column: bool = True
    cpu_time: bool = False

    def __len__(self) -> int:
        return len(self.line)

    def take(self, rows: npt.NDArray[np.int64]) -> Table:
        """Only these rows."""
        indices = rows.tolist()
        return replace(
            self,
            line=self.line[rows],
            size_bytes=self.size_bytes[rows],
            count=self.count[rows],
            root=self.root[rows],
            type=[self.type[index] for index in indices],
            op=[self.op[index] for index in indices],
            timestamp=[self.timestamp[index] for index in indices] if self.timestamp else (),
            values=self.values[rows],
            iteration=None if self.iteration is None else self.iteration[rows],
            present=self.present[rows],
        )

    def mean_busbw_gbs(self) -> float | None:
        """The mean of all printed bus bandwidths, which the tool calls average."""
        values = [value for half in self.values[..., 2].tolist() for value in half if value == value]
        return sum(values) / len(values) if values else None

    def timing(self, row: int, placement: int) -> Timing | None:
        """One placement of one row."""
        if not self.present[row, placement]:
            return None
        time, algbw, busbw, last = self.values[row, placement].tolist()
        known = last == last
        extra: tuple[float | None, ...] = (None,) * 4
        if self.iteration is not None:
            extra = tuple(value if value == value else None for value in self.iteration[row, placement].tolist())
        return Timing(
            time,
            algbw,
            busbw,
            round(last) if known and self.counted else None,
            last if known and not self.counted else None,
            *extra,
        )

    def row(self, row: int) -> Row:
        """One row."""
        return Row(
            int(self.line[row]) or None,
            int(self.size_bytes[row]),
            int(self.count[row]),
            self.type[row],
            self.op[row] or None,
            int(self.root[row]) if self.root[row] >= 0 else None,
            self.timing(row, 0),
            self.timing(row, 1),
            self.timestamp[row] if self.timestamp else None,
        )
