"""OpenSSH on the hosts of a set, with keys of their own that no other program uses."""

from __future__ import annotations

from tests.hosts.network import Hosts, wait_until

PROGRAMS = ("sshd", "ssh", "ssh-keygen")

_SERVER = """
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
PidFile /run/sshd.pid
"""
_CLIENT = """
Host *
    IdentityFile /etc/ssh/client_key
    IdentitiesOnly yes
    UserKnownHostsFile /etc/ssh/known_hosts
    StrictHostKeyChecking yes
    BatchMode yes
    ConnectTimeout 5
"""


def start_sshd(hosts: Hosts) -> None:
    """Start a server on each host, so that every host reaches all others by `ssh NAME`."""
    folder = hosts.files / "ssh"
    first = next(iter(hosts.values()))
    (folder / "sshd_config").write_text(_SERVER)
    (folder / "ssh_config").write_text(_CLIENT)
    for key in ("host_key", "client_key"):
        first.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"/etc/ssh/{key}"], check=True)
    (folder / "authorized_keys").write_text((folder / "client_key.pub").read_text())
    public = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text("".join(f"{host.name},{host.address} {public}\n" for host in hosts.values()))
    for host in hosts.values():
        host.run(["sh", "-c", "mkdir -p -m 755 /run/sshd && $(command -v sshd)"], check=True)
    for host in hosts.values():
        wait_until(
            lambda host=host: first.run(["ssh", host.name, "true"]).returncode == 0,  # type: ignore[misc]
            subject=f"ssh {host.name}",
        )


def refuse_keys(hosts: Hosts) -> None:
    """Make all hosts refuse the key of the client, until `accept_keys`."""
    (hosts.files / "ssh" / "authorized_keys").write_text("")


def accept_keys(hosts: Hosts) -> None:
    """Make all hosts accept the key of the client."""
    folder = hosts.files / "ssh"
    (folder / "authorized_keys").write_text((folder / "client_key.pub").read_text())
