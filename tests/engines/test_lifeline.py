"""Processes of a run end even if no process is left to stop them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from meshlab.engines._reaper import marked_processes
from tests.engines.test_reaper import CLIENT, PATIENCE_S, leftovers, wait_until_nothing_is_left


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("hub_too", [False, pytest.param(True, marks=pytest.mark.long)])
def test_nothing_is_left_if_client_and_reaper_are_killed_together(hub_too: bool) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT + "time.sleep(600)"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with client:
        assert client.stdout is not None
        run = json.loads(client.stdout.readline())
        assert leftovers(run)
        (hub,) = (
            process.pid
            for process in marked_processes("MESHLAB_RUN", run["id"])
            if process.ppid() == client.pid and "ipyparallel.controller" in process.cmdline()
        )
        os.kill(run["reaper"], signal.SIGKILL)
        client.kill()
        if hub_too:  # then a rank starts the new reaper
            os.kill(hub, signal.SIGKILL)
        client.wait(PATIENCE_S)
        wait_until_nothing_is_left(run)
