"""What others on the host can do with the ports of a running set of engines."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import zmq

import meshlab as ml
from meshlab.commissioning import _doctor as doctor
from meshlab.engines import _processes as processes
from meshlab.engines._reaper import marked_processes

SECRET = "the weights are 0.25 and 0.75"


def listening(engines: ml.Engines) -> dict[tuple[str, int], set[str]]:
    """Return the addresses on which the processes of a set listen, and the names of these processes."""
    mark = psutil.Process(engines.ranks[0].pid).environ()["MESHLAB_RUN"]
    listeners: dict[tuple[str, int], set[str]] = {}
    for process in marked_processes("MESHLAB_RUN", mark):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                listeners.setdefault(tuple(connection.laddr), set()).add(process.name())
    return listeners


class Intruder:
    """A client of every port, without the key: it subscribes to everything, reads, and sends junk."""

    TYPES = (zmq.SUB, zmq.DEALER, zmq.PULL, zmq.REQ)

    def __init__(self, ports: list[int]) -> None:
        self._context = zmq.Context()
        self._sockets = [self._open(kind, port) for kind in self.TYPES for port in ports]
        self._ports = ports
        self.received: list[list[bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _open(self, kind: int, port: int) -> Any:
        opened = self._context.socket(kind)
        opened.linger = 0
        if kind == zmq.SUB:
            opened.subscribe(b"")
        opened.connect(f"tcp://127.0.0.1:{port}")
        return opened

    def _work(self) -> None:
        poller = zmq.Poller()
        for opened in self._sockets:
            poller.register(opened, zmq.POLLIN)
        for opened in self._sockets:
            if opened.type in (zmq.DEALER, zmq.REQ):
                for junk in ([b"junk"], [b"", b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", b"{}"]):
                    if opened.getsockopt(zmq.EVENTS) & zmq.POLLOUT:
                        opened.send_multipart(junk)
        for port in self._ports:
            for junk in (b"", b"junk\n" * 100, b"\xff" * 3000, b"\0" * 64):
                # The other end may close the connection before it has read everything.
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
                    raw.sendall(junk)
        while not self._stop.is_set():
            for opened, _ in poller.poll(20):
                self.received.append(opened.recv_multipart())

    def close(self) -> list[bytes]:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)
        return [b" ".join(message) for message in self.received]


@contextmanager
def intruder(ports: list[int]) -> Iterator[list[bytes]]:
    heard: list[bytes] = []
    client = Intruder(ports)
    try:
        time.sleep(0.5)  # for the connections, which nothing reports: those that are refused never become ready
        yield heard
        time.sleep(0.3)  # for what was printed last
    finally:
        heard += client.close()


def whisper(comm: Any, text: str) -> str:
    print(text)
    return f"{text} {comm.rank}"


def test_only_the_launcher_of_mpi_listens_beyond_this_host(mpi_engines: ml.Engines) -> None:
    beyond = {address: names for address, names in listening(mpi_engines).items() if not address[0].startswith("127.")}
    # The children of mpiexec inherit its socket. MPICH has no setting for the address of that socket.
    assert all(any(name.startswith("mpiexec") for name in names) for names in beyond.values())
    assert len(beyond) <= 1


def test_a_client_without_the_key_reads_nothing_and_disturbs_nothing(mpi_engines: ml.Engines) -> None:
    ports = sorted({port for _, port in listening(mpi_engines)})
    assert len(ports) > 20
    with intruder(ports) as heard:
        for _ in range(3):
            values = mpi_engines.run(whisper, arguments=(SECRET,))["value"].tolist()
            assert values == [f"{SECRET} {rank}" for rank in range(4)]
        view = mpi_engines.client[:]
        assert view.execute(f"print({SECRET!r}); x = 1", block=True) is not None
        assert view.pull("x", block=True) == [1] * 4
        assert {*range(4), "unassigned"} == set(mpi_engines.client.queue_status())
    assert heard == []
    assert mpi_engines.verify(ml.DeviceMesh("dp=2, tp=2"))["is_right"].all()


@pytest.mark.long  # it starts engines of its own
def test_without_encryption_the_engines_still_work_and_the_doctor_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "can_encrypt", lambda: False)
    with ml.launch(1, backend="mpi") as engines:
        assert not engines.client.curve_serverkey
        assert len(engines.client.session.key) >= 16  # every message is signed instead
        ports = sorted({port for address, port in listening(engines) if address == "127.0.0.1"})
        with Listener(ports) as listener:
            # Nothing reports when a subscription is known to the other end, so it may miss the first texts.
            while not listener.hears(SECRET.encode()):
                engines.run(whisper, arguments=(SECRET,))
    check = doctor._encryption()
    assert (check.verdict, "CurveZMQ" in check.text) == ("warning", True)
    assert check.fix


class Listener:
    """A subscriber to every port, which shows that the test of encrypted engines would find a leak."""

    def __init__(self, ports: list[int]) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe(b"")
        for port in ports:
            self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._deadline = time.monotonic() + 60

    def hears(self, text: bytes) -> bool:
        """Return whether a text arrives within half a second, among others that never end."""
        assert time.monotonic() < self._deadline, "nothing was heard"
        end = time.monotonic() + 0.5
        while time.monotonic() < end and self._socket.poll(500):
            if text in b" ".join(self._socket.recv_multipart()):
                return True
        return False

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)


def test_the_doctor_reports_the_encryption() -> None:
    check = doctor._encryption()
    assert (check.verdict, check.fix) == ("ok", "")
    assert "CurveZMQ" in check.text
