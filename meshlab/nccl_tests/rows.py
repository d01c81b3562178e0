"""Rows of an nccl-tests table: tokens in, columns out, and a check that no row was cut.

A row that lost characters often still reads as numbers. Three things give it away: the size must follow from the count
and the element type, algbw must be size over time, and the line must be exactly what the tool's format prints for its
tokens (fields have fixed widths, so a field that lost a digit is too narrow).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle, product

import numpy as np
import numpy.typing as npt

from meshlab.nccl_tests.log import DTYPE_OF_TYPE, ITEMSIZE, OPS, LogTable

__all__ = ["RowBuffer", "Shape", "hold_together", "ranks_in_size", "read_header"]


_PLAIN = ("time", "algbw", "busbw", "wrong")

_PER_ITERATION = (*_PLAIN, "i_min", "i_max", "i_p99", "i_cv%")

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")

_SKIPPED_HALF = re.compile(r"\S {30,}\S")

_PLACEMENT_BITS = np.array([1, 2], dtype=np.uint8)

_INTERNED = {name: name for name in DTYPE_OF_TYPE}

_WIDTHS = {"algbw": 6, "busbw": 6}

_NAN = float("nan")

Ints = npt.NDArray[np.int64]

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Shape:
    """Which columns a table has.

    Parameters
    ----------
    op, root : bool or None
        Whether the column exists; None while neither a header nor a row has told.
    columns : tuple of str
        The columns of one placement.
    placements : tuple of int
        Which placements, in order: 0 out of place, 1 in place.
    stamp : bool
        Whether a timestamp (two tokens) ends the row.
    counted : bool
        Whether the fourth column is ``#wrong``; False for the old ``error``.
    cpu_time : bool
        Whether the first column is the host's time.
    """

    op: bool | None = None
    root: bool | None = None
    columns: tuple[str, ...] = _PLAIN
    placements: tuple[int, ...] = (0, 1)
    stamp: bool = False
    counted: bool = True
    cpu_time: bool = False


@lru_cache(maxsize=256)
def read_header(tokens: tuple[str, ...], in_place_only: bool) -> Shape | None:
    """Read the line of column names; None when it is cut or not one.

    Examples
    --------
    >>> names = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    >>> read_header(tuple(names.split()), in_place_only=False).placements
    (0, 1)
    """
    times = [index for index, token in enumerate(tokens) if token in ("time", "cputime")]
    if not times or "type" not in tokens[: times[0]]:
        return None
    left, right = tokens[: times[0]], tokens[times[0] :]
    stamp = right[-1] == "timestamp"
    right = right[:-1] if stamp else right
    width = len(right) // len(times)
    halves = [right[start : start + width] for start in range(0, len(right), width)]
    if any(half != halves[0] for half in halves) or halves[0][3:4] not in (("#wrong",), ("error",)):
        return None
    if len(halves) != 2 and not (in_place_only and len(halves) == 1):
        return None
    return Shape(
        "redop" in left,
        "root" in left,
        (*_PLAIN, *halves[0][4:]),
        (0, 1) if len(halves) == 2 else (1,),
        stamp,
        halves[0][3] == "#wrong",
        halves[0][0] == "cputime",
    )


class RowBuffer:
    """Collects rows as columns of numbers, cheaply; `table` settles at the end which of them are whole."""

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape or Shape()
        self._line, self._size, self._count, self._root = array("q"), array("q"), array("q"), array("q")
        self._values = array("d")
        self._type: list[str] = []
        self._op: list[str] = []
        self._stamp: list[str] = []
        self._flags = bytearray()
        self._full_length = -1

    def __len__(self) -> int:
        return len(self._line)

    def add(self, tokens: list[str], text: str, line: int, *, strict: bool = False, halves: bool = True) -> bool:
        """Take one line.

        Parameters
        ----------
        tokens : list of str
            The line's tokens, from the size on.
        text : str
            The line, from the size on, without white space at its end.
        line : int
            Its number.
        strict : bool, default False
            Refuse a line that is not exactly as the tool prints it.
        halves : bool, default True
            Whether one placement may be absent.

        Returns
        -------
        bool
            False when the tokens are not those of a whole row.
        """
        shape = self.shape
        if shape.root is None:
            if not self._learn(tokens, text):
                return False
            shape = self.shape
        start, stop, op, root = 3, len(tokens), "", -1
        if stop > 3 and shape.op is not False and tokens[3] in OPS:
            op, start = OPS[tokens[3]], 4
        if shape.stamp:
            stop -= 2
            stamp = f"{tokens[stop]} {tokens[stop + 1]}" if stop > 3 else ""
            if _STAMP.fullmatch(stamp) is None:
                return False
        width = len(shape.columns)
        right = stop - start - (1 if shape.root else 0)
        present = 3 if shape.placements == (0, 1) else 2
        if right != width * len(shape.placements):
            if right != width or not halves:
                return False
            present = 2 if _SKIPPED_HALF.search(text) else 1
        try:
            size, count = int(tokens[0]), int(tokens[1])
            if shape.root:
                root, start = int(tokens[start]), start + 1
            cells = tokens[start:stop]
            try:
                numbers = list(map(float, cells))
            except ValueError:
                numbers = _numbers(cells, width)
        except ValueError:
            return False
        if present != 3:
            numbers = [*numbers, *([_NAN] * width)] if present == 1 else [*([_NAN] * width), *numbers]
        length = len(text) - len(tokens[0])
        exact = length == self._full_length
        if not exact:
            exact = _is_as_printed(tokens, text, shape, start, present)
            if strict and not exact:
                return False
            if exact and self._full_length < 0 and present == 3:
                self._full_length = length
        self._line.append(line)
        self._size.append(size)
        self._count.append(count)
        self._root.append(root)
        self._type.append(_INTERNED.get(tokens[2], tokens[2]))
        self._op.append(op)
        self._flags.append(present | exact << 2 | _follows(size, numbers, width) << 3)
        self._values.extend(numbers)
        if shape.stamp:
            self._stamp.append(stamp)
        return True

    def _learn(self, tokens: list[str], text: str) -> bool:
        """Without a header, the first row that holds together tells the columns."""
        stamp = len(tokens) > 2 and _STAMP.fullmatch(" ".join(tokens[-2:])) is not None
        op = len(tokens) > 3 and tokens[3] in OPS
        right = len(tokens) - 3 - op - 2 * stamp
        for columns in (_PLAIN, _PER_ITERATION):
            if right // len(columns) in (1, 2) and right % len(columns) in (0, 1):
                shape = Shape(op or None, right % len(columns) == 1, columns, (0, 1), stamp)
                trial = RowBuffer(shape)
                if trial.add(tokens, text, 0) and not trial.table()[1]:
                    self.shape = replace(shape, counted=not any("e-" in token for token in tokens))
                    return True
        return False

    def table(self) -> tuple[LogTable, list[int]]:
        """The rows that are whole, and the line numbers of those that lost something."""
        n, shape = len(self), self.shape
        width = len(shape.columns)
        line, size, count, root = (
            np.frombuffer(column, dtype=np.int64) if n else np.zeros(0, dtype=np.int64)
            for column in (self._line, self._size, self._count, self._root)
        )
        values = (np.frombuffer(self._values, dtype=np.float64) if n else np.zeros(0)).reshape(n, 2, width)
        flags = bytes(self._flags)
        present = np.frombuffer(flags, dtype=np.uint8)[:, None] & _PLACEMENT_BITS > 0
        table = LogTable(
            line,
            size,
            count,
            root,
            self._type,
            self._op,
            self._stamp,
            values[..., :4],
            values[..., 4:] if shape.columns == _PER_ITERATION else None,
            present,
            shape.counted,
            bool(shape.op),
            shape.cpu_time,
        )
        whole = hold_together(table, [flag & 8 for flag in flags])
        exact = sum(flag & 4 > 0 for flag in flags)
        # Where most lines are not as printed, someone took the columns apart (awk, a spreadsheet): widths say nothing.
        if exact < n and (2 * exact >= n or n <= 2):
            whole = [good and flag & 4 > 0 for good, flag in zip(whole, flags, strict=True)]
        if shape.placements == (0, 1) and any(flag & 3 == 3 for flag in flags):
            whole = [good and flag & 3 == 3 for good, flag in zip(whole, flags, strict=True)]
        if all(whole):
            return table, []
        keep = np.array(whole, dtype=bool)
        return table.take(np.flatnonzero(keep)), line[~keep].tolist()


def ranks_in_size(size: int, count: int, type_: str) -> int:
    """Size over count and element size: 1, or the number of ranks.

    Returns
    -------
    int
        0 where nothing can be said (an empty row, an unknown type), -1 when it is not a whole number.

    Examples
    --------
    >>> ranks_in_size(1024, 256, "float"), ranks_in_size(1024, 32, "float"), ranks_in_size(1000, 256, "float")
    (1, 8, -1)
    """
    unit = ITEMSIZE.get(type_, 0) * count
    if unit <= 0:
        return 0 if count > 0 or size == 0 else -1
    times, rest = divmod(size, unit)
    return times if times and not rest else -1


def hold_together(table: LogTable, follows: Sequence[int] | None = None) -> list[bool]:
    """Whether the numbers of each row belong together.

    The size must be count × element size × the same whole number (1, or the ranks) in every row, and algbw must be size
    over time. A rule that most rows break does not hold in this test (sizes of alltoallv, bandwidths of hypercube).

    Parameters
    ----------
    table : LogTable
        The rows.
    follows : sequence of int, optional
        Whether the bandwidths of each row follow, where that is known; else six decimals are expected.
    """
    sizes = table.size_bytes.tolist()
    times = list(map(ranks_in_size, sizes, table.count.tolist(), table.type))
    known = [value for value in times if value]
    if len(set(known)) < 2 and -1 not in known:
        whole = [True] * len(times)
    elif 2 * (how := Counter(value for value in known if value > 0).most_common(1) or [(0, 0)])[0][1] >= len(known):
        whole = [value in (0, how[0][0]) for value in times]
    else:
        whole = [value >= 0 or (len(known) > 2 and bool(size)) for value, size in zip(times, sizes, strict=True)]
    if follows is None:
        follows = [
            _follows(size, halves[0] + halves[1], 2, digits=6)
            for size, halves in zip(sizes, table.values[..., :2].tolist(), strict=True)
        ]
    if not all(follows) and not table.cpu_time:
        right = [good and bool(ok) for good, ok in zip(whole, follows, strict=True)]
        if sum(whole) <= 2 or 2 * sum(right) >= sum(whole):
            whole = right
    return whole


def _numbers(tokens: list[str], width: int) -> list[float]:
    """Numbers of a row; N/A may stand for the wrong elements, and other tools add words behind them."""
    if tokens.count("N/A") == tokens[3::width].count("N/A") and width == 4:
        return [_NAN if token == "N/A" else float(token) for token in tokens]
    return [
        _NAN if (index % width == 3 and token == "N/A") or (index % width > 3 and token[:1].isalpha()) else float(token)
        for index, token in enumerate(tokens)
    ]


def _is_as_printed(tokens: list[str], text: str, shape: Shape, start: int, present: int) -> bool:
    """Whether a line is what the tool prints for its tokens.

    The widths are those of PRINT in nccl-tests: type 6 until 2.0 and 8 since, wrong elements 5 until 2.16 and 6 since
    (but N/A always 5).
    """
    stop = len(tokens) - 2 * shape.stamp
    middle = "".join([f"  {token:>6}" for token in tokens[3:start]])
    blank_ops = [""]
    if shape.op is not False and (start == 3 or tokens[3] not in OPS):
        blank_ops = [" " * 8] if shape.op else ["", " " * 8]
    end = f"{' '.join(tokens[stop:]):>21}" if shape.stamp else ""
    blanks = " " * 32 if present == 2 and len(shape.placements) == 2 else ""
    for wrong_width in (5, 6):
        numbers = "".join(
            [
                f"  {token:>{5 if token == 'N/A' else wrong_width if column == 'wrong' else _WIDTHS.get(column, 7)}}"
                for token, column in zip(tokens[start:stop], cycle(shape.columns), strict=False)
            ]
        )
        for type_width, blank in product((8, 6), blank_ops):
            if text == f"{tokens[0]}  {tokens[1]:>12}  {tokens[2]:>{type_width}}{blank}{middle}{blanks}{numbers}{end}":
                return True
    return False


def _follows(size: int, numbers: list[float], width: int, *, digits: int = 2) -> bool:
    """Whether algbw is size over time in both placements, within what rounding allows; a missing one is right.

    The text has two decimals, and fewer where they would not fit; JSON has six.
    """
    for start in (0, width):
        time, algbw = numbers[start], numbers[start + 1]
        if digits == 2:
            digit = 0.0051 if time < 1e2 else 0.051 if time < 1e4 else 0.51 if time < 1e7 else time / 20
            room = 5.1 if algbw < 1e3 else 51.0 if algbw < 1e4 else 510.0
        else:
            digit, room = 5.1e-7, 5.1e-4
        # Bytes per µs are MB/s.
        rate = 1e3 * algbw
        if size / (time + digit) - room > rate or (time > digit and size / (time - digit) + room < rate):
            return False
    return True
