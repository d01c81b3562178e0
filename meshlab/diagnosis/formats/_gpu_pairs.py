"""What test programs measured between pairs of GPUs: nvbandwidth, and samples of CUDA.

The rows and columns of their matrices are numbers of GPUs, except that a row named CPU is the memory of the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from meshlab.base._documents import mapping_or_empty, objects_in
from meshlab.base._numerals import whole
from meshlab.diagnosis._paste import Paste, PasteLine, check_matches, check_number
from meshlab.diagnosis._seen import Seen, TextFormat
from meshlab.diagnosis.formats._json_objects import json_objects

if TYPE_CHECKING:
    import pandas as pd

NVBANDWIDTH = "nvbandwidth"
P2P_TEST = "p2pBandwidthLatencyTest"
SIMPLE_P2P = "simpleP2P"
DEVICE_QUERY = "deviceQuery"

_DESCRIPTION = re.compile(
    r"(?:memcpy (?:CE|SM|TMA|local)|multicast|memory latency|Device to Device Latency)\b.*\((?:GB/s|ns)\)"
    r"|Bisect benchmarking, .* BW"
)
_DESCRIPTIONS = ("memcpy ", "multicast ", "memory latency", "Device to Device Latency", "Bisect benchmarking")
_ENDS = re.compile(r"(?P<row>GPU|CPU|All Gpus|All)(?:\(row\))?\s*(?P<arrow><->|->|<-)\s*(?P<column>GPU|All Gpus)")
_RUNNING = re.compile(r"Running (?:benchmark )?(\w+)\.\s*$")
_SUM = re.compile(r"SUM (\w+) ")
_TITLE = re.compile(
    r"(?:(?P<direction>Unidirectional|Bidirectional) )?P2P=(?P<p2p>Enabled|Disabled) (?P<what>Bandwidth|Latency)"
    r"(?: \(P2P (?P<access>Writes|Reads)\))? Matrix \((?P<unit>GB/s|us)\)"
)
_TITLES = ("P2P=Enabled", "P2P=Disabled")
_HEAD = re.compile(r"\s*+(?P<corner>D\\D|GPU|CPU)?\s*+(?P<columns>\d{1,4}(?:\s++\d{1,4})*+)\s*+$")
_ROW = re.compile(
    r"\s*(?P<row>\d{1,4})\s+(?P<values>(?:N/A|-?nan|-?inf|\d+(?:\.\d+)?)(?:\s+(?:N/A|-?nan|-?inf|\d+(?:\.\d+)?))*)\s*$"
)
_CAN = re.compile(r"Device=(\d+) (CAN|CANNOT) Access Peer Device=(\d+)")
_ACCESS = re.compile(r"Peer access from [^()]{1,80}\(GPU(\d+)\) -> [^()]{1,80}\(GPU(\d+)\) *: *(Yes|No)")
_DEVICE = re.compile(
    r"(?:Device:? (?P<gpu>\d+)(?::|,)|Process +(?P<process>\d+) \([^()]{1,80}\): device \d+:) "
    r"(?P<name>\S.{0,80}?)(?:, pciBusID:| \([0-9a-f]{8}:[0-9a-f]{2}:[0-9a-f]{2}\)\s*+$)"
)
_PEER_NAME = re.compile(r"Peer access from (\S.{0,80}?) \(GPU(\d+)\) ->")
_WRONG = ("Invalid value when checking the pattern", "Verification error @ element")
_JSON = re.compile(r'\{\s*"nvbandwidth"\s*:')
_MOST_JSON = 16 << 20
_MOST_ROWS = 1024
_MOST_COPIES = 1_000  # they all mean the same


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """One matrix of a test program: a value for each pair of a row and a column, None where there is none."""

    lines: tuple[int, ...]
    tool: str
    test: str  # such as device_to_device_memcpy_read_ce, or P2P Writes
    what: str  # bandwidth, latency, or CPU latency
    direction: str  # unidirectional, bidirectional, or empty
    p2p: bool | None
    rows: tuple[int | None, ...]  # numbers of GPUs, None for the memory of the host
    columns: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]
    from_rows: bool = True  # the data goes from the row to the column

    @property
    def unit(self) -> str:
        """The unit of the values."""
        return "GB/s" if self.what == "bandwidth" else "us"

    def pairs(self) -> Iterator[tuple[int | None, int | None, float]]:
        """Iterate over the source, the destination and the value of each pair."""
        for row, values in zip(self.rows, self.values, strict=True):
            for column, value in zip(self.columns, values, strict=False):
                # Versions of nvbandwidth before 0.5 print 0.00 for a GPU with itself.
                if value is not None and not (value == 0 and row == column):
                    yield (row, column, value) if self.from_rows else (column, row, value)


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """Whether a GPU can access the memory of another, as CUDA reports it to a test program."""

    line: PasteLine
    gpu: int
    peer: int
    allowed: bool


@dataclass(frozen=True, slots=True)
class WrongCopy:
    """A copy that returned wrong data."""

    line: PasteLine
    tool: str
    test: str


def read_pair_matrices(paste: Paste) -> tuple[PairMatrix, ...]:
    """Read all matrices of bandwidths and latencies, in the order of the text."""
    for pattern, literals in ((_DESCRIPTION, _DESCRIPTIONS), (_TITLE, _TITLES)):
        check_matches(paste, pattern, literals, "matrices of bandwidths", most=5_000, length=5_000)
    matrices = [*_described(paste), *_titled(paste), *_json_matrices(paste)]
    return tuple(sorted(matrices, key=lambda matrix: matrix.lines[:1]))


def read_peer_access(paste: Paste) -> tuple[PeerAccess, ...]:
    """Read which GPUs can access which others: lines with CAN and CANNOT, the connectivity matrix, and simpleP2P."""
    lines = len(paste.numbers("Access Peer Device=", "Peer access from ", "P2P Connectivity Matrix"))
    check_number(paste, lines, "pairs of GPUs", most=20_000, length=2_000, hint="pass fewer hosts")
    access = [
        PeerAccess(line, whole(match[1]), whole(match[3]), match[2] == "CAN")
        for line, match in paste.matches(_CAN, "Access Peer Device=")
    ]
    access += [
        PeerAccess(line, whole(match[1]), whole(match[2]), match[3] == "Yes")
        for line, match in paste.matches(_ACCESS, "Peer access from ")
    ]
    if access:
        return tuple(access)
    for title in paste.find("P2P Connectivity Matrix"):
        columns, rows, _ = _block(paste, title.number)
        for line, row, values in rows:
            for column, value in zip(columns, values, strict=False):
                if row != column and value in (0.0, 1.0):
                    access.append(PeerAccess(line, row, column, value == 1.0))
    return tuple(access)


def read_test_devices(paste: Paste) -> Mapping[int, str]:
    """Return the products that a test program lists, by the number of the GPU."""
    matches = paste.matches(_DEVICE, "Device ", "Device: ", ": device ")
    devices = {whole(match["gpu"] or match["process"]): match["name"] for _, match in matches}
    peers = {whole(match[2]): match[1] for _, match in paste.matches(_PEER_NAME, "Peer access from ")}
    return MappingProxyType(peers | devices)


def read_wrong_copies(paste: Paste) -> tuple[WrongCopy, ...]:
    """Find the messages of nvbandwidth and simpleP2P about data that differ from what was written."""
    copies = []
    for line in paste.find(*_WRONG)[:_MOST_COPIES]:
        is_simple = _WRONG[1] in line.raw
        test = "" if is_simple else _name_before(paste, line.number)
        copies.append(WrongCopy(line, SIMPLE_P2P if is_simple else NVBANDWIDTH, test))
    return tuple(copies)


def pair_frame(matrices: Sequence[PairMatrix]) -> pd.DataFrame:
    """Return all values as a table. A missing GPU is the memory of the host, or all GPUs together."""
    import pandas as pd

    columns = ("tool", "test", "what", "direction", "p2p", "source_gpu", "destination_gpu", "value", "unit")
    rows = [
        (m.tool, m.test, m.what, m.direction, m.p2p, source, destination, value, m.unit)
        for m in matrices
        for source, destination, value in m.pairs()
    ]
    frame = pd.DataFrame(rows, columns=list(columns))
    kinds = {"p2p": "boolean", "source_gpu": "Int64", "destination_gpu": "Int64", "value": "float64"}
    return frame.astype(kinds)


# -- text --------------------------------------------------------------------------------------------------------------


def _described(paste: Paste) -> Iterator[PairMatrix]:
    """Read the matrices of nvbandwidth, each below a line that describes it."""
    for line, match in paste.matches(_DESCRIPTION, *_DESCRIPTIONS):
        columns, rows, _ = _block(paste, line.number)
        if not rows:
            continue
        test = _name_before(paste, line.number) or _name_after(paste, rows[-1][0].number)
        numbers = (line.number, *(row.number for row, _, _ in rows))
        yield _nvbandwidth_matrix(numbers, test, match[0], [row for _, row, _ in rows], columns, [v for *_, v in rows])


def _nvbandwidth_matrix(
    lines: tuple[int, ...],
    test: str,
    description: str,
    rows: Sequence[int],
    columns: Sequence[int],
    values: Sequence[Sequence[float | None]],
) -> PairMatrix:
    """Return a matrix of nvbandwidth. Its description contains what the rows are and where the data goes."""
    ends = _ENDS.search(description)
    is_latency = "atency" in description
    arrow = "" if ends is None else ends["arrow"]
    is_gpu = ends is not None and ends["row"] == "GPU"
    scale = 1e-3 if is_latency else 1.0  # latencies are in ns
    return PairMatrix(
        lines,
        NVBANDWIDTH,
        test or description,
        "latency" if is_latency else "bandwidth",
        {"<->": "bidirectional", "": ""}.get(arrow, "unidirectional"),
        None,
        tuple(row if is_gpu else None for row in rows),
        tuple(columns),
        tuple(tuple(None if value is None else value * scale for value in row) for row in values),
        arrow != "<-",
    )


def _titled(paste: Paste) -> Iterator[PairMatrix]:
    """Read the matrices of p2pBandwidthLatencyTest. A latency has one of the GPU and one of the CPU."""
    for line, match in paste.matches(_TITLE, *_TITLES):
        start = line.number
        for _ in range(1 if match["what"] == "Bandwidth" else 2):
            columns, rows, corner = _block(paste, start)
            if not rows:
                break
            start = rows[-1][0].number
            is_cpu = corner == "CPU"
            yield PairMatrix(
                (line.number, *(row.number for row, _, _ in rows)),
                P2P_TEST,
                f"P2P {match['access']}" if match["access"] else f"P2P {match['p2p'].lower()}",
                "bandwidth" if match["what"] == "Bandwidth" else "CPU latency" if is_cpu else "latency",
                (match["direction"] or "").lower(),
                match["p2p"] == "Enabled",
                tuple(row for _, row, _ in rows),
                tuple(columns),
                tuple(tuple(values) for *_, values in rows),
                match["access"] != "Reads",
            )


def _block(paste: Paste, title: int) -> tuple[list[int], list[tuple[PasteLine, int, list[float | None]]], str]:
    """Return the numbers of the columns and the rows below a title, and the word in the corner."""
    head, number = None, title
    while head is None and number < min(title + 2, len(paste)):
        number += 1
        head = _HEAD.match(paste.line(number).text)
    if head is None:
        return [], [], ""
    columns = [whole(word) for word in head["columns"].split()]
    rows = []
    for k in range(number + 1, min(number + _MOST_ROWS, len(paste)) + 1):
        line = paste.line(k)
        if (match := _ROW.match(line.text)) is None:
            break
        rows.append((line, whole(match["row"]), [_value(word) for word in match["values"].split()][: len(columns)]))
    return columns, rows, head["corner"] or ""


def _value(word: object) -> float | None:
    """Return a finite number, or None for N/A and for what is not a number."""
    try:
        value = float(str(word))
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _name_before(paste: Paste, number: int) -> str:
    near = (paste.line(k) for k in range(number - 1, max(0, number - 8), -1))
    return next((match[1] for line in near if (match := _RUNNING.search(line.text))), "")


def _name_after(paste: Paste, number: int) -> str:
    near = (paste.line(k) for k in range(number + 1, min(number + 3, len(paste)) + 1))
    return next((match[1] for line in near if (match := _SUM.search(line.text))), "")


# -- JSON --------------------------------------------------------------------------------------------------------------


def _documents(paste: Paste) -> tuple[tuple[tuple[int, int], Mapping[str, Any]], ...]:
    """Return the first and the last line of each JSON document of nvbandwidth, with its content."""
    if not paste.may_contain('"nvbandwidth"') or len(paste.text) > _MOST_JSON:
        return ()
    check_number(paste, len(paste.numbers('"testcases"')), "documents of nvbandwidth", most=1_000, length=10_000)
    return tuple((lines, mapping_or_empty(root.get(NVBANDWIDTH))) for lines, root in json_objects(paste, _JSON))


def _json_matrices(paste: Paste) -> Iterator[PairMatrix]:
    for lines, document in paste.once(_documents):
        for case in objects_in(document.get("testcases")):
            rows = case.get("bandwidth_matrix")
            if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
                continue
            values = [[_value(word) for word in row] for row in rows[:_MOST_ROWS]]
            name, description = str(case.get("name", "")), str(case.get("bandwidth_description", ""))
            columns = range(max(map(len, values), default=0))
            yield _nvbandwidth_matrix(lines, name, description, range(len(values)), columns, values)


def read_failed_cases(paste: Paste) -> tuple[tuple[int, str, str], ...]:
    """Return the line, the name and the error of the cases of nvbandwidth's JSON that failed."""
    return tuple(
        (first, str(case.get("name", "")), str(case.get("error", "")))
        for (first, _), document in paste.once(_documents)
        for case in objects_in(document.get("testcases"))
        if case.get("status") == "Error"
    )


