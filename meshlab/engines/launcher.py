"""The two ways to get engines: start them here, or use what somebody else started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshlab.engines.engines import Engines
from meshlab.engines.rounds import RankSet
from meshlab.errors import EngineError

__all__ = ["attach", "count_gpus", "launch"]

_DEADLINE_S = 30.0


def launch(
    n: int,
    *,
    backend: str = "auto",
    devices: Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
    deadline_s: float = _DEADLINE_S,
    timeout_s: float = 60.0,
) -> Engines:
    """Start `n` ranks on this machine.

    Parameters
    ----------
    n : int
        How many ranks.
    backend : {"auto", "nccl", "mpi", "threads"}
        ``"nccl"`` starts one process per GPU, ``"mpi"`` one process per rank, both as ipyparallel engines;
        ``"threads"`` starts threads in this process, at once, for tests and for trying things out. ``"auto"`` is
        ``"nccl"`` where there are `n` GPUs and what they need is installed, else ``"mpi"``.
    devices : sequence of int, optional
        The GPU of every rank, as CUDA counts; rank r has GPU r when left out.
    env : mapping, optional
        Environment variables for the engines, such as ``{"NCCL_ALGO": "Ring"}``; not for threads.
    deadline_s : float, default 30
        How long a call may take before its ranks count as stuck.
    timeout_s : float, default 60
        How long the start may take.

    Returns
    -------
    Engines
        A context manager; closing it leaves nothing behind.

    Raises
    ------
    EngineError
        If the ranks do not start, or there is no memory for so many processes.

    Examples
    --------
    >>> with launch(2, backend="threads") as engines:
    ...     engines.run(lambda comm: comm.size)["value"].tolist()
    [2, 2]
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise EngineError(f"launch() needs a whole number of ranks, at least 1, not {n!r}")
    if backend not in ("auto", "nccl", "mpi", "threads"):
        raise EngineError(f"there is no backend {backend!r}; there are nccl, mpi and threads")
    if devices is not None and len(devices) != n:
        raise EngineError(f"{len(devices)} devices were given for {n} ranks; give one for each")
    if backend == "auto":
        backend = "nccl" if count_gpus() >= n else "mpi"
    chosen: RankSet
    if backend == "threads":
        if env:
            raise EngineError("threads share this process's environment; set the variables there, or use mpi")
        from meshlab.engines.threads import ThreadSet

        chosen = ThreadSet(n)
    else:
        from meshlab.engines.local import LaunchedSet
        from meshlab.engines.memory import check_room

        check_room(n)
        if backend == "nccl":
            _check_gpu_parts()
        chosen = LaunchedSet(n, backend, devices=devices, env=env)
    return Engines(chosen, deadline_s=deadline_s, timeout_s=timeout_s)


def _check_gpu_parts() -> None:
    """Raise an `EngineError` if what ranks on GPUs need is not installed, before any of them starts."""
    from importlib.util import find_spec

    missing = [what for module, what in (("cupy", "CuPy"), ("nccl", "nccl4py")) if find_spec(module) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise EngineError(
            f"the backend nccl needs {' and '.join(missing)}, which {verb} not installed; pip install '.[cuda12]' or "
            "'.[cuda13]' in meshlab's folder, or use backend='mpi'"
        )


def count_gpus() -> int:
    """How many GPUs can be used: none where CuPy or NCCL's binding is missing."""
    from importlib.util import find_spec

    if find_spec("cupy") is None or find_spec("nccl") is None:
        return 0
    from meshlab.topology.readers.hosts import probe

    return probe().n_devices


def attach(client: Any, *, deadline_s: float = _DEADLINE_S, timeout_s: float = 60.0) -> Engines:
    """Use engines that somebody else started: through Slurm, SSH, or an MPI launcher on several hosts.

    Parameters
    ----------
    client : ipyparallel.Client
        Connected to the engines. One MPI launcher must have started them together.
    deadline_s : float, default 30
        How long a call may take before its ranks count as stuck.
    timeout_s : float, default 60
        How long it may take them to open their communicator.

    Returns
    -------
    Engines
        Closing it leaves the engines running.

    Raises
    ------
    EngineError
        If there are no engines, or they are not the ranks of one MPI world.

    Examples
    --------
    Here the engines come from `launch`; a client of engines that Slurm started is used in the same way.

    >>> with launch(2, backend="mpi") as engines:
    ...     with attach(engines.client) as attached:
    ...         attached.run(lambda comm: comm.size)["value"].tolist()
    ...     engines.state
    [2, 2]
    'ready'
    """
    from meshlab.engines.processes import AttachedSet

    return Engines(AttachedSet(client), deadline_s=deadline_s, timeout_s=timeout_s)
