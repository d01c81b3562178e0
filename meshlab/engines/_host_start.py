"""The start of a rank on another host: check the host, and then become an engine.

The client copies this file into the folder of the run. It imports nothing but the standard library before it has
checked that meshlab is there, and each problem is one sentence.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

SETTINGS = "host"
"""The file with what a host must have, in the folder of the run: one value a line."""

CHECKED = "checked: "
"""The start of the line that a check writes."""

PROBLEM = "problem-"
"""The start of the names of the files in which ranks write why they did not start."""


def problem_of(folder: Path) -> str:
    """Return what this host lacks, or an empty string."""
    host = socket.gethostname()
    try:
        expected_python, expected_meshlab, address, port, gpus = (folder / SETTINGS).read_text().split()
    except OSError as error:
        return f"{host} does not see the folder {folder}: {error.strerror}"
    python = ".".join(map(str, sys.version_info[:3]))
    if python != expected_python:
        return f"{host} has Python {python} at {sys.executable}, and not {expected_python} as the client"
    try:
        from meshlab.base._version import __version__
    except ImportError as error:
        return f"{sys.executable} of {host} cannot import meshlab: {error}"
    if __version__ != expected_meshlab:
        return f"{host} has meshlab {__version__}, and not {expected_meshlab} as the client"
    if int(gpus) > (n_gpus := _count_gpus()):
        ranks = f"{gpus} rank{'s' * (gpus != '1')}"
        return f"{host} has {n_gpus or 'no'} GPU{'s' * (n_gpus != 1)}, but gets {ranks}"
    try:
        socket.create_connection((address, int(port)), timeout=10.0).close()
    except OSError as error:
        return f"{host} does not reach the client at {address}: {error.strerror or error}"
    return ""


def _count_gpus() -> int:
    """Return the number of GPUs of the driver that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip()])
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def main(folder: str, role: str, *command: str) -> None:
    """Write the problem of this host to the output as "check", or as "rank" to a file, or become the command."""
    problem = problem_of(Path(folder))
    if role == "check":
        sys.stdout.write(f"{CHECKED}{problem}\n")
        return
    if problem:
        sys.stderr.write(f"{problem}\n")
        (Path(folder) / f"{PROBLEM}{socket.gethostname()}").write_text(problem)
        sys.exit(1)
    from meshlab.base._backends import PROCESS_BACKENDS
    from meshlab.engines._rank_hosts import missing_interface

    for backend in PROCESS_BACKENDS:
        if missing := missing_interface(backend):
            sys.stderr.write(f"{missing}\n")  # to the log, because the library may not use the interface
    if not Path(os.environ.get("TMPDIR", "/")).is_dir():  # that of the client
        del os.environ["TMPDIR"]
    if os.environ.get("HWLOC_XMLFILE") == "":  # that of the launcher
        del os.environ["HWLOC_XMLFILE"]
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(*sys.argv[1:])
