"""Reports of NCCL's RAS subsystem: the text of ncclras, and its JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshlab.base._documents import LimitError, NestingError, decode_json, mapping_or_empty, objects_in
from meshlab.base._errors import ParseError
from meshlab.base._numerals import whole, whole_or_none
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import Seen, TextFormat, grouped

if TYPE_CHECKING:
    import pandas as pd

_HEAD = re.compile(r"NCCL version (?P<nccl>\S+) compiled with CUDA (?P<cuda>[\d.]+)")
_DRIVER = re.compile(r"CUDA runtime version (?P<runtime>\d+), driver version (?P<driver>\d+)")
_ROW = re.compile(
    r"^ *(?P<group>\d+) +(?P<comms>\d+) +(?P<nodes>\d+) +(?P<per_node>\d+(?:-\d+)?) +(?P<per_comm>\d+) +"
    r"(?P<in_group>\d+) +(?P<status>[A-Z][A-Z,]*) +(?P<errors>OK|[A-Z]+(?:,[A-Z]+)*) *$"
)
_TOTALS = re.compile(r"^ *(?P<nodes>\d+) +(?P<per_node>\d+) +(?P<gpus_per>\d+) +(?P<processes>\d+) +(?P<gpus>\d+) *$")
_TOTALS_SHORT = re.compile(r"^ *(?P<nodes>\d+) +(?P<processes>\d+) +(?P<gpus>\d+) *$")
_PROCESS = re.compile(r"^ *Process (?P<pid>\d+) on node (?P<node>\S+) managing GPUs? (?P<gpus>[\d,]+)")
_OUTLIER = re.compile(r"^ *Node (?P<node>\S+) running process(?:es)? (?P<pids>\d[\d,]*)")
_COMM = re.compile(r"^ *#(?P<group>\d+)-(?P<index>\d+) \((?P<hash>[0-9a-f]+)\) (?P<kind>INCOMPLETE|ERROR|MISMATCH)")
_RANK = re.compile(
    r"^ *Rank (?P<rank>-?\d+)(?: has launched up to operation (?P<count>\d+)| (?P<none>has not launched any operations)"
    r"| has status (?P<status>[A-Z]+)| reported (?P<error>.+?))? -- (?:GPU (?P<gpu>\d+)(?: \(NVML \d+\))? managed by "
    r"process (?P<pid>\d+) on node (?P<node>\S+)|\[process information not found\])"
)
_MANY = re.compile(
    r"^ *(?P<n>\d+) ranks (?:have launched up to operation (?P<count>\d+)|(?P<none>have not launched any operations)"
    r"|have status (?P<status>[A-Z]+)|reported (?P<error>.+))"
)
_DIFFERENT = re.compile(r"Communicator ranks have different (?P<what>\w+)(?P<counts> operation counts)?")
_MISSING = re.compile(r"Missing communicator data from (?P<n>\d+) (?P<what>rank|job process)")
_ERRORS = re.compile(r"(?P<kind>Initialization|Asynchronous) errors? on (?P<n>\d+) ranks?")
_TIMEOUT = re.compile(r"Encountered (?P<n>\d+) communication timeouts?")

# ncclResult_t, nccl.h. 0 and 7 (in progress) are no errors.
_RESULTS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}


@dataclass(frozen=True, slots=True)
class RasProcess:
    """A process that a report names."""

    pid: int
    node: str
    gpus: str
    line: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.node}" + (f" (GPU {self.gpus})" if self.gpus else "")


@dataclass(frozen=True, slots=True)
class RasRow:
    """A row of the table of communicators, which describes all communicators of one shape."""

    group: int
    n_comms: int
    n_nodes: int
    n_ranks: int
    n_answers: int
    status: str  # state such as "RUNNING"
    errors: tuple[str, ...]  # "INCOMPLETE", "ERROR" or "MISMATCH". Empty if all is well
    line: int


@dataclass(frozen=True, slots=True)
class RasState:
    """The ranks of a communicator with one count, status or error."""

    value: int | str
    n_ranks: int
    # Empty if the report does not list them. ncclras lists only the smaller group, be it ahead or behind.
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RasMismatch:
    """Ranks of one communicator that differ in an operation count or in their status."""

    what: str  # the operation, such as "AllReduce", or "status"
    states: tuple[RasState, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """What a report contains about one communicator."""

    name: str
    group: int | None
    n_missing: int
    missing: tuple[tuple[int, RasProcess | None], ...]
    dead: tuple[int, ...]  # ranks that RAS considers dead, in JSON
    errors: tuple[RasState, ...]
    mismatches: tuple[RasMismatch, ...]
    n_ranks: int | None
    lines: tuple[int, ...]
    odd_ranks: tuple[int, ...] = ()  # rank numbers that cannot be right
    counts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # operation counts by rank, in JSON


@dataclass(frozen=True, slots=True)
class RasReport:
    """One report."""

    nccl: str  # version. Empty if the text does not contain it
    cuda: str
    driver: str
    n_nodes: int | None
    n_processes: int | None
    n_gpus: int | None
    rows: tuple[RasRow, ...]  # table of communicators. Empty for JSON
    # Those with a problem, and in JSON all.
    communicators: tuple[RasCommunicator, ...]
    missing: tuple[RasProcess, ...]
    n_missing: int
    dead: tuple[RasProcess, ...]
    n_dead: int
    n_timeouts: int
    outliers: tuple[tuple[str, int], ...]
    is_complete: bool  # false if the text ends before the end of the report
    first: int
    last: int


def read_ras_reports(paste: Paste) -> tuple[RasReport, ...]:
    """Read all reports in a text, in text and in JSON."""
    return (*_texts(paste), *_jsons(paste))


def _texts(paste: Paste) -> Iterator[RasReport]:
    marks = other_lines(paste).numbers(
        "Job summary", "Communicators...", "No communicator data collected", "Comms     Nodes     Ranks"
    )
    details = other_lines(paste).numbers(
        "have launched up to operation", "Missing communicator data from", "considered dead"
    )
    details += other_lines(paste).numbers("Communicator ranks have different")
    if not marks and not details:
        return
    heads = [
        number for number in other_lines(paste).numbers("compiled with CUDA") if _HEAD.search(paste.line(number).text)
    ]
    # A report starts at its head, which people often leave away.
    starts = heads or [min([*marks, *details])]
    if heads and min([*marks, *details]) < heads[0]:
        starts = [min([*marks, *details]), *heads]
    for start, end in zip(starts, [*starts[1:], len(paste) + 1], strict=True):
        if any(start <= number < end for number in (*marks, *details)):
            yield _text(paste, start, end)


def _text(paste: Paste, start: int, end: int) -> RasReport:
    """Read one report, line by line."""
    nccl = cuda = driver = ""
    nodes = processes = gpus = None
    rows: list[RasRow] = []
    missing: list[RasProcess] = []
    dead: list[RasProcess] = []
    n_missing = n_dead = n_timeouts = 0
    outliers: list[tuple[str, int]] = []
    comms: dict[tuple[str, str], _Draft] = {}
    draft: _Draft | None = None
    section, last, is_complete = "", start, False
    # Sections have no end marks and differ between versions, so each line is recognised alone. `section` and `draft`
    # hold what it may belong to.
    for number in range(start, end):
        text = paste.line(number).text
        plain = text.strip()
        is_read = True
        if match := _HEAD.search(text):
            nccl, cuda = match["nccl"], match["cuda"]
        elif match := _DRIVER.search(text):
            driver = match["driver"]
        elif match := _COMM.match(text):
            section = ""
            draft = comms.setdefault((match["group"], match["hash"]), _Draft(match["hash"], whole(match["group"])))
            draft.lines.append(number)
        elif plain in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            section, draft = plain, None
        elif plain in ("Errors", "Warnings", "Job summary") or plain.startswith("Communicators..."):
            section, draft = plain, None
            is_complete = is_complete or plain == "Warnings"
        elif match := _ROW.match(text):
            errors = () if match["errors"] == "OK" else tuple(match["errors"].split(","))
            group, comms_in_row, on_nodes, per_comm, answers = (
                whole(match[name]) for name in ("group", "comms", "nodes", "per_comm", "in_group")
            )
            rows.append(RasRow(group, comms_in_row, on_nodes, per_comm, answers, match["status"], errors, number))
        elif match := _totals(paste, number):
            nodes, processes, gpus = whole(match["nodes"]), whole(match["processes"]), whole(match["gpus"])
        elif match := _PROCESS.match(text):
            process = RasProcess(whole(match["pid"]), match["node"], match["gpus"], number)
            (dead if section == "DEAD" else missing).append(process)
        elif match := _OUTLIER.match(text):
            outliers.append((match["node"], match["pids"].count(",") + 1))
        elif match := _MISSING.search(text):
            if match["what"] == "rank" and draft is not None:
                draft.n_missing = whole(match["n"])
                draft.lines.append(number)
            elif match["what"] != "rank":
                n_missing = whole(match["n"])
        elif section == "DEAD" and (match := re.search(r"(?<!\d)(\d+) job process", text)):
            n_dead = whole(match[1])
        elif match := _TIMEOUT.search(text):
            n_timeouts = whole(match["n"])
        elif draft is not None:
            is_read = draft.add(text, number)
        else:
            is_read = bool(re.search(r"^[= ]+$|Nodes|Processes|per node|\(total\)|Group +Comms|in group|outlier", text))
        if is_read and plain:
            last = number
    return RasReport(
        nccl,
        cuda,
        driver,
        nodes,
        processes,
        gpus,
        tuple(rows),
        tuple(draft.build({row.group: row for row in rows}) for draft in comms.values()),
        tuple(missing),
        max(n_missing, len(missing)),
        tuple(dead),
        max(n_dead, len(dead)),
        n_timeouts,
        tuple(outliers),
        is_complete,
        start,
        last,
    )


def _totals(paste: Paste, number: int) -> re.Match[str] | None:
    """Return the size of the job, whose short row is below the word total."""
    text = paste.line(number).text
    short = _TOTALS_SHORT.match(text) if "total" in paste.line(max(number - 1, 1)).text else None
    return _TOTALS.match(text) or short


@dataclass
class _Draft:
    """A communicator whose lines are being read."""

    name: str
    group: int
    n_missing: int = 0
    missing: list[tuple[int, RasProcess | None]] = field(default_factory=list)
    errors: list[RasState] = field(default_factory=list)
    mismatches: list[tuple[str, list[RasState], list[int]]] = field(default_factory=list)
    kind: str = "missing"
    pending: int | str | None = None
    lines: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def add(self, text: str, number: int) -> bool:
        """Read a line, and return whether it belongs to this communicator."""
        if match := _DIFFERENT.search(text):
            self.kind, self.pending = "mismatch", None
            what = match["what"] if match["counts"] or match["what"] == "status" else "operation"
            self.mismatches.append((what, [], [number]))
        elif _ERRORS.search(text):
            self.kind, self.pending = "error", None
        elif match := _MANY.match(text):
            self.pending = _value(match)
            self._state(whole(match["n"]), (), number)
        elif match := _RANK.match(text):
            rank = whole(match["rank"])
            self.ranks.append(rank)
            process = None
            if match["pid"] is not None:
                process = RasProcess(whole(match["pid"]), match["node"], match["gpu"], number)
            value = _value(match)
            if self.kind == "missing":
                self.missing.append((rank, process))
            elif value is not None:
                self.pending = value
                self._state(1, (rank,), number)
            else:
                self._listed(rank, number)
        else:
            return not text.strip()
        self.lines.append(number)
        return True

    def _states(self) -> list[RasState]:
        return self.errors if self.kind == "error" or not self.mismatches else self.mismatches[-1][1]

    def _state(self, n_ranks: int, ranks: tuple[int, ...], number: int) -> None:
        if self.pending is not None:
            self._states().append(RasState(self.pending, n_ranks, ranks))
        if self.kind == "mismatch":
            self.mismatches[-1][2].append(number)

    def _listed(self, rank: int, number: int) -> None:
        """Add a rank to the group that the line above announced."""
        if states := self._states():
            last = states[-1]
            states[-1] = RasState(last.value, last.n_ranks, (*last.ranks, rank))
        if self.kind == "mismatch":
            self.mismatches[-1][2].append(number)

    def build(self, rows: Mapping[int, RasRow]) -> RasCommunicator:
        row = rows.get(self.group)
        size = row.n_ranks if row else None
        odd = tuple(rank for rank in self.ranks if rank < 0 or rank >= 1 << 24 or (size and rank >= size > 0))
        return RasCommunicator(
            self.name,
            self.group,
            max(self.n_missing, len(self.missing)),
            tuple(self.missing),
            (),
            tuple(self.errors),
            tuple(RasMismatch(what, tuple(states), tuple(lines)) for what, states, lines in self.mismatches),
            size,
            tuple(self.lines),
            odd,
        )


def _value(match: re.Match[str]) -> int | str | None:
    if match["count"] is not None:
        return whole(match["count"])
    if match["none"] is not None:
        return 0
    return match["status"] or match["error"]


def _jsons(paste: Paste) -> Iterator[RasReport]:
    position = 0
    while (mark := paste.text.find('"communicators_count"', position)) >= 0:
        begin = paste.text.rfind("{", position, mark)
        position = mark + 1
        if begin < 0:
            continue
        try:
            value, end = decode_json(paste.text, begin)
        except LimitError:
            raise
        except NestingError:
            return
        except ParseError:
            continue
        position = end
        if isinstance(value, dict) and isinstance(value.get("communicators"), list):
            yield _json(paste, value, begin, end)


def _json(paste: Paste, value: Mapping[str, Any], begin: int, end: int) -> RasReport:
    comms = objects_in(value["communicators"])
    hashes = [paste.number_at(match.start()) for match in re.compile(r'"hash"').finditer(paste.text, begin, end)]
    lines = hashes if len(hashes) == len(comms) else [paste.number_at(begin)] * len(comms)
    processes = {
        (str(process.get("host")), str(process.get("pid")))
        for comm in comms
        for key in ("ranks", "missing_ranks")
        for process in objects_in(comm.get(key))
    }
    built = tuple(_json_communicator(comm, line) for comm, line in zip(comms, lines, strict=True))
    gone: dict[tuple[str, int], tuple[RasProcess, bool]] = {}
    for comm, line in zip(comms, lines, strict=True):
        for rank in objects_in(comm.get("missing_ranks")):
            process = _json_process(rank, line)
            gone[process.node, process.pid] = process, _is_dead(rank)
    dead = tuple(process for process, is_dead in gone.values() if is_dead)
    missing = tuple(process for process, is_dead in gone.values() if not is_dead)
    return RasReport(
        str(value.get("nccl_version", "")),
        str(value.get("cuda_runtime_version", "")),
        str(value.get("cuda_driver_version", "")),
        len({node for node, _ in processes}) or None,
        len(processes) or None,
        None,
        (),
        built,
        missing,
        len(missing),
        dead,
        len(dead),
        _number(mapping_or_empty(value.get("ras")).get("timeouts_count"), 0),
        (),
        True,
        paste.number_at(begin),
        paste.number_at(end - 1),
    )


def _json_communicator(comm: Mapping[str, Any], line: int) -> RasCommunicator:
    ranks, gone = objects_in(comm.get("ranks")), objects_in(comm.get("missing_ranks"))
    counts = {
        _rank(rank): {str(name): _number(n, 0) for name, n in mapping_or_empty(rank.get("collective_counts")).items()}
        for rank in ranks
    }
    mismatches = []
    for name in dict.fromkeys(name for of_rank in counts.values() for name in of_rank):
        by_count = grouped((of_rank.get(name, 0), rank) for rank, of_rank in counts.items())
        if len(by_count) > 1:
            states = tuple(RasState(count, len(group), tuple(group)) for count, group in sorted(by_count.items()))
            mismatches.append(RasMismatch(name, states, (line,)))
    errors: dict[str, list[int]] = {}
    for entry in ranks:
        status = mapping_or_empty(entry.get("status"))
        for key in ("init_state", "async_error"):
            code = _number(status.get(key), 0)
            if code not in (0, 7):
                errors.setdefault(_RESULTS.get(code, f"error {code}"), []).append(_rank(entry))
        if status.get("abort_flag"):
            errors.setdefault("aborted", []).append(_rank(entry))
    missing = tuple((_rank(rank), _json_process(rank, line)) for rank in gone)
    size = whole_or_none(comm.get("size"))
    return RasCommunicator(
        str(comm.get("hash", "")).removeprefix("0x"),
        None,
        max(_number(comm.get("missing_ranks_count"), 0), len(missing)),
        missing,
        tuple(_rank(rank) for rank in gone if _is_dead(rank)),
        tuple(RasState(text, len(group), tuple(group)) for text, group in errors.items()),
        tuple(mismatches),
        size,
        (line,),
        tuple(rank for rank in (*counts, *(rank for rank, _ in missing)) if rank < 0 or (size and rank >= size)),
        counts,
    )


def _json_process(rank: Mapping[str, Any], line: int) -> RasProcess:
    return RasProcess(_number(rank.get("pid"), 0), str(rank.get("host", "")), str(rank.get("cuda_dev", "")), line)


def _is_dead(rank: Mapping[str, Any]) -> bool:
    return bool(mapping_or_empty(rank.get("status")).get("considered_dead"))


def _rank(rank: Mapping[str, Any]) -> int:
    return _number(rank.get("rank"), -1)


def _number(value: object, otherwise: int) -> int:
    number = whole_or_none(value)
    return otherwise if number is None else number


def _find(paste: Paste) -> list[int]:
    numbers: list[int] = []
    for report in paste.once(read_ras_reports):
        numbers += range(report.first, report.last + 1)
    return numbers


def _see(paste: Paste) -> Seen:
    reports = paste.once(read_ras_reports)
    report = reports[-1]
    facts = {"NCCL": report.nccl, "CUDA driver": report.driver}
    sizes = [(report.n_gpus, "GPUs"), (report.n_processes, "processes"), (report.n_nodes, "nodes")]
    facts["job"] = ", ".join(f"{number} {name}" for number, name in sizes if number is not None)
    n_comms = sum(row.n_comms for row in report.rows) if report.rows else len(report.communicators)
    facts["communicators"] = str(n_comms) if n_comms else ""
    return Seen(
        facts={name: value for name, value in facts.items() if value}, frames={"launches": lambda: _launches(reports)}
    )


def _launches(reports: tuple[RasReport, ...]) -> pd.DataFrame:
    """Return the operation counts that the reports contain, one row per communicator, operation and count."""
    import pandas as pd

    rows: list[tuple[int, str, str, int | None, int, int]] = []
    for number, report in enumerate(reports):
        for comm in report.communicators:
            if comm.counts:
                for rank, counts in comm.counts.items():
                    rows += [(number, comm.name, name, rank, 1, count) for name, count in counts.items()]
                continue
            for mismatch in comm.mismatches:
                for state in mismatch.states:
                    if isinstance(state.value, int):
                        key = (number, comm.name, mismatch.what)
                        rows += [(*key, rank, 1, state.value) for rank in state.ranks]
                        if not state.ranks:
                            rows.append((*key, None, state.n_ranks, state.value))
    frame = pd.DataFrame(rows, columns=["report", "communicator", "collective", "rank", "n_ranks", "launched"])
    return frame.astype({"rank": "Int64"})


RAS_REPORT = TextFormat("RAS report", _find, _see, "the output of ncclras")
