"""Rows of an nccl-tests table: tokens in, columns out, and a check that no row was truncated.

A row that lost characters often still parses as numbers. Three checks find it: the size must follow from the count and
the element type, algbw must be size over time, and the line must be exactly what the tool's format prints for its
tokens. Fields have fixed widths, so a field that lost a digit is too narrow.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle, product

import numpy as np
import numpy.typing as npt

from meshlab.base._numerals import whole
from meshlab.nccl_tests._log import DTYPE_OF_TYPE, ITEMSIZE, OPS, Integers, LogTable

_PLAIN = ("time", "algbw", "busbw", "wrong")
_PER_ITERATION = (*_PLAIN, "i_min", "i_max", "i_p99", "i_cv%")
_WIDTHS = {"algbw": 6, "busbw": 6}  # every other number is 7 wide
_OLD_NAMES = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}  # until March 2019
_MILLISECONDS = re.compile(r"\d+\.\d{3}")
_BEFORE_NA = re.compile(r"\s+(?=N/A)")

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_SKIPPED_HALF = re.compile(r"\S {30,}\S")  # the blanks that are printed instead of the out-of-place half

# Flags of a row, one byte each: 1 and 2 for its placements, 4 if the line is exactly as the tool prints it, 8 if its
# bandwidths follow from its times, and 16 if they do as all_gather and reduce_scatter printed them until June 2020.
_OUT_OF_PLACE, _IN_PLACE, _EXACT, _FOLLOWS, _FOLLOWS_OLD = 1, 2, 4, 8, 16
_BOTH = _OUT_OF_PLACE | _IN_PLACE
_PRESENT = {(0, 1): _BOTH, (0,): _OUT_OF_PLACE}
_PLACEMENT_BITS = np.array([_OUT_OF_PLACE, _IN_PLACE], dtype=np.uint8)

_INTERNED = {name: name for name in DTYPE_OF_TYPE}  # one object for the type of all rows, instead of one per row
_LARGEST = 1 << 53  # exact in float64
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table. `op` and `root` are None until a header or a row determines whether it has the column."""

    op: bool | None = None
    root: bool | None = None
    columns: tuple[str, ...] = _PLAIN  # of one placement
    placements: tuple[int, ...] = (0, 1)  # in order: 0 out of place, 1 in place
    stamp: bool = False  # a timestamp (two tokens) ends the row
    counted: bool = True  # the fourth column is "#wrong", not the old "error"
    cpu_time: bool = False  # the first column is the time on the host
    milliseconds: bool = False  # times in milliseconds with three decimals, as until March 2019


@lru_cache(maxsize=256)
def read_header(tokens: tuple[str, ...], in_place_only: bool) -> Shape | None:
    """Read a line of column names. Return None if it is truncated or not a header."""
    if old := tokens[:2] == ("bytes", "N"):
        tokens = tuple(_OLD_NAMES.get(token, token) for token in tokens)
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
    if len(halves) != 2 and not ((in_place_only or old) and len(halves) == 1):
        return None
    return Shape(
        "redop" in left,
        "root" in left,
        (*_PLAIN, *halves[0][4:]),
        (0, 1) if len(halves) == 2 else (1,) if in_place_only else (0,),
        stamp,
        halves[0][3] == "#wrong",
        halves[0][0] == "cputime",
        old,
    )


