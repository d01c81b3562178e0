"""The values that represent a log of nccl-tests: sections with their rows, and the frames of a complete log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import COLLECTIVES, NCCL_TESTS
from meshlab.base._markup import card, table
from meshlab.base._numerals import whole
from meshlab.base._units import format_size
from meshlab.comm._backend import CTA_POLICIES
from meshlab.frames._schema import RESULTS, SAMPLES, conform, empty_results, empty_samples
from meshlab.frames._statistics import bandwidth, summarise
from meshlab.nccl_tests._info import NO_FACTS, NcclFacts, merge_facts
from meshlab.nccl_tests._uneven import TrafficSummary, rank_bytes, traffic_columns

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_NAN = float("nan")

# -- the tool's names --------------------------------------------------------------------------------------------------

DTYPE_OF_TYPE = {
    "int8": "int8",
    "char": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""The dtype name of numpy and ml_dtypes, by the tool's type name."""

ITEMSIZE = {
    name: 1 if dtype.startswith(("int8", "uint8", "float8")) else whole(re.findall(r"\d+", dtype)[0]) // 8
    for name, dtype in DTYPE_OF_TYPE.items()
}
"""Bytes per element, by the tool's type name."""

OPS = {"none": "", "sum": "sum", "prod": "prod", "min": "min", "max": "max", "avg": "avg", "mulsum": "mulsum"}
"""The reduce operation, by the text in the column ``redop``."""

# -- the device list ---------------------------------------------------------------------------------------------------

DEVICE_LINE = re.compile(r"Rank +(\d+) +(?:Group +(\d+) +)?(?:Pid +(\d+) )?on +(\S+) device +(\d+) \[([^\]]*)\] *(.*)")
"""The line that the tool prints for each rank. ``Pid`` was added in March 2019, and ``Group`` in 2.13.4."""


UNKNOWN = "unknown"
"""The name that `write` prints for a host or a GPU that the results do not name."""


class DeviceLine(NamedTuple):
    """One rank in the device list."""

    rank: int
    group: int | None
    pid: int | None
    host: str
    device: int
    bus_id: str
    name: str


class DeviceLines(Sequence[DeviceLine]):
    """The device list, parsed line by line on demand: that of a large machine has hundreds of thousands of lines."""

    __slots__ = ("_lines",)

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = tuple(lines)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> DeviceLine: ...
    @overload
    def __getitem__(self, index: slice) -> DeviceLines: ...
    def __getitem__(self, index: int | slice) -> DeviceLine | DeviceLines:
        if isinstance(index, slice):
            return DeviceLines(self._lines[index])
        if (match := DEVICE_LINE.search(self._lines[index])) is None:
            raise IndexError(f"line {index} of the device list does not name a device")
        rank, group, pid, host, device, bus_id, name = match.groups()
        return DeviceLine(
            whole(rank),
            whole(group) if group else None,
            whole(pid) if pid else None,
            host,
            whole(device),
            bus_id,
            name.strip(),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceLines) and self._lines == other._lines

    def __hash__(self) -> int:
        return hash(self._lines)

    def __repr__(self) -> str:
        return f"<DeviceLines: {len(self)} devices>"


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """One placement (out of place or in place) of one row, as printed."""

    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    n_wrong: int | None = None  # None if the result was not checked
    error: float | None = None  # largest relative error, which versions before 2.13 print instead of a count
    # These need per-iteration timing (-I).
    min_us: float | None = None
    max_us: float | None = None
    p99_us: float | None = None
    cv_percent: float | None = None


@dataclass(frozen=True, slots=True)
class LogRow:
    """One row of the table. A placement that the row does not have is None."""

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
    """Times of the individual iterations of one row and placement (JSON since version 2), in µs."""

    row: int  # in the section
    in_place: bool
    skipped: int  # leading iterations that the tool's own summary omits
    times_us: Floats  # the slowest process
    per_process_us: Floats | None  # (processes, iterations): the slowest GPU of each


