"""Output of ``nvidia-smi``: the table of GPUs, ``nvlink``, ``topo``, and ``-q`` about memory and the fabric."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshlab.base._numerals import whole
from meshlab.diagnosis._paste import Paste, PasteLine, check_number
from meshlab.diagnosis._seen import frame_of
from meshlab.diagnosis.formats._kernel_log import host_of, short_bus

if TYPE_CHECKING:
    import pandas as pd

_GPU = re.compile(r"^\s*GPU (\d+): (\S+(?:\s+\S+)*?)(?: \(UUID: [^)]*\))?\s*$")
_GPU_SIGN = re.compile(r"GPU \d+: ")
_LINK = re.compile(r"^\s*Link (\d+): (?:<?(inactive)>?|(\d+(?:\.\d+)?) GB/s)\s*$", re.IGNORECASE)
_COUNTER = re.compile(r"^\s*Link (\d+): ([A-Za-z][\w ]*?Errors): (\d+)\s*$")
_ALL_INACTIVE = re.compile(r"all links are inactive", re.IGNORECASE)
_ROW = re.compile(
    r"^\|\s+(\d+)\s+(\S+(?: \S+)*?)\s+(?:On|Off|N/A)\s*\|\s*"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+\w+\s*\|\s*(\S+)"
)
_QUERY_GPU = re.compile(r"^\s*GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_QUERY_VALUE = re.compile(r"^(\s*)([A-Za-z][\w()/.-]*(?: [\w()/.-]+)*)\s+: (.*\S|)\s*$")
_QUERY_SECTION = re.compile(r"^(\s+)([A-Za-z][\w()/.-]*(?: [\w()/.-]+)*)\s*$")
_MATRIX_ROW = re.compile(
    r"^[\s|]*(?:GPU\d+|NIC\d+|mlx\d\w*)(?:[\s|]+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|OK|[CGT]?NS|DR|U)(?=[\s|]|$))+"
)
_FIRST_CELLS = re.compile(r"(?:GPU\d+|NIC\d+|mlx\d\w*)[\s|]+(?:X|NV\d|P|NODE|S|OK|[CGT]?NS|DR|U)")
_SECTIONS = ("Fabric", "ECC Errors", "Remapped Rows", "Retired Pages")
_MOST_LINES = 400  # of one GPU


@dataclass(frozen=True, slots=True)
class NvlinkState:
    """One NVLink of a GPU. `gbs` is None if the link is inactive, and `link` is None if all links are."""

    line: PasteLine
    host: str | None
    gpu: int
    product: str
    link: int | None
    gbs: float | None


@dataclass(frozen=True, slots=True)
class NvlinkCounter:
    """A counter of errors of one NVLink."""

    line: PasteLine
    host: str | None
    gpu: int
    link: int
    counter: str
    count: int


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU in the table of ``nvidia-smi``. `ecc` is the number of uncorrectable errors, None if the GPU has no ECC."""

    line: PasteLine
    host: str | None
    gpu: int
    product: str
    bus_id: str
    ecc: int | None


@dataclass(frozen=True, slots=True)
class QueriedValue:
    """A value of ``nvidia-smi -q``, with the sections that contain it, outermost first."""

    line: PasteLine
    host: str | None
    bus_id: str | None
    product: str | None
    sections: tuple[str, ...]
    name: str
    value: str


def read_nvlinks(paste: Paste) -> tuple[NvlinkState, ...]:
    """Read the output of ``nvidia-smi nvlink -s``."""
    states = []
    for gpu, product, line in paste.once(_links):
        if (match := _LINK.match(line.text)) is not None:
            gbs = None if match[2] else float(match[3])
            states.append(NvlinkState(line, host_of(line), gpu, product, whole(match[1]), gbs))
        elif _ALL_INACTIVE.search(line.text):
            states.append(NvlinkState(line, host_of(line), gpu, product, None, None))
    return tuple(states)


