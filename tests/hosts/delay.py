"""A forwarder on the bridge that delays what a host sends, for kernels without netem.

`python tests/hosts/delay.py PORT MILLISECONDS` in the namespace of the bridge forwards every packet of a port late, in
order, until it is terminated. It writes "ready" when it does.
"""

from __future__ import annotations

import collections
import contextlib
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

_ALL_PACKETS = 3  # ETH_P_ALL
_SOL_PACKET = 263
_ADD_MEMBERSHIP, _VNET_HEADER = 1, 15
_PROMISCUOUS = 1
_OUTGOING = 4
_BUFFER = 1 << 24
_LARGEST = 70_000
_AT_ONCE = 64


def ip(arguments: str) -> None:
    subprocess.run(["ip", "link", *arguments.split()], check=True)


def opened(interface: str) -> socket.socket:
    """Return a socket that receives every packet of an interface."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PACKETS))
    end.bind((interface, 0))
    end.setblocking(False)
    membership = struct.pack("IHH8s", socket.if_nametoindex(interface), _PROMISCUOUS, 0, b"")
    end.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
    # Packets between hosts of one kernel have no checksum yet, and may be larger than the MTU. A header before each
    # packet, which is sent with it, states that.
    end.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    return end


def forward(host: socket.socket, bridge: socket.socket, delay_s: float) -> None:
    """Forward packets between a host and the bridge: those of the host late."""
    waiting: collections.deque[tuple[float, bytes]] = collections.deque()
    while True:
        patience_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select([host, bridge], [], [], patience_s)[0]:
            for packet in _received(end):
                if end is host:
                    waiting.append((time.monotonic() + delay_s, packet))
                else:
                    _send(host, packet)
        while waiting and waiting[0][0] <= time.monotonic():
            _send(bridge, waiting.popleft()[1])


def _received(end: socket.socket) -> list[bytes]:
    packets = []
    with contextlib.suppress(BlockingIOError):
        for _ in range(_AT_ONCE):
            packet, address = end.recvfrom(_LARGEST)
            if address[2] != _OUTGOING:
                packets.append(packet)
    return packets


def _send(end: socket.socket, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # as a link that loses a packet
        end.send(packet)


def main(port: str, milliseconds: str) -> None:
    ip("add delay0 type veth peer name delay1")
    try:
        for change in ("delay0 up", "delay1 up", f"{port} nomaster", "delay1 master br0"):
            ip(f"set {change}")
        host, bridge = opened(port), opened("delay0")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        forward(host, bridge, float(milliseconds) / 1e3)
    finally:
        ip("del delay0")
        ip(f"set {port} master br0")


def _end(*_: Any) -> None:
    sys.exit()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    main(*sys.argv[1:])
