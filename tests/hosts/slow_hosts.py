"""How often an acceptance of three hosts names a slow one, and how often it names one without reason.

`python -m tests.hosts.slow_hosts --runs 10 delay rate none none` accepts three hosts again and again: 10 times with h2
late by 10 ms, 10 times with h2 limited to 50 Mbit/s, and 20 times without a fault. It prints the verdict of each run on
the hosts, and the counts at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from tests.hosts.conftest import NAMES
from tests.hosts.network import HostError, Hosts
from tests.hosts.sshd import start_sshd

SLOW = "h2"
DELAY_MS = 10.0
RATE = "50mbit"
FAULTS = ("delay", "rate", "none")
MPIEXEC = ["mpiexec", "-launcher", "ssh", "-hosts", "h1,h2,h3"]


@contextlib.contextmanager
def fault(hosts: Hosts, name: str) -> Iterator[None]:
    """Make the slow host slow within a ``with`` block."""
    if name == "delay":
        with hosts.delay(SLOW, DELAY_MS):
            yield
    elif name == "rate":
        hosts[SLOW].shape("rate", RATE)
        try:
            yield
        finally:
            hosts[SLOW].shape()
    else:
        yield


def accept(hosts: Hosts, out: Path, per_host: int = 1) -> tuple[list[str], str]:
    """Accept three hosts, and return those that failed, and the output."""
    ranks = ["-n", str(3 * per_host), "-ppn", str(per_host)]
    command = [*MPIEXEC, *ranks, "meshlab", "acceptance", "--quick", "--out", str(out)]
    shutil.rmtree(out, ignore_errors=True)
    done = hosts["login"].run(command, timeout_s=300)
    if not (out / "junit.xml").exists():
        raise RuntimeError(done.stdout + done.stderr)
    cases = ET.parse(out / "junit.xml").getroot().iter("testcase")
    nodes = {
        str(case.get("name")): case[0].tag for case in cases if case.get("classname") == "meshlab.acceptance.nodes"
    }
    if not nodes:
        raise RuntimeError(done.stdout + done.stderr)
    return sorted(host for host, outcome in nodes.items() if outcome == "failure"), done.stdout


def main() -> None:
    """Run the series."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="+", choices=FAULTS)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--per-host", type=int, default=1, help="ranks on each host")
    parser.add_argument("--out", type=Path, help="a folder that gets the reports")
    arguments = parser.parse_args()
    verdicts: dict[str, list[bool]] = {name: [] for name in arguments.faults}
    # The hosts see no folder in /tmp that they do not share.
    with tempfile.TemporaryDirectory() as folder, Hosts(NAMES, Path(folder)) as hosts:
        start_sshd(hosts)
        for name in arguments.faults * arguments.runs:
            began = time.monotonic()
            title = f"{name} {len(verdicts[name])}"
            with fault(hosts, name):
                try:
                    failed, output = accept(hosts, hosts.shared / "out", arguments.per_host)
                except (RuntimeError, HostError) as error:
                    failed, output = ["?"], str(error)
            verdicts[name].append(failed == ([] if name == "none" else [SLOW]))
            write(f"{'right' if verdicts[name][-1] else 'WRONG'} {title}: {time.monotonic() - began:.0f} s, {failed}")
            for line in output.splitlines():
                if "?" in failed or re.match(r"\S+ fabric |h\d ", line):
                    write(f"    {line}")
            if arguments.out is not None:
                file = arguments.out / f"{title.replace(' ', '-')}.txt"
                arguments.out.mkdir(parents=True, exist_ok=True)
                file.write_text(output)
                with contextlib.suppress(OSError):  # of a run without a report
                    shutil.copy(hosts.shared / "out" / "report.html", file.with_suffix(".html"))
    write(", ".join(f"{name}: {sum(right)} of {len(right)}" for name, right in verdicts.items()))


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
