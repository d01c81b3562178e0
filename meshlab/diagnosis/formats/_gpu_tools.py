"""Output of ``nvidia-smi nvlink`` and ``nvidia-smi topo``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshlab.base._numerals import whole
from meshlab.diagnosis._paste import Paste, PasteLine, check_number
from meshlab.diagnosis._seen import frame_of
from meshlab.diagnosis.formats._kernel_log import host_of

if TYPE_CHECKING:
    import pandas as pd

_GPU = re.compile(r"^\s*GPU (\d+): (\S+(?:\s+\S+)*?)(?: \(UUID: [^)]*\))?\s*$")
_GPU_SIGN = re.compile(r"GPU \d+: ")
# Any other word than a rate, such as <inactive>, is the state of a link that is not active.
_LINK = re.compile(r"^\s*Link (\d+): (?:<?([A-Za-z]+)>?|(\d+(?:\.\d+)?) GB/s)\s*$")
_COUNTER = re.compile(r"^\s*Link (\d+): ([A-Za-z][\w ]*?Errors): (\d+)\s*$")
_ALL_INACTIVE = re.compile(r"all links are inactive", re.IGNORECASE)
_MATRIX_ROW = re.compile(
    r"^[\s|]*(?:GPU\d+|NIC\d+|mlx\d\w*)(?:[\s|]+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|OK|[CGT]?NS|DR|U)(?=[\s|]|$))+"
)
_FIRST_CELLS = re.compile(r"(?:GPU\d+|NIC\d+|mlx\d\w*)[\s|]+(?:X|NV\d|P|NODE|S|OK|[CGT]?NS|DR|U)")


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
