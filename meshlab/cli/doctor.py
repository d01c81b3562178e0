"""What is installed, where it was loaded from, and what to do about what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from meshlab.errors import EngineError
from meshlab.units import format_size
from meshlab.version import __version__

__all__ = ["Check", "examine", "findings_text"]

Verdict = Literal["ok", "absent", "warning", "broken"]

_LEAST_SHARED_MEMORY = 64 << 20
_CUDA = {
    "cupy": ("cupy-cuda12x", "cupy-cuda13x"),
    "libnccl": ("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name : str
        What.
    verdict : {"ok", "absent", "warning", "broken"}
        ``"absent"`` is for optional parts, ``"broken"`` for what the core needs.
    text : str
        Version, place, or what is wrong.
    cure : str
        What to do; empty when nothing needs to be done.
    """

    name: str
    verdict: Verdict
    text: str
    cure: str = ""


def examine() -> list[Check]:
    """Look at everything that meshlab uses.

    Returns
    -------
    list of Check
    """
    return [
        Check("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        Check("meshlab", "ok", f"{__version__} at {Path(__file__).parent}"),
        *(_package(name) for name in ("numpy", "pandas", "matplotlib", "pyarrow", "ipyparallel", "ipykernel")),
        _package("ipywidgets", note="after an install, restart the Jupyter server that is running"),
        _package("anywidget", note="after an install, restart the Jupyter server that is running"),
        _package("jupyterlab", optional="notebooks and meshlab lab", extra="lab"),
        _mpi(),
        _mpiexec(),
        _shared_memory(),
        *_gpus(),
        *_gpu_packages(),
    ]


def findings_text(findings: list[Check]) -> str:
    """Write findings as lines, each with its cure below it."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict:<8} {finding.name:<{width}}  {finding.text}")
        if finding.cure:
            lines.append(f"{'':<8} {'':<{width}}  → {finding.cure}")
    return "\n".join(lines)


def _package(name: str, *, optional: str = "", extra: str = "", note: str = "") -> Check:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        if optional:
            return Check(name, "absent", f"not installed; needed for {optional}", f"pip install '.[{extra}]'")
        cure = f"pip install {name}" + (f"; {note}" if note else "")
        return Check(name, "broken", "not installed", cure)
    return Check(name, "ok", f"{found.version} at {found.locate_file('')}")


def _mpi() -> Check:
    # In a process of its own: loading an MPI library can hang or end the process.
    code = (
        "from meshlab.comm import mpi; c = mpi.world().capabilities(); "
        "print(c.library, '·', 'mpi4py', c.facts['mpi4py'], 'at', c.path)"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return Check("mpi", "broken", "the MPI library does not start within 30 s", "launch(n, backend='threads')")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        return Check("mpi", "broken", last, "pip install mpi4py mpich - or use launch(n, backend='threads')")
    return Check("mpi", "ok", done.stdout.strip())


def _mpiexec() -> Check:
    from meshlab.engines.local import find_mpiexec

    try:
        path = find_mpiexec()
    except EngineError as error:
        return Check("mpiexec", "broken", str(error))
    if not Path(path).exists() and shutil.which(path) is None:
        return Check("mpiexec", "broken", f"{path} does not exist", "correct or unset MESHLAB_MPIEXEC")
    if Path(path).is_relative_to(sys.prefix) or os.environ.get("MESHLAB_MPIEXEC"):
        return Check("mpiexec", "ok", path)
    return Check(
        "mpiexec",
        "warning",
        f"{path}, from outside this environment",
        "it must belong to the MPI library above; pip install mpich brings one that does",
    )


def _shared_memory() -> Check:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Check("shared memory", "absent", "there is no /dev/shm on this system")
    text = f"{format_size(free)} free in /dev/shm"
    if free < _LEAST_SHARED_MEMORY:
        return Check(
            "shared memory",
            "warning",
            f"only {text}; MPI and NCCL need about {format_size(_LEAST_SHARED_MEMORY)}",
            "in a container, start it with --shm-size=1g",
        )
    return Check("shared memory", "ok", text)


def _gpus() -> list[Check]:
    from meshlab.topology.health import health
    from meshlab.topology.readers.hosts import probe

    cluster = probe()
    if not cluster.n_devices:
        why = cluster.notes[0].split(": ", 1)[-1] if cluster.notes else "no GPU was seen"
        return [Check("GPUs", "absent", f"{why}; collectives run over MPI")]
    found = [Check("GPUs", "ok", cluster.summary)]
    return found + [Check("GPUs", "warning", str(finding)) for finding in health(cluster)]


def _gpu_packages() -> list[Check]:
    findings = []
    for name, choices in _CUDA.items():
        found = []
        for choice in choices:
            try:
                found.append(f"{choice} {distribution(choice).version}")
            except PackageNotFoundError:
                continue
        if len(found) > 1:
            text = f"{' and '.join(found)} are both installed, and shadow each other"
            findings.append(Check(name, "broken", text, f"pip uninstall one of {', '.join(choices)}"))
        elif found:
            findings.append(Check(name, "ok", found[0]))
        else:
            cure = "pip install '.[cuda12]' or '.[cuda13]', whichever the driver supports"
            findings.append(Check(name, "absent", "not installed; needed for GPUs", cure))
    return findings
