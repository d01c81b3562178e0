"""The hosts of these tests are separate from each other and from this machine, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.hosts.conftest import require
from tests.hosts.network import ROOT, Host, Hosts, end_tree, wait_until
from tests.hosts.slurm import Slurm

pytestmark = pytest.mark.full


def _ping(host: Host, address: str) -> bool:
    return host.run(["bash", "-c", f"timeout 1 bash -c '</dev/tcp/{address}/9'"]).stderr.find("refused") >= 0


def test_hosts_have_their_own_names_folders_and_processes_and_share_one_folder(hosts: Hosts) -> None:
    (hosts.shared / "note").write_text("shared")
    for name, host in hosts.items():
        assert host.run(["hostname"], check=True).stdout.strip() == name
        assert host.run(["cat", "note"], check=True).stdout == "shared"
        for folder in ("/tmp", "/dev/shm"):
            host.run(["touch", f"{folder}/file-of-{name}"], check=True)
            files = host.run(["ls", folder], check=True).stdout.split()
            assert [file for file in files if file.startswith("file-of-")] == [f"file-of-{name}"]
            assert not Path(folder, f"file-of-{name}").exists()
        assert not host.processes("pytest")
        assert host.python("import meshlab; print(meshlab.__file__)", check=True).stdout.startswith(str(ROOT))
        assert host.run(["ls", "/sys/class/net"], check=True).stdout.split() == ["eth0", "lo"]


def test_a_link_can_go_down_and_up_again(hosts: Hosts) -> None:
    assert _ping(hosts["h1"], hosts["h2"].address)
    hosts["h2"].set_link("down")
    assert not _ping(hosts["h1"], hosts["h2"].address)
    assert _ping(hosts["h1"], hosts["h3"].address)
    hosts["h2"].set_link("up")
    wait_until(lambda: _ping(hosts["h1"], hosts["h2"].address), 10)


def test_two_sets_of_hosts_do_not_see_each_other(hosts: Hosts, make_hosts: Callable[..., Hosts]) -> None:
    others = make_hosts("login", "h1")
    assert others.shared != hosts.shared
    assert others["h1"].address == hosts["h1"].address
    hosts["h1"].run(["touch", "/tmp/only-here"], check=True)
    assert others["h1"].run(["test", "-e", "/tmp/only-here"]).returncode == 1


def test_nothing_is_left_when_the_process_that_built_the_hosts_is_killed(tmp_path: Path) -> None:
    require()
    code = f"""
import sys, time
from pathlib import Path
from tests.hosts.network import Hosts
hosts = Hosts(["a", "b"], Path({str(tmp_path / "set")!r})).__enter__()
hosts["a"].start(["sleep", "98765"])
print(hosts["a"].namespace.pid, flush=True)
time.sleep(600)
"""
    builder = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert builder.stdout is not None
    first = psutil.Process(int(builder.stdout.readline()))
    descendants = psutil.Process(builder.pid).children(recursive=True)
    assert any("98765" in process.cmdline() for process in descendants)
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    wait_until(lambda: not first.is_running() and not any(process.is_running() for process in descendants), 10)


def test_a_command_that_takes_too_long_is_ended_on_its_host(hosts: Hosts) -> None:
    process = hosts["h1"].start(["sleep", "54321"])
    wait_until(lambda: len(hosts["h1"].processes("54321")) == 1)
    end_tree(process)
    assert not hosts["h1"].processes("54321")


def test_every_host_reaches_the_others_by_ssh(ssh: Hosts) -> None:
    output = ssh["login"].run(["ssh", "h2", "hostname"], check=True).stdout
    assert output == "h2\n"


def test_slurm_runs_tasks_on_two_hosts(hosts: Hosts, slurm: Slurm) -> None:
    output = hosts["login"].run(["srun", "-N2", "-n4", "hostname"], check=True).stdout
    assert sorted(output.split()) == ["h1", "h1", "h2", "h2"]
    wait_until(lambda: not slurm.jobs())  # a job that has ended is completed a moment later
