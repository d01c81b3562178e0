"""Lines of the kernel log about GPUs, NVSwitches and network ports: Xid, SXid, GPUs off the bus, links up and down."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from meshlab.base._numerals import whole
from meshlab.base._prefixes import find_prefix
from meshlab.diagnosis._paste import LONGEST_LINE, Paste, PasteLine, check_number
from meshlab.diagnosis._seen import frame_of

if TYPE_CHECKING:
    import pandas as pd

_BUS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_BUS}|[0-9a-fA-F:.]+(?![0-9a-fA-F:.]))[^)]*\): (\d+)(?:, ?(.*))?$")
_PROCESS = re.compile(r"pid='?(\d+)'?(?:, name=([^,]*))?")
_CAUSE = re.compile(r"caused by previous Xid (\d+)")
_LINK = re.compile(r"\b[Ll]ink (?:\(|id )?0*(-?\d+)")
_FATAL = re.compile(r"\b(non-?fatal|fatal)\b", re.IGNORECASE)
_SXID = re.compile(rf"SXid \((?:PCI:)?({_BUS})\): (\d+)(?:, ?(.*))?$")
_GPU = re.compile(rf"(?:GPU|GPU at PCI:|PCI:)\s*({_BUS})")
_PCI_ID = re.compile(r"\(PCI ID: *(10de:[0-9a-fA-F]{4})\)")
_HOST = re.compile(r"(?:^|\s)([A-Za-z0-9][\w.-]*) kernel: ")
_CHANGE = re.compile(
    r"\b(?:mlx[45]_core|bnxt_en|ice|i40e|ib_core|mlx5_ib)\b.*?\s([\w.-]+): Link (up|down)\b", re.IGNORECASE
)


# Not a dataclass, which takes three times as long to create: a host may log hundreds of thousands of them.
class Xid(NamedTuple):
    """An error that the GPU driver logged."""

    line: int
    host: str | None
    bus_id: str  # PCI bus ID of the GPU, such as 0000:1b:00
    code: int
    text: str
    pid: int | None = None
    process: str | None = None
    cause: int | None = None
    link: int | None = None
    fatal: bool | None = None


@dataclass(frozen=True, slots=True)
class SXid:
    """An error that the driver of an NVSwitch logged."""

    line: PasteLine
    host: str | None
    bus_id: str
    code: int
    text: str
    link: int | None
    fatal: bool | None


@dataclass(frozen=True, slots=True)
class BusLoss:
    """A GPU that no longer responds on PCIe, with the numbers of its lines. `bus_id` is None if they do not name it."""

    lines: tuple[int, ...]
    host: str | None
    bus_id: str | None
    pci_id: str | None
    by_xid: bool


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A network interface whose link went up or down."""

    line: PasteLine
    host: str | None
    interface: str
    up: bool


@dataclass(frozen=True, slots=True)
class KernelLog:
    """Everything that was found in a kernel log, in the order of the lines."""

    xids: tuple[Xid, ...]
    sxids: tuple[SXid, ...]
    bus_losses: tuple[BusLoss, ...]
    link_changes: tuple[LinkChange, ...]

    @property
    def numbers(self) -> list[int]:
        """Numbers of all lines."""
        numbers = [item.line for item in self.xids] + [item.line.number for item in self.sxids]
        numbers += [item.line.number for item in self.link_changes]
        numbers += [number for loss in self.bus_losses for number in loss.lines]
        return sorted(set(numbers))


def read_driver_messages(paste: Paste) -> tuple[PasteLine, ...]:
    """Return the lines of the GPU driver that are neither an Xid nor about a GPU that is off the bus."""
    literals = ("NVRM:", "nvidia: probe of ", "probe with driver nvidia failed")
    check_number(paste, len(paste.numbers(*literals)), "messages of the driver")
    others = set(paste.once(read_kernel_log).numbers)
    return tuple(
        paste.line(number)
        for number in paste.numbers(*literals)
        if number not in others and "NVRM: Xid" not in paste.raw(number)
    )


def host_of(line: PasteLine) -> str | None:
    """Return the host that a prefix or the head of a line of syslog names."""
    return _host_in(line.raw) if line.host is None else line.host


def _host_in(raw: str) -> str | None:
    start = raw[:200]
    match = _HOST.search(start) if " kernel: " in start else None
    return None if match is None or match[1].isdecimal() else match[1]


