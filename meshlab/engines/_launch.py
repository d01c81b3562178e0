"""Two ways to create engines: start them here or on hosts, or attach to engines that another process started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshlab.base._backends import BACKENDS, GPU_BACKENDS, PROCESS_BACKENDS, automatic_backend, check_backend
from meshlab.base._errors import EngineError, did_you_mean
from meshlab.base._hints import Argument, Hint
from meshlab.comm._agreement import CHECKS, Checks
from meshlab.engines._checks import check_packages_of, check_platform
from meshlab.engines._engines import Engines
from meshlab.engines._rounds import RankSet

_DEADLINE_S = 30.0


def launch(
    n: int,
    *,
    hosts: str | Sequence[str] | None = None,
    backend: str = "auto",
    devices: Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
    checks: Checks = "first",
    deadline_s: float = _DEADLINE_S,
    timeout_s: float = 60.0,
    folder: str | Path | None = None,
) -> Engines:
    """Start `n` ranks, on this machine or on several hosts.

    Ranks in processes have their own temporary folder (the variable TMPDIR), which is removed when the engines are
    closed. If a rank, its launcher or the controller of the engines dies, the current call raises an `EngineError` that
    names it.

    Parameters
    ----------
    n : int
        The number of ranks.
    hosts : str or sequence of str, optional
        The hosts of the ranks. By default, all are on this machine. ``["node01", "node02"]`` and ``"ssh:node0[1-2]"``
        start them over ssh, which must not ask for a password, in equal numbers, in this order. ``"slurm"`` submits a
        job to Slurm, with the options of sbatch that follow, such as ``"slurm --nodes=2 --gres=gpu:8"``, and waits in
        its queue until the job runs; an interrupt cancels it. In an allocation, ``"slurm"`` uses its hosts immediately.
        Engines and their job end with this process. ``meshlab launch --print slurm`` prints the script of the job,
        which a site can replace.
    backend : {"auto", "nccl", "mpi", "gloo", "threads"}, default "auto"
        ``"nccl"`` starts one process per GPU, and ``"mpi"`` and ``"gloo"`` (of torch) one process per rank, all as
        ipyparallel engines. ``"threads"`` starts threads in this process, for tests and experiments. ``"auto"`` selects
        ``"nccl"`` if there are at least `n` GPUs and the required packages are installed, else ``"mpi"``. On `hosts`,
        each of them needs a GPU per rank. Axes of a mesh can use Gloo on all engines:
        ``DeviceMesh(…, backends={"pp": "gloo"})``.
    devices : sequence of int, optional
        CUDA device index of each rank. By default rank r uses device r.
    env : mapping of str to str, optional
        Environment variables of the engines, such as ``{"NCCL_ALGO": "Ring"}``. Not supported by threads.
    checks : {"first", "all", "off"}, default "first"
        The calls that are compared between ranks, described in `meshlab.comm.CHECKS`: if ranks issue different calls,
        NCCL returns wrong results, and MPI may hang. On GPUs, ``"first"`` compares each kind of call (collective,
        count, dtype, op and root) when it is issued for the first time. Threads always compare every call. The counts
        of messages between two ranks are not compared on GPUs.
    deadline_s : float, default 30
        Maximum duration of a call, in seconds, before its ranks are considered stuck.
    timeout_s : float, default 60
        Maximum start-up time, in seconds, without the time in a queue.
    folder : str or Path, optional
        A folder that all `hosts` see under the same path, for the files of the engines, which are removed at the end.
        By default ``~/.cache/meshlab``.

    Returns
    -------
    Engines
        The running engines. Use them as a context manager to close them, which also cleans up processes and files.

    Raises
    ------
    EngineError
        If an argument is invalid.
        If the ranks do not start.
        If the host has too little memory for `n` processes.
        If a host is unknown, refuses the connection, does not see `folder`, does not reach this one, or has another
        environment.

    Examples
    --------
    >>> with launch(2, backend="threads") as engines:
    ...     engines.run(lambda comm: comm.size)["value"].tolist()
    [2, 2]
    """
    _check_arguments(n, backend, devices, checks)
    if hosts is not None:
        return Engines(
            _hosted_set(n, hosts, backend, devices=devices, env=env, checks=checks, folder=folder),
            deadline_s=deadline_s,
            timeout_s=timeout_s,
        )
    if folder is not None:
        raise EngineError("folder is only used for ranks on several hosts", hint="pass hosts, or omit folder")
    if backend == "auto":
        backend = automatic_backend(has_gpus=count_gpus() >= n)
    check_platform(backend)
    rank_set: RankSet
    if BACKENDS[backend].in_process:
        if env:
            raise EngineError(
                f"env is not supported by {backend}, which share the environment of this process",
                hint=Hint("set os.environ, or use {}", Argument("backend", "mpi")),
            )
        from meshlab.engines._threads import ThreadSet

        rank_set = ThreadSet(n, backend, checks=checks)
    else:
        from meshlab.engines._local import LaunchedSet
        from meshlab.engines._memory import check_host_memory

        check_host_memory(n)
        check_packages_of(backend)
        rank_set = LaunchedSet(n, backend, devices=devices, env=env, checks=checks)
    return Engines(rank_set, deadline_s=deadline_s, timeout_s=timeout_s)


def _hosted_set(
    n: int,
    hosts: str | Sequence[str],
    backend: str,
    *,
    devices: Sequence[int] | None,
    env: Mapping[str, str] | None,
    checks: Checks,
    folder: str | Path | None,
) -> RankSet:
    from meshlab.engines._host_choice import HostChoice
    from meshlab.engines._hosts import HostedSet

    choice = HostChoice.read(hosts)
    if devices is not None:
        raise EngineError(
            "devices is not supported with hosts: on each host, the ranks use devices 0, 1, …", hint="omit devices"
        )
    if backend != "auto" and BACKENDS[backend].in_process:
        raise EngineError(f"backend {backend!r} cannot start ranks on other hosts", hint="omit backend, or omit hosts")
    rank_set = HostedSet(n, choice, backend, env=env, checks=checks, folder=folder)
    rank_set.launch_arguments = {
        "hosts": hosts,
        "backend": backend,
        "env": dict(env or {}),
        "checks": checks,
        "folder": folder,
    }
    return rank_set


def _check_arguments(n: int, backend: str, devices: Sequence[int] | None, checks: str) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise EngineError(f"n must be a positive integer, not {n!r}", hint="pass the number of ranks to launch()")
    check_backend(backend, EngineError, names=("auto", *BACKENDS))
    if checks not in CHECKS:
        similar = did_you_mean(checks, CHECKS, synonyms={"none": "off", "always": "all"})
        raise EngineError(f"unknown checks {checks!r}{similar}", hint=f"choose one of {', '.join(CHECKS)}")
    if devices is not None and len(devices) != n:
        raise EngineError(f"devices has {len(devices)} entries, but there are {n} ranks", hint="pass one per rank")


def count_gpus() -> int:
    """Return the number of usable GPUs. It is 0 if CuPy or nccl4py is missing."""
    if all(BACKENDS[name].missing_packages() for name in GPU_BACKENDS):
        return 0
    from meshlab.topology.readers._hosts import probe

    return probe().n_devices


def attach(
    client: Any,
    *,
    backend: str = "auto",
    checks: Checks = "first",
    deadline_s: float = _DEADLINE_S,
    timeout_s: float = 60.0,
) -> Engines:
    """Use engines that another process started: with Slurm, over SSH, or with an MPI launcher on several hosts.

    It warns if the controller of the engines listens on an address other than the loopback device's without
    encryption, and if the hosts have different CUDA drivers or numbers of GPUs.

    Parameters
    ----------
    client : ipyparallel.Client
        A client that is connected to the engines. Any launcher, or several, may have started them.
    backend : {"auto", "nccl", "gloo", "mpi"}, default "auto"
        The backend that moves the data. With ``"nccl"`` and ``"gloo"``, engines of any launcher become ranks. Their
        order is that of the hosts by name (node2 before node10), and on a host that of the launcher's local ranks.
        Each rank of NCCL has its own GPU: the only one that its process sees, or the next one of its host. With
        ``"mpi"``, one MPI launcher must have started all engines, and has determined their order. ``"auto"`` selects
        ``"nccl"`` if every engine has a GPU and the required packages, else ``"mpi"`` if one MPI launcher started all
        engines, else ``"gloo"`` if torch is installed.
    checks : {"first", "all", "off"}, default "first"
        The calls that are compared between ranks, as in `launch`.
    deadline_s : float, default 30
        Maximum duration of a call, in seconds, before its ranks are considered stuck.
    timeout_s : float, default 60
        Maximum time, in seconds, that the ranks may take to open their communicator.

    Returns
    -------
    Engines
        The engines. Closing them leaves the processes running.

    Raises
    ------
    EngineError
        If the client has no engines, or the backend is unknown.
        If a host has fewer GPUs than engines, or lacks packages of the backend.
        If the client and the engines have different versions of meshlab or Python, or the engines of NCCL.
        If the engines are not the ranks of one MPI world, with ``"mpi"``.

    Examples
    --------
    Here `launch` starts the engines. A client of engines that Slurm started is used in the same way.

    >>> with launch(2, backend="mpi") as engines:
    ...     with attach(engines.client) as attached:
    ...         attached.run(lambda comm: comm.size)["value"].tolist()
    ...     engines.state
    [2, 2]
    'ready'
    """
    from meshlab.engines._processes import AttachedSet, warn_of_clear_text

    check_backend(backend, EngineError, names=("auto", *PROCESS_BACKENDS))
    warn_of_clear_text(client)
    return Engines(AttachedSet(client, backend, checks), deadline_s=deadline_s, timeout_s=timeout_s)
