"""Engines: one process or thread per rank, shared by one caller at a time, with deadlines and restarts."""

from __future__ import annotations

import atexit
import hashlib
import secrets
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from meshlab.base import _markup as markup
from meshlab.base._backends import BACKENDS, BackendFacts, check_backend, choice_text, openable_backends
from meshlab.base._errors import EngineError
from meshlab.base._forwarding import implementation
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_size
from meshlab.comm._compositions import with_compositions
from meshlab.comm._worlds import beside_module
from meshlab.engines._checks import check_fit_of, check_mesh_backends, check_mesh_size, check_packages_of, verify_mesh
from meshlab.engines._guard import guarded
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.engines._open_groups import OpenGroups
from meshlab.engines._rank_hosts import n_hosts, place_label, ranks_label
from meshlab.engines._rounds import RankInfo, RankSet, Round, frame_of, status_frame
from meshlab.engines._torch import TorchMesh, check_expressible
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.topology.placement._straddling import Straddle, find_straddle
from meshlab.topology.readers._hosts import probe

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.comm._backend import Capabilities
    from meshlab.topology.model._cluster import Cluster
    from meshlab.traces._trace import Trace

_NEXT = {"ready": ".verify(mesh), ml.bench(engines, mesh), .close()", "broken": ".restart()", "closed": "ml.launch(n)"}
_END_S = 3.0  # maximum time that a cancelled run gets to record its outcome when its engines are closed


