"""`meshlab doctor --hosts` on real hosts: what is right, and one sentence for each problem."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.network import INTERFACE, Hosts, end_tree, wait_until
from tests.hosts.slurm import Slurm
from tests.hosts.sshd import accept_keys, refuse_keys

pytestmark = pytest.mark.full


def doctor(hosts: Hosts, *arguments: str, begin: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    done = hosts["login"].run(["env", "COLUMNS=300", *begin, "meshlab", "doctor", *arguments])
    assert "Traceback" not in done.stderr, done.stderr
    return done


def assert_all_is_well(hosts: Hosts, output: str, names: str) -> None:
    """Check the report on three hosts without problems."""
    lines = [line.split(None, 2) for line in output.splitlines()]
    assert {line[0] for line in lines} == {"ok"}, output
    assert re.findall(rf"{names} (h\d)  +answers after .* s as (h\d)", output) == [
        (f"h{k}", f"h{k}") for k in (1, 2, 3)
    ]
    texts = {line[1]: line[2] for line in lines}
    assert texts["names"] == "every host knows the names of the others"
    assert texts["routes"] == f"all 6 paths between hosts go over {INTERFACE}"
    assert texts["ports"] == "connections work on all 6 paths"
    assert texts["mtu"] == "1500 on all hosts, and large messages arrive"
    assert texts["nccl"] == texts["gloo"] == f"network: {INTERFACE}"
    assert texts["clocks"].startswith("within ")
    assert texts["folder"] == f"all hosts see {hosts.shared}"
    assert texts["versions"].endswith("on all hosts, with the same packages")


def test_hosts_that_can_work_together_pass(ssh: Hosts) -> None:
    done = doctor(ssh, "--hosts", "ssh:h[1-3]", "--folder", str(ssh.shared))
    assert_all_is_well(ssh, done.stdout, "ssh")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "begin",
    [pytest.param((), marks=pytest.mark.long, id="login"), pytest.param(("salloc", "-N3", "-n3"), id="allocation")],
)
def test_hosts_of_slurm_are_checked_without_ssh(hosts: Hosts, slurm: Slurm, begin: tuple[str, ...]) -> None:
    done = doctor(hosts, "--hosts", "slurm" if begin else "slurm --nodes=3", "--folder", str(hosts.shared), begin=begin)
    assert_all_is_well(hosts, done.stdout, "srun")
    assert done.returncode == 0
    wait_until(lambda: not slurm.jobs())
    assert not any(host.processes("_host_probe") for host in hosts.values())


@pytest.mark.long
def test_problems_of_hosts_of_slurm_are_named(hosts: Hosts, slurm: Slurm) -> None:
    prefix = Path(sys.executable).parent
    empty = hosts.shared / "empty"
    empty.mkdir(exist_ok=True)
    hosts["h2"].run(["mount", "--bind", str(empty), str(prefix)], check=True)
    try:
        done = doctor(hosts, "--hosts", "slurm --nodes=3", "--folder", "/tmp/only-here")
    finally:
        hosts["h2"].run(["umount", str(prefix)], check=True)
    assert re.search(rf"^broken +srun h2 +there is no {prefix}/python\d*$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^broken +folder +h1 does not see /tmp/only-here, and 1 more$", done.stdout, re.MULTILINE)
    assert done.returncode == 1
    rejected = {
        "--partition=nope": "artition",
        "--nope": "unrecognized option",
        "--nodelist=h9": "Invalid node name specified; correct the options; `sinfo` lists its partitions and hosts",
        "--nodes=9": " of Slurm would never leave the queue (Partition",
    }
    for options, text in rejected.items():
        done = doctor(hosts, "--hosts", f"slurm {options}")
        assert text in done.stderr
        assert done.stderr.count("\n") == 1 + ("more: " in done.stderr)
        assert done.returncode == 2
    wait_until(lambda: not slurm.jobs())


@pytest.mark.long
@pytest.mark.parametrize("signal", ["INT", "KILL"])
def test_the_hosts_of_slurm_are_released_when_the_check_ends(hosts: Hosts, slurm: Slurm, signal: str) -> None:
    command = hosts["login"].start(["meshlab", "doctor", "--hosts", "slurm --nodes=3"])
    try:
        wait_until(lambda: bool(hosts["h2"].processes("_host_probe")))
        hosts["login"].run(["pkill", f"-{signal}", "-f", "meshlab doctor"], check=True)
        command.communicate(timeout=30)
    finally:
        end_tree(command)
    wait_until(lambda: not slurm.jobs())
    assert not any(host.processes("_host_probe") for host in hosts.values())


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


def test_a_switch_with_a_smaller_mtu_is_named(hosts: Hosts, slurm: Slurm) -> None:
    hosts.set_switch_mtu("h2", 600)
    for _ in range(3):
        done = doctor(hosts, "--hosts", "slurm --nodes=3", "--folder", str(hosts.shared))
        if "Slurm cannot start a process there" not in done.stdout:  # its own messages may be among the lost packets
            break
    problem = "packets of 1500 bytes do not arrive, although both interfaces have at least this MTU"
    assert f"h1 → h2: {problem}; the largest that arrive have 600 bytes, and 3 more\n" in done.stdout, done.stdout
    assert "→ set the same MTU on all hosts, and on the switches at least that\n" in done.stdout
    assert done.returncode == 1
    wait_until(lambda: not slurm.jobs())


@pytest.mark.long
def test_a_host_that_large_packets_of_ssh_do_not_reach_is_named_and_the_others_are_checked(ssh: Hosts) -> None:
    ssh.set_switch_mtu("h2", 600)
    done = doctor(ssh, "--hosts", "h1,h2,h3", "--folder", str(ssh.shared))
    problem = "no answer within 40 s: packets of 1500 bytes do not arrive, although smaller ones do"
    assert re.search(rf"^broken +ssh h2 +{problem}$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^ok +mtu +1500 on all hosts, and large messages arrive$", done.stdout, re.MULTILINE), done.stdout
    assert not any(host.processes("_host_probe") for name, host in ssh.items() if name != "h2")


@pytest.mark.long
def test_a_host_that_slurm_cannot_use_is_named_before_and_after_slurm_has_noticed(hosts: Hosts, slurm: Slurm) -> None:
    slurm.change_key(hosts["h2"], is_same=False)
    try:
        first = doctor(hosts, "--hosts", "slurm --nodes=3", "--folder", str(hosts.shared))
        text = r"Slurm cannot start a process there: Zero Bytes were transmitted or received"
        assert re.search(rf"^broken +srun h2 +{text}$", first.stdout, re.MULTILINE), first.stdout + first.stderr
        assert "→ check slurmd, munge and the clock of this host\n" in first.stdout
        second = doctor(hosts, "--hosts", "slurm --nodes=3", "--folder", str(hosts.shared))
        assert re.match(
            r"meshlab: job \d+ of Slurm waits in the queue, because hosts are down: h2 \([\w* ]+\); check their "
            r"slurmd, munge and clocks, or omit them\n",
            second.stderr,
        ), second.stderr
        assert second.returncode == 2
        wait_until(lambda: not any("PENDING" in job for job in slurm.jobs()))
    finally:
        slurm.change_key(hosts["h2"], is_same=True)
    wait_until(lambda: slurm.states() == {"idle"}, 120)


def test_an_interface_that_does_not_exist_is_named(ssh: Hosts) -> None:
    names = {"mpi": "FI_TCP_IFACE", "gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
    begin = ("env", *(f"{name}=eth9" for name in names.values()))
    done = doctor(ssh, "--hosts", "h1,h2", "--folder", str(ssh.shared), begin=begin)
    assert done.returncode == 1
    for backend, name in names.items():
        text = rf"^broken +{backend} +h1 has no network interface eth9, which {name} names, and 1 more$"
        assert re.search(text, done.stdout, re.MULTILINE), done.stdout


def test_paths_are_not_checked_if_only_one_host_answers(ssh: Hosts) -> None:
    done = doctor(ssh, "--hosts", "h1,nowhere", "--folder", str(ssh.shared))
    assert done.returncode == 1
    assert "absent   paths        names, routes, ports and MTU need a second host, and only h1 answers" in done.stdout
    assert not re.search(r"^\w+ +(names|routes|ports|mtu) ", done.stdout, re.MULTILINE), done.stdout


def test_a_refused_key_and_a_closed_port_are_named(ssh: Hosts) -> None:
    refuse_keys(ssh)
    try:
        refused = doctor(ssh, "--hosts", "h1,h2")
    finally:
        accept_keys(ssh)
    assert refused.returncode == 1
    assert len(refused.stdout.splitlines()) == 4  # nothing more can be checked
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
