"""The connections of the client to ranks on other hosts, and the number of files that they take."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from meshlab.engines._host_links import HostLinks
from meshlab.engines._lifeline import REAPER, command
from meshlab.engines._reaper import started_at

ROOT = Path(__file__).parents[2]


@pytest.fixture
def low_limit() -> Iterator[int]:
    """A process that may open a few more files than it has now, and could raise its limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = psutil.Process().num_fds() + 50
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, limits[1]))
    yield lower
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_more_ranks_than_open_files_are_watched(low_limit: int) -> None:
    links = HostLinks("127.0.0.1")
    connections = [socket.create_connection(links.address) for _ in range(low_limit)]
    try:
        for number, connection in enumerate(connections):
            connection.sendall(f"{links.token} host {number}".encode())
            connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 30
        while len(links.losses()) < low_limit and time.monotonic() < deadline:
            time.sleep(0.01)
        assert {loss.pid for loss in links.losses()} == set(range(low_limit))
    finally:
        for connection in connections:
            connection.close()
        links.close()


def test_the_controller_may_open_as_many_files_as_the_host_allows(low_limit: int, tmp_path: Path) -> None:
    (tmp_path / "limits.py").write_text("import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))")
    client = psutil.Process().pid
    reaper = json.dumps(["true", str(tmp_path), str(client), repr(started_at(client))])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", REAPER: reaper}
    output = subprocess.run(command("controller", "limits"), env=environment, check=True, capture_output=True).stdout
    soft, hard = map(int, output.split())
    assert soft == min(hard, 1 << 16) > low_limit
