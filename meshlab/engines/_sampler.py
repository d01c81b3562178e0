"""A process that reads the load of a host and its GPUs at a fixed rate, next to the ranks that are measured.

It is a separate process with the lowest priority: a thread in a rank would compete for Python's lock with the loop
that times the calls. It exits as soon as its standard input is closed, which happens even if its parent is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

from meshlab.base._documents import parse_json

_PERIOD_S = 1.0


class Sampler:
    """The latest readings of this host, until it is closed."""

    def __init__(self, period_s: float = _PERIOD_S) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "meshlab.engines._sampler", str(period_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._rest = b""
        self._latest: dict[str, Any] | None = None

    def latest(self) -> dict[str, Any] | None:
        """Return the latest reading, or None before the first one. The keys are those of `read_load`."""
        with contextlib.suppress(BlockingIOError, ValueError):  # nothing new, or closed
            while data := os.read(self._output, 1 << 16):
                self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        if lines:
            self._latest = parse_json(lines[-1].decode())
        return self._latest

    @property
    def is_running(self) -> bool:
        """False if the process has ended, because it was killed or could not start."""
        return self._process.poll() is None

    def close(self) -> None:
        """Stop the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._output = -1
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:  # it waits for the driver
            self._process.kill()
            self._process.wait()


def main(period_s: float) -> None:
    """Write one line of JSON per period to standard output, until standard input is closed."""
    import psutil

    from meshlab.topology.readers._nvml import LiveReader

    with contextlib.suppress(OSError):
        os.nice(19)
    reader = LiveReader()
    psutil.cpu_percent()  # the first call only starts the interval
    while not select.select([sys.stdin], [], [], period_s)[0]:
        memory = psutil.virtual_memory()
        reading = {
            "host": socket.gethostname(),
            "at": time.time(),
            "cpu_percent": psutil.cpu_percent(),
            "cores": psutil.cpu_count() or 1,
            "load": os.getloadavg()[0],
            "memory_used_bytes": memory.total - memory.available,
            "memory_bytes": memory.total,
            "devices": reader.read(),
        }
        sys.stdout.write(json.dumps(reading) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main(float(sys.argv[1]))
