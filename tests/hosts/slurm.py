"""Debian's Slurm on the hosts of a set: the first host has the controller, and each of the others runs tasks."""

from __future__ import annotations

import secrets

from tests.hosts.network import Host, Hosts, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "sinfo", "scancel")
N_CPUS = 2
"""The CPUs of a host, for Slurm. It believes the configuration, whatever the machine has."""


class Slurm:
    """Slurm on a set of hosts, without a default of MPI. Its configuration is /etc/slurm/slurm.conf on the hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._login, *self._nodes = hosts.values()
        self._folder = hosts.shared.parent / "slurm"

    def start(self) -> None:
        """Start it, and wait until all hosts take jobs."""
        (self._hosts.files / "slurm" / "slurm.conf").write_text(self._configuration())
        key = self._hosts.files / "slurm" / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        for host in self._hosts.values():
            copy = "mkdir -p -m 755 /run/munge && cp /etc/slurm/munge.key /run/munge/key && chmod 600 /run/munge/key"
            host.run(["sh", "-c", copy], check=True)
            _start_munge(host)
        self._login.run(["sh", "-c", "mkdir -p /run/slurm/state && slurmctld"], check=True)
        for node in self._nodes:
            node.run(["sh", "-c", f"mkdir -p /run/slurm/spool && slurmd -N {node.name}"], check=True)
        wait_until(lambda: self.states() == {"idle"}, subject="idle hosts of Slurm")

    def states(self) -> set[str]:
        """Return the states of the hosts, such as "idle"."""
        return set(self._login.run(["sinfo", "--noheader", "-N", "-o", "%T"]).stdout.split())

    def jobs(self) -> list[str]:
        """Return the jobs that wait or run, as ``"id name state"``."""
        return self._login.run(["squeue", "--noheader", "-o", "%i %j %T"], check=True).stdout.splitlines()

    def cancel_all(self) -> None:
        """End all jobs, and wait until the hosts take others."""
        self._login.run(["scancel", "--user", "root"])
        wait_until(lambda: not self.jobs() and self.states() == {"idle"}, 120, subject="idle hosts of Slurm")

    def change_key(self, host: Host, *, is_same: bool) -> None:
        """Give a host another key of munge than the others have, which is refused as another clock is, or theirs."""
        key = "cat /etc/slurm/munge.key" if is_same else "head -c 128 /dev/urandom"
        host.run(["sh", "-c", f"kill $(cat /run/munge/pid); {key} >/run/munge/key"], check=True)
        wait_until(lambda: not host.processes("munged"))
        _start_munge(host)

    def _configuration(self) -> str:
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={self._login.name}({self._login.address})",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            "SlurmUser=root",
            "SlurmdUser=root",
            "StateSaveLocation=/run/slurm/state",
            "SlurmdSpoolDir=/run/slurm/spool",
            "SlurmctldPidFile=/run/slurm/slurmctld.pid",
            "SlurmdPidFile=/run/slurm/slurmd.pid",
            "SlurmctldLogFile=/run/slurm/slurmctld.log",
            "SlurmdLogFile=/run/slurm/slurmd.log",
            "SlurmdParameters=config_overrides",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "ReturnToService=2",
            "SlurmdTimeout=20",
            "KillWait=5",
            "SchedulerParameters=sched_interval=1,batch_sched_delay=0",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            *(f"NodeName={node.name} NodeAddr={node.address} CPUs={N_CPUS} State=UNKNOWN" for node in self._nodes),
            f"PartitionName=all Nodes={','.join(node.name for node in self._nodes)} Default=YES State=UP",
        ]
        return "".join(f"{line}\n" for line in lines)


def _start_munge(host: Host) -> None:
    # The socket is where Slurm looks for it, in the /run of the host.
    script = """
    munged --num-threads=1 --key-file=/run/munge/key --seed-file=/run/munge/seed --pid-file=/run/munge/pid \
        --log-file=/run/munge/log --socket=/run/munge/munge.socket.2
    """
    host.run(["sh", "-c", script], check=True)
