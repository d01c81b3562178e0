"""What is left on any host after the client, the controller, a step or a link of launched ranks is killed.

`python -m tests.hosts.kills --kills 50 --seed 1` launches four ranks on two hosts again and again, over ssh or through
Slurm, kills something while they start, wait or communicate, and waits until nothing is left: no process, no shared
memory, no file, no job of Slurm. It prints one line for each kill, and the counts at the end. A seed repeats the list.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.conftest import NAMES
from tests.hosts.network import HostError, Hosts, end_tree, wait_until
from tests.hosts.slurm import Slurm
from tests.hosts.sshd import start_sshd
from tests.hosts.test_launch import Client, leftovers

CHOICES = {"ssh": ["h1", "h2"], "slurm": "slurm --nodes=2"}
VICTIMS = ("client", "controller", "step", "link")
MOMENTS = ("start", "ready", "call")
_LIMIT_S = 90.0  # Slurm takes some of it to notice that a host is gone, and that it is back
_CALLS = "engines.run(lambda comm: [comm.barrier() for _ in range(10**7)] and None)"


@dataclass(frozen=True)
class Kill:
    """What is killed, and when."""

    choice: str
    victim: str
    moment: str
    after_s: float

    def __str__(self) -> str:
        return f"{self.victim} of {self.choice} at {self.moment} + {self.after_s:.1f} s"


def kills(n: int, seed: int) -> list[Kill]:
    """Return a list of kills, in which every victim of both launchers is about equally frequent."""
    draw = random.Random(seed)
    pairs = [(choice, victim) for choice in CHOICES for victim in VICTIMS]
    chosen = (pairs * (n // len(pairs) + 1))[:n]
    draw.shuffle(chosen)
    return [Kill(*pair, draw.choice(MOMENTS), draw.uniform(0.0, 3.0)) for pair in chosen]


def strike(hosts: Hosts, victim: str) -> None:
    """Kill a victim, if it runs already."""
    patterns = {"client": "hosts, n, options = eval", "controller": "_lifeline controller"}
    if victim == "link":
        hosts["h2"].set_link("down")
    elif victim == "step":
        hosts["h2"].run(["pkill", "-KILL", "-f", "^slurmstepd|hydra_pmi_proxy"])
    else:
        hosts["login"].run(["pkill", "-KILL", "-f", patterns[victim]])


def remains(hosts: Hosts, slurm: Slurm) -> list[str]:
    """Return everything that is left."""
    return leftovers(hosts) + [f"job {job}" for job in slurm.jobs()]


def run(hosts: Hosts, slurm: Slurm, kill: Kill) -> list[str]:
    """Launch ranks, kill, and return what is left after some time."""
    client = Client(hosts, CHOICES[kill.choice], deadline_s=10.0)
    try:
        if kill.moment != "start":
            client.expect("sums")
        if kill.moment == "call":
            assert client.process.stdin is not None
            client.process.stdin.write(f"{_CALLS}\n")
            client.process.stdin.flush()
        time.sleep(kill.after_s)
        strike(hosts, kill.victim)
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.process.communicate(timeout=60)  # it ends with its input
        # The host without a network has to clean up by itself.
        with contextlib.suppress(HostError):
            wait_until(lambda: not [line for line in leftovers(hosts) if not line.startswith("shared")], 60)
        hosts["h2"].set_link("up")
        with contextlib.suppress(HostError):
            wait_until(lambda: not remains(hosts, slurm), _LIMIT_S)
        return remains(hosts, slurm)
    finally:
        end_tree(client.process)
        hosts["h2"].set_link("up")
        slurm.cancel_all()
        for host in hosts.values():  # so that each kill is judged by itself
            host.run(["sh", "-c", "rm -rf /tmp/hydra_* /dev/shm/mpich_* /dev/shm/meshlab*"])
        shutil.rmtree(hosts.shared / "runs", ignore_errors=True)


def main() -> None:
    """Run a list of kills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    n_bad = 0
    with tempfile.TemporaryDirectory(prefix="set-") as folder, Hosts(NAMES, Path(folder)) as hosts:
        slurm = Slurm(hosts)
        slurm.start()
        start_sshd(hosts)
        for number, kill in enumerate(kills(arguments.kills, arguments.seed)):
            began = time.monotonic()
            try:
                left = run(hosts, slurm, kill)
            except AssertionError as error:  # too busy to start in time, so that nothing was killed
                write(f"{number} {kill}: not started: {error}")
                continue
            counts[kill.victim, kill.choice] += 1
            n_bad += bool(left)
            write(
                f"{number} {kill}: {'LEFT ' + '; '.join(left) if left else 'clean'} ({time.monotonic() - began:.0f} s)"
            )
    write(", ".join(f"{victim} of {choice}: {n}" for (victim, choice), n in sorted(counts.items())))
    write(f"something was left after {n_bad} of {counts.total()} kills")


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