# -- formats -----------------------------------------------------------------------------------------------------------


def _see(paste: Paste, *tools: str) -> Seen:
    matrices = [matrix for matrix in paste.once(read_pair_matrices) if matrix.tool in tools]
    facts: dict[str, str] = {}
    if devices := read_test_devices(paste):
        names = list(devices.values())
        facts["GPUs"] = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    for matrix in matrices[:8]:
        values = [value for source, destination, value in matrix.pairs() if source != destination]
        if values:
            low, high = min(values), max(values)
            span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
            direction = f"{matrix.direction} " if matrix.direction else ""
            facts.setdefault(f"{direction}{matrix.what}, {matrix.test}", f"{span} {matrix.unit}")
    frames = {"gpu_pairs": lambda: pair_frame(matrices)} if matrices else {}
    return Seen(MappingProxyType(facts), MappingProxyType(frames))


def _find_nvbandwidth(paste: Paste) -> list[int]:
    matrices = paste.once(read_pair_matrices)
    numbers = [k for matrix in matrices if matrix.tool == NVBANDWIDTH for k in matrix.lines]
    numbers += paste.numbers("nvbandwidth Version:", _WRONG[0])
    for (first, last), _ in paste.once(_documents):
        numbers += range(first, last + 1)
    return numbers


def _find_p2p_test(paste: Paste) -> list[int]:
    matrices = paste.once(read_pair_matrices)
    numbers = [k for matrix in matrices if matrix.tool == P2P_TEST for k in matrix.lines]
    numbers += [item.line.number for item in paste.once(read_peer_access) if "Peer access from" not in item.line.raw]
    return [*numbers, *paste.numbers("[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]")]