@dataclass(frozen=True, slots=True)
class LogTable:
    """The rows of a section as columns. Placement 0 is out of place, placement 1 is in place."""

    line: Integers  # 0 if unknown
    size_bytes: Integers
    count: Integers
    root: Integers  # -1 without one
    type: Sequence[str]
    op: Sequence[str]  # empty without one
    timestamp: Sequence[str]  # empty if no row has one
    values: Floats  # (rows, 2, 4): time in µs, algbw and busbw in GB/s, and wrong elements or error
    iteration: Floats | None  # (rows, 2, 4): minimum, maximum and p99 in µs, coefficient of variation in percent
    present: npt.NDArray[np.bool_]  # (rows, 2): the placement was printed
    counted: bool = True  # the last column counts wrong elements. False: it is the error of the old layout
    op_column: bool = True  # there is a column for the operation. In the old layout only some tests have it
    cpu_time: bool = False  # taken on the host (-C). The bandwidths next to it were not computed from it

    def __len__(self) -> int:
        return len(self.line)

    def take(self, rows: Integers) -> LogTable:
        """Return a table of these rows only."""
        arrays = ("line", "size_bytes", "count", "root", "values", "present")
        parts: dict[str, Any] = {name: getattr(self, name)[rows] for name in arrays}
        for name in ("type", "op", "timestamp"):
            texts = getattr(self, name)
            parts[name] = [texts[index] for index in rows.tolist()] if texts else ()
        return replace(self, **parts, iteration=None if self.iteration is None else self.iteration[rows])

    def mean_busbw_gbs(self) -> float | None:
        """Return the mean of all printed bus bandwidths, which the tool prints as the average."""
        values = [value for half in self.values[..., 2].tolist() for value in half if value == value]
        return sum(values) / len(values) if values else None

    def timing(self, row: int, placement: int) -> Timing | None:
        """Return one placement of one row, or None if it was not printed."""
        if not self.present[row, placement]:
            return None
        time, algbw, busbw, last = self.values[row, placement].tolist()
        is_checked = last == last
        extra: tuple[float | None, ...] = (None,) * 4
        if self.iteration is not None:
            extra = tuple(value if value == value else None for value in self.iteration[row, placement].tolist())
        return Timing(
            time,
            algbw,
            busbw,
            round(last) if is_checked and self.counted else None,
            last if is_checked and not self.counted else None,
            *extra,
        )

    def row(self, row: int) -> LogRow:
        """Return one row."""
        return LogRow(
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


# -- sections ----------------------------------------------------------------------------------------------------------

Status = Literal["complete", "incomplete", "failed", "no_table"]
"""complete: rows and an average were read. failed: the tool printed a failure and no average. incomplete: the table was
started, but it has no usable average. no_table: the run never reached a table."""

_WORST_FIRST: tuple[Status, ...] = ("failed", "incomplete", "no_table", "complete")


@dataclass(frozen=True, slots=True)
class Note:
    """A remark about one line. `line` counts from 1; it is None for a remark about the complete section."""

    line: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.line is None else f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Preamble:
    """The settings that the tool prints first. None marks a setting that the log does not contain."""

    program: str | None = None  # name of the test in the log itself
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
    blocking: str | None = None  # the message about -z
    skipped_iters: int | None = None
    # Of the command line, if the log has it.
    local_register: int | None = None  # -R
    cta_policy: int | None = None  # -x, -1 if it is not set


@dataclass(frozen=True, slots=True)
class Footer:
    """The lines below the table."""

    out_of_bounds: int | None = None  # failed checks (rows × placements × ranks), not elements
    correct: bool | None = None
    average_busbw_gbs: float | None = None
    fast_enough: bool | None = None  # the verdict of NCCL_TESTS_MIN_BW, if it was set


@dataclass(frozen=True)
class Section:
    """One run of one test.

    Parameters
    ----------
    number, line : int
        Position in the file, and first line, both counted from 1.
    collective : str or None
        meshlab's name of the collective. None if the log does not determine it.
    n_ranks : int or None
        Number of ranks in one communicator. None if the log does not determine it.
    status : {"complete", "incomplete", "failed", "no_table"}
        The last part of a run that was found. It is independent of wrong results, which are in `footer` and the rows.
    preamble, devices, table, footer : Preamble, sequence of DeviceLine, LogTable, Footer
        The settings, the device list, the rows as columns, and the lines below the table.
    unparsable_rows, failure_lines : int
        Number of lines that start or end like a row, but are not a complete one, and of failure messages.
    failures, warnings : tuple of Note
        These messages, at most 1,000 of them, and remarks that matter to a reader of the numbers.
    nccl, iterations : NcclFacts, tuple of IterationTimes
        The facts that NCCL itself printed during the run, and times of individual iterations, if the log has them.
    copies : int
        Number of copies of the test that ran beside each other without knowing it, and printed into the section.
        1 for a proper run.
    summaries : tuple of TrafficSummary, default ()
        The bytes of every rank that ``alltoallv_perf`` prints with ``NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY=1``.
    has_environment : bool, default False
        Whether the log has all environment variables of NCCL, as JSON has, so that others are not set.
    """

    number: int
    line: int
    collective: str | None
    n_ranks: int | None
    status: Status
    preamble: Preamble
    devices: Sequence[DeviceLine]
    table: LogTable = field(repr=False, compare=False)
    footer: Footer
    unparsable_rows: int
    failure_lines: int
    failures: tuple[Note, ...]
    warnings: tuple[Note, ...]
    nccl: NcclFacts = field(repr=False)
    iterations: tuple[IterationTimes, ...] = field(default=(), repr=False, compare=False)
    copies: int = 1
    summaries: tuple[TrafficSummary, ...] = field(default=(), repr=False, compare=False)
    has_environment: bool = False

    @property
    def results(self) -> pd.DataFrame:
        """The rows of this section alone, as in `Log.results`. So a section can be compared, plotted and reported."""
        return Log(f"section {self.number}", (self,)).results

    def __repr__(self) -> str:
        test = f"{self.collective or 'unknown test'}, {self.n_ranks or '?'} ranks, {_plural(len(self.table), 'row')}"
        return f"<Section {self.number}: {test}, {self.status}; next: .results>"

    @cached_property
    def rows(self) -> tuple[LogRow, ...]:
        """The complete rows, as printed."""
        return tuple(self.table.row(index) for index in range(len(self.table)))

    @property
    def type(self) -> str | None:
        """The element type as printed. None without rows, or if it changes."""
        types = set(self.table.type)
        return types.pop() if len(types) == 1 else None

    @property
    def gpu(self) -> str | None:
        """The name of the GPU, the most frequent one if there are several. None if no device is listed."""
        names = [device.name for device in self.devices if device.name not in ("", UNKNOWN)]
        return Counter(names).most_common(1)[0][0] if names else None

    @property
    def library(self) -> str | None:
        """The library with its version, such as ``"NCCL 2.29.2"``."""
        if (version := self.nccl.version or self.preamble.library_version) is None:
            return None
        name = "RCCL" if self.preamble.tool == "rccl-tests" else "NCCL"
        return f"{name} {version.partition('+')[0]}"

    @property
    def ranks_per_node(self) -> int | None:
        """The number of ranks per host. None if hosts differ, or if the log does not determine it."""
        if self.nccl.ranks_per_node is not None:
            return self.nccl.ranks_per_node
        if self.n_ranks is None or len(self.devices) != self.n_ranks:
            return None
        hosts = [device.host for device in self.devices]
        if UNKNOWN in hosts:
            return None
        counts = {hosts.count(host) for host in set(hosts)}
        return counts.pop() if len(counts) == 1 else None

    @property
    def mode(self) -> str | None:
        """The way calls were timed: isolated, pipelined or graph. None if the preamble does not record it."""
        if self.preamble.graph:
            return "graph"
        if self.preamble.blocking is not None:
            return "isolated"
        return "pipelined" if self.preamble.graph == 0 else None

    @property
    def average_matches_rows(self) -> bool | None:
        """True if the printed average is the mean of the rows. None if one of the two is missing."""
        return average_matches(self.table, self.footer)


def average_matches(table: LogTable, footer: Footer) -> bool | None:
    """Return True if the printed average is the mean of the rows, or None if one of the two is missing."""
    mean, average = table.mean_busbw_gbs(), footer.average_busbw_gbs
    if mean is None or average is None:
        return None
    # The tool prints six digits of the mean of its rates, which it rounded to two decimals or fewer in the rows.
    rounding = rounding_of_rates(table.values[..., 2][~np.isnan(table.values[..., 2])]).mean()
    return bool(abs(mean - average) <= rounding + 1e-5 * abs(average))


def rounding_of_rates(rates: Floats) -> Floats:
    """Return half a unit of the last printed digit of bandwidths."""
    return np.select(
        [rates < 1e3, rates < 1e4, rates < 999_999.5], [0.00501, 0.0501, 0.501], default=0.501 * np.maximum(rates, 1.0)
    )


# -- the log -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Log:
    """A log of nccl-tests: its sections, and their rows as frames.

    Parameters
    ----------
    name : str
        The name of the file, or a name derived from the text.
    sections : tuple of Section
        One per run of a test, in file order. Empty if the text has only messages of NCCL itself.
    prelude : NcclFacts
        The facts that NCCL printed before the first run.
    """

    name: str
    sections: tuple[Section, ...]
    prelude: NcclFacts = field(default=NO_FACTS, repr=False)

    @property
    def status(self) -> Status:
        """The worst status of the sections, in the order failed, incomplete, no_table, complete."""
        statuses = {section.status for section in self.sections}
        return next((status for status in _WORST_FIRST if status in statuses), "no_table")

    @property
    def warnings(self) -> tuple[Note, ...]:
        """The warnings of all sections."""
        return tuple(note for section in self.sections for note in section.warnings)

    @property
    def nccl(self) -> NcclFacts:
        """The facts that NCCL printed in the complete log. `Section.nccl` has those of one section."""
        return merge_facts([self.prelude, *(section.nccl for section in self.sections)])

    @property
    def results(self) -> pd.DataFrame:
        """One row per printed row and placement, with the columns of `meshlab.frames.RESULTS`.

        ``run_id`` consists of the name and the number of the section, and ``step // 2`` is the row in that section.
        Bandwidths are computed from the time. If the collective or the number of ranks is unknown, busbw is the
        printed value.
        """
        return self._frames[0].copy()

    @property
    def samples(self) -> pd.DataFrame:
        """One row per iteration if the log has iterations (JSON since version 2), otherwise an empty frame."""
        return self._frames[1].copy()

    @property
    def rank_bytes(self) -> pd.DataFrame:
        """The bytes of every rank in each row of ``alltoallv_perf``, with the columns of `RunData.rank_bytes`.

        Empty unless the test ran with ``NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY=1``.
        """
        return rank_bytes(self.name, self.sections)

    @cached_property
    def _frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        return _results_frame(self), _samples_frame(self)

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
        lines = [
            f"<Log {self.name}: {self.status}, {_plural(len(self.sections), 'section')}; next: .results, ml.judge(log)>"
        ]
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


# -- frames ------------------------------------------------------------------------------------------------------------

_REDUCES = frozenset((*(name for name, collective in COLLECTIVES.items() if collective.reduces), None))

_OPS = {"mulsum": "pre_mul_sum"}

HYPERCUBE = "hypercube"
"""The test of nccl-tests that measures no collective. It prints bandwidths of (n - 1) / n of the size."""

OWN_RATES = frozenset((*(name for name, test in NCCL_TESTS.items() if test.prints_own_rates), HYPERCUBE))
"""The tests whose bandwidths do not follow from the size and the number of ranks. The printed values are kept."""

_MOST_CALLS = 1 << 53  # more is a misprint

_STATISTICS = ("time_us", "time_us_lo", "time_us_hi", "p95_us", "p99_us", "min_us", "max_us", "skew_us")


def _results_frame(log: Log) -> pd.DataFrame:
    """Return all rows of a log as a results frame. Rows without iterations count as one batch, without an interval."""
    import pandas as pd

    parts = [_section_columns(log.name, section) for section in log.sections if len(section.table)]
    if not parts:
        return _with_attrs(empty_results(), log)
    data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    printed_algbw, printed_busbw = data.pop("printed_algbw"), data.pop("printed_busbw")
    algbw, busbw = bandwidth(data["collective"].tolist(), data["size_bytes"], data["n_ranks"], data["time_us"])
    use_printed = np.isnan(busbw) | np.isin(data["collective"].astype(str), list(OWN_RATES))
    data["algbw_gbs"] = np.where(np.isnan(algbw), printed_algbw, algbw)
    data["busbw_gbs"] = np.where(use_printed & (data["n_ranks"] != 1), printed_busbw, busbw)
    return _with_attrs(conform(pd.DataFrame(data), RESULTS), log)


def _section_columns(name: str, section: Section) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of one section, with one entry per printed placement."""
    table = section.table
    present = table.present.ravel()
    n = int(present.sum())
    rows = np.repeat(np.arange(len(table)), 2)[present]
    values = table.values.reshape(-1, 4)[present]
    statistics = {column: np.full(n, _NAN) for column in _STATISTICS}
    statistics["time_us"] = np.where(table.cpu_time, _NAN, values[:, 0])
    n_samples = np.ones(n)
    iters, agg = section.preamble.iters, section.preamble.agg_iters
    calls = np.full(n, _NAN if iters is None or agg is None or iters * agg > _MOST_CALLS else iters * agg)
    if table.iteration is not None:
        statistics["min_us"], statistics["max_us"] = table.iteration.reshape(-1, 4)[present][:, :2].T
    position = np.cumsum(present) - 1  # of each placement among the printed ones
    for times in section.iterations:
        index = position[2 * times.row + times.in_place]
        counted = times.times_us[times.skipped :]
        if counted.size:
            for column, value in _summary(times).items():
                statistics[column][index] = value
            n_samples[index], calls[index] = counted.size, _NAN if agg is None else agg
    n_wrong = np.round(values[:, 3]) if table.counted else np.full(n, _NAN)
    types = {text: DTYPE_OF_TYPE.get(text, text) for text in set(table.type)}
    reduces = section.collective in _REDUCES
    return {
        "run_id": _repeat(f"{name}#{section.number}", n),
        "launch": np.zeros(n, dtype=np.int64),
        "step": np.flatnonzero(present),
        "source": _repeat("nccl-tests", n),
        "collective": _repeat(section.collective, n),
        "op": np.array([_OPS.get(op, op) or None if reduces else None for op in table.op], dtype=object)[rows],
        "dtype": np.array([types[text] for text in table.type], dtype=object)[rows],
        "root": np.where(table.root >= 0, table.root, _NAN)[rows],
        "in_place": np.flatnonzero(present) % 2 == 1,
        "mode": _repeat(section.mode, n),
        **_options(section, [table.type[row] for row in rows]),
        "group": _repeat(_group(section), n),
        "n_ranks": np.full(n, _NAN if section.n_ranks is None else section.n_ranks),
        "count": table.count[rows],
        "size_bytes": table.size_bytes[rows],
        **{column: part[rows] for column, part in traffic_columns(section).items()},
        "n_samples": n_samples,
        "calls": calls,
        **statistics,
        "n_wrong": n_wrong,
        "status": np.where(np.nan_to_num(n_wrong) > 0, "wrong", "ok").astype(object),
        "stop_reason": _repeat("batches", n),
        "printed_algbw": values[:, 1],
        "printed_busbw": values[:, 2],
    }


_POLICIES = dict(enumerate(CTA_POLICIES))


def _options(section: Section, types: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of the options of the calls."""
    preamble, n = section.preamble, len(types)
    kinds = {0: "plain", 1: "registered", 2: "symmetric"}
    if _version(section.library) < (2, 27):
        kinds[2] = "registered"  # the tool falls back to it
    environment = section.nccl.environment
    limits = {
        column: whole(text) if (text := environment.get(variable, "")).isdecimal() else None
        for column, variable in (("min_ctas", "NCCL_MIN_CTAS"), ("max_ctas", "NCCL_MAX_CTAS"))
    }
    first = _NAN if preamble.unalign is None else preamble.unalign
    return {
        "buffers": _repeat(kinds.get(-1 if preamble.local_register is None else preamble.local_register), n),
        "cta_policy": _repeat(_POLICIES.get(-1 if preamble.cta_policy is None else preamble.cta_policy), n),
        **{name: np.full(n, _NAN if limit is None else limit) for name, limit in limits.items()},
        "alignment_bytes": np.array([first * ITEMSIZE.get(name, _NAN) for name in types], dtype=np.float64),
        "n_aggregated": np.full(n, _NAN if preamble.agg_iters is None else preamble.agg_iters),
    }


def _version(text: str | None) -> tuple[int, ...]:
    """Return a version as numbers. An unknown one counts as the newest."""
    return tuple(whole(part) for part in re.findall(r"\d+", text or "999"))


def _repeat(value: str | None, n: int) -> npt.NDArray[Any]:
    column = np.empty(n, dtype=object)
    column[:] = value
    return column


def _group(section: Section) -> str | None:
    """Return "world" if one communicator has all ranks. ``NCCL_TESTS_SPLIT`` creates several."""
    return "world" if section.n_ranks is not None and section.n_ranks >= len(section.devices) else None


def _summary(times: IterationTimes) -> dict[str, float]:
    """Return statistics of the iterations that the tool does not skip."""
    summary = summarise(times.times_us[times.skipped :])
    if times.per_process_us is not None and len(times.per_process_us) > 1:
        ranks = times.per_process_us[:, times.skipped :]
        summary["skew_us"] = float(np.median(ranks.max(axis=0) - ranks.min(axis=0)))
    return summary


def _with_attrs(frame: pd.DataFrame, log: Log) -> pd.DataFrame:
    gpu, library = (_joined(getattr(section, name) for section in log.sections) for name in ("gpu", "library"))
    attrs = {
        "file": log.name,
        "where": " · ".join(text for text in (gpu, library, "nccl-tests") if text),
        "gpu": gpu,
        "library": library,
        "environment": dict(log.nccl.environment),
    }
    frame.attrs = {name: value for name, value in attrs.items() if value}
    return frame


def _joined(texts: Iterator[str | None]) -> str:
    return " / ".join(dict.fromkeys(text for text in texts if text is not None))


def _samples_frame(log: Log) -> pd.DataFrame:
    """Return the times of individual iterations, per rank if every process has one GPU, else of the slowest."""
    import pandas as pd

    parts = [_iteration_columns(log.name, section, times) for section in log.sections for times in section.iterations]
    if not parts:
        return _with_attrs(empty_samples(), log)
    data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _with_attrs(conform(pd.DataFrame(data), SAMPLES), log)


def _iteration_columns(name: str, section: Section, times: IterationTimes) -> dict[str, npt.NDArray[Any]]:
    per_process = (section.preamble.threads or 0) * (section.preamble.gpus or 0)
    if times.per_process_us is not None and per_process == 1:
        values = times.per_process_us
        ranks = np.arange(len(values), dtype=np.float64)
    else:
        values, ranks = times.times_us[None, :], np.array([_NAN])
    n_ranks, n = values.shape
    batch = np.tile(np.arange(n), n_ranks)
    agg = section.preamble.agg_iters
    return {
        "run_id": _repeat(f"{name}#{section.number}", n_ranks * n),
        "launch": np.zeros(n_ranks * n, dtype=np.int64),
        "step": np.full(n_ranks * n, 2 * times.row + times.in_place),
        "group": _repeat(_group(section), n_ranks * n),
        "rank": np.repeat(ranks, n),
        "batch": batch,
        "calls": np.full(n_ranks * n, _NAN if agg is None else agg),
        "time_us": values.ravel(),
        "is_warmup": batch < times.skipped,
        "status": _repeat("ok", n_ranks * n),
    }
