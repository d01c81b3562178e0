"""Which launcher started this process. Nothing is imported for it, because every command of the shell asks."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Variables with the rank and the size: Hydra (MPICH, Intel MPI), Open MPI, Slurm. For Slurm the size of the step,
# because a batch script that is not run by srun also has SLURM_PROCID=0 and the size of the job.
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched_as(environ: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Return the rank of this process and the number of processes, or None unless mpiexec or srun started several."""
    variables = os.environ if environ is None else environ
    for rank, size in _LAUNCHERS:
        if variables.get(rank, "").isdecimal() and variables.get(size, "").isdecimal() and int(variables[size]) > 1:
            return int(variables[rank]), int(variables[size])
    return None
