"""Output of ``dcgmi``: the table and the JSON of ``dcgmi diag``, ``dcgmi nvlink`` and ``dcgmi health``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from meshlab.base._documents import mapping_or_empty, objects_in
from meshlab.base._numerals import whole
from meshlab.diagnosis._paste import Paste, PasteLine, check_matches, check_number
from meshlab.diagnosis._seen import Seen, TextFormat, frame_of
from meshlab.diagnosis.formats._gpu_tools import NvlinkCounter
from meshlab.diagnosis.formats._json_objects import json_objects
from meshlab.diagnosis.formats._kernel_log import host_of

if TYPE_CHECKING:
    import pandas as pd

_SECTIONS = ("  Metadata  -", "  Deployment  -", "  Integration  -", "  Hardware  -", "  Stress  -")
_SECTION = re.compile(r"[|+]-+ {2}(\w+) {2}-+")
_ROW = re.compile(r"^\|\s?(?P<name>[^|]{3,60})\|\s?(?P<text>[^|]{1,200})(?:\||$)")
_WIDTH = 46  # of the second column, which breaks messages inside words
_STATUS = re.compile(r"^(?P<status>Pass|Fail|Warn|Skip)(?: - (?:(?P<all>All)|GPUs?: (?P<gpus>[\d, ]++)))?+\s*+$")
_ENTITY = re.compile(r"^(?P<kind>GPU|CPU) ?(?P<id>\d+): (?P<status>Pass|Fail|Warn|Skip)\s*$")  # since version 4
_MESSAGE = re.compile(r"^(?P<kind>Warning|Error|Info)(?:: *(?:GPU ?(?P<gpu>\d+))?.*)?$")
_GPU = re.compile(r"\bGPU:? ?(\d+)")
_LINK_HEAD = re.compile(r"(?:gpuId|physicalId) \d+:")
_LINK_GPU = re.compile(r"^\s*gpuId (\d+):\s*$")
_SWITCH = re.compile(r"^\s*physicalId (\d+):\s*$")
_LINK_STATES = re.compile(r"^\s*([UDX_](?: [UDX_])*)\s*$")
_COUNTED_GPU = re.compile(r"^\|\s*GPU (?:ID: *)?(\d+)\s*\|")
_COUNTED_LINK = re.compile(r"^\|\s*Link (\d+)\s*\|")
_COUNTER = re.compile(r"^\|\s*(?:-> *)?([A-Z][\w ]*? Errors?(?: Count)?)\s*\|\s*(\d+)\s*\|")
_HEALTH = re.compile(r"^\|\s*+Overall Health\s*+\|(?P<health>[^|]*+)(?:\||$)")
_JSON = re.compile(r'\{\s*"(?:DCGM (?:GPU )?Diagnostic|metadata|entity_groups)"')
_RESULTS = ("| Pass - ", "| Fail - ", "| Warn - ", "| Skip - ")
_MOST_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class DiagnosticTest:
    """The result of one test on some GPUs. Without numbers, it is the result on all GPUs of the run."""

    lines: tuple[int, ...]
    host: str | None
    category: str
    test: str
    status: str  # Pass, Fail, Warn or Skip
    gpus: tuple[int, ...] = ()
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkStates:
    """The states of all NVLinks of a GPU or a switch: U is up, D down, X disabled, and _ not supported."""

    lines: tuple[PasteLine, ...]
    host: str | None
    is_switch: bool
    id: int
    states: str


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What ``dcgmi health -c`` reports: Healthy, Warning or Failure, the GPUs, and the texts about them."""

    lines: tuple[int, ...]
    health: str
    gpus: tuple[int, ...]
    text: str


@dataclass(slots=True)
class _Rows:
    """The rows of one test, while the table is read."""

    category: str
    test: str
    host: str | None
    lines: list[int] = field(default_factory=list)
    results: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    message_gpus: set[int] = field(default_factory=set)
    kind: str = ""  # of the message that the next row continues

    def tests(self) -> Iterator[DiagnosticTest]:
        """Return a result for each status, with the messages at those that are worse than Pass."""
        # A table of version 4 has a summary before the results of the GPUs. It counts if none of them has its status.
        of_gpus = {status for status, gpus in self.results if gpus}
        results = [(status, gpus) for status, gpus in self.results if gpus or status not in of_gpus]
        by_status: dict[str, list[int]] = {}
        for status, result_gpus in results:
            by_status.setdefault(status, []).extend(result_gpus)
        worst = next((word for word in ("Fail", "Warn", "Skip", "Pass") if word in by_status), "Fail")
        for status, gpus in (by_status or {"Fail": []}).items():
            numbers = gpus or (sorted(self.message_gpus) if status == worst else [])
            texts = tuple(text.strip() for text in self.messages) if status == worst else ()
            yield DiagnosticTest(tuple(self.lines), self.host, self.category, self.test, status, tuple(numbers), texts)


