"""The device list of an nccl-tests log: one line per rank, read when someone looks at it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, overload

__all__ = ["DEVICE_LINE", "Device", "DeviceLines"]

DEVICE_LINE = re.compile(r"Rank +(\d+) +(?:Group +(\d+) +)?Pid +(\d+) on +(\S+) device +(\d+) \[([^\]]*)\] *(.*)")
"""What the tool prints for a rank; `Group` came with 2.13.4."""


class Device(NamedTuple):
    """One line of the device list."""

    rank: int
    group: int | None
    pid: int
    host: str
    device: int
    bus_id: str
    name: str


class DeviceLines(Sequence[Device]):
    """Lines of the list, read one by one on demand: a log of a big machine has hundreds of thousands of them.

    Examples
    --------
    >>> DeviceLines(["Rank  0 Group  0 Pid   1000 on     node00 device  0 [0x53] NVIDIA H100"])[0].bus_id
    '0x53'
    """

    __slots__ = ("_lines",)

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = tuple(lines)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Device: ...
    @overload
    def __getitem__(self, index: slice) -> DeviceLines: ...
    def __getitem__(self, index: int | slice) -> Device | DeviceLines:
        if isinstance(index, slice):
            return DeviceLines(self._lines[index])
        match = DEVICE_LINE.search(self._lines[index])
        if match is None:
            raise IndexError(f"line {index} of the device list has no device")
        rank, group, pid, host, device, bus_id, name = match.groups()
        return Device(int(rank), int(group) if group else None, int(pid), host, int(device), bus_id, name.strip())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceLines) and self._lines == other._lines

    def __hash__(self) -> int:
        return hash(self._lines)

    def __repr__(self) -> str:
        return f"<DeviceLines: {len(self)} devices>"
