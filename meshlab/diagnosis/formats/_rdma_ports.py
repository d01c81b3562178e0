"""State of RDMA ports: ``ibstat``, ``ibstatus``, ``ibv_devinfo``, ``rdma link`` and ``ibdev2netdev``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshlab.base._numerals import whole
from meshlab.diagnosis._paste import Paste, PasteLine, check_matches
from meshlab.diagnosis._seen import frame_of
from meshlab.diagnosis.formats._kernel_log import host_of

if TYPE_CHECKING:
    import pandas as pd

_IBSTAT = re.compile(r"^\s*CA '([\w.-]+)'")
_IBSTAT_PORT = re.compile(r"^\s*Port (\d+):\s*$")
_IBSTATUS = re.compile(r"^\s*Infiniband device '([\w.-]+)' port (\d+) status:")
_DEVINFO = re.compile(r"^\s*hca_id:\s*([\w.-]+)")
_DEVINFO_PORT = re.compile(r"^\s*port:\s*(\d+)\s*$")
_VALUE = re.compile(r"^\s*([A-Za-z]\w*(?: +\w+)*)\s*:\s*(\S(?:.*\S)?)\s*$")
_RDMA = re.compile(r"(?:^|\s)(?:\d+/\d+: |link )([\w.-]+)/(\d+):? (.*\bstate \S+.*)")
_NETDEV = re.compile(
    r"^\s*(?:[0-9a-f]{4}:[0-9a-f:.]{7} +)?(?P<device>[A-Za-z][\w.-]{0,60}) .*?\bport +(?P<port>\d+) +"
    r"(?:\((?P<state>[A-Z]+) *\) +)?<?=+> +(?P<netdev>[\w.-]+) +\((?P<link>Up|Down)\)"
)
_PORT = re.compile(r"port +\d+ .{0,20}==>")
_STATES = {"INIT": "INIT", "INITIALIZING": "INIT", "INITIALIZE": "INIT", "NOP": "DOWN"}
_MOST_LINES = 40  # of one port


@dataclass(frozen=True, slots=True)
class PortState:
    """What one tool printed about one port at one time."""

    lines: tuple[PasteLine, ...]
    host: str | None
    device: str  # name of the RDMA device, such as mlx5_0
    port: int  # number of the port, from 1
    state: str  # logical state: ACTIVE, DOWN, INIT, ARMED and so on, or UNKNOWN
    physical: str | None = None  # physical state without separators: LINKUP, POLLING, DISABLED and so on
    gbits: float | None = None  # rate in Gb/s
    lid: int | None = None  # address of the port. 0 or 65535 is none
    sm_lid: int | None = None
    guid: str | None = None
    link_layer: str | None = None  # InfiniBand or Ethernet
    netdev: str | None = None
    is_netdev_state: bool = False  # the state is that of the network interface, which is not that of the port

    @property
    def name(self) -> str:
        """The port for people, such as ``mlx5_7 port 1 of node3``."""
        return f"{self.device} port {self.port}" + (f" of {self.host}" if self.host else "")


def read_ports(paste: Paste) -> tuple[PortState, ...]:
    """Read the states of all ports in a paste, in the order of the lines."""
    states = [*_rdma_link(paste), *_blocks(paste)]
    # The state of an interface counts only if no tool shows that of its port.
    ports = {(state.host, state.device, state.port) for state in states}
    states += [item for item in _netdevs(paste) if (item.host, item.device, item.port) not in ports]
    return tuple(sorted(states, key=lambda state: state.lines[0].number))


def port_frame(ports: tuple[PortState, ...]) -> pd.DataFrame:
    """Return the states of ports as a table."""
    names = ("host", "device", "port", "state", "physical", "gbits", "lid", "sm_lid", "link_layer", "netdev")
    return frame_of(ports, *names)


def _rdma_link(paste: Paste) -> Iterator[PortState]:
    for line, match in paste.matches(_RDMA, " state "):
        words = match[3].split()
        values = dict(zip(words[::2], words[1::2], strict=False))
        if "physical_state" not in values:
            continue
        # `rdma link` prints addresses only for InfiniBand.
        layer = "InfiniBand" if "lid" in values or "sm_lid" in values else "Ethernet"
        yield PortState(
            (line,),
            host_of(line),
            match[1],
            whole(match[2]),
            _state(values["state"]),
            _plain(values["physical_state"]),
            None,
            _integer(values.get("lid")),
            _integer(values.get("sm_lid")),
            None,
            layer,
            values.get("netdev"),
        )


def _netdevs(paste: Paste) -> Iterator[PortState]:
    """Read ``ibdev2netdev``. With ``-v`` it prints the state of the port too."""
    check_matches(paste, _PORT, ("==>",), "ports of ibdev2netdev", most=20_000, length=2_000)
    for line, match in paste.matches(_NETDEV, "==>"):
        is_port = match["state"] is not None
        layer = "InfiniBand" if match["netdev"].startswith("ib") else "Ethernet"
        # Without IP over InfiniBand, the interface is down and the port may be active.
        down = "UNKNOWN" if layer == "InfiniBand" else "DOWN"
        state = _state(match["state"]) if is_port else "ACTIVE" if match["link"] == "Up" else down
        yield PortState(
            (line,),
            host_of(line),
            match["device"],
            whole(match["port"]),
            state,
            link_layer=layer,
            netdev=match["netdev"],
            is_netdev_state=not is_port,
        )


def _blocks(paste: Paste) -> Iterator[PortState]:
    """Read the tools that print one value a line below the name of the device."""
    if not (starts := paste.numbers("CA '", "Infiniband device '", "hca_id:")):
        yield from _nameless(paste)
    for index, start in enumerate(starts):
        stop = min(starts[index + 1] if index + 1 < len(starts) else len(paste) + 1, start + 4 * _MOST_LINES)
        head = paste.line(start)
        status = _IBSTATUS.match(head.text)
        name = status or _IBSTAT.match(head.text) or _DEVINFO.match(head.text)
        if name is None:
            continue
        port, lines = (whole(status[2]) if status else 0), [head]
        values: dict[str, str] = {}
        for number in range(start + 1, stop):
            line = paste.line(number)
            begins = _IBSTAT_PORT.match(line.text) or _DEVINFO_PORT.match(line.text)
            if begins is not None:
                if port and values:
                    yield from _port(head, name[1], port, lines, values)
                port, lines, values = whole(begins[1]), [line], {}
                continue
            if (value := _VALUE.match(line.text)) is None:
                if line.text.strip() and port:
                    break  # the next command
                continue
            values[value[1].strip().lower().replace("_", " ")] = value[2]
            lines.append(line)
        if port:
            yield from _port(head, name[1], port, lines, values)


def _nameless(paste: Paste) -> Iterator[PortState]:
    """Read a port of ``ibstat`` whose head is missing, because the text begins below it."""
    for state in paste.find("State:"):
        physical = paste.line(state.number + 1) if state.number < len(paste) else None
        if physical is None or not re.match(r"\s*State:", state.text) or "Physical state:" not in physical.text:
            continue
        lines, values = [], {}
        for number in range(state.number, min(len(paste), state.number + 10) + 1):
            if (value := _VALUE.match(paste.line(number).text)) is None:
                break
            values[value[1].lower()] = value[2]
            lines.append(paste.line(number))
        yield from _port(state, "unnamed device", 1, lines, values)


def _port(
    head: PasteLine, device: str, port: int, lines: list[PasteLine], values: dict[str, str]
) -> Iterator[PortState]:
    if "state" not in values:
        return
    physical = values.get("physical state") or values.get("phys state")
    rate = re.match(r"\d+(?:\.\d+)?", values.get("rate", ""))
    guid = values.get("port guid") or values.get("default gid")
    yield PortState(
        (head, *(line for line in lines if line is not head)),
        host_of(head),
        device,
        port,
        _state(values["state"]),
        None if physical is None else _plain(physical),
        None if rate is None else float(rate[0]),
        _integer(values.get("base lid") or values.get("port lid")),
        _integer(values.get("sm lid")),
        guid,
        values.get("link layer"),
    )


def _state(text: str) -> str:
    """Return the logical state: ibstatus prints ``4: ACTIVE``, and ibv_devinfo ``PORT_ACTIVE (4)``."""
    word = _plain(text).removeprefix("PORT")
    return _STATES.get(word, word)


def _plain(text: str) -> str:
    """Return a state in upper case without numbers and separators."""
    return "".join(character for character in text if character.isalpha()).upper()


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else whole(text.split()[0], 0)
    except (ValueError, IndexError):
        return None
