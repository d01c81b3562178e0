"""What an nccl-tests table implies without saying it: which collective ran, and on how many ranks.

The sizes and factors are those of nccl-tests' doc/PERFORMANCE.md: the size is the count once (all_reduce, broadcast,
reduce, sendrecv) or once per rank (the others), and busbw / algbw is a function of the number of ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshlab.nccl_tests.info import NcclFacts
from meshlab.nccl_tests.log import (
    DeviceLine,
    Footer,
    IterationTimes,
    LogTable,
    Note,
    Preamble,
    Section,
    Status,
    average_matches,
)
from meshlab.nccl_tests.rows import ranks_in_size

__all__ = [
    "COLLECTIVE_OF_PROGRAM",
    "Looks",
    "find_program",
    "implied_ranks",
    "infer_collective",
    "look_at",
    "make_section",
]


COLLECTIVE_OF_PROGRAM = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "broadcast": "broadcast",
    "gather": "gather",
    "hypercube": "hypercube",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "scatter": "scatter",
    "sendrecv": "send_recv",
}
"""meshlab's name of each test program, without its ``_perf``."""

_NAMES = "|".join(sorted(COLLECTIVE_OF_PROGRAM, key=len, reverse=True))

_PROGRAM = re.compile(rf"[/\s'\"]({_NAMES})_perf(?:_\w+)?(?![\w.])")

_WRAPPER = re.compile(rf"\bnccl[-_ ]tests?\s+({_NAMES})(?!\w)")

_OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}

_ROUNDING = 0.00501

