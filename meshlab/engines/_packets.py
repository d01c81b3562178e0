"""Whether packets of full size arrive at another host, found with datagrams that nothing on the path may divide.

TCP is no probe for it: it adapts to some paths, and a path of one machine carries its segments in larger pieces.
"""

from __future__ import annotations

import errno
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

MTU_FIX = "set the same MTU on all hosts, and on the switches at least that"

# The port of traceroute, which no program opens: the kernel of the host refuses a datagram that arrives.
_CLOSED_PORT = 33434
_HEADERS = 28  # bytes of IP and UDP
_SMALL = 100  # bytes that every path carries
_LARGEST = 1 << 16
_WAITS_S = (0.1, 0.3, 0.6)  # for an answer to each datagram of the same size
_N_SIZES = 8  # that are tried at the same time
_IP_MTU_DISCOVER, _DO, _IP_MTU = 10, 2, 14  # linux/in.h, which Python does not have


def lost_size(address: str, port: int = _CLOSED_PORT, limit: int = _LARGEST) -> int:
    """Return the size of full packets, of at most `limit` bytes, if only smaller ones arrive, or else 0."""
    if sys.platform != "linux":
        return 0
    try:
        with _datagrams(address, port) as line:
            size = min(line.getsockopt(socket.IPPROTO_IP, _IP_MTU), limit)
        for _ in range(2):  # a kernel limits how often it refuses
            if _arrives(address, port, size) or not _arrives(address, port, _SMALL):
                return 0
    except OSError:  # the name is unknown, or there is no route
        return 0
    return size


def largest_size(address: str, port: int, size: int) -> int:
    """Return the size of the largest packet below `size` that arrives at a port that answers every datagram."""
    low, high = _SMALL, size
    with ThreadPoolExecutor(_N_SIZES) as pool:
        while high - low > 1:
            sizes = range(low + 1, high, max(1, (high - low) // _N_SIZES))
            for candidate, arrives in zip(sizes, pool.map(partial(_arrives, address, port), sizes), strict=True):
                if arrives:
                    low = max(low, candidate)
                elif candidate > low:
                    high = min(high, candidate)
    return low


def loss_text(host: str) -> str:
    """Return that packets of full size do not arrive at a host, or an empty string."""
    size = lost_size(host)
    return f"packets of {size} bytes do not arrive, although smaller ones do" if size else ""


def answer_datagrams(line: socket.socket) -> None:
    """Answer each datagram with one byte, until the socket is closed."""
    while True:
        try:
            _, sender = line.recvfrom(_LARGEST)
            line.sendto(b"k", sender)
        except OSError:
            return


def _datagrams(address: str, port: int) -> socket.socket:
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        line.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _DO)
        line.connect((address, port))
    except OSError:
        line.close()
        raise
    return line


def _arrives(address: str, port: int, size: int) -> bool:
    """Return whether a packet of `size` bytes arrives, or the network announces its limit, to which TCP adapts."""
    with _datagrams(address, port) as line:
        for wait_s in _WAITS_S:
            line.settimeout(wait_s)
            try:
                line.send(bytes(size - _HEADERS))
                return bool(line.recv(1))
            except TimeoutError:
                continue
            except OSError as error:
                return error.errno in (errno.ECONNREFUSED, errno.EMSGSIZE)
    return False
