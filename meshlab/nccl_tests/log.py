"""What an nccl-tests log says, as values: sections with their rows, and the frames of a whole log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from meshlab.benchmark.nccl_tests.devices import Device
from meshlab.nccl_tests.info import NO_FACTS, NcclFacts, merge_facts
from meshlab.benchmark.nccl_tests.table import IterationTimes, Row, Table
from meshlab.markup import card, table
from meshlab.units import format_size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Footer", "NcclTestsLog", "Note", "Preamble", "Section", "Status", "average_matches"]

Status = Literal["complete", "incomplete", "failed", "no_table"]
"""complete: rows and an average were read. failed: the tool printed a failure and no average. incomplete: a table was
begun and has no usable average. no_table: the run never reached a table."""

_WORST_FIRST: tuple[Status, ...] = ("failed", "incomplete", "no_table", "complete")


@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader wants to say about one line; `line` counts from 1, or is None for the whole section."""

    line: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.line is None else f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Preamble:
    """The settings that the tool prints first; None where the log does not say.

    `program` is the name that the log itself gives to the test, `blocking` the sentence about ``-z``.
    """

    program: str | None = None
    tool: str | None = None
    tool_version: str | None = None
    library_version: str | None = None
    threads: int | None = None
    gpus: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    step: int | None = None
    step_kind: str | None = None
    warmup_iters: int | None = None
    iters: int | None = None
    agg_iters: int | None = None
    validation: int | None = None
    graph: int | None = None
    unalign: int | None = None
    blocking: str | None = None
    skipped_iters: int | None = None


@dataclass(frozen=True, slots=True)
class Footer:
    """What stands below the table.

    `out_of_bounds` counts failed checks (rows × placements × ranks), not elements; `fast_enough` is the verdict of
    ``NCCL_TESTS_MIN_BW`` where that was set.
    """

    out_of_bounds: int | None = None
    correct: bool | None = None
    average_busbw_gbs: float | None = None
    fast_enough: bool | None = None