class RowBuffer:
    """Collects rows as flat arrays, because a log may have a million. `table` decides which are complete."""

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

    @property
    def most_cells(self) -> int:
        """The number of cells of a complete row."""
        shape = self.shape
        left = 3 + (shape.op is not False) + (shape.root is not False) + 2 * shape.stamp
        return left + len(shape.columns) * len(shape.placements)

    def add_joined(self, texts: Iterable[str], line: int, *, halves: bool = True) -> bool:
        """Add the only one of several texts that is exactly as the tool prints a row, else a row that never existed."""
        fits = [text for text in dict.fromkeys(texts) if self.add(text.split(), text, line, strict=True, halves=halves)]
        if len(fits) > 1:
            for column in (self._line, self._size, self._count, self._root, self._type, self._op, self._flags):
                del column[-len(fits) :]
            del self._values[-2 * len(self.shape.columns) * len(fits) :]
            if self.shape.stamp:
                del self._stamp[-len(fits) :]
        return len(fits) == 1

    def add(self, tokens: list[str], text: str, line: int, *, strict: bool = False, halves: bool = True) -> bool:
        """Add a line that starts with the size: exactly as printed if `strict`. Return False if it is incomplete."""
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
        present = _PRESENT.get(shape.placements, _IN_PLACE)
        if right != width * len(shape.placements):
            if right != width or not halves:
                return False
            present = _IN_PLACE if _SKIPPED_HALF.search(text) else _OUT_OF_PLACE
        try:
            size, count = whole(tokens[0]), whole(tokens[1])
            if shape.root:
                root, start = whole(tokens[start]), start + 1
            cells = tokens[start:stop]
            if cells[-1][-3:-1] in ("e-", "e+"):  # an exponent has two digits, so the line was cut
                return False
            try:
                numbers = list(map(float, cells))
            except ValueError:
                numbers = _numbers(cells, width)
        except ValueError:
            return False
        if not (size <= _LARGEST and count <= _LARGEST and -1 <= root <= _LARGEST):  # two numbers without a space
            return False
        if shape.milliseconds:
            numbers[::width] = [round(1e3 * number, 6) for number in numbers[::width]]
        if present != _BOTH:
            blank = [_NAN] * width
            numbers = [*numbers, *blank] if present == _OUT_OF_PLACE else [*blank, *numbers]
        # All complete rows of a table are equally long after the size, because fields have fixed widths. So the exact
        # comparison, which formats the row again, is needed only until one row has passed it, and for other lengths.
        length = len(text) - len(tokens[0])
        if not (exact := not strict and length == self._full_length):
            exact = _is_as_printed(tokens, text, shape, start, present)
            if strict and not exact:
                return False
            if not exact and _lost_its_end(tokens, text, shape, start, present):
                return False
        follows = _follows(size, numbers, width, milliseconds=shape.milliseconds)
        n_ranks = 0 if shape.counted else ranks_in_size(size, count, tokens[2])
        follows_old = n_ranks > 1 and _follows(
            size * (n_ranks - 1) // n_ranks, numbers, width, milliseconds=shape.milliseconds
        )
        # The matrix of alltoallv_perf has no count of its own.
        if strict and not ((follows or follows_old) and (not count or ranks_in_size(size, count, tokens[2]) >= 0)):
            return False
        if exact and self._full_length < 0 and present == _BOTH:
            self._full_length = length
        self._line.append(line)
        self._size.append(size)
        self._count.append(count)
        self._root.append(root)
        self._type.append(_INTERNED.get(tokens[2], tokens[2]))
        self._op.append(op)
        self._flags.append(present | exact * _EXACT | follows * _FOLLOWS | follows_old * _FOLLOWS_OLD)
        self._values.extend(numbers)
        if shape.stamp:
            self._stamp.append(stamp)
        return True

    def _learn(self, tokens: list[str], text: str) -> bool:
        """Infer the columns from a consistent row, if the header is missing."""
        stamp = len(tokens) > 2 and _STAMP.fullmatch(" ".join(tokens[-2:])) is not None
        op = len(tokens) > 3 and tokens[3] in OPS
        right = len(tokens) - 3 - op - 2 * stamp
        for columns in (_PLAIN, _PER_ITERATION):
            if right // len(columns) in (1, 2) and right % len(columns) in (0, 1):
                # A row may have a blank operation, so its absence does not mean that there is no such column.
                root = right % len(columns) == 1
                old = columns == _PLAIN and _MILLISECONDS.fullmatch(tokens[3 + op + root]) is not None
                shape = Shape(op or None, root, columns, (0, 1), stamp, milliseconds=old)
                trial = RowBuffer(shape)
                if trial.add(tokens, text, 0) and not trial.table()[1]:
                    self.shape = replace(shape, counted=not (old or any("e-" in token for token in tokens)))
                    return True
        return False

    def table(self) -> tuple[LogTable, list[int]]:
        """Return the complete rows, and the line numbers of the others."""
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
        follows = max(
            ([flag & bit for flag in flags] for bit in (_FOLLOWS, _FOLLOWS_OLD)), key=lambda bits: sum(map(bool, bits))
        )
        good = consistent_rows(table, follows)
        exact = sum(flag & _EXACT > 0 for flag in flags)
        # If most lines do not have the printed widths, a tool has reformatted the columns (awk, a spreadsheet), so
        # widths are not evidence. Otherwise a line with different widths has lost characters. Of one or two rows, all
        # have to be reformatted, and their numbers have to agree. Nothing checks the columns of per-iteration times.
        if exact < n and (2 * exact >= n if n > 2 else exact or width > len(_PLAIN) or not _same_factor(values)):
            good = [is_good and flag & _EXACT > 0 for is_good, flag in zip(good, flags, strict=True)]
        # If any row has both placements, a row with one of them lost its second half.
        if shape.placements == (0, 1) and any(flag & _BOTH == _BOTH for flag in flags):
            good = [is_good and flag & _BOTH == _BOTH for is_good, flag in zip(good, flags, strict=True)]
        if all(good):
            return table, []
        keep = np.array(good, dtype=bool)
        return table.take(np.flatnonzero(keep)), line[~keep].tolist()


