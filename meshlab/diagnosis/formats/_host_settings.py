"""Settings of a host: ``lspci``, ``lsmod``, ``ulimit``, ``df`` and ``systemctl status``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshlab.base._numerals import whole
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._kernel_log import host_of

_ACS = re.compile(r"ACSCtl:\s*((?:\w+[+-]\s*)+)")
_LSPCI = re.compile(r"^\s*((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) (\S.*)$")
_LINK = re.compile(r"(LnkCap|LnkSta):.*?Speed (\d+(?:\.\d+)?)GT/s[^,]*, Width x(\d+)")
_LIMIT = re.compile(r"(max locked memory|open files)\s+\((?:kbytes, )?-[ln]\)\s+(\d+|unlimited)")
_ULIMIT = re.compile(r"ulimit -(?:[HS])?([ln])\s*$")
_DF = re.compile(r"^(\S+)\s+(\d+(?:\.\d+)?[KMGTP]?i?)\s+\S+\s+(\d+(?:\.\d+)?[KMGTP]?i?)\s+\d+%\s+(/dev/shm)\s*$")
_SERVICE = re.compile(r"(nvidia-fabricmanager|nvidia-imex|opensmd?|openibd|nvidia-persistenced)\.service")
_JOURNAL = re.compile(
    _SERVICE.pattern + r": ((?:Control|Main) process exited, code=exited, status=[1-9]\d*|Failed with result|"
    r"Unit entered failed state)"
)
_ACTIVE = re.compile(r"^\s*Active:\s*(\w+)(?: \(([^)]*)\))?")
_UNITS = {"": 1024, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}
_MOST_LINES = 120  # of one device


@dataclass(frozen=True, slots=True)
class AccessControl:
    """The access control of a PCIe bridge: the names of the switches that are on, such as ``SrcValid``."""

    line: PasteLine
    device: str | None
    on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PcieLink:
    """The PCIe link of a device: what it has (current) and what it could have (capable)."""

    lines: tuple[PasteLine, ...]
    device: str
    description: str
    speed: float
    width: int
    most_speed: float
    most_width: int


@dataclass(frozen=True, slots=True)
class HostLimit:
    """A limit: ``memlock`` and ``shm`` in bytes, ``files`` in files. None is unlimited."""

    line: PasteLine
    host: str | None
    name: str
    value: int | None


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a service, such as ``active (running)``."""

    lines: tuple[PasteLine, ...]
    host: str | None
    name: str
    state: str
    detail: str


def read_access_control(paste: Paste) -> tuple[AccessControl, ...]:
    """Read the ACSCtl lines of ``lspci -vvv``."""
    return tuple(
        AccessControl(line, _device(paste, line)[0], tuple(re.findall(r"(?<!\w)(\w+)\+", match[1])))
        for line, match in paste.matches(_ACS, "ACSCtl:")
    )


def read_pcie_links(paste: Paste) -> tuple[PcieLink, ...]:
    """Read the speed and the width of PCIe links in the output of ``lspci -vv``."""
    capable: dict[str, tuple[PasteLine, float, int]] = {}
    links = []
    for line, match in paste.matches(_LINK, "LnkCap:", "LnkSta:"):
        device, description = _device(paste, line)
        if device is None:
            continue
        speed, width = float(match[2]), whole(match[3])
        if match[1] == "LnkCap":
            capable[device] = line, speed, width
        elif device in capable:
            first, most_speed, most_width = capable[device]
            links.append(PcieLink((first, line), device, description, speed, width, most_speed, most_width))
    return tuple(links)


def read_limits(paste: Paste) -> tuple[HostLimit, ...]:
    """Read limits: ``ulimit -a``, ``ulimit -l`` or ``-n`` with its answer, and ``df /dev/shm``."""
    limits = []
    for line, match in paste.matches(_LIMIT, "max locked memory", "open files"):
        limits.append(_limit(line, "memlock" if "memory" in match[1] else "files", match[2]))
    for line, match in paste.matches(_ULIMIT, "ulimit -"):
        answer = paste.line(line.number + 1) if line.number < len(paste) else None
        if answer is not None and re.fullmatch(r"\d+|unlimited", answer.text.strip()):
            limits.append(_limit(answer, "memlock" if match[1] == "l" else "files", answer.text.strip()))
    for line, match in paste.matches(_DF, "/dev/shm"):
        number = re.match(r"(\d+(?:\.\d+)?)([KMGTP]?)", match[2])
        if number is not None:
            size = int(float(number[1]) * _UNITS[number[2]])
            limits.append(HostLimit(line, host_of(line), "shm", size))
    return tuple(limits)


def read_services(paste: Paste) -> tuple[ServiceState, ...]:
    """Read the output of ``systemctl status``, or the lines of the journal that say that a service failed."""
    services = []
    for line, match in paste.matches(_ACTIVE, "Active:"):
        names = [
            (paste.line(number), _SERVICE.search(paste.line(number).text))
            for number in range(max(1, line.number - 6), line.number)
        ]
        if named := [(head, service) for head, service in names if service is not None]:
            head, service = named[0]
            services.append(ServiceState((head, line), host_of(head), service[1], match[1], match[2] or ""))
    if not services:
        last = {(host_of(line), match[1]): (line, match[2]) for line, match in paste.matches(_JOURNAL, ".service: ")}
        services = [ServiceState((line,), host, name, "failed", why) for (host, name), (line, why) in last.items()]
    return tuple(services)


def _limit(line: PasteLine, name: str, value: str) -> HostLimit:
    number = None if value == "unlimited" else whole(value) * (1024 if name == "memlock" else 1)
    return HostLimit(line, host_of(line), name, number)


def _device(paste: Paste, line: PasteLine) -> tuple[str | None, str]:
    """Return the address and the description of the device that a line of ``lspci -vv`` belongs to."""
    for number in range(line.number - 1, max(0, line.number - _MOST_LINES), -1):
        if (match := _LSPCI.match(paste.line(number).text)) is not None:
            return match[1], match[2]
    return None, ""
