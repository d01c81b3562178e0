"""Lines over which rank 0 of an MPI launcher asks ranks of other hosts for their positions, also while they are busy.

MPI cannot carry these questions: a rank that is blocked in a call of MPI would answer only after it, and a second
thread in MPI would disturb the measured calls. So each rank of another host connects to rank 0, and a thread waits for
questions in the kernel, without using the processor.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence

import psutil

from meshlab.base._documents import parse_own_json
from meshlab.engines._positions import Position
from meshlab.engines._worker import Worker

_CONNECT_S = 3.0  # time to connect to one address of rank 0
_ANSWER_S = 3.0  # time that ranks get to answer
_LARGEST = 1 << 20  # bytes of an answer
_QUESTION = b"?"
_HEADER = struct.Struct("<II")  # of an introduction: the rank; of an answer: zero; and the length of what follows


class PositionLines:
    """The lines on rank 0."""

    def __init__(self, size: int) -> None:
        self._server = socket.create_server(("", 0), backlog=size)  # all of them may connect before `accept`
        self._token = secrets.token_bytes(32)
        self._lines: dict[int, socket.socket] = {}

    @property
    def invitation(self) -> tuple[list[str], int, bytes]:
        """The arguments with which `connect` reaches this process."""
        families = [address for addresses in psutil.net_if_addrs().values() for address in addresses]
        addresses = [address.address for address in families if address.family == socket.AF_INET]
        return [address for address in addresses if not address.startswith("127.")], self.port, self._token

    @property
    def port(self) -> int:
        """The port on which rank 0 waits for the others."""
        return int(self._server.getsockname()[1])

    def accept(self, n: int) -> None:
        """Accept the lines of `n` ranks, which have connected already, and no further ones."""
        self._server.settimeout(_CONNECT_S)
        with contextlib.suppress(OSError):
            while len(self._lines) < n:
                line, _ = self._server.accept()
                line.settimeout(_CONNECT_S)
                with contextlib.suppress(OSError, EOFError):
                    rank, token = _receive(line)
                    if hmac.compare_digest(token, self._token):
                        self._lines[rank] = line
                        continue
                line.close()
        self._server.close()

    def ask(self) -> dict[int, Position | None]:
        """Return the positions of the ranks with a line in their current task. None for those that do not answer."""
        answers: dict[int, Position | None] = dict.fromkeys(self._lines)
        deadline = time.monotonic() + _ANSWER_S
        with selectors.DefaultSelector() as selector:
            for rank, line in self._lines.items():
                with contextlib.suppress(OSError):
                    line.sendall(_QUESTION)
                    selector.register(line, selectors.EVENT_READ, rank)
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    selector.unregister(key.fileobj)
                    with contextlib.suppress(OSError, EOFError, ValueError, TypeError, KeyError):
                        _, answer = _receive(self._lines[key.data])
                        answers[key.data] = Position.of_document(parse_own_json(answer.decode()))
        return answers

    def close(self) -> None:
        """Close the lines, which ends the threads of the other ranks."""
        for line in (self._server, *self._lines.values()):
            line.close()


def connect(invitation: tuple[Sequence[str], int, bytes], worker: Worker) -> bool:
    """Connect this rank to rank 0, and answer its questions in a thread. Return False if that is impossible."""
    addresses, port, token = invitation
    for address in addresses:
        with contextlib.suppress(OSError):
            line = socket.create_connection((address, port), timeout=_CONNECT_S)
            line.settimeout(None)
            line.sendall(_HEADER.pack(worker.rank, len(token)) + token)
            threading.Thread(target=_answer, args=(line, worker), name="meshlab position", daemon=True).start()
            return True
    return False


def _answer(line: socket.socket, worker: Worker) -> None:
    with line, contextlib.suppress(OSError):
        while line.recv(1):
            answer = json.dumps(worker.position().to_document()).encode()
            line.sendall(_HEADER.pack(0, len(answer)) + answer)


def _receive(line: socket.socket) -> tuple[int, bytes]:
    """Return the number and the content of a message."""
    number, length = _HEADER.unpack(_exactly(line, _HEADER.size))
    if length > _LARGEST:
        raise EOFError
    return number, _exactly(line, length)


def _exactly(line: socket.socket, n: int) -> bytes:
    parts: list[bytes] = []
    while n:
        part = line.recv(n)
        if not part:
            raise EOFError
        parts.append(part)
        n -= len(part)
    return b"".join(parts)