@lru_cache(4096)
def short_bus(bus_id: str) -> str:
    """Return a PCI bus ID in lower case, with four digits of the domain and without the function."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest.partition('.')[0]}"


def read_kernel_log(paste: Paste) -> KernelLog:
    """Read the lines of the kernel log in a paste."""
    for what in ("NVRM: Xid", "SXid ("):
        check_number(paste, len(paste.numbers(what)), "kernel messages of the driver")
    candidates = (_xid_at(paste, number) for number in paste.numbers("NVRM: Xid"))
    xids = [item for item in candidates if item is not None]
    sxids = [
        SXid(line, host_of(line), short_bus(match[1]), whole(match[2]), match[3] or "", *_link_facts(match[3] or ""))
        for line, match in paste.matches(_SXID, "SXid (")
    ]
    changes = [
        LinkChange(line, host_of(line), match[1], match[2].lower() == "up")
        for line, match in paste.matches(
            _CHANGE, "Link up", "Link down", "link up", "link down", "Link Up", "Link Down"
        )
    ]
    return KernelLog(tuple(xids), tuple(sxids), tuple(_bus_losses(paste, xids)), tuple(changes))


def xid_frame(log: KernelLog) -> pd.DataFrame:
    """Return the Xids as a table."""
    return frame_of(log.xids, "line", "host", "bus_id", "code", "link", "fatal", "cause", "pid", "process", "text")


def _xid_at(paste: Paste, number: int) -> Xid | None:
    """Return the Xid in a line. The line itself is not created: a host may log hundreds of thousands of them."""
    raw = paste.raw(number)[:LONGEST_LINE]
    length, _, host = find_prefix(raw)
    match = _XID.search(raw, length, len(raw.rstrip("│ ")) if raw.endswith("│") else len(raw))
    if match is None or (match[3] is None and number == len(paste)):  # the number may be cut: 7 of 79
        return None
    bus_id, code, text = match.groups("")
    # Finding a string is much faster than a pattern.
    process = _PROCESS.search(text) if "pid=" in text else None
    pid, name = (None, None) if process is None else process.groups()
    cause = _CAUSE.search(text) if "caused by" in text else None
    link, fatal = _link_facts(text)
    return Xid(
        number,
        _host_in(raw) if host is None else host,
        short_bus(bus_id),
        whole(code),
        text,
        None if pid is None else whole(pid),
        name.strip() if name else None,
        None if cause is None else whole(cause[1]),
        link,
        fatal,
    )


def _link_facts(text: str) -> tuple[int | None, bool | None]:
    """Return the number of the NVLink, and whether the error is fatal, as far as the text shows it."""
    link = _LINK.search(text) if "ink " in text else None
    fatal = _FATAL.search(text) if "fatal" in text.lower() else None
    number = None if link is None or whole(link[1]) < 0 else whole(link[1])
    return number, None if fatal is None else fatal[1].lower() == "fatal"


def _bus_losses(paste: Paste, xids: list[Xid]) -> list[BusLoss]:
    """Find GPUs off the bus. The driver prints the message in one line, in three lines, or as Xid 79."""
    lines_of: defaultdict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    by_xid: set[tuple[str | None, str | None]] = set()
    pci_ids: dict[tuple[str | None, str | None], str] = {}

    def add(lines: list[PasteLine], bus_id: str | None, pci_id: str | None) -> None:
        host = next((name for name in map(host_of, lines) if name), None)
        key = (host, bus_id)
        lines_of[key].extend(line.number for line in lines)
        if any("Xid" in line.text for line in lines):
            by_xid.add(key)
        if pci_id is not None:
            pci_ids[key] = pci_id

    with_xid = {item.line for item in xids}
    for number in paste.numbers("fallen off the bus", "lost from the bus", "GPU is lost"):
        if number in with_xid:
            continue
        line = paste.line(number)
        lines = [paste.line(near) for near in range(max(1, number - 3), number + 1)]
        gpu = _GPU.search(line.raw)
        if gpu is None and "NVRM" not in line.raw and "nvidia" not in line.raw.lower() and "GPU" not in line.raw:
            continue  # a sentence about it, not a message of the driver
        if gpu is not None:
            add([line], short_bus(gpu[1]), None)
            continue
        named = next(
            (k for k in range(len(lines) - 2, -1, -1) if "NVRM" in lines[k].raw and _GPU.search(lines[k].raw)), None
        )
        if named is None:
            if "NVRM" in line.raw:
                add([line], None, None)
            continue
        match, pci_id = _GPU.search(lines[named].raw), _PCI_ID.search(" ".join(item.raw for item in lines))
        add(lines[named:], None if match is None else short_bus(match[1]), None if pci_id is None else pci_id[1])
    for line in paste.find("Unable to determine the device handle for"):
        match = _GPU.search(line.raw)
        add([line], None if match is None else short_bus(match[1]), None)
    for item in xids:
        if item.code == 79:
            key = (item.host or None, item.bus_id)
            lines_of[key].append(item.line)
            by_xid.add(key)
    return [BusLoss(tuple(lines), *key, pci_ids.get(key), key in by_xid) for key, lines in lines_of.items()]
