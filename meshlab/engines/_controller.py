"""The controller of engines on this host: a hub and its schedulers, and the client that is connected to them.

Functions of ipyparallel wait for messages without a limit, or with other limits than the caller. So they run in
threads, which are abandoned when the time is over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from meshlab.base._documents import read_own_json
from meshlab.base._errors import EngineError
from meshlab.base._hints import MORE_TIME
from meshlab.engines._lifeline import command
from meshlab.engines._parts import Parts
from meshlab.engines._processes import LOOPBACK, client_exit, ignore_late_replies, make_cluster
from meshlab.engines._rounds import RankExit

_TICK_S = 0.02
_CLOSE_S = 1.0  # maximum time to close the sockets of the client
_NAME = "the controller of the engines"
_PORT_IN_USE = f"ZMQError: {os.strerror(errno.EADDRINUSE)}"

T = TypeVar("T")


def bounded(
    function: Callable[[], T],
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
    threads: list[threading.Thread] | None = None,
) -> T:
    """Call a function in a thread, which is added to `threads`. Abandon it after a time, or if `check` raises."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=call, name="meshlab bounded call", daemon=True)
    if threads is not None:
        threads.append(thread)
    thread.start()
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        with contextlib.suppress(TimeoutError):
            return future.result(max(0.0, min(left, 10 * _TICK_S)))
        if future.done():  # the function itself raised a TimeoutError, or has just returned
            return future.result()
        if left <= 0:
            raise TimeoutError
        check()


class Controller:
    """A controller and the client that is connected to it. Its files and those of the client are in `folder`."""

    def __init__(
        self, folder: Path, name: str, launcher: str, environment: Mapping[str, str], address: str = LOOPBACK
    ) -> None:
        profile = folder / "profile"
        profile.mkdir(mode=0o700, parents=True)
        self._folder = folder
        self._cluster = make_cluster(profile, name, launcher, address)
        self._environment = dict(environment)
        self._parts = Parts()
        self._threads: list[threading.Thread] = []
        self.client: Any = None
        """The client. None before `connect`."""

    def start(self, deadline: float, check: Callable[[], None]) -> None:
        """Start the processes, until a time of the monotonic clock."""
        try:
            bounded(
                lambda: self._cluster.start_controller_sync(
                    environment=self._environment, controller_cmd=command("controller", "ipyparallel.controller")
                ),
                deadline - time.monotonic(),
                check,
                self._threads,
            )
        except TimeoutError as error:
            raise self._start_error("did not start in time", hint=MORE_TIME) from error
        except (OSError, RuntimeError) as error:
            raise self._start_error("did not start") from error
        self._parts.add(_NAME, self._cluster.controller.process)

    @property
    def addresses(self) -> Path:
        """The file with the addresses for the engines. The controller writes it when it has started."""
        return Path(self._cluster.controller.connection_files["engine"])

    def connect(self, deadline: float, check: Callable[[], None]) -> Any:
        """Wait for the files with the addresses, connect the client, and return it."""
        files = [Path(path) for path in self._cluster.controller.connection_files.values()]
        while not all(map(_is_complete, files)):
            self._check("did not start", deadline)
            check()
            time.sleep(_TICK_S)

        def wait() -> None:
            check()
            self._check("did not answer", deadline)

        left = max(0.1, deadline - time.monotonic())
        try:
            self.client = bounded(
                lambda: self._cluster.connect_client_sync(ipython_dir=str(self._folder / "ipython"), timeout=left),
                left,
                wait,
                self._threads,
            )
        except (OSError, RuntimeError) as error:
            wait()
            raise self._start_error("did not answer in time", hint=MORE_TIME) from error
        ignore_late_replies(self.client)
        # The hub answers when it has started its schedulers.
        for process in self._cluster.controller.process.children(recursive=True):
            self._parts.add(_NAME, process)
        return self.client

    def start_engines(self, n: int, name: str, deadline: float, check: Callable[[], None], **options: Any) -> Any:
        """Start a set of engines, and return its launcher."""
        self._cluster.engines.clear()  # the sets of earlier starts have ended
        bounded(
            lambda: self._cluster.start_engines_sync(n, engine_set_id=name, **options),
            max(0.1, deadline - time.monotonic()),
            check,
            self._threads,
        )
        return self._cluster.engines[name]

    def _check(self, failure: str, deadline: float) -> None:
        lost = self.lost()
        if lost is not None:
            raise self._start_error(f"{failure}: it {lost.verb}{lost.how}")
        if time.monotonic() > deadline:
            raise self._start_error(f"{failure} in time", hint=MORE_TIME)

    def _start_error(self, failure: str, *, hint: str = "start the engines again") -> EngineError:
        return EngineError(f"{_NAME} {failure}", hint=hint, log=self.log_tail())

    def log_tail(self) -> str:
        """Return the last lines that its processes printed."""
        return "\n".join(self._log().splitlines()[-12:])

    def _log(self) -> str:
        # Not with `get_output` while the file exists, because the launcher reads it only once.
        controller = self._cluster.controller
        file = None if controller is None else Path(controller.output_file)
        if file is not None and file.is_file():
            return file.read_text(errors="replace")
        return "" if controller is None else str(controller.get_output())

    def start_problem(self) -> str:
        """Return why the engines cannot start with it. An empty string if they can."""
        lost = self.lost()
        if lost is not None:
            return lost.text
        return f"another process bound a port that {_NAME} had selected" if self._has_lost_port() else ""

    def has_failed(self) -> bool:
        """Return whether a process of the controller has exited by itself, or could not bind a port."""
        lost = self._parts.lost(0.0)
        return self._has_lost_port() if lost is None else lost.how.startswith("exited")

    def _has_lost_port(self) -> bool:
        # The processes that relay messages do not exit if they cannot bind a port, but relay nothing.
        return _PORT_IN_USE in self._log()

    def lost(self, *, at_once: bool = False) -> RankExit | None:
        """Return the process that has ended or is stopped, or the closed client. With `at_once`, without patience."""
        closed = None if self.client is None else client_exit(self.client)
        return closed or (self._parts.lost(0.0) if at_once else self._parts.lost())

    def answers(self, timeout_s: float) -> bool:
        """Return whether the hub responds to the client."""

        def ask() -> None:
            with contextlib.suppress(Exception):  # an error is an answer
                self.client.hub_history()

        try:
            bounded(ask, timeout_s)
        except TimeoutError:
            return False
        return True

    def end_threads(self, timeout_s: float) -> bool:
        """Wait for calls that were abandoned, and return whether there were any. They may still create files."""
        abandoned = [thread for thread in self._threads if thread.is_alive()]
        deadline = time.monotonic() + timeout_s
        for thread in abandoned:
            thread.join(max(0.0, deadline - time.monotonic()))
        return bool(abandoned)

    def close(self) -> None:
        """Close the client. The processes are left to the caller."""
        client, self.client = self.client, None
        self._parts.clear()
        if client is not None:
            with contextlib.suppress(Exception):
                bounded(lambda: client.close(linger=0), _CLOSE_S)


def _is_complete(path: Path) -> bool:
    try:
        read_own_json(path)
    except (OSError, ValueError):
        return False
    return True