_FEW = 16


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a test fills its columns; None where it fills them in more than one way.

    `old_op_column` is for the layout before 2.13, in which a test has only the columns that it needs. alltoall has one
    for the operation all the same, and leaves it blank.
    """

    reduces: bool | None
    rooted: bool
    size_per_rank: bool
    checks_in_place: bool = True
    old_op_column: bool = False


_KINDS = {
    "all_reduce": _Kind(True, False, False, old_op_column=True),
    "reduce_scatter": _Kind(True, False, True, old_op_column=True),
    "reduce": _Kind(True, True, False, old_op_column=True),
    "broadcast": _Kind(False, True, False),
    "gather": _Kind(False, True, True),
    "scatter": _Kind(False, True, True),
    "all_gather": _Kind(False, False, True),
    "hypercube": _Kind(False, False, True),
    "all_to_all": _Kind(False, False, True, checks_in_place=False, old_op_column=True),
    "send_recv": _Kind(None, False, False, checks_in_place=False),
}


def find_program(line: str) -> str | None:
    """The test program that a command line starts, without its ``_perf``; None for none and for several.

    Examples
    --------
    >>> find_program("$ srun -n 8 ./build/all_reduce_perf -b 8 -e 1G"), find_program("cc -c all_reduce_perf.o")
    ('all_reduce', None)
    """
    found = set(_PROGRAM.findall(line)) | set(_WRAPPER.findall(line))
    return found.pop() if len(found) == 1 else None


def infer_collective(
    looks: Looks, program: str | None, command: str | None, operations: frozenset[str], n_ranks: int | None
) -> str | None:
    """The collective by meshlab's name.

    Parameters
    ----------
    looks : Looks
        What the rows show.
    program : str or None
        The name that the log itself gives to the test; it is taken as it is.
    command : str or None
        The name in a command line, which may belong to another run.
    operations : frozenset of str
        Calls that NCCL itself reported.
    n_ranks : int or None
        The number of ranks where the text lists them.

    Returns
    -------
    str or None
        None when names and columns leave several, or contradict each other. An alltoallv with even sizes that does not
        name itself counts as all_to_all.
    """
    if program in COLLECTIVE_OF_PROGRAM:
        return COLLECTIVE_OF_PROGRAM[program]
    named = COLLECTIVE_OF_PROGRAM.get(command or "")
    if named is None and len(operations) == 1:
        named = _OPERATIONS.get(next(iter(operations)))
    if named == "all_to_all_v" or not looks.has_sizes:
        return named
    if named is not None:
        return named if _fits(looks, n_ranks, named, _KINDS[named]) else None
    possible = [name for name, kind in _KINDS.items() if _fits(looks, n_ranks, name, kind)]
    return possible[0] if len(possible) == 1 else None


@dataclass(frozen=True, slots=True)
class Looks:
    """What the columns of a table show; None or (0, 0) where they show nothing.

    Parameters
    ----------
    has_sizes, reduces, rooted : bool
        Whether a size is above zero, and whether such rows name an operation and a root.
    checks_in_place : bool or None
        Whether the in-place results were checked, where the others were.
    old_op_column : bool or None
        Whether there is a column for the operation, in the layout that has it only in some tests.
    times : int or None
        Size over count and element size: 1, or the number of ranks.
    factor : (float, float)
        Bounds of busbw / algbw, from what rounding leaves of both.
    """

    has_sizes: bool
    reduces: bool
    rooted: bool
    checks_in_place: bool | None
    old_op_column: bool | None
    times: int | None
    factor: tuple[float, float]


def look_at(table: LogTable) -> Looks:
    """See what the columns of a table show."""
    sizes, op, root = table.size_bytes.tolist(), table.op, table.root.tolist()
    used = [index for index, size in enumerate(sizes) if size > 0]
    last = table.values[..., 3].tolist()
    checked = [any(half[placement] == half[placement] for half in last) for placement in (0, 1)]
    both = checked[0] and bool(table.present[:, 1].any())
    # Rows that hold together agree, so a few tell.
    few = used[-_FEW:]
    times = {ranks_in_size(sizes[index], int(table.count[index]), table.type[index]) for index in few} - {0}
    return Looks(
        bool(used),
        any(op[index] for index in used),
        any(root[index] >= 0 for index in used),
        checked[1] if both else None,
        None if table.counted else table.op_column,
        times.pop() if len(times) == 1 and -1 not in times else None,
        _factor(table),
    )


def _fits(looks: Looks, n_ranks: int | None, name: str, kind: _Kind) -> bool:
    """Whether a test could have printed these rows."""
    if (
        kind.reduces not in (None, looks.reduces)
        or kind.rooted != looks.rooted
        or looks.checks_in_place not in (None, kind.checks_in_place)
        or looks.old_op_column not in (None, kind.old_op_column)
    ):
        return False
    times, (low, high) = looks.times, looks.factor
    if times is None:
        return True
    if kind.size_per_rank and times == 1:
        # Possible on one rank alone, and the bus bandwidth is then zero.
        return high == 0 and n_ranks in (None, 1)
    if not kind.size_per_rank and times > 1:
        return False
    if high == 0:
        return True
    if name == "all_reduce":
        return high >= 1 and low < 2
    expected = (times - 1) / times if kind.size_per_rank and name != "hypercube" else 1.0
    return low <= expected <= high


def _factor(table: LogTable) -> tuple[float, float]:
    low, high = 0.0, math.inf
    # The last rows are the largest, whose rates have the most digits.
    rates: list[list[float]] = table.values[-_FEW:, :, 1:3].reshape(-1, 2).tolist()
    for algbw, busbw in rates:
        if algbw >= 0.05 and busbw > 0:
            room_algbw = _ROUNDING if algbw < 1e3 else 10 * _ROUNDING if algbw < 1e4 else 100 * _ROUNDING
            room_busbw = _ROUNDING if busbw < 1e3 else 10 * _ROUNDING if busbw < 1e4 else 100 * _ROUNDING
            low = max(low, (busbw - room_busbw) / (algbw + room_algbw))
            high = min(high, (busbw + room_busbw) / (algbw - room_algbw))
    return (low, high) if low <= high < math.inf else (0.0, 0.0)


def implied_ranks(looks: Looks, collective: str | None) -> tuple[int, int | None] | None:
    """The least and the largest number of ranks that sizes and bandwidths allow; None when they say nothing.

    The size tells it exactly where it is a total over ranks. For all_reduce, busbw / algbw = 2 (n - 1) / n does, up to
    rounding: many ranks cannot be told apart.
    """
    if looks.times is not None and looks.times > 1:
        return looks.times, looks.times
    low, high = looks.factor
    if collective != "all_reduce" or high < 1 or low >= 2:
        return None
    return max(2, math.ceil(2 / (2 - low) - 1e-9)), math.floor(2 / (2 - high) + 1e-9) if high < 2 else None


_MOST_LINES = 10


def make_section(
    *,
    number: int,
    line: int,
    preamble: Preamble,
    command: str | None,
    devices: Sequence[DeviceLine],
    listed_ranks: int | None,
    began_table: bool,
    table: LogTable,
    broken: Sequence[int],
    footer: Footer,
    failures: Sequence[Note],
    failure_lines: int,
    notes: Sequence[Note],
    nccl: NcclFacts,
    iterations: tuple[IterationTimes, ...] = (),
) -> Section:
    """Make a section from what was read.

    Parameters
    ----------
    command : str or None
        The test's name from a command line, where the log does not name it itself.
    listed_ranks : int or None
        How many ranks of one communicator the device list has.
    began_table : bool
        Whether a header, a row or a part of one was seen.
    broken : sequence of int
        Line numbers of rows that could not be completed.

    The other parameters are those of `Section`.
    """
    notes = list(notes)
    looks = look_at(table)
    collective = infer_collective(looks, preamble.program, command, nccl.operations, listed_ranks)
    if collective is None and command in COLLECTIVE_OF_PROGRAM:
        notes.append(Note(None, f"the command starts {command}, but the rows are not those of {command}"))
    n_ranks = _n_ranks(listed_ranks, nccl.n_ranks, implied_ranks(looks, collective), notes)
    notes += _broken_rows(broken)
    status = _status(len(table), began_table, footer, failure_lines)
    if status == "failed" and failures:
        notes.append(failures[0])
    if status == "incomplete" and len(table):
        notes.append(Note(None, "no average at the end: the run was cut off, or its end was lost"))
    if n_ranks == 1:
        notes.append(Note(None, "one rank: bandwidths say nothing"))
    notes += _footer_notes(table, footer)
    notes.sort(key=lambda note: note.line or 1 << 60)
    return Section(
        number,
        line,
        collective,
        n_ranks,
        status,
        preamble,
        devices,
        table,
        footer,
        len(broken),
        failure_lines,
        tuple(failures),
        tuple(notes),
        nccl,
        iterations,
    )


def _status(rows: int, began_table: bool, footer: Footer, failure_lines: int) -> Status:
    if rows and footer.average_busbw_gbs is not None:
        return "complete"
    if failure_lines and footer.average_busbw_gbs is None:
        return "failed"
    return "incomplete" if began_table or footer != Footer() else "no_table"


def _n_ranks(
    listed: int | None, reported: int | None, implied: tuple[int, int | None] | None, notes: list[Note]
) -> int | None:
    """What is listed, then what NCCL reports, as far as the rows allow it; then what the rows imply."""
    least, most = implied or (1, None)
    for said in (listed, reported):
        if said is not None and least <= said and (most is None or said <= most):
            return said
    if implied is None:
        return None
    exact = least if least == most else None
    said = listed if listed is not None else reported
    if said is not None:
        bound = str(least) if exact else f"{least} to {most or 'more'}"
        notes.append(Note(None, f"{said} ranks are listed, but the bandwidths say {bound}"))
    return exact


def _broken_rows(broken: Sequence[int]) -> list[Note]:
    notes = [Note(line or None, "a row that cannot be completed; it is left out") for line in broken[:_MOST_LINES]]
    if len(broken) > _MOST_LINES:
        notes.append(Note(None, f"{len(broken) - _MOST_LINES} more rows that cannot be completed"))
    return notes


def _footer_notes(table: LogTable, footer: Footer) -> list[Note]:
    notes = []
    if average_matches(table, footer) is False:
        notes.append(
            Note(
                None,
                f"the printed average is {footer.average_busbw_gbs:g} GB/s, the mean of the rows read is "
                f"{table.mean_busbw_gbs():g}: rows are missing",
            )
        )
    if footer.correct is False:
        notes.append(Note(None, f"results were wrong: {footer.out_of_bounds} checks failed"))
    if footer.fast_enough is False:
        notes.append(Note(None, "the average is below NCCL_TESTS_MIN_BW"))
    if table.cpu_time:
        notes.append(Note(None, "times are the host's (-C), not the collective's; results leave them out"))
    return notes
