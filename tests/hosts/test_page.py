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

# With the lines that a block prints, in the block that follows it.
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def _without_numbers(line: str) -> str:
    """Replace numbers that are not part of a name, because times differ from run to run."""
    return re.sub(r"(?<![\w.])\d[\d.]*", "#", line).rstrip()


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
    for language, code, shown in _BLOCK.findall((ROOT / "docs" / "cluster.md").read_text()):
        command = (
            [sys.executable, "-W", "error::UserWarning", "-c", code]
            if language == "python"
            else ["bash", "-eu", "-c", code]
        )
        done = hosts["login"].run(command, env={"HOME": str(home)}, cwd=home, timeout_s=180)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        lines = [_without_numbers(line) for line in done.stdout.splitlines()]
        missing = [line for line in shown.splitlines() if _without_numbers(line) not in lines]
        assert not missing, done.stdout
        outputs.append(done.stdout)
    text = "\n".join(outputs)
    assert text.count("[(0, 'node01'), (1, 'node01'), (2, 'node02'), (3, 'node02')]") == 3, text
    assert text.count("4 ranks on 2 hosts") >= 2, text
    assert "[4.0, 4.0, 4.0, 4.0]" in text
    wait_until(lambda: not slurm.jobs(), 40)
    assert not list((home / ".cache" / "meshlab").iterdir())