@dataclass(frozen=True)
class Section:
    """One run of one test.

    Parameters
    ----------
    number : int
        Its place in the file, from 1.
    line : int
        Where it starts, from 1.
    collective : str or None
        The collective by meshlab's name; None when the text cannot tell.
    n_ranks : int or None
        How many ranks took part in one communicator; None when the text cannot tell.
    status : {"complete", "incomplete", "failed", "no_table"}
        How far the run came. Wrong results are a separate matter: see `footer` and the rows.
    preamble, devices, table, footer
        The parts, as printed.
    unparsable_rows : int
        Lines that start or end like a row and cannot be completed.
    failures : tuple of Note
        The tool's own failure lines, at most 1,000 of them; `failure_lines` counts all.
    warnings : tuple of Note
        What a reader of the numbers should know.
    nccl : NcclFacts
        What NCCL itself printed during the run.
    iterations : tuple of IterationTimes
        Times of single iterations, where the log has them.
    """

    number: int
    line: int
    collective: str | None
    n_ranks: int | None
    status: Status
    preamble: Preamble
    devices: Sequence[Device]
    table: Table = field(repr=False, compare=False)
    footer: Footer
    unparsable_rows: int
    failure_lines: int
    failures: tuple[Note, ...]
    warnings: tuple[Note, ...]
    nccl: NcclFacts = field(repr=False)
    iterations: tuple[IterationTimes, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The complete rows, as printed."""
        return tuple(self.table.row(index) for index in range(len(self.table)))

    @property
    def type(self) -> str | None:
        """The element type as printed; None without rows or when it changes."""
        types = set(self.table.type)
        return types.pop() if len(types) == 1 else None

    @property
    def gpu(self) -> str | None:
        """The GPU's name; None when no device is listed."""
        names = [device.name for device in self.devices if device.name]
        return max(set(names), key=names.count) if names else None

    @property
    def library(self) -> str | None:
        """The library with its version, such as ``"NCCL 2.29.2"``."""
        version = self.nccl.version or self.preamble.library_version
        if version is None:
            return None
        name = "RCCL" if self.preamble.tool == "rccl-tests" else "NCCL"
        return f"{name} {version.partition('+')[0]}"

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks per host; None when the hosts differ or nothing says it."""
        if self.nccl.ranks_per_node is not None:
            return self.nccl.ranks_per_node
        if self.n_ranks is None or len(self.devices) != self.n_ranks:
            return None
        hosts = [device.host for device in self.devices]
        counts = {hosts.count(host) for host in set(hosts)}
        return counts.pop() if len(counts) == 1 else None

    @property
    def mode(self) -> str | None:
        """How the calls were timed, isolated, pipelined or graph; None when the preamble does not say."""
        if self.preamble.graph:
            return "graph"
        if self.preamble.blocking is not None:
            return "isolated"
        return "pipelined" if self.preamble.graph == 0 else None

    @property
    def average_matches_rows(self) -> bool | None:
        """Whether the printed average is the mean of the rows read; None when one of them is missing."""
        return average_matches(self.table, self.footer)


def average_matches(table: Table, footer: Footer) -> bool | None:
    """Whether the printed average is the mean of the rows read; None when one of them is missing."""
    mean, average = table.mean_busbw_gbs(), footer.average_busbw_gbs
    if mean is None or average is None:
        return None
    return abs(mean - average) <= 0.006 + 0.001 * abs(average)


@dataclass(frozen=True)
class NcclTestsLog:
    """A whole log: its sections, and all of them as frames.

    Parameters
    ----------
    name : str
        The file's name, or a name made from the text.
    sections : tuple of Section
        One per run of a test, in the file's order; empty when the text holds only NCCL's own messages.
    prelude : NcclFacts
        What NCCL printed before the first run began.
    """

    name: str
    sections: tuple[Section, ...]
    prelude: NcclFacts = field(default=NO_FACTS, repr=False)

    @property
    def status(self) -> Status:
        """The worst status of the sections: failed, incomplete, no_table, complete."""
        found = {section.status for section in self.sections}
        return next((status for status in _WORST_FIRST if status in found), "no_table")

    @property
    def warnings(self) -> tuple[Note, ...]:
        """The warnings of all sections."""
        return tuple(note for section in self.sections for note in section.warnings)

    @property
    def nccl(self) -> NcclFacts:
        """What NCCL printed, over all sections; each section has its own as `Section.nccl`."""
        return merge_facts([self.prelude, *(section.nccl for section in self.sections)])

    @property
    def results(self) -> pd.DataFrame:
        """One row per printed row and placement, in the schema of results; see `meshlab.frames.schema.RESULTS`.

        ``run_id`` is the name and the section's number, and ``step // 2`` is the row in that section. Bandwidths are
        computed from the time; a busbw whose collective or rank count is unknown is the printed one.
        """
        return self._frames[0].copy()

    @property
    def samples(self) -> pd.DataFrame:
        """One row per iteration, where the log has iterations (JSON since version 2); else an empty frame."""
        return self._frames[1].copy()

    @cached_property
    def _frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        from meshlab.benchmark.nccl_tests.frames import results_frame, samples_frame

        return results_frame(self), samples_frame(self)

    def _summary(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for section in self.sections:
            sizes = section.table.size_bytes
            peak = section.table.values[..., 2][section.table.present]
            rows.append(
                (
                    section.number,
                    section.collective or "unknown",
                    "unknown" if section.n_ranks is None else section.n_ranks,
                    section.gpu or "unknown",
                    section.type or "–",
                    len(sizes),
                    f"{format_size(sizes.min())} – {format_size(sizes.max())}" if len(sizes) else "–",
                    f"{peak.max():.1f}" if peak.size and section.n_ranks != 1 else "–",
                    section.status,
                )
            )
        return rows

    def __repr__(self) -> str:
        lines = [f"<NcclTestsLog {self.name}: {self.status}, {_plural(len(self.sections), 'section')}>"]
        for number, collective, n_ranks, gpu, dtype, rows, sizes, peak, status in self._summary()[:20]:
            lines.append(
                f"  {number}. {collective}, {n_ranks} ranks, {gpu}, {dtype}, {_plural(rows, 'row')}, {sizes}, "
                f"peak busbw {peak} GB/s, {status}"
            )
        if len(self.sections) > 20:
            lines.append(f"  … {len(self.sections) - 20} more")
        lines += [f"  {note}" for note in self.warnings[:5]]
        if len(self.warnings) > 5:
            lines.append(f"  … {len(self.warnings) - 5} more warnings")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ["", "collective", "ranks", "GPU", "type", "rows", "sizes", "peak busbw (GB/s)", "status"]
        parts = [table(head, self._summary())]
        if self.warnings:
            parts.append(table(["line", "warning"], [(note.line or "–", note.text) for note in self.warnings], most=10))
        return card(f"{self.name}: {self.status}", f"{_plural(len(self.sections), 'section')} of nccl-tests", *parts)


def _plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
