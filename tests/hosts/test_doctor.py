"""`meshlab doctor --hosts` on real hosts: what is right, and one sentence for each problem."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.hosts.network import INTERFACE, Hosts
from tests.hosts.sshd import accept_keys, refuse_keys

pytestmark = pytest.mark.full


def doctor(hosts: Hosts, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = hosts["login"].run(["env", "COLUMNS=300", "meshlab", "doctor", *arguments])
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_hosts_that_can_work_together_pass(ssh: Hosts) -> None:
    done = doctor(ssh, "--hosts", "ssh:h[1-3]", "--folder", str(ssh.shared))
    lines = [line.split(None, 2) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout
    assert {line[0] for line in lines} == {"ok"}
    texts = {line[1]: line[2] for line in lines}
    assert texts["names"] == "every host knows the names of the others"
    assert texts["routes"] == f"all 6 paths between hosts go over {INTERFACE}"
    assert texts["ports"] == "connections work on all 6 paths"
    assert texts["mtu"] == "1500 on all hosts, and large messages arrive"
    assert texts["nccl"] == texts["gloo"] == f"network: {INTERFACE}"
    assert texts["clocks"].startswith("within ")
    assert texts["folder"] == f"all hosts see {ssh.shared}"
    assert texts["versions"].endswith("on all hosts, with the same packages")


def test_every_problem_of_a_host_is_one_sentence_with_its_fix(ssh: Hosts) -> None:
    h1, h2 = ssh["h1"], ssh["h2"]
    entries = h2.run(["cat", "/etc/hosts"], check=True).stdout
    h1.run(["ip", "link", "set", INTERFACE, "mtu", "1400"], check=True)
    h2.run(["sh", "-c", "cat >/tmp/hosts && mount --bind /tmp/hosts /etc/hosts"], stdin="127.0.0.1 h1\n", check=True)
    try:
        done = doctor(ssh, "--hosts", "h1,h2,h3,nowhere", "--folder", "/tmp/only-here")
    finally:
        h1.run(["ip", "link", "set", INTERFACE, "mtu", "1500"], check=True)
        h2.run(["umount", "/etc/hosts"], check=True)
    assert h2.run(["cat", "/etc/hosts"], check=True).stdout == entries
    assert done.returncode == 1
    assert "broken   ssh nowhere  Could not resolve hostname nowhere" in done.stdout
    assert "broken   names        h2 takes h1 for 127.0.0.1, which is not an address of h1, and 1 more" in done.stdout
    assert "→ give every host the same entries in /etc/hosts or DNS" in done.stdout
    assert f"warning  mtu          the hosts have different MTUs: 1400 on h1 ({INTERFACE}), 1500 on" in done.stdout
    assert "broken   folder       h1 does not see /tmp/only-here, and 2 more" in done.stdout
    assert not any(host.processes("_host_probe") for host in ssh.values())


def test_a_refused_key_and_a_closed_port_are_named(ssh: Hosts) -> None:
    refuse_keys(ssh)
    try:
        refused = doctor(ssh, "--hosts", "h1,h2")
    finally:
        accept_keys(ssh)
    assert refused.returncode == 1
    assert refused.stdout.count("Permission denied (publickey).") == 2
    assert "→ make `ssh h1 true` work without a password" in refused.stdout
    ssh["h2"].run(["ip", "route", "add", "blackhole", ssh["h1"].address], check=True)
    try:
        closed = doctor(ssh, "--hosts", "h1,h2")
    finally:
        ssh["h2"].run(["ip", "route", "del", "blackhole", ssh["h1"].address], check=True)
    assert re.search(r"^broken +routes +h2 has no route to h1 at ", closed.stdout, re.MULTILINE), closed.stdout
    assert re.search(r"^broken +ports +h1 cannot connect to port \d+ of h2: ", closed.stdout, re.MULTILINE)
    assert "large messages arrive on the 0 paths that work" in closed.stdout
