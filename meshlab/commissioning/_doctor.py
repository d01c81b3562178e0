"""Checks the installation: versions, paths, and a fix for every part that is missing or broken."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from meshlab.base._backends import BACKENDS
from meshlab.base._errors import EngineError
from meshlab.base._units import format_size
from meshlab.base._version import __version__

Verdict = Literal["ok", "absent", "warning", "broken"]

_LEAST_SHARED_MEMORY = 64 << 20
_MPI_LIMIT_S = 30
_OVER_MPI = next(name for name, facts in BACKENDS.items() if facts.starts == "mpiexec")
_ON_GPUS = next(name for name, facts in BACKENDS.items() if facts.on_gpus)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking one part of the installation."""

    name: str
    verdict: Verdict  # a missing part is absent if it is optional, and broken if it is required
    text: str  # version and path, or the problem
    fix: str = ""  # a command or an imperative
    backend: str = ""  # the only backend that needs the part; empty if all do


def run_checks() -> list[Check]:
    """Check every package, library and device that meshlab uses."""
    return [
        Check("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        Check("meshlab", "ok", f"{__version__} at {Path(__file__).parents[1]}"),
        *(_package(name) for name in ("numpy", "pandas", "matplotlib", "pyarrow", "ipyparallel", "ipykernel")),
        _package("ipywidgets", note="then restart a running Jupyter server"),
        _package("anywidget", note="then restart a running Jupyter server"),
        _package("jupyterlab", optional="notebooks and meshlab lab", extra="lab"),
        _package("voila", optional="meshlab app", extra="app"),
        *(
            _package(package, optional=f"the {facts.name.capitalize()} backend", extra=facts.extra)
            for facts in BACKENDS.values()
            if facts.extra
            for _, package in facts.libraries
        ),
        replace(_mpi(), backend=_OVER_MPI),
        replace(_mpiexec(), backend=_OVER_MPI),
        _encryption(),
        _shared_memory(),
        *_gpus(),
        *(replace(check, backend=_ON_GPUS) for check in _gpu_packages()),
    ]


def checks_text(checks: list[Check]) -> str:
    """Return one line per check, followed by its fix."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:<8} {check.name:<{width}}  {check.text}")
        if check.fix:
            lines.append(f"{'':<8} {'':<{width}}  → {check.fix}")
    return "\n".join(lines)


def _package(name: str, *, optional: str = "", extra: str = "", note: str = "") -> Check:
    try:
        package = distribution(name)
    except PackageNotFoundError:
        if optional:
            return Check(name, "absent", f"not installed; needed for {optional}", f"pip install '.[{extra}]'")
        return Check(name, "broken", "not installed", f"pip install {name}" + (f"; {note}" if note else ""))
    return Check(name, "ok", f"{package.version} at {package.locate_file('')}")


def _mpi() -> Check:
    # In a separate process, because loading an MPI library may hang or abort.
    code = (
        "from meshlab.comm.backends import _mpi as mpi; c = mpi.world().capabilities(); "
        "print(c.library, '·', 'mpi4py', c.facts['mpi4py'], 'at', c.path)"
    )
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MPI_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        text = f"the MPI library does not start within {_MPI_LIMIT_S} s"
        return Check("mpi", "broken", text, "measure without MPI: --backend threads, or launch(n, backend='threads')")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"the MPI library stopped with exit code {done.returncode}"])[-1]
        return Check("mpi", "broken", last, "pip install mpi4py mpich, or measure without MPI: --backend threads")
    return Check("mpi", "ok", done.stdout.strip())


def _mpiexec() -> Check:
    from meshlab.engines._local import find_mpiexec

    try:
        path = find_mpiexec()
    except EngineError as error:
        return Check("mpiexec", "broken", error.message, error.hint)
    if not Path(path).exists() and shutil.which(path) is None:
        return Check("mpiexec", "broken", f"{path} does not exist", "correct or unset MESHLAB_MPIEXEC")
    if Path(path).is_relative_to(sys.prefix) or os.environ.get("MESHLAB_MPIEXEC"):
        return Check("mpiexec", "ok", path)
    return Check(
        "mpiexec",
        "warning",
        f"{path} is outside this environment",
        "use the mpiexec of the MPI library above; pip install mpich installs both",
    )


def _encryption() -> Check:
    """Check whether other users of this host can read what the ranks print."""
    import zmq

    from meshlab.engines._processes import can_encrypt

    version = f"libzmq {zmq.zmq_version()}"
    if can_encrypt():
        return Check("encryption", "ok", f"CurveZMQ between the client and its engines, {version}")
    return Check(
        "encryption",
        "warning",
        f"{version} was built without CurveZMQ, so other users of this host can read what ranks print",
        "pip install --force-reinstall pyzmq",
    )


def _shared_memory() -> Check:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Check("shared memory", "absent", "this system has no /dev/shm")
    text = f"{format_size(free)} free in /dev/shm"
    if free < _LEAST_SHARED_MEMORY:
        return Check(
            "shared memory",
            "warning",
            f"only {text}; MPI and NCCL need about {format_size(_LEAST_SHARED_MEMORY)}",
            "start the container with --shm-size=1g",
        )
    return Check("shared memory", "ok", text)


def _gpus() -> list[Check]:
    from meshlab.topology.readers._hosts import probe

    cluster = probe()
    if not cluster.n_devices:
        reason = cluster.notes[0].split(": ", 1)[-1] if cluster.notes else "no GPU found"
        return [Check("GPUs", "absent", f"{reason}; collectives run over MPI")]
    return [
        Check("GPUs", "ok", cluster.summary),
        *(Check("GPUs", "warning", str(finding)) for finding in cluster.health()),
    ]


def _gpu_packages() -> list[Check]:
    from meshlab.comm.backends._cuda_parts import find_cublas, find_parts

    parts = find_parts()
    # All parts are optional, unless this machine has a driver and some of the packages.
    is_used = not parts[0].problem and any(not part.problem for part in parts[1:])
    checks = []
    for part in parts:
        if not part.problem:
            checks.append(Check(part.name, "ok", part.text))
        else:
            verdict: Verdict = "broken" if part.conflicts or is_used else "absent"
            checks.append(Check(part.name, verdict, f"{part.problem}; needed for GPUs", part.fix))
    if is_used:
        part = find_cublas()
        text = part.text or f"{part.problem}; needed for matrix products in rehearse() and benchmark.overlap()"
        checks.append(Check(part.name, "absent" if part.problem else "ok", text, part.fix if part.problem else ""))
    return checks
