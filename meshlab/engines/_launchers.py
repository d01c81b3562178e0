"""Which launcher started this process. Nothing is imported for it, because every command of the shell asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

# Variables with the rank and the size, and the launcher's name. The first match is the innermost launcher: torchrun
# runs inside srun, and the ranks of Hydra below proxies that srun has started. For Slurm the size of the step, because
# a batch script that is not run by srun also has SLURM_PROCID=0 and the size of the job.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "torchrun"),
    ("PMI_RANK", "PMI_SIZE", "mpiexec"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI's mpiexec"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),
)
# The index of a process on its host: Hydra (MPICH, Intel MPI), Open MPI, Slurm, torchrun.
_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "LOCAL_RANK")
_OPEN_MPI = "Open MPI"


class Launch(NamedTuple):
    """The place of a process among those that a launcher started together."""

    rank: int
    size: int
    launcher: str
    interface: str = ""
    """How Slurm lets the processes find each other, such as "pmi2". An empty string for none, and other launchers."""

    def fault(self, library: str) -> str:
        """Return what is wrong if an MPI library makes every process a world of its own."""
        way = f" --mpi={self.interface}" if self.interface else ""
        return f"{self.launcher}{way} started {self.size} processes, but {library} finds only one of them"

    def cure(self, library: str) -> str:
        """Return how to start the processes so that they find each other through an MPI library."""
        if self.launcher != "srun":
            return f"start them with the mpiexec of {library}, which mpi4py loads"
        needed = "pmix" if library.startswith(_OPEN_MPI) else "pmi2"
        if self.interface.startswith(needed):
            return "choose another type that srun --mpi=list prints, or use the mpiexec of the library"
        return f"start them with srun --mpi={needed}"


def launch_of(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return the place of this process, or None unless a launcher started several."""
    variables = os.environ if environ is None else environ
    for rank_name, size_name, launcher in _LAUNCHERS:
        rank, size = variables.get(rank_name, ""), variables.get(size_name, "")
        if not rank.isdecimal() or not size.isdecimal():
            continue
        # Programs other than torchrun also set variables of these names.
        if launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in variables:
            continue
        if int(size) <= 1:
            return None
        interface = variables.get("SLURM_MPI_TYPE", "")
        if launcher == "mpiexec" and interface and variables.get("SLURM_STEP_NUM_TASKS") == size:
            launcher = "srun"  # which sets the variables of Hydra with --mpi=pmi2
        return Launch(int(rank), int(size), launcher, interface if launcher == "srun" else "")
    return None


def launched_as(environ: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Return the rank of this process and the number of processes, or None unless a launcher started several."""
    launch = launch_of(environ)
    return None if launch is None else (launch.rank, launch.size)


def local_rank() -> int | None:
    """Return the index of this process among those of its launcher on this host, or None if it has not set one."""
    index = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdecimal()), None)
    return None if index is None else int(index)
