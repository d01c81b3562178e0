"""Nothing is left behind: no process, no shared-memory file, no folder, however the client ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshlab.engines.reaper import marked_processes

CLIENT = """
import glob, json, os, sys, time
import meshlab as ml

before = glob.glob("/tmp/hydra_hwloc_xmlfile_*")
engines = ml.launch(2, backend="mpi")
made = engines._ranks
segments = [path for fact in engines.facts for path in fact.segments]
assert segments and os.path.exists(segments[0])
facts = {"run": made._id, "leash": made._leash.pid, "folder": str(made._folder), "segments": segments}
facts["launchers"] = sorted({*glob.glob("/tmp/hydra_hwloc_xmlfile_*")} - {*before})
print(json.dumps(facts), flush=True)
engines.run(lambda comm: comm.barrier())
"""

ENDINGS: dict[str, tuple[str, Callable[[subprocess.Popen[str]], None] | None]] = {
    "a normal end with close": ("engines.close()", None),
    "a normal end without close": ("", None),
    "an error": ("raise SystemError('as if')", None),
    "os._exit": ("os._exit(3)", None),
    "Ctrl-C while idle": ("time.sleep(60)", lambda client: client.send_signal(signal.SIGINT)),
    "Ctrl-C while ranks work": (
        "engines.run(lambda comm: time.sleep(60))",
        lambda client: client.send_signal(signal.SIGINT),
    ),
    "kill -15": ("time.sleep(60)", lambda client: client.terminate()),
    "kill -9": ("time.sleep(60)", lambda client: client.kill()),
    "kill -9 while ranks work": ("engines.run(lambda comm: time.sleep(60))", lambda client: client.kill()),
    "kill -9 while a forked child lives on": (
        "os.fork() or time.sleep(5) or os._exit(0); time.sleep(60)",
        lambda client: client.kill(),
    ),
}


def leftovers(made: dict[str, Any]) -> list[str]:
    left = [f"process {process.pid}" for process in marked_processes("MESHLAB_RUN", made["run"])]
    left += [path for path in [made["folder"], *made["segments"], *made["launchers"]] if Path(path).exists()]
    try:
        os.kill(made["leash"], 0)
        if Path(f"/proc/{made['leash']}/stat").read_text().split()[2] != "Z":
            left.append("the leash")
    except (ProcessLookupError, FileNotFoundError):
        pass
    return left


def wait_until_nothing_is_left(made: dict[str, Any]) -> None:
    deadline = time.monotonic() + 2.0
    while left := leftovers(made):
        assert time.monotonic() < deadline, f"still there after 2 s: {left}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDINGS)
def test_nothing_is_left_after(name: str) -> None:
    last_line, act = ENDINGS[name]
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT + last_line],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with client:
        assert client.stdout is not None
        made = json.loads(client.stdout.readline())
        assert leftovers(made), "nothing to find: the test would prove nothing"
        if act is not None:
            time.sleep(0.4)
            act(client)
        client.wait(20)
        wait_until_nothing_is_left(made)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_nothing_is_left_after_a_kernel_is_gone(how: str) -> None:
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        printed: list[str] = []
        reply = client.execute_interactive(
            CLIENT, timeout=60, output_hook=lambda message: printed.append(message["content"].get("text", ""))
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        made = json.loads("".join(printed))
        assert leftovers(made)
        if how == "restart":
            manager.restart_kernel(now=False)
        else:
            manager.shutdown_kernel(now=True)
        wait_until_nothing_is_left(made)
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.mark.slow
def test_a_client_killed_while_engines_start_leaves_nothing(tmp_path: Path) -> None:
    code = f"import tempfile, meshlab as ml; tempfile.tempdir = {str(tmp_path)!r}; ml.launch(2)"
    client = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob("meshlab-*/deaths-*")) and not list(tmp_path.glob("meshlab-*/calls-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)
    client.kill()
    client.wait()
    deadline = time.monotonic() + 2.0
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