def read_diagnostics(paste: Paste) -> tuple[DiagnosticTest, ...]:
    """Read the results of ``dcgmi diag``, from tables and from JSON."""
    check_number(paste, len(paste.numbers(*_RESULTS)), "tests of DCGM", most=5_000, length=5_000)
    return (*_table(paste), *_json_tests(paste))


def read_link_states(paste: Paste) -> tuple[LinkStates, ...]:
    """Read the output of ``dcgmi nvlink -s``."""
    states = []
    literals = ("gpuId ", "physicalId ")
    check_matches(paste, _LINK_HEAD, literals, "GPUs of dcgmi nvlink", most=5_000, length=5_000)
    for head in paste.containing(_LINK_HEAD, *literals):
        name = _LINK_GPU.match(head.text) or _SWITCH.match(head.text)
        below = paste.line(head.number + 1) if name is not None and head.number < len(paste) else None
        match = None if below is None else _LINK_STATES.match(below.text)
        if name is not None and below is not None and match is not None:
            is_switch = name.re is _SWITCH
            states.append(
                LinkStates((head, below), host_of(head), is_switch, whole(name[1]), match[1].replace(" ", ""))
            )
    return tuple(states)


def read_link_counters(paste: Paste) -> tuple[NvlinkCounter, ...]:
    """Read the output of ``dcgmi nvlink -e``."""
    counters = []
    done = 0
    for head in paste.find("NVLINK Error Counts"):
        if head.number <= done:
            continue
        gpu = link = None
        for number in range(head.number + 1, min(head.number + _MOST_ROWS, len(paste)) + 1):
            line, done = paste.line(number), number
            if (match := _COUNTED_GPU.match(line.text)) is not None:
                gpu = whole(match[1])
            elif (match := _COUNTED_LINK.match(line.text)) is not None:
                link = whole(match[1])
            elif (match := _COUNTER.match(line.text)) is not None and gpu is not None and link is not None:
                counters.append(NvlinkCounter(line, host_of(line), gpu, link, match[1], whole(match[2])))
            elif line.text[:1] not in ("|", "+"):
                break
    return tuple(counters)


def read_health_reports(paste: Paste) -> tuple[HealthReport, ...]:
    """Read the output of ``dcgmi health -c``: the result for all GPUs, and the rows below it."""
    reports = []
    check_number(paste, len(paste.numbers("| Overall Health")), "reports of dcgmi health", most=1_000, length=10_000)
    for line, match in paste.matches(_HEALTH, "| Overall Health"):
        lines, gpus, texts = [line.number], [], []
        for number in range(line.number + 1, min(line.number + _MOST_ROWS, len(paste)) + 1):
            row = _ROW.match(paste.line(number).text)
            if row is None or row["name"].strip() == "Overall Health":
                break
            lines.append(number)
            name = row["name"].strip().removeprefix("->").strip()
            gpus += [whole(name)] if name.isdecimal() else []
            texts.append(f"{name} {row['text'].strip()}".strip())
        reports.append(HealthReport(tuple(lines), match["health"].strip(), tuple(gpus), " ".join(texts)))
    return tuple(reports)


def diagnostic_frame(tests: tuple[DiagnosticTest, ...]) -> pd.DataFrame:
    """Return the results of tests as a table."""
    return frame_of(tests, "host", "category", "test", "status", "gpus", "messages")


def _table(paste: Paste) -> Iterator[DiagnosticTest]:
    """Read the rows below the heads of sections. A row without a name continues the one above it."""
    done = 0
    for start in paste.numbers(*_SECTIONS, *_RESULTS):
        text = paste.line(start).text
        section = _SECTION.search(text)
        row = _ROW.match(text) if section is None else None  # the head of the section may be missing
        if start <= done or (
            section[1] == "Metadata" if section else row is None or not _STATUS.match(row["text"].rstrip())
        ):
            continue
        category = section[1] if section is not None else ""
        rows: _Rows | None = None
        for number in range(start + (section is not None), min(start + _MOST_ROWS, len(paste)) + 1):
            line = paste.line(number)
            match = _ROW.match(line.text)
            if match is None:
                break
            done = number
            name, text = match["name"].strip(), match["text"].rstrip()
            message = _MESSAGE.match(name)
            if message is not None or not name:
                if rows is None:
                    rows = _Rows(category, category or "a test", host_of(line))
                _continue(rows, message, text)
            else:
                yield from rows.tests() if rows is not None else ()
                status = _STATUS.match(text)
                rows = _Rows(category, name, host_of(line))
                if status is not None:
                    rows.results.append((status["status"], _numbers(status["gpus"])))
            rows.lines.append(number)
        yield from rows.tests() if rows is not None else ()


