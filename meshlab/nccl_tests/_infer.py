"""Infers the collective and the number of ranks from the rows of an nccl-tests table, and builds the section.

Before 2.17 a log does not contain the name of its test, and a device list may be missing or truncated. But the rows
restrict both. By the rules of nccl-tests' doc/PERFORMANCE.md, the size is count × element size (all_reduce, broadcast,
reduce, sendrecv) or that times the number of ranks (all others), and busbw / algbw is a function of the number of
ranks. If several values remain possible, the result is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshlab.base._collectives import COLLECTIVES, NCCL_FUNCTIONS, NCCL_TESTS, CollectiveFacts, NcclTest
from meshlab.base._documents import LimitError
from meshlab.nccl_tests._info import NO_FACTS, NcclFacts
from meshlab.nccl_tests._log import (
    HYPERCUBE,
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
from meshlab.nccl_tests._row_checks import misfits
from meshlab.nccl_tests._rows import ranks_in_size
from meshlab.nccl_tests._uneven import TrafficSummary

# -- the collective ----------------------------------------------------------------------------------------------------

COLLECTIVE_OF_PROGRAM = {test.program: name for name, test in NCCL_TESTS.items()} | {HYPERCUBE: HYPERCUBE}
"""meshlab's name of the collective, by the name of the test program without ``_perf``."""

_NAMES = "|".join(sorted(COLLECTIVE_OF_PROGRAM, key=len, reverse=True))

_PROGRAM = re.compile(rf"[/\s'\"]({_NAMES})_perf(?:_\w+)?(?![\w.])")
_WRAPPER = re.compile(rf"\bnccl[-_ ]tests?\s+({_NAMES})(?!\w)")

_OPERATIONS = {function.name: name for name, function in NCCL_FUNCTIONS.items() if name in NCCL_TESTS}

_ROUNDING = 0.00501  # half a unit of the second decimal, and a little for the binary representation
_FEW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """How a test fills its columns. A field is None if it does so in several ways."""

    reduces: bool | None
    rooted: bool
    size_per_rank: bool
    checks_in_place: bool
    old_op_column: bool
    factor: Callable[[int], float]


def _signature(collective: CollectiveFacts, test: NcclTest) -> _Signature:
    """Return the way in which the test of a collective fills its columns."""
    return _Signature(
        reduces=None if test.may_print_op else collective.reduces,
        rooted=collective.rooted,
        size_per_rank=collective.has_total_size,
        checks_in_place=collective.in_place,
        old_op_column=collective.reduces or test.had_op_column,
        factor=collective.bus_factor,
    )


# The rates of a test with counts of its own say nothing about it.
_SIGNATURES = {
    name: _signature(COLLECTIVES[name], test) for name, test in NCCL_TESTS.items() if not COLLECTIVES[name].counted
} | {
    HYPERCUBE: _Signature(
        reduces=False, rooted=False, size_per_rank=True, checks_in_place=True, old_op_column=False, factor=lambda n: 1.0
    )
}
_MANY = 1 << 30


def find_program(line: str) -> str | None:
    """Return the test program that a command line starts, without ``_perf``, or None if there is not exactly one."""
    programs = set(_PROGRAM.findall(line)) | set(_WRAPPER.findall(line))
    return programs.pop() if len(programs) == 1 else None


