"""Engines that are objects of one process: they register with a controller and answer, but nothing runs on them.

A controller and its client cannot distinguish them from processes, so they show what many ranks cost a client, on a
machine that cannot start so many. `python -m tests.engines.stub_engines FILE N` connects N engines to a controller.
"""

from __future__ import annotations

import json
import pickle
import platform
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import zmq
from ipyparallel.serialize import serialize_object, unpack_apply_message
from jupyter_client.session import Session

from meshlab.base._version import __version__
from meshlab.comm._compositions import with_compositions
from meshlab.comm.backends._threads import ThreadWorld
from meshlab.engines._positions import Position, Positions
from meshlab.engines._rank_plan import EngineFacts
from meshlab.engines._rounds import RankInfo, RankSet, Reply

RANKS_PER_HOST = 8


class StubRank:
    """A rank whose groups have the members that its client expects, and whose functions run alone."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._groups: dict[str, tuple[int, ...]] = {}

    def info(self) -> RankInfo:
        """Describe a rank of threads."""
        host = f"h{self.rank // RANKS_PER_HOST}"
        return RankInfo(self.rank, self.size, host, 1000 + self.rank, 1, "3.12", "0", _capabilities())

    def facts(self) -> EngineFacts:
        """Return the facts that let the client choose MPI."""
        place = self.rank, self.size
        return EngineFacts(self.info().host, self.info().pid, platform.python_version(), __version__, launch=place)

    def answer(self, method: str, arguments: Sequence[Any]) -> Reply:
        """Answer the call of a method of `meshlab.engines._worker.Worker`."""
        value = None
        if method == "split":
            name, groups, *_ = arguments
            self._groups[name] = groups.of(self.rank).ranks
        elif method == "run":
            names, task = arguments
            function, values = _unpickled(task) if isinstance(task, bytes) else task
            value = self._value(function, self._groups[names[0]], values)
        return Reply(self.rank, value)

    def _value(self, function: Any, group: tuple[int, ...], values: Sequence[Any]) -> Any:
        if function.__name__ == "_members_and_sum":
            return list(group), sum(group) + len(group)
        return function(self, *values)


class StubSet(RankSet):
    """Ranks that answer in the thread of their client, so that nothing is measured but the client."""

    is_attached = True

    def __init__(self, size: int) -> None:
        self.size, self.backend = size, "threads"
        self._ranks = [StubRank(rank, size) for rank in range(size)]
        self._positions = Positions(size)

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        return tuple(rank.info() for rank in self._ranks)

    def submit(
        self, ranks: Sequence[int], method: str, arguments: Sequence[tuple[Any, ...]]
    ) -> Sequence[Future[Reply]]:
        futures = [Future[Reply]() for _ in ranks]
        for rank, values, future in zip(ranks, arguments, futures, strict=True):
            future.set_result(self._ranks[rank].answer(method, values))
        return futures

    def positions(self) -> list[Position]:
        return self._positions.read()


@cache
def _capabilities() -> Any:
    world = ThreadWorld(1)
    return with_compositions(world.backend(0).capabilities())


@cache
def _unpickled(task: bytes) -> Any:
    return pickle.loads(task)


class StubEngine:
    """The sockets of an engine."""

    def __init__(self, rank: StubRank, addresses: dict[str, Any], session: Session, context: zmq.Context[Any]) -> None:
        self.rank = rank
        self._addresses, self._session, self._context = addresses, session, context
        self._name = uuid.uuid4().hex.encode()
        self._keys = zmq.curve_keypair() if addresses.get("curve_serverkey") else None

    def register(self) -> None:
        """Register with the hub, and connect to its schedulers."""
        hub = self.connect(zmq.DEALER, "registration")
        self._session.send(hub, "registration_request", content={"uuid": self._name.decode()})
        _, message = self._session.recv(hub, mode=0)
        number = message["content"]["id"]
        leaves = self._addresses["broadcast"]
        self.shell = self.connect(zmq.ROUTER, "mux", "task", leaves[number % len(leaves)])
        self.heart = self.connect(zmq.DEALER, "hb_pong")

    def connect(self, kind: int, *ports: Any) -> zmq.Socket[Any]:
        """Return a socket that is connected to ports of the controller."""
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.setsockopt(zmq.SUBSCRIBE if kind == zmq.SUB else zmq.IDENTITY, b"" if kind == zmq.SUB else self._name)
        if self._keys is not None:
            socket.curve_publickey, socket.curve_secretkey = self._keys
            socket.curve_serverkey = self._addresses["curve_serverkey"].encode()
        for port in ports:
            socket.connect(f"{self._addresses['interface']}:{self._addresses.get(port, port)}")
        return socket

    def answer(self) -> None:
        """Answer all requests that have arrived."""
        while self.shell.get(zmq.EVENTS) & zmq.POLLIN:
            senders, parts = self._session.feed_identities(self.shell.recv_multipart())
            request = self._session.deserialize(parts)
            function, arguments, _ = unpack_apply_message(request["buffers"], copy=False)
            answers = {"open_worker": self.rank.info, "read_engine_facts": self.rank.facts}
            own = answers.get(function.__name__)
            value = self.rank.answer(*arguments) if own is None else own()
            asked = request["metadata"]
            metadata = {
                "engine": self._name.decode(),
                "status": "ok",
                "is_broadcast": asked.get("is_broadcast", False),
                "is_coalescing": asked.get("is_coalescing", False),
                "original_msg_id": asked.get("original_msg_id", ""),
            }
            buffers = serialize_object(value)
            self._session.send(
                self.shell, "apply_reply", {"status": "ok"}, request, senders, buffers=buffers, metadata=metadata
            )


def serve(file: Path, size: int) -> None:
    """Connect engines to a controller, and answer for them until the process is stopped."""
    addresses = json.loads(file.read_text())
    session = Session(
        key=addresses["key"].encode(),
        signature_scheme=addresses["signature_scheme"],
        packer=addresses["pack"],
        unpacker=addresses["unpack"],
    )
    session.check_pid = False
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 8 * size + 64)
    engines = [StubEngine(StubRank(rank, size), addresses, session, context) for rank in range(size)]
    pings = engines[0].connect(zmq.SUB, "hb_ping")
    poller = zmq.Poller()
    poller.register(pings, zmq.POLLIN)
    by_socket = {}
    waiting = list(engines)
    while True:
        if waiting:
            engine = waiting.pop(0)
            engine.register()
            by_socket[engine.shell] = engine
            poller.register(engine.shell, zmq.POLLIN)
        for socket, _ in poller.poll(0 if waiting else None):
            if socket is pings:
                ping = pings.recv_multipart()
                for engine in by_socket.values():
                    engine.heart.send_multipart(ping)
            else:
                by_socket[socket].answer()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
