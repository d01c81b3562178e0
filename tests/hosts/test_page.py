"""Every block of docs/cluster.md runs, on hosts with the names that it uses."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest

from tests.hosts.conftest import require
from tests.hosts.network import ROOT, Hosts, wait_until
from tests.hosts.slurm import PROGRAMS, Slurm
from tests.hosts.sshd import start_sshd

_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_every_block_of_the_page_about_clusters_runs(make_hosts: Callable[..., Hosts]) -> None:
    require(*PROGRAMS)
    hosts = make_hosts("login", "node01", "node02")
    slurm = Slurm(hosts)
    slurm.start()
    start_sshd(hosts)
    home = hosts.shared / "home"
    home.mkdir()
    outputs = []
    for language, code in _BLOCK.findall((ROOT / "docs" / "cluster.md").read_text()):
        command = (
            [sys.executable, "-W", "error::UserWarning", "-c", code]
            if language == "python"
            else ["bash", "-eu", "-c", code]
        )
        done = hosts["login"].run(command, env={"HOME": str(home)}, cwd=home, timeout_s=180)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        outputs.append(done.stdout)
    text = "\n".join(outputs)
    assert text.count("[(0, 'node01'), (1, 'node01'), (2, 'node02'), (3, 'node02')]") == 3, text
    assert text.count("4 ranks on 2 hosts") >= 2, text
    assert "[4.0, 4.0, 4.0, 4.0]" in text
    wait_until(lambda: not slurm.jobs(), 40)
    assert not list((home / ".cache" / "meshlab").iterdir())