def _find_simple_p2p(paste: Paste) -> list[int]:
    """Return the lines of simpleP2P, or none: deviceQuery prints some of them too."""
    certain = paste.numbers(_WRONG[1], "Enabling peer access between GPU", "simpleP2P")
    return [*certain, *_access_lines(paste)] if certain else []


def _find_device_query(paste: Paste) -> list[int]:
    return [] if _find_simple_p2p(paste) else [*_access_lines(paste), *paste.numbers("deviceQuery, CUDA Driver =")]


def _access_lines(paste: Paste) -> list[int]:
    return [line.number for line, _ in paste.matches(_ACCESS, "Peer access from ")]


PAIR_FORMATS: tuple[TextFormat, ...] = (
    TextFormat(
        NVBANDWIDTH,
        _find_nvbandwidth,
        lambda paste: _see(paste, NVBANDWIDTH),
        "the output of nvbandwidth, also as JSON",
    ),
    TextFormat(P2P_TEST, _find_p2p_test, lambda paste: _see(paste, P2P_TEST), "the output of p2pBandwidthLatencyTest"),
    TextFormat(SIMPLE_P2P, _find_simple_p2p, lambda paste: _see(paste, SIMPLE_P2P), "the output of simpleP2P"),
    TextFormat(DEVICE_QUERY, _find_device_query, lambda paste: _see(paste, DEVICE_QUERY), "the output of deviceQuery"),
)
