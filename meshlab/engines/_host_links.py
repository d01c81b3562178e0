"""Connections between the client and the ranks on other hosts, by which each side notices the end of the other.

A reaper can only end the processes of its own host. The kernel closes these connections however the client ends, and
the ranks then end themselves. If a host drops, no packet arrives, and both sides notice it by the probes of TCP.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
import selectors
import signal
import socket
import threading
from typing import NamedTuple

import psutil

from meshlab.engines._reaper import remove_files, shared_memory_files

LINK = "MESHLAB_LINK"
"""The environment variable with the path of the file that has the address of the client and a token."""

_CLIENT_PROBES = (1, 1, 3)  # seconds of silence, seconds between probes, and unanswered probes until a host is gone
_RANK_PROBES = (5, 5, 3)
_HELLO_S = 5.0  # time that a connection gets to identify itself
_LONGEST_HELLO = 1024
_MOST_FILES = 1 << 16  # more connections than hosts have; some programs close every number up to their limit


def allow_connections() -> None:
    """Let this process and its children have as many connections as the host allows it, and not the usual 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit than the one that it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Loss(NamedTuple):
    """A rank process whose connection has ended."""

    host: str
    pid: int
    is_silent: bool
    """True if its host did not answer any more, False if the process has ended."""


class HostLinks:
    """The client's end of all connections. It listens on one address until `close`."""

    def __init__(self, address: str) -> None:
        allow_connections()
        self._listener = socket.create_server((address, 0), backlog=1024)
        self.token = secrets.token_hex(16)
        self._losses: list[Loss] = []
        self._is_closed = threading.Event()
        self._waker, self._wakened = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="meshlab links to hosts", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The address and the port on which it listens."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def losses(self) -> list[Loss]:
        """Return the connections that have ended, in that order."""
        return list(self._losses)

    def close(self) -> None:
        """Close all connections, so that the ranks end themselves."""
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._waker.send(b"x")
            self._thread.join(5.0)
            for end in (self._waker, self._wakened, self._listener):
                end.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wakened, selectors.EVENT_READ)
            peers: dict[socket.socket, tuple[str, int] | None] = {}
            while not self._is_closed.is_set():
                for key, _ in selector.select():
                    end = key.fileobj
                    if end is self._listener:
                        with contextlib.suppress(OSError):
                            connection, _ = self._listener.accept()
                            _set_probes(connection, _CLIENT_PROBES)
                            connection.settimeout(_HELLO_S)
                            peers[connection] = None
                            selector.register(connection, selectors.EVENT_READ)
                    elif isinstance(end, socket.socket) and end in peers:
                        peers[end] = self._receive(end, peers[end])
                        if peers[end] is None:
                            selector.unregister(end)
                            del peers[end]
                            end.close()
            for connection in peers:
                connection.close()

    def _receive(self, connection: socket.socket, peer: tuple[str, int] | None) -> tuple[str, int] | None:
        """Return the host and the process of a connection, or None if it has ended or is not one of a rank."""
        failure: OSError | None = None
        data = b""
        try:
            data = connection.recv(_LONGEST_HELLO)
        except OSError as error:
            failure = error
        if peer is None:  # the first message, which is shorter than a packet
            with contextlib.suppress(ValueError):
                token, host, pid = data.decode().split()
                if secrets.compare_digest(token.encode(), self.token.encode()):
                    return host, int(pid)
            return None
        if not data:
            silent = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
            self._losses.append(Loss(*peer, failure is not None and failure.errno in silent))
            return None
        return peer


def hold_link(address: str, port: int, token: str) -> None:
    """Connect this process to the client, and end it when the connection ends."""
    connection = socket.create_connection((address, port), timeout=10.0)
    _set_probes(connection, _RANK_PROBES)
    connection.settimeout(None)
    connection.sendall(f"{token} {socket.gethostname()} {os.getpid()}".encode())
    threading.Thread(target=_end_with, args=(connection,), name="meshlab link to the client", daemon=True).start()


def _end_with(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.recv(1)  # the client sends nothing
    remove_files(shared_memory_files(os.getpid()))
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _set_probes(connection: socket.socket, probes: tuple[int, int, int]) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    for name, value in zip(names, probes, strict=True):
        if hasattr(socket, name):  # macOS has another name for the first one
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