def ranks_in_size(size: int, count: int, type_: str) -> int:
    """Return size / (count × element size), 1 or the number of ranks. 0 if unknown, -1 if not an integer."""
    unit = ITEMSIZE.get(type_, 0) * count
    if unit <= 0:
        return 0 if count > 0 or size == 0 else -1
    times, rest = divmod(size, unit)
    return times if times and not rest else -1


def repeated_rows(table: LogTable) -> int:
    """Return how many copies of a test printed a table: a test alone repeats no row, or all of them (-N)."""
    n = len(table)
    if n < 4 or (np.diff(table.size_bytes) > 0).all():
        return 1
    kind = row_hashes(key_columns(table))
    runs = 1 + int((kind[1:] != kind[:-1]).sum())
    if 1 < runs <= n - (n - 1 - n // 4) / 2:  # the copies keep step, so equal rows follow each other
        return max(1, round(n / runs))
    _, counts = np.unique(kind, return_counts=True)
    copies = int(np.bincount(counts).argmax())
    is_usual = np.abs(counts - copies) <= 1  # the text may begin or end between the copies
    if copies < 2 or not is_usual.all() or 2 * int((counts == copies).sum()) < len(counts):
        return 1
    is_cycle = len(np.unique(kind[: len(counts)])) == len(counts)
    return 1 if is_cycle else copies


def key_columns(table: LogTable) -> Integers:
    """Return the size, the count, the root, and codes for the type and the operation, one row for each of the table."""
    codes: list[list[int]] = []
    for texts in (table.type, table.op):
        numbers: dict[str, int] = {}
        codes.append([numbers.setdefault(text, len(numbers)) for text in texts])
    return np.column_stack([table.size_bytes, table.count, table.root, *codes])


def row_hashes(columns: Integers) -> Integers:
    """Return a number for each row, which is equal for equal rows: a sum of products that wrap around."""
    weights: Integers = np.random.default_rng(1).integers(1, 1 << 62, columns.shape[1:]) | 1
    hashes: Integers = (columns * weights).sum(axis=1)
    return hashes


def consistent_rows(table: LogTable, follows: Sequence[int] | None = None) -> list[bool]:
    """Return for each row whether its numbers are consistent. A rule that most rows break does not apply."""
    # The size must be count × element size × an integer (1 or the number of ranks) that is the same in every row, and
    # algbw must be size over time. Sizes of alltoallv and bandwidths of hypercube do not obey these rules. `follows` is
    # nonzero for rows whose bandwidths follow from their times. By default six decimals are expected, as in JSON.
    sizes = table.size_bytes.tolist()
    has_counts = bool(table.count.any())  # alltoallv_perf prints 0 if a matrix determines the counts
    times = list(map(ranks_in_size, sizes, table.count.tolist(), table.type)) if has_counts else [0] * len(sizes)
    factors = [value for value in times if value]
    usual, n_usual = (Counter(value for value in factors if value > 0).most_common(1) or [(0, 0)])[0]
    if len(set(factors)) < 2 and -1 not in factors:
        good = [True] * len(times)
    elif 2 * n_usual >= len(factors):
        good = [value in (0, usual) for value in times]
    else:  # the rule does not apply to this test, but two rows are too few to conclude that
        good = [value >= 0 or (len(factors) > 2 and bool(size)) for value, size in zip(times, sizes, strict=True)]
    if follows is None:
        follows = _follow_exactly(table)
    if not all(follows) and not table.cpu_time:
        consistent = [is_good and bool(ok) for is_good, ok in zip(good, follows, strict=True)]
        if sum(good) <= 2 or 2 * sum(consistent) >= sum(good):
            good = consistent
    return good


def _follow_exactly(table: LogTable) -> list[int]:
    """Return for each row 1 if algbw is size over time in both placements, as printed with six decimals, else 0."""
    digit, room = 5.1e-7, 5.1e-4
    size = table.size_bytes[:, None].astype(np.float64)
    time, rate = table.values[..., 0], 1e3 * table.values[..., 1]  # a byte per µs is 1 MB/s
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # NaN compares false, so it passes
        is_low = size / (time + digit) - room > rate
        is_high = (time > digit) & (size / (time - digit) + room < rate)
    follows: list[int] = (~(is_low | is_high).any(axis=1)).astype(int).tolist()
    return follows


def _same_factor(values: npt.NDArray[np.float64]) -> bool:
    """Return True if busbw / algbw is the same in all placements of all rows, within rounding, and some have both."""
    algbw, busbw = values[..., 1].ravel(), values[..., 2].ravel()
    is_rated = (algbw > 0) & (busbw > 0)
    if is_rated.sum() < 2:
        return False
    low = (busbw[is_rated] - 0.0051) / (algbw[is_rated] + 0.0051)
    high = (busbw[is_rated] + 0.0051) / np.maximum(algbw[is_rated] - 0.0051, 1e-9)
    return bool(low.max() <= high.min())


def _numbers(tokens: list[str], width: int) -> list[float]:
    """Parse the numbers of a row. The count of wrong elements may be N/A, and per-iteration columns may be words."""
    if tokens.count("N/A") == tokens[3::width].count("N/A") and width == 4:
        return [_NAN if token == "N/A" else float(token) for token in tokens]
    return [
        _NAN if (index % width == 3 and token == "N/A") or (index % width > 3 and token[:1].isalpha()) else float(token)
        for index, token in enumerate(tokens)
    ]


def _is_as_printed(tokens: list[str], text: str, shape: Shape, start: int, present: int) -> bool:
    """Return True if the tool would print exactly this line for its tokens."""
    if shape.milliseconds:
        return _is_as_printed_until_2019(tokens, text, start)
    return text in _printed_lines(tokens, shape, start, present)


def _lost_its_end(tokens: list[str], text: str, shape: Shape, start: int, present: int) -> bool:
    """Return True if a line is as the tool prints it, except that its last number has less than its width."""
    if shape.milliseconds or shape.stamp:
        return False
    before = text[: -len(tokens[-1])]
    if not before.endswith("  "):
        return False
    return any(
        line.startswith(before.rstrip()) and len(text) < len(line)
        for line in _printed_lines(tokens, shape, start, present)
    )


def _printed_lines(tokens: list[str], shape: Shape, start: int, present: int) -> Iterator[str]:
    """Yield the lines that versions of the tool print for some tokens, with the widths of PRINT in nccl-tests."""
    # The type has 6 characters until 2.0 and 8 since. The number of wrong elements has 5 until 2.16 and 6 since.
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
            yield f"{tokens[0]}  {tokens[1]:>12}  {tokens[2]:>{type_width}}{blank}{middle}{blanks}{numbers}{end}"


def _is_as_printed_until_2019(tokens: list[str], text: str, start: int) -> bool:
    """Return True if a version until March 2019 would print exactly this line, with a tab or spaces before N/A."""
    middle = "".join([f"  {token:>6}" for token in tokens[2:start]])
    cells = "".join([f"  {token:>{5 if index % 4 in (1, 2) else 7}}" for index, token in enumerate(tokens[start:])])
    line = f"{tokens[0]}  {tokens[1]:>12}{middle}{cells}"
    return text == line or _BEFORE_NA.sub(" ", text) == _BEFORE_NA.sub(" ", line)


def _follows(size: int, numbers: list[float], width: int, *, milliseconds: bool = False) -> bool:
    """Return True if algbw is size over time in both placements, within rounding. A missing placement passes."""
    # `digit` is half a unit of the last printed digit of the time, in µs, and `room` that of algbw, in MB/s.
    for start in (0, width):
        time, algbw = numbers[start], numbers[start + 1]
        # Until 2.16 a time above 100 had one decimal, and one above 10,000 had none.
        if milliseconds:
            digit = 0.51
        else:
            digit = 0.0051 if time < 1e2 else 0.051 if time < 1e4 else 0.51 if time < 1e7 else time / 20
        # From 1e6 GB/s on, which is a copy that does nothing, one digit is left: 1e+06.
        room = 5.1 if algbw < 1e3 else 51.0 if algbw < 1e4 else 510.0 if algbw < 999_999.5 else 510.0 * algbw
        # A byte per µs is 1 MB/s. NaN compares false, so a missing placement passes.
        rate = 1e3 * algbw
        if size / (time + digit) - room > rate or (time > digit and size / (time - digit) + room < rate):
            return False
    return True
