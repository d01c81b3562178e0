"""LoadMonitor: the load of every host that has ranks, and of its GPUs."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any

from meshlab.base._errors import EngineError
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease
from meshlab.engines._sampler import Sampler

_PERIOD_S = 1.0


class LoadMonitor:
    """The latest readings of the hosts of some engines, or of this host, until it is closed."""

    # On each host, a process with the lowest priority reads the driver and the processors once per second. The process
    # of this host is read directly. Those of other hosts are read through a rank: while the ranks are idle, or between
    # two tasks of a run, never while they measure.

    def __init__(self, engines: Engines | None = None, *, this_host: str | None = None) -> None:
        self._engines = engines
        host = socket.gethostname() if this_host is None else this_host
        hosts = {} if engines is None else {info.host: info.rank for info in reversed(engines.ranks)}
        self._here = Sampler(_PERIOD_S) if not hosts or host in hosts else None
        self._remote = sorted(rank for name, rank in hosts.items() if name != host)
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked_at = 0.0
        self._is_closed = threading.Event()
        if engines is not None and self._remote:
            engines.between_tasks = self._ask

    def read(self) -> list[dict[str, Any]]:
        """Return the latest reading of each host that has one, with the keys of `meshlab.engines._sampler.main`."""
        if self._is_closed.is_set():
            return []
        if self._here is not None and not self._here.is_running:
            self._here.close()
            self._here = Sampler(_PERIOD_S)
        if self._engines is not None and self._remote:
            # A task that holds the ranks queries them itself, between two of its steps.
            with suppress(EngineError), Lease(self._engines, "reading the load", is_query=True) as lease:
                self._ask(lease)
        here = None if self._here is None else self._here.latest()
        return [*([] if here is None else [here]), *self._answers.values()]

    def pause(self) -> None:
        """Stop the process of this host until the next `read`."""
        if self._here is not None and self._here.is_running:
            self._here.close()

    def _ask(self, lease: Lease) -> None:
        """Read the other hosts through the holder of the ranks, at most once per period."""
        if self._is_closed.is_set() or time.monotonic() - self._asked_at < _PERIOD_S:
            return
        self._asked_at = time.monotonic()
        for reply in lease.on_ranks("read_load", self._remote, True):
            if reply.value is not None:
                self._answers[reply.rank] = reply.value

    def close(self) -> None:
        """Stop all readings. A second call has no effect."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        if self._here is not None:
            self._here.close()
        engines = self._engines
        if engines is None or not self._remote:
            return
        engines.between_tasks = None
        # If the ranks are busy or gone, their samplers end with them.
        with suppress(EngineError), Lease(engines, "stopping the readings", is_query=True) as lease:
            lease.on_ranks("read_load", self._remote, False)
