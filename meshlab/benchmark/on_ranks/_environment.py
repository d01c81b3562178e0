"""The system around a run: hosts, software and settings, and readings of the GPUs before and after it."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from meshlab.base._version import __version__
from meshlab.benchmark.on_ranks._buffers import release_buffers
from meshlab.engines import _memory as memory
from meshlab.topology.readers import _nvml as nvml
from meshlab.topology.readers._sysfs import read_processors

_VARIABLES = """
CUDA_DEVICE_MAX_CONNECTIONS CUDA_VISIBLE_DEVICES MPIR_CVAR_CH4_NETMOD MPIR_CVAR_DEVICE_COLLECTIVES
MPIR_CVAR_ENABLE_GPU NCCL_ALGO NCCL_BUFFSIZE NCCL_COLLNET_ENABLE NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG
NCCL_GRAPH_MIXING_SUPPORT NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_QPS_PER_CONNECTION NCCL_IB_TC
NCCL_LAUNCH_ORDER_IMPLICIT NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS
NCCL_MULTI_RANK_GPU_ENABLE NCCL_NET NCCL_NET_GDR_LEVEL NCCL_NTHREADS NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL
NCCL_PROTO NCCL_PXN_DISABLE NCCL_SHM_DISABLE NCCL_SOCKET_IFNAME NCCL_TOPO_FILE OMP_NUM_THREADS
"""
SETTINGS = tuple(_VARIABLES.split())
"""The environment variables that a run records. No others are read, because they may contain secrets."""

_SOFTWARE = ("numpy", "pandas", "ipyparallel", "mpi4py", "mpich", "cupy-cuda12x", "cupy-cuda13x", "nccl4py")


def read_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of `SETTINGS` that are set, by name."""
    variables = os.environ if environ is None else environ
    return {name: variables[name] for name in SETTINGS if name in variables}


def software_versions() -> dict[str, str]:
    """Return the versions of the installed packages that measurements depend on."""
    versions = {"meshlab": __version__, "Python": platform.python_version()}
    for name in _SOFTWARE:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    # Containers and launchers pin processes to fewer cores than the host has. macOS has no such call.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_host() -> dict[str, str]:
    """Describe this host: its name, system, processor, usable cores and memory."""
    import psutil

    from meshlab.base._units import format_size

    return {
        "name": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": read_processors()["cpu_model"] or platform.machine(),
        "cores": f"{usable_cores()} of {os.cpu_count()} usable",
        "memory": format_size(psutil.virtual_memory().total),
    }


def describe_rank(comm: Any, firsts: Collection[int]) -> dict[str, Any]:
    """Describe this rank, and on the first rank of each host (`firsts`) also the host. Runs on the engines."""
    release_buffers()  # of a run that ended with an error, before the free memory is read
    facts: dict[str, Any] = {"settings": read_settings(), "free": memory.free_bytes(comm)}
    if comm.world_rank in firsts:
        facts |= {"about": describe_host(), "software": software_versions()}
        facts |= {"host": nvml.read_host(), "devices": nvml.sample()}
    return facts


def sample_rank(comm: Any, firsts: Collection[int]) -> list[dict[str, Any]]:
    """Return the readings of the host's GPUs on the first rank of each host, else nothing. Runs on the engines."""
    return nvml.sample() if comm.world_rank in firsts else []