def read_nvlink_counters(paste: Paste) -> tuple[NvlinkCounter, ...]:
    """Read the output of ``nvidia-smi nvlink -e``."""
    return tuple(
        NvlinkCounter(line, host_of(line), gpu, whole(match[1]), match[2], whole(match[3]))
        for gpu, _, line in paste.once(_links)
        if (match := _COUNTER.match(line.text)) is not None
    )


def read_gpu_rows(paste: Paste) -> tuple[GpuRow, ...]:
    """Read the table that ``nvidia-smi`` prints without options."""
    return tuple(
        GpuRow(
            line,
            host_of(line),
            whole(match[1]),
            match[2],
            short_bus(match[3]) + match[3][-2:],
            whole(match[4]) if match[4].isdecimal() else None,
        )
        for line, match in paste.matches(_ROW, "| 0000")
    )


def read_queried_values(paste: Paste) -> tuple[QueriedValue, ...]:
    """Read the sections Fabric, ECC Errors and Remapped Rows of ``nvidia-smi -q``."""
    values: list[QueriedValue] = []
    done = 0
    for start in paste.numbers(*_SECTIONS):
        section = _QUERY_SECTION.match(paste.line(start).text)
        if start <= done or section is None or section[2] not in _SECTIONS:
            continue
        bus_id, product = _owner(paste, start)
        path = [(len(section[1]), section[2])]
        done = start
        for number in range(start + 1, min(len(paste), start + _MOST_LINES) + 1):
            line = paste.line(number)
            value, inner = _QUERY_VALUE.match(line.text), _QUERY_SECTION.match(line.text)
            match = value or inner
            if match is None or len(match[1]) <= len(section[1]):
                break
            done = number
            path = [entry for entry in path if entry[0] < len(match[1])]
            if value is None:
                path.append((len(match[1]), match[2]))
            else:
                names = tuple(name for _, name in path)
                values.append(QueriedValue(line, host_of(line), bus_id, product, names, value[2], value[3]))
    return tuple(values)


def matrix_numbers(paste: Paste) -> list[int]:
    """Return the numbers of the lines that are rows of ``nvidia-smi topo -m`` or ``-p2p``."""
    return paste.once(_matrix_numbers)


def _matrix_numbers(paste: Paste) -> list[int]:
    numbers: list[int] = []
    for line in paste.containing(_FIRST_CELLS, " X", "\tX", "|X"):
        if _MATRIX_ROW.search(line.text):
            numbers.append(line.number)
            check_number(
                paste, len(numbers), "rows of nvidia-smi topo", most=20_000, length=10_000, hint="pass fewer hosts"
            )
    return numbers


def link_frame(links: tuple[NvlinkState, ...]) -> pd.DataFrame:
    """Return the state of NVLinks as a table."""
    return frame_of(links, "host", "gpu", "product", "link", "gbs")


def _links(paste: Paste) -> list[tuple[int, str, PasteLine]]:
    """Return the lines about NVLinks, with the number and the product of their GPU."""
    lines: list[tuple[int, str, PasteLine]] = []
    heads = {
        line.number: match
        for line in paste.containing(_GPU_SIGN, "GPU ")
        if (match := _GPU.search(line.text)) is not None
    }
    if not heads:
        return lines
    gpu: tuple[int, str] | None = None
    for line in paste.find("GPU ", "Link ", "inactive", "inActive"):
        if (head := heads.get(line.number)) is not None:
            gpu = whole(head[1]), head[2]
        elif gpu is not None and "NCCL" not in line.raw:
            lines.append((*gpu, line))
    return lines


def _owner(paste: Paste, number: int) -> tuple[str | None, str | None]:
    """Return the bus ID and the product of the GPU that a section belongs to."""
    product = None
    for before in range(number - 1, max(0, number - _MOST_LINES), -1):
        text = paste.line(before).text
        if (head := _QUERY_GPU.match(text)) is not None:
            return short_bus(head[1]), product
        value = _QUERY_VALUE.match(text)
        if value is not None and value[2] == "Product Name":
            product = value[3]
    return None, product