def _continue(rows: _Rows, message: re.Match[str] | None, text: str) -> None:
    """Add a row that belongs to the test above it: another status, the start of a message, or the rest of one."""
    if message is not None:
        rows.kind = message["kind"]
        rows.messages += [] if rows.kind == "Info" else [text.ljust(_WIDTH - 1)]
        if rows.kind != "Info":
            rows.message_gpus |= {whole(number) for number in (message["gpu"], *_GPU.findall(text)) if number}
    elif (status := _STATUS.match(text)) is not None:
        rows.results.append((status["status"], _numbers(status["gpus"])))
    elif (entity := _ENTITY.match(text)) is not None:
        rows.results.append((entity["status"], (whole(entity["id"]),) if entity["kind"] == "GPU" else ()))
    elif rows.messages and rows.kind != "Info":
        rows.messages[-1] += text.ljust(_WIDTH - 1)
        rows.message_gpus |= {whole(number) for number in _GPU.findall(rows.messages[-1])}


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(whole(word) for word in re.findall(r"\d+", text or ""))


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json_tests(paste: Paste) -> Iterator[DiagnosticTest]:
    """Read the JSON of versions 2 to 4, whose results name a GPU in several ways."""
    if not paste.may_contain('"test_categories"'):
        return
    check_number(paste, len(paste.numbers('"test_categories"')), "documents of DCGM", most=1_000, length=10_000)
    for lines, root in json_objects(paste, _JSON):
        body = mapping_or_empty(root.get("DCGM Diagnostic") or root.get("DCGM GPU Diagnostic"))
        for category in objects_in(body.get("test_categories")):
            for test in objects_in(category.get("tests")):
                names = str(category.get("category", "")), str(test.get("name", ""))
                for status, (gpus, messages) in _json_results(test).items():
                    yield DiagnosticTest(lines, None, *names, status, tuple(gpus), tuple(dict.fromkeys(messages)))


def _json_results(test: Mapping[str, Any]) -> dict[str, tuple[list[int], list[str]]]:
    """Return the GPUs and the messages of a test by its status."""
    results: dict[str, tuple[list[int], list[str]]] = {}
    items = objects_in(test.get("results"))
    summary = mapping_or_empty(test.get("test_summary"))
    if summary and str(summary.get("status", "")).title() not in {str(i.get("status", "")).title() for i in items}:
        items = [*items, summary]
    for item in items:
        gpus, messages = results.setdefault(str(item.get("status", "")).title(), ([], []))
        if item.get("entity_group", "GPU") == "GPU":
            gpus += _numbers(str(item.get("gpu_ids", item.get("gpu_id", item.get("entity_id", "")))))
        warnings = item.get("warnings", item.get("warning", ()))
        for warning in [warnings] if isinstance(warnings, str) else warnings if isinstance(warnings, list) else ():
            text = warning if isinstance(warning, str) else mapping_or_empty(warning).get("warning", "")
            messages += [str(text)] if text else []
    return results


# -- formats -----------------------------------------------------------------------------------------------------------


def _see_diagnostics(paste: Paste) -> Seen:
    tests = paste.once(read_diagnostics)
    worst: dict[str, str] = {}
    for status in ("Pass", "Skip", "Warn", "Fail"):
        worst |= {test.test: status for test in tests if test.status == status}
    results = list(worst.values())
    counts = ", ".join(f"{results.count(word)} {word.lower()}" for word in dict.fromkeys(results))
    facts = {"diagnostic": f"{len(worst)} test{'s' * (len(worst) != 1)}: {counts}"} if tests else {}
    frames = {"diagnostics": lambda: diagnostic_frame(tests)} if tests else {}
    return Seen(MappingProxyType(facts), MappingProxyType(frames))


def _find_diagnostics(paste: Paste) -> list[int]:
    numbers = [number for test in paste.once(read_diagnostics) for number in _span(test.lines)]
    return [*numbers, *(k for k in paste.numbers(*_SECTIONS) if _SECTION.search(paste.line(k).text))]


def _span(lines: tuple[int, ...]) -> range:
    return range(lines[0], lines[-1] + 1) if lines else range(0)


def _see_links(paste: Paste) -> Seen:
    gpus = [item for item in paste.once(read_link_states) if not item.is_switch]
    facts = {f"NVLinks of GPU{item.id}": f"{item.states.count('U')} of {len(item.states)} up" for item in gpus[:16]}
    return Seen(MappingProxyType(facts))


DCGM_FORMATS: tuple[TextFormat, ...] = (
    TextFormat("dcgmi diag", _find_diagnostics, _see_diagnostics, "the output of dcgmi diag, also as JSON"),
    TextFormat(
        "dcgmi nvlink",
        lambda paste: [
            *(line.number for item in paste.once(read_link_states) for line in item.lines),
            *(item.line.number for item in paste.once(read_link_counters)),
        ],
        _see_links,
        "the output of dcgmi nvlink -s or -e",
    ),
    TextFormat(
        "dcgmi health",
        lambda paste: [number for report in paste.once(read_health_reports) for number in report.lines],
        lambda paste: Seen(MappingProxyType({"health": ", ".join(r.health for r in paste.once(read_health_reports))})),
        "the output of dcgmi health -c",
    ),
)
