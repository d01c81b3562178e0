"""Puts the parts of one run together: its rank count, its collective, its status, and what to warn of."""

from __future__ import annotations

from collections.abc import Sequence

from meshlab.benchmark.nccl_tests.devices import Device
from meshlab.nccl_tests.infer import COLLECTIVE_OF_PROGRAM, implied_ranks, infer_collective, look_at
from meshlab.nccl_tests.info import NcclFacts
from meshlab.nccl_tests.log import Footer, Note, Preamble, Section, Status, average_matches
from meshlab.benchmark.nccl_tests.table import IterationTimes, Table

__all__ = ["make_section"]

_MOST_LINES = 10


def make_section(
    *,
    number: int,
    line: int,
    preamble: Preamble,
    command: str | None,
    devices: Sequence[Device],
    listed_ranks: int | None,
    began_table: bool,
    table: Table,
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


def _footer_notes(table: Table, footer: Footer) -> list[Note]:
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