def infer_collective(
    evidence: Evidence, program: str | None, command: str | None, operations: frozenset[str], n_ranks: int | None
) -> str | None:
    """Return meshlab's name of the collective, or None if several remain or the sources contradict each other."""
    if program in COLLECTIVE_OF_PROGRAM:  # the name in the log itself is always trusted
        return COLLECTIVE_OF_PROGRAM[program]
    # A command line may belong to a different run, so the rows have to match it, as well as NCCL's own calls.
    named = COLLECTIVE_OF_PROGRAM.get(command or "")
    if named is None and len(operations) == 1:
        named = _OPERATIONS.get(next(iter(operations)))
    if not evidence.has_sizes or (named is not None and named not in _SIGNATURES):
        return named
    if named is not None:
        return named if _matches(evidence, n_ranks, _SIGNATURES[named]) else None
    possible = [name for name, signature in _SIGNATURES.items() if _matches(evidence, n_ranks, signature)]
    return possible[0] if len(possible) == 1 else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Properties of a table that depend on the collective. None or (0, 0) if the rows do not determine them."""

    has_sizes: bool  # a row has a positive size
    reduces: bool  # such a row has a reduce operation
    rooted: bool  # such a row has a root
    checks_in_place: bool | None  # in-place results were checked as well as out-of-place results
    old_op_column: bool | None  # for the operation, in the layout in which only some tests have it
    ranks_in_size: int | None  # size / (count × element size), which is 1 or the number of ranks
    factor: tuple[float, float]  # bounds of busbw / algbw, after rounding
    # algbw is (n - 1) / n of size over time. all_gather and reduce_scatter printed this, and busbw equal to it, until
    # June 2020 (commit ec1b5e2 of nccl-tests).
    is_old_rate: bool = False


def evidence_of(table: LogTable) -> Evidence:
    """Return the properties of a table that depend on the collective."""
    sizes, op, root = table.size_bytes.tolist(), table.op, table.root.tolist()
    rows = [index for index, size in enumerate(sizes) if size > 0]
    last = table.values[..., 3].tolist()
    checked = [any(half[placement] == half[placement] for half in last) for placement in (0, 1)]
    is_comparable = checked[0] and bool(table.present[:, 1].any())
    # The rows of a table are consistent with each other already, so a few of them are enough.
    few = rows[-_FEW:]
    times = {ranks_in_size(sizes[index], int(table.count[index]), table.type[index]) for index in few} - {0}
    n = next(iter(times)) if len(times) == 1 else 0
    return Evidence(
        bool(rows),
        any(op[index] for index in rows),
        any(root[index] >= 0 for index in rows),
        checked[1] if is_comparable else None,
        None if table.counted else table.op_column,
        times.pop() if len(times) == 1 and -1 not in times else None,
        _factor(table),
        not table.counted and n > 1 and _share_of_rate(table, few, (n - 1) / n),
    )


def _share_of_rate(table: LogTable, rows: Sequence[int], share: float) -> bool:
    """Return True if algbw is a share of size over time in all of these rows, within 2 %."""
    time, algbw = table.values[rows, :, 0], table.values[rows, :, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = algbw * 1e3 * time / table.size_bytes[rows][:, None]
    is_usable = np.isfinite(ratio) & (algbw >= 1)
    return bool(is_usable.any() and (np.abs(ratio[is_usable] / share - 1) < 0.02).all())


def _matches(evidence: Evidence, n_ranks: int | None, signature: _Signature) -> bool:
    """Return True if a test could have printed these rows."""
    if (
        signature.reduces not in (None, evidence.reduces)
        or signature.rooted != evidence.rooted
        or evidence.checks_in_place not in (None, signature.checks_in_place)
        or evidence.old_op_column not in (None, signature.old_op_column)
    ):
        return False
    times, (low, high) = evidence.ranks_in_size, evidence.factor
    if times is None:
        return True
    if signature.size_per_rank and times == 1:
        # This is only possible on a single rank, for which busbw is zero.
        return high == 0 and n_ranks in (None, 1)
    if not signature.size_per_rank and times > 1:
        return False
    if high == 0:
        return True
    if evidence.is_old_rate and signature.size_per_rank and low <= 1 <= high:
        return True
    if not signature.size_per_rank:  # the number of ranks is unknown
        return low <= signature.factor(_MANY) and high >= signature.factor(2)
    return low <= signature.factor(times) <= high


def _factor(table: LogTable) -> tuple[float, float]:
    """Return bounds of busbw / algbw, in the intervals of all rows after rounding, or (0, 0) if there are none."""
    low, high = 0.0, math.inf
    # The last rows have the largest sizes, and so the rates with the most digits.
    rates: list[list[float]] = table.values[-_FEW:, :, 1:3].reshape(-1, 2).tolist()
    for algbw, busbw in rates:
        if algbw >= 0.05 and busbw > 0:
            # Rates have two decimals, one from 1,000 on and none from 10,000 on.
            room_algbw = _ROUNDING if algbw < 1e3 else 10 * _ROUNDING if algbw < 1e4 else 100 * _ROUNDING
            room_busbw = _ROUNDING if busbw < 1e3 else 10 * _ROUNDING if busbw < 1e4 else 100 * _ROUNDING
            low = max(low, (busbw - room_busbw) / (algbw + room_algbw))
            high = min(high, (busbw + room_busbw) / (algbw - room_algbw))
    return (low, high) if low <= high < math.inf else (0.0, 0.0)


def implied_ranks(evidence: Evidence, collective: str | None) -> tuple[int, int | None] | None:
    """Return the smallest and the largest number of ranks that the rows allow, or None without a limit."""
    if evidence.ranks_in_size is not None and evidence.ranks_in_size > 1:
        return evidence.ranks_in_size, evidence.ranks_in_size
    low, high = evidence.factor
    if collective != "all_reduce" or high < 1 or low >= 2:
        return None
    # factor = 2 (n - 1) / n, so n = 2 / (2 - factor). After rounding, large numbers cannot be distinguished.
    return max(2, math.ceil(2 / (2 - low) - 1e-9)), math.floor(2 / (2 - high) + 1e-9) if high < 2 else None


# -- the section -------------------------------------------------------------------------------------------------------

MOST_SECTIONS = 5000
"""The most runs in a log."""

_MOST_LINES = 10


def too_many_sections(file: str | None) -> LimitError:
    """Return the error for a file with more runs than anybody made."""
    return LimitError(f"the log has more than {MOST_SECTIONS:,} runs", hint="split the file", file=file)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionParts:
    """The parts of a section, as the readers of text and JSON collect them. The others are those of `Section`."""

    number: int
    line: int
    preamble: Preamble
    table: LogTable
    command: str | None = None  # the test that a command line names
    devices: Sequence[DeviceLine] = ()
    listed_ranks: int | None = None  # of one communicator, in the device list
    launched_ranks: int | None = None  # in the command line
    began_table: bool = True  # a header, a row or a part of a row was printed
    broken: Sequence[int] = ()  # line numbers of incomplete rows, 0 if unknown
    footer: Footer = field(default_factory=Footer)
    failures: Sequence[Note] = ()
    failure_lines: int = 0
    notes: Sequence[Note] = ()
    nccl: NcclFacts = NO_FACTS
    iterations: tuple[IterationTimes, ...] = ()
    copies: int = 1
    summaries: Sequence[TrafficSummary] = ()
    has_environment: bool = False
    ends_with_average: bool = True  # False for a format without an average, so that its absence means nothing


def make_section(parts: SectionParts) -> Section:
    """Build a section: infer what the log does not contain, and add the remarks that follow from its parts."""
    notes, table, preamble, command = list(parts.notes), parts.table, parts.preamble, parts.command
    evidence = evidence_of(table)
    collective = infer_collective(evidence, preamble.program, command, parts.nccl.operations, parts.listed_ranks)
    if collective is None and command in COLLECTIVE_OF_PROGRAM:
        notes.append(Note(None, f"the command line starts {command}, but the rows do not match {command}"))
        preamble = replace(preamble, local_register=None, cta_policy=None)
    n_ranks = _n_ranks(parts.listed_ranks, parts.nccl.n_ranks, implied_ranks(evidence, collective), notes)
    if n_ranks is None and parts.copies == 1 and parts.launched_ranks is not None:
        # Processes that do not know of each other are runs of one rank each, whatever the launcher starts.
        least, most = implied_ranks(evidence, collective) or (0, 0)
        is_possible = least <= parts.launched_ranks and (most is None or parts.launched_ranks <= most)
        if is_possible if not parts.devices else len(parts.devices) == parts.launched_ranks:
            n_ranks = parts.launched_ranks
    notes += _broken_rows(parts.broken)
    status = _status(parts)
    notes += _end_notes(parts, status, has_notes=bool(notes))
    if parts.copies > 1:
        notes.append(Note(None, _copies_text(parts.copies, n_ranks)))
    if n_ranks == 1:
        notes.append(Note(None, "the run has one rank, so bandwidths are meaningless"))
    if parts.copies == 1:  # rows of several copies cannot be compared with each other
        is_complete = status == "complete" and not parts.broken and parts.footer.average_busbw_gbs is not None
        is_complete &= not any(note.text.startswith(("lines are omitted", "Reducing")) for note in notes)
        notes += misfits(table, collective, n_ranks, preamble, is_complete=is_complete)
        notes += _footer_notes(table, parts.footer)
    notes.sort(key=lambda note: note.line or 1 << 60)
    return Section(
        parts.number,
        parts.line,
        collective,
        n_ranks,
        status,
        preamble,
        parts.devices,
        table,
        parts.footer,
        len(parts.broken),
        parts.failure_lines,
        tuple(parts.failures),
        tuple(notes),
        parts.nccl,
        parts.iterations,
        parts.copies,
        tuple(parts.summaries),
        parts.has_environment,
    )


def _end_notes(parts: SectionParts, status: Status, *, has_notes: bool) -> list[Note]:
    """Return the remark on a run that failed or did not reach its end."""
    if status == "failed":
        return list(parts.failures[:1])
    if status != "incomplete":
        return []
    if len(parts.table):
        return [Note(None, "the average is missing: the run was stopped, or the end of the log is missing")]
    # Other remarks already explain why a table has no rows.
    return [] if has_notes else [Note(None, "no row of the table was found")]


def _copies_text(copies: int, n_ranks: int | None) -> str:
    ranks = "" if n_ranks is None else f", each with {n_ranks} rank{'s' * (n_ranks != 1)} of its own"
    return (
        f"{copies} copies of the test ran side by side{ranks}, instead of one run: nccl-tests was built without MPI, "
        "or was started by another MPI's launcher; build it with make clean && make MPI=1 MPI_HOME=…, and start it "
        "with that MPI's mpirun"
    )


def _status(parts: SectionParts) -> Status:
    n_rows, has_average = len(parts.table), parts.footer.average_busbw_gbs is not None
    if n_rows and has_average:
        return "complete"
    if parts.failure_lines and not has_average:
        return "failed"
    if not parts.began_table and parts.footer == Footer():
        return "no_table"
    return "complete" if n_rows and not parts.ends_with_average else "incomplete"


def _n_ranks(
    listed: int | None, reported: int | None, implied: tuple[int, int | None] | None, notes: list[Note]
) -> int | None:
    """Return the listed number of ranks, else NCCL's, unless the rows contradict it, else the one that they imply."""
    least, most = implied or (1, None)
    for n in (listed, reported):
        if n is not None and least <= n and (most is None or n <= most):
            return n
    if implied is None:
        return None
    exact = least if least == most else None
    n = listed if listed is not None else reported
    if n is not None:
        bound = str(least) if exact else f"{least} to {most}" if most else f"at least {least}"
        notes.append(Note(None, f"{n} ranks are listed, but the bandwidths imply {bound}"))
    return exact


def _broken_rows(broken: Sequence[int]) -> list[Note]:
    notes = [Note(line or None, "incomplete row, omitted") for line in broken[:_MOST_LINES]]
    if len(broken) > _MOST_LINES:
        notes.append(Note(None, f"{len(broken) - _MOST_LINES} more incomplete rows"))
    return notes


def _footer_notes(table: LogTable, footer: Footer) -> list[Note]:
    notes = []
    if average_matches(table, footer) is False:
        notes.append(
            Note(
                None,
                f"the printed average is {footer.average_busbw_gbs:g} GB/s, but the mean of the rows is "
                f"{table.mean_busbw_gbs():g} GB/s: rows are missing or changed",
            )
        )
    if footer.correct is False:
        notes.append(Note(None, f"results were wrong: {footer.out_of_bounds} checks failed"))
    if footer.fast_enough is False:
        notes.append(Note(None, "the average is below NCCL_TESTS_MIN_BW"))
    if table.cpu_time:
        notes.append(Note(None, "times were taken on the host (-C), not for the collective; results omit them"))
    return notes