class Engines:
    """Worker processes or threads, one per rank. Created by `launch` and `attach`.

    Any mesh with `world_size` ranks runs on the same engines. Only one task runs at a time. A second call raises
    `EngineError` with the name of the current task.

    If a rank dies, raises while other ranks wait for it, or misses the deadline, the call raises an `EngineError` that
    names the rank. All ranks are then stopped, and `restart` starts new ones.

    Attributes
    ----------
    ranks : tuple of RankInfo
        Descriptions of the ranks, in rank order: host, pid, versions and capabilities. `restart` replaces the tuple.
    deadline_s : float
        Maximum duration of a call, in seconds, before its ranks are considered stuck.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     engines
    ...     sums = engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())
    <Engines: 2 ranks · threads in this process, ready; next: .verify(mesh), ml.bench(engines, mesh), .close()>
    >>> sums["value"].tolist()
    [2.0, 2.0]
    >>> engines.state
    'closed'
    """

    def __init__(self, rank_set: RankSet, *, deadline_s: float, timeout_s: float) -> None:
        self._rank_set = rank_set
        self._timeout_s = timeout_s
        self._replacing = threading.Lock()
        self._turn = threading.Condition()  # guards the two fields below
        self._lease: Lease | None = None  # of the current task, whose ranks no other caller may use
        self._n_waiting = 0
        self._state: Literal["ready", "broken", "closing", "closed"] = "ready"
        self._why_broken = ""
        self._groups = OpenGroups(self)
        self._round: Round | None = None
        self.between_tasks: Callable[[Lease], None] | None = None
        """A function that is called before every task of a run, which may use the idle ranks for a few milliseconds."""
        self.takes_turns_with: Sequence[Engines] = ()
        """Other engines for which `between_tasks` waits. If there are any, a run measures each step in blocks."""
        self.deadline_s = deadline_s
        self.ranks: tuple[RankInfo, ...] = rank_set.start(timeout_s)
        # Attaching twice to the same processes does not make two launches of them.
        processes = repr(sorted((info.host, info.pid) for info in self.ranks)).encode()
        name = hashlib.blake2s(processes, digest_size=6).hexdigest() if rank_set.is_attached else _new_name()
        self.process_set = name
        """A unique name of the processes of the ranks. It changes when `restart` replaces all of them."""
        # Registered after the clean-up of the rank set, so that it runs before: a run is then cancelled, not failed.
        self._at_exit = partial(_call_if_alive, weakref.WeakMethod(self._cancel_at_exit))
        atexit.register(self._at_exit)

    # -- description ---------------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._rank_set.size

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return self._rank_set.backend

    @property
    def _facts(self) -> BackendFacts:
        return BACKENDS[self.backend]

    @property
    def client(self) -> Any:
        """The ipyparallel client, for ``%%px`` and direct use. None for threads."""
        return self._rank_set.client

    @property
    def state(self) -> str:
        """``"ready"``, ``"busy"``, ``"broken"``, ``"closing"`` (until all processes have ended) or ``"closed"``."""
        lease = self._lease
        return "busy" if self._state == "ready" and lease is not None and not lease.is_query else self._state

    @property
    def launch_arguments(self) -> dict[str, Any] | None:
        """The arguments with which `launch` starts the same ranks again. None if another process started them."""
        return self._rank_set.launch_arguments

    @property
    def where(self) -> str:
        """Label of the measured system, such as "4 ranks · MPI on this CPU" or "4 ranks on 2 hosts · MPI over eth0"."""
        return ranks_label(self.ranks)

    def where_of(self, mesh: DeviceMesh, axes: Sequence[str]) -> str:
        """Label of the system that is measured along some axes or groups of a mesh. It names every backend.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("pp=2, tp=2", backends={"pp": "gloo"})
        >>> with ml.launch(4, backend="threads") as engines:
        ...     engines.where_of(mesh, ["tp", "pp"])
        '4 ranks · threads in this process (pp: Gloo on this CPU)'
        """
        others = [axis for axis in axes if self.backend_of(mesh, axis) != self.backend]
        if not others:
            return self.where
        backend = self.backend_of(mesh, others[0])
        where = place_label(self.ranks, backend, self.capabilities(backend).where)
        if len(others) == len(axes):
            hosts = f" on {n_hosts(self.ranks)} hosts" if n_hosts(self.ranks) > 1 else ""
            return f"{self.world_size} rank{'s' * (self.world_size != 1)}{hosts} · {where}"
        return f"{self.where} ({', '.join(others)}: {where})"

    @property
    def task(self) -> str:
        """The task that the ranks are busy with. Empty if they are idle."""
        lease = self._lease
        return "" if lease is None or lease.is_query else lease.task

    @property
    def problem(self) -> str:
        """The reason why the engines are broken. Empty if they are not."""
        return self._why_broken if self._state == "broken" else ""

    def calls(self) -> list[int]:
        """Return the number of collectives that each rank has entered, -1 if unknown. Works while ranks are busy."""
        return [position.calls for position in self._rank_set.positions()]

    def status(self) -> pd.DataFrame:
        """Return the state of every rank.

        Returns
        -------
        pandas.DataFrame
            One row per rank: ``rank``, ``host``, ``pid``, ``backend``, ``library``, ``state``, ``calls`` (collectives
            entered), ``communicators`` (open ones) and ``memory_bytes``. The last two are missing while the ranks are
            busy, because only idle ranks can report them.
        """
        answers: list[dict[str, Any]] = [{} for _ in self.ranks]
        with suppress(EngineError), Lease(self, "status", is_query=True) as lease:  # the state shows why it is missing
            answers = [reply.value or {} for reply in lease.on_ranks("status", range(self.world_size))]
        state, current = self.state, self._lease
        if state == "busy" and current is not None:
            state = f"busy with {current.task}"
        return status_frame(self.ranks, self.backend, state, self.calls(), answers)

    def library_logs(self) -> list[str]:
        """Return NCCL's debug output by rank, which is empty unless ``env`` of `launch` sets NCCL_DEBUG."""
        return self._rank_set.library_logs()

    def __repr__(self) -> str:
        return f"<Engines: {self.where}, {self.state}; next: {_NEXT.get(self.state, '.status()')}>"

    def _repr_html_(self) -> str:
        frame = self.status()
        frame["memory"] = [format_size(size) for size in frame["memory_bytes"].fillna(0)]
        header = ["rank", "host", "pid", "library", "state", "calls", "communicators", "memory"]
        rows = frame[header].astype(object).where(frame.notna(), "–").to_numpy().tolist()
        return markup.card(f"Engines · {self.where}", f"{self.state}", markup.table(header, rows))

    # -- use -----------------------------------------------------------------------------------------------------------

    def run(
        self,
        function: Callable[..., Any],
        mesh: MeshLike | None = None,
        *,
        axis: str | Sequence[str] = WORLD,
        arguments: tuple[Any, ...] = (),
        deadline_s: float | None = None,
        check: bool = True,
    ) -> pd.DataFrame:
        """Call ``function(communicator, *arguments)`` on every rank simultaneously.

        Parameters
        ----------
        function : callable
            The function to call. Its first argument is the rank's `Communicator` along `axis`.
        mesh : DeviceMesh or str, optional
            The mesh that defines the groups. Required unless `axis` is ``"world"``.
        axis : str or sequence of str, default "world"
            The axis or axes that define the groups, or the name of a group. Ranks outside the group do not take part.
        arguments : tuple, default ()
            Further arguments, identical on every rank.
        deadline_s : float, optional
            Maximum duration, in seconds. By default the deadline of the engines.
        check : bool, default True
            If True, raise the first error of any rank. If False, report errors in the ``error`` column.

        Returns
        -------
        pandas.DataFrame
            One row per rank: ``rank``, ``group``, ``value`` (returned by the function) and ``error`` (type and message
            of the exception, missing if there was none). ``attrs["tracebacks"]`` maps ranks to complete tracebacks.

        Raises
        ------
        EngineError
            If a rank dies, or does not finish before the deadline.
            If a rank raises while other ranks wait for it, or if `check` is True and a rank raises at all. The error
            has the rank and its traceback. The original exception is its cause, unless it cannot be pickled.
            If all ranks have returned, but the ranks of a group called different collectives.
            If the engines are busy, broken or closed.
            If an axis or group of the mesh has a backend that these engines cannot open.
        MeshError
            If the mesh does not have `world_size` ranks.
            If the mesh does not have the axis.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(4, backend="threads") as engines:
        ...     frame = engines.run(lambda comm: comm.ranks, "dp=2, tp=2", axis="dp")
        >>> frame["value"].tolist()
        [(0, 2), (1, 3), (0, 2), (1, 3)]
        >>> with ml.launch(2, backend="threads") as engines:
        ...     print(engines.run(lambda comm: 1 // comm.rank, check=False)["error"][0])
        ZeroDivisionError: integer division or modulo by zero
        """
        mesh = None if mesh is None else as_mesh(mesh, fill=self.world_size)
        if mesh is not None:
            self.check_mesh(mesh)
        task = f"running {getattr(function, '__name__', 'a function')}"
        with Lease(self, task) as lease:
            replies = lease.round(function, mesh, axis, arguments, deadline_s=deadline_s).run()
        if check:
            raise_first_error(replies, task, self.ranks, hint="pass check=False for the values and errors of all ranks")
        return frame_of(replies, (mesh or DeviceMesh(all_ranks=self.world_size))[axis])

    def verify(self, mesh: MeshLike) -> pd.DataFrame:
        """Check that all ranks agree on the mesh and that every group has exactly the expected members.

        The members of every group exchange their global ranks and add up a rank-coded number.

        Parameters
        ----------
        mesh : DeviceMesh or str
            The mesh.

        Returns
        -------
        pandas.DataFrame
            One row per group: ``axis``, ``group``, ``n_ranks``, ``ranks``, ``is_right`` (always True) and ``seen``
            (the members that the ranks found).

        Warns
        -----
        UserWarning
            If an axis spans more hosts than it would with another order of the ranks or of the axes, which it names.

        Raises
        ------
        CommunicatorError
            If a rank computes a different fingerprint.
            If the members of a group differ. The error names the group, the expected and the actual members.
        EngineError
            If the engines are busy, broken or closed.
            If an axis or group of the mesh has a backend that these engines cannot open.
        MeshError
            If the mesh does not have `world_size` ranks.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(4, backend="threads") as engines:
        ...     print(engines.verify("dp=2, tp=2")[["group", "ranks", "is_right"]].tail(2))
          group   ranks  is_right
        3  tp_0  (0, 1)      True
        4  tp_1  (2, 3)      True
        """
        mesh = as_mesh(mesh, fill=self.world_size)
        self.check_mesh(mesh)
        with Lease(self, f"verifying {mesh}") as lease:
            groups = verify_mesh(lease, mesh)
        if (straddle := self.straddle_of(mesh)) is not None:
            warnings.warn(str(straddle), stacklevel=2)
        return groups

    def torch(self, mesh: MeshLike) -> TorchMesh:
        """Open torch's default process group on the ranks, and a ``DeviceMesh`` of torch with the groups of a mesh.

        Code for FSDP, DTensor, pipelines or context parallelism then runs as under torchrun, without its
        ``init_process_group``. The device mesh is ``comm.torch_mesh`` in the functions of `run`, `profile` and
        `meshlab.bench`, and the variable ``torch_mesh`` in cells with ``%%px``. torch uses NCCL on GPUs, and Gloo
        otherwise. All groups are compared with those of the mesh. After an error or a restart, the next task opens
        them again.

        Parameters
        ----------
        mesh : DeviceMesh or str
            The mesh, without custom groups, and with ascending ranks along each axis. Eight meshes stay open.

        Returns
        -------
        TorchMesh
            The mesh, the version of torch and its device.

        Raises
        ------
        EngineError
            If torch is missing, too old, or cannot use the GPUs of the ranks.
            If the ranks are threads, or the engines are busy, broken or closed.
        MeshError
            If the mesh does not have `world_size` ranks, or torch cannot express it.
        CommunicatorError
            If a group of torch has other ranks. The error names the axis, the rank and the groups.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.torch("dp=2")
        Traceback (most recent call last):
        ...
        meshlab.errors.EngineError: torch needs a process per rank, but these ranks are threads of one process; start
        engines with ml.launch(n)
        """
        mesh = as_mesh(mesh, fill=self.world_size)
        check_expressible(self, mesh)
        with Lease(self, f"opening torch on {mesh}"):
            version = self._groups.torch.request(mesh)
            self._rank_set.has_torch = True
        return TorchMesh(mesh, version, "cuda" if self._facts.on_gpus else "cpu")

    def profile(
        self,
        function: Callable[..., Any],
        mesh: MeshLike,
        *,
        steps: int = 3,
        arguments: tuple[Any, ...] = (),
        folder: str | Path | None = None,
        deadline_s: float | None = None,
    ) -> Trace:
        """Profile a function on all ranks with torch's profiler, and read the trace of its collectives.

        Parameters
        ----------
        function : callable
            The step, called as in `run`: with the rank's `Communicator`, whose ``torch_mesh`` is that of `torch`, which
            opens torch on the mesh if necessary. If it returns a callable, that is the step, and the rest of the
            function prepares it.
        mesh : DeviceMesh or str
            The mesh, as for `torch`.
        steps : int, default 3
            Number of steps in the trace. Two steps run before them.
        arguments : tuple, default ()
            Further arguments, identical on every rank.
        folder : str or path, optional
            The folder for the files ``rank0.json.gz``, …, which other programs read too. By default none are kept.
        deadline_s : float, optional
            Maximum duration, in seconds. By default the deadline of the engines.

        Returns
        -------
        Trace
            The calls of all ranks. ``trace.by_axis(mesh)`` is a table by axis and step.

        Raises
        ------
        EngineError
            As from `torch` and `run`.
        BenchError
            If `steps` is not a positive integer, or the folder has traces already.
        ParseError
            If the steps contain no collective.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:  # with MPI, Gloo and NCCL, it returns a trace
        ...     engines.profile(lambda comm: comm.all_reduce(comm.xp.ones(1024)), "dp=2")
        Traceback (most recent call last):
        ...
        meshlab.errors.EngineError: torch needs a process per rank, but these ranks are threads of one process; start
        engines with ml.launch(n)
        """
        return implementation(Engines.profile)(
            self, function, mesh, steps=steps, arguments=arguments, folder=folder, deadline_s=deadline_s
        )

    def straddle_of(self, mesh: DeviceMesh) -> Straddle | None:
        """Return the busiest axis that spans more hosts than it would in another order, or None."""
        return find_straddle(mesh, [info.host for info in self.ranks])

    def probe(self) -> Cluster:
        """Return the hardware of all hosts of the ranks as one cluster. See `meshlab.probe`.

        Returns
        -------
        Cluster
            One node per host. Hosts whose GPUs report the same NVLink fabric share an NVLink domain.

        Raises
        ------
        TopologyError
            If a rank could not read its host.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.probe().n_nodes
        1
        """
        return probe(self)

    def check_mesh(self, mesh: DeviceMesh) -> None:
        """Raise an error unless the mesh can run on these engines.

        Raises
        ------
        MeshError
            If the mesh does not have `world_size` ranks.
        EngineError
            If an axis or group of the mesh has a backend that these engines cannot open.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(4, backend="threads") as engines:
        ...     engines.check_mesh(ml.DeviceMesh("pp=2, tp=2", backends={"pp": "nccl"}))
        Traceback (most recent call last):
        ...
        meshlab.errors.EngineError: axis 'pp' of the mesh has the backend 'nccl', but the engines can open 'threads' and
        'gloo'; create the mesh without backends=, or start the engines with backend='nccl'
        """
        check_mesh_size(mesh, self.world_size)
        check_mesh_backends(mesh, self.backend)
        if not self._rank_set.is_attached:
            for backend in {*mesh.backends.values()} - {self.backend}:
                check_packages_of(backend)

    def backend_of(self, mesh: DeviceMesh, axis: str | Sequence[str]) -> str:
        """Return the name of the backend that opens the groups ``mesh[axis]``.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("pp=2, tp=2", backends={"pp": "gloo"})
        >>> with ml.launch(4, backend="threads") as engines:
        ...     engines.backend_of(mesh, "pp"), engines.backend_of(mesh, "tp")
        ('gloo', 'threads')
        """
        return mesh.backend_of(axis) or self.backend

    def capabilities(self, backend: str | None = None) -> Capabilities:
        """Return the capabilities of the backend of the engines, or of one that an axis of a mesh has.

        Parameters
        ----------
        backend : str, optional
            The name of the backend. By default that of the engines.

        Raises
        ------
        EngineError
            If the engines cannot open the backend.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.capabilities().where, engines.capabilities("gloo").where
        ('threads in this process', 'Gloo on this CPU')
        """
        if backend is None or backend == self.backend:
            return self.ranks[0].capabilities
        check_backend(backend, EngineError)
        openable = openable_backends(self.backend)
        if backend not in openable:
            also = f" and can open {choice_text(openable, 'and')}" if len(openable) > 1 else ""
            raise EngineError(
                f"the engines run {self.backend!r}{also}, not {backend!r}",
                hint=Hint("start engines with {}", Argument("backend", backend)),
            )
        return with_compositions(beside_module(backend).capabilities())

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the function that the ranks are running, after a call of MPI or NCCL returns."""
        if self._state == "ready":
            self._rank_set.interrupt()

    def kill(self) -> None:
        """Kill the ranks immediately and release the caller that waits for them. `restart` starts new ones.

        Ranks that another process started are interrupted instead.
        """
        if self._state == "ready":
            if self._rank_set.is_attached:
                self._rank_set.interrupt()
            self._break("they were interrupted" if self._rank_set.is_attached else "they were killed")
            self._cancel_round("the ranks were ended")

    def restart(self, *, hosts: Literal["all", "left"] = "all", mesh: MeshLike | None = None) -> None:
        """Start new ranks. The client stays the same, unless its controller has died or does not respond.

        Parameters
        ----------
        hosts : {"all", "left"}, default "all"
            The hosts of ranks that ``launch(hosts=…)`` started. ``"left"`` leaves out those that do not answer. The
            others keep their order and their numbers of ranks, so that `world_size` falls, and later restarts use them
            alone. With Slurm, hosts that did not answer the ranks are left out.
        mesh : DeviceMesh or str, optional
            A mesh that the new ranks must fit, such as ``"node=-1, local=8"``. If it does not, nothing is started.

        Warns
        -----
        UserWarning
            If hosts are left out. It names them.

        Raises
        ------
        EngineError
            If the engines are busy or closed.
            If another process started the ranks.
            If the ranks do not start.
            If no host answers, or the ranks are not those of ``launch(hosts=…)``, with ``hosts="left"``.
        MeshError
            If `mesh` does not fit the number of ranks. It names the nearest meshes with the same axes.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.kill()
        ...     engines.restart()
        ...     engines.run(lambda comm: comm.rank)["value"].tolist()
        [0, 1]
        """
        if hosts not in ("all", "left"):
            raise EngineError(f"unknown hosts {hosts!r}", hint="choose 'all' or 'left'")
        dropped = self._restart(mesh, self._rank_set.leave_out_hosts if hosts == "left" else None)
        if dropped:
            verb = "does" if len(dropped) == 1 else "do"
            ranks = f"{self.world_size} rank{'s' * (self.world_size != 1)}"
            warnings.warn(f"{', '.join(dropped)} {verb} not answer, so the engines have {ranks}", stacklevel=2)

    def shrink(self, *, mesh: MeshLike | None = None) -> tuple[str, ...]:
        """Go on with the ranks that are left after a fault, and return the names of those that are lost.

        NCCL's ranks survive the fault of another one, so only their communicators are new. They are numbered again, in
        order, and later restarts use them alone. For ``launch(hosts=…)`` this is ``restart(hosts="left")``.

        Parameters
        ----------
        mesh : DeviceMesh or str, optional
            A mesh that the ranks that are left must fit, such as ``"dp=-1, tp=2"``. If it does not, nothing changes.

        Returns
        -------
        tuple of str
            The lost ranks, such as ``("rank 3",)``, or the lost hosts of ``launch(hosts=…)``.

        Raises
        ------
        EngineError, MeshError
            As `restart`, and if no ranks are left, as with MPI and Gloo, whose ranks end together.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:  # with NCCL, it returns the lost ranks
        ...     engines.shrink()
        Traceback (most recent call last):
        ...
        meshlab.errors.EngineError: the engines have no hosts to leave out; call engines.restart() to start new ranks
        """
        return tuple(self._restart(mesh, self._rank_set.leave_out_ranks))

    def _restart(
        self, mesh: MeshLike | None, leave_out: Callable[[Callable[[int], None]], Sequence[str]] | None
    ) -> Sequence[str]:
        """Start new ranks for those that are gone, or leave them out. Return what was left out."""
        if self._is_closed():
            raise _closed_error()
        if self._rank_set.is_attached:
            raise EngineError(
                "cannot restart engines that another process started",
                hint="restart them there, and call attach() again",
            )
        self._acquire(Lease(self, "a restart"), hint="cancel it first")
        try:
            check_size = partial(check_fit_of, mesh)
            dropped = () if leave_out is None else leave_out(check_size)
            check_size(self.world_size)
            self._replace_ranks("they are being restarted")
        finally:
            self._release()
        return dropped

    def close(self, *, cancel: bool = False) -> None:
        """Stop the ranks and clean up, within 10 seconds. A second call has no effect.

        The end of a ``with`` block and the exit of the interpreter also close the engines. Both cancel a run that is
        under way. Its rows are kept. If the call is interrupted, call it again: it then completes the clean-up.

        Parameters
        ----------
        cancel : bool, default False
            If True, cancel a run that is under way, and release other callers with an error.

        Raises
        ------
        EngineError
            If the engines are busy and `cancel` is False. They stay open.

        Examples
        --------
        >>> import meshlab as ml
        >>> engines = ml.launch(2, backend="threads")
        >>> run = ml.bench(engines, sizes="1K:64M")
        >>> engines.close(cancel=True)
        >>> run.state, engines.state
        ('cancelled', 'closed')
        """
        if self._state == "closed":
            return
        with self._turn:
            lease = None if self._lease is None or self._lease.is_query else self._lease
            # The engines are "broken" while a run replaces its ranks, but the run is still under way.
            is_under_way = self._state == "ready" or (lease is not None and lease.cancel is not None)
            if lease is not None and not cancel and is_under_way and not self._is_closed():
                first = "call run.wait() or run.cancel() first" if lease.cancel is not None else "wait for it"
                raise EngineError(
                    f"cannot close the engines, which are busy with {lease.task}",
                    hint=f"{first}, or call engines.close(cancel=True)",
                )
            self._state = "closing"
        is_over = None if lease is None or lease.cancel is None else lease.cancel()
        try:
            self._rank_set.close()  # also makes another thread give up that starts ranks
        finally:
            self._cancel_round("the engines were closed")
        atexit.unregister(self._at_exit)
        self._state = "closed"
        if is_over is not None:
            is_over.wait(_END_S)

    def _cancel_round(self, reason: str) -> None:
        current = self._round  # read once, because its thread sets it to None
        if current is not None:
            current.cancel(reason)

    def _is_closed(self) -> bool:
        return self._state in ("closing", "closed")

    def _cancel_at_exit(self) -> None:
        """Cancel a run when the interpreter exits. The rank set stops its processes itself."""
        lease = self._lease
        if self._state != "closed" and lease is not None and lease.cancel is not None:
            self._state = "closing"
            is_over = lease.cancel()
            self._cancel_round("the interpreter exits")
            is_over.wait(_END_S)

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close(cancel=True)

    # -- for `Lease` ---------------------------------------------------------------------------------------------------

    def _acquire(self, lease: Lease, *, hint: str = "wait for it, or cancel it") -> None:
        """Acquire the engines, or raise if they are busy."""
        # Other callers wait for a status query, because it is short. A status query never waits for a task: it raises
        # if one is running, or if another caller waits.
        with self._turn:
            self._n_waiting += not lease.is_query
            try:
                self._turn.wait_for(lambda: self._lease is None or not self._lease.is_query, self.deadline_s)
            finally:
                self._n_waiting -= not lease.is_query
            if self._lease is not None or (lease.is_query and self._n_waiting):
                task = "a waiting call" if self._lease is None else self._lease.task
                raise EngineError(f"the engines are busy with {task}", hint=hint)
            self._lease = lease

    def _release(self) -> None:
        with self._turn:
            self._lease = None
            self._turn.notify_all()

    def _check_usable(self) -> None:
        if self._is_closed():
            raise _closed_error()
        if self._state == "broken":
            raise EngineError(f"the engines are broken: {self._why_broken}", hint=self._rank_set.recovery())

    def _replace_ranks(self, reason: str, *, reuse: bool = True) -> None:
        """Kill the ranks, if they are not dead already, and start new ones."""
        with self._replacing:
            if self._is_closed():
                raise _closed_error()
            if self._state == "ready":
                self._break(reason, reuse=reuse)
            before = {(info.host, info.pid) for info in self.ranks}
            try:
                self.ranks = self._rank_set.start(self._timeout_s)
            except BaseException as error:
                summary = error.summary if isinstance(error, EngineError) else str(error) or type(error).__name__
                self._why_broken = f"new ranks could not be started: {summary}"
                raise
            if self._is_closed():  # while they were started, by a caller that may not wait for them any more
                self._rank_set.close()
                raise _closed_error()
            if self._facts.in_process or not before & {(info.host, info.pid) for info in self.ranks}:
                self.process_set = _new_name()
            if self._state == "broken":  # another thread may have begun to close the engines
                self._state = "ready"

    def _break(self, reason: str, *, reuse: bool = True) -> None:
        self._state = "broken"
        self._why_broken = reason
        self._groups.forget()
        self._rank_set.kill(reuse=reuse)

    def _new_round(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        *,
        ranks: Sequence[int] | None = None,
        task: str,
        deadline_s: float | None = None,
        **groups: Any,
    ) -> Round:
        """Return a call of a method of the worker on several ranks, by default all. `groups` are those of `Round`."""
        ranks = range(self.world_size) if ranks is None else ranks
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        return Round(
            self._rank_set, self.ranks, partial(guarded, self), ranks, method, arguments, task, deadline_s, **groups
        )


def _new_name() -> str:
    return secrets.token_hex(6)


def _call_if_alive(reference: weakref.WeakMethod[Callable[[], None]]) -> None:
    method = reference()
    if method is not None:
        method()


def _closed_error() -> EngineError:
    return EngineError("the engines are closed", hint="call launch() to start new ones")
