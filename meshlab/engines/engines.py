"""Engines: running ranks, and the rules by which they are used, watched, ended and started again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meshlab import markup
from meshlab.engines.rounds import RankInfo, RankSet, Reply, Round, RoundFailedError
from meshlab.errors import CommunicatorError, EngineError, MeshError
from meshlab.mesh.axes import WORLD
from meshlab.mesh.groups import Group, Groups
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.units import format_size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Engines", "Lease", "check_mesh_size", "verify_mesh"]


class Lease:
    """The right to use the ranks, for as long as `Engines.lease` lasts."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines

    @property
    def doing(self) -> str:
        """What the ranks are busy with, as others are told."""
        return self.engines._doing

    @doing.setter
    def doing(self, text: str) -> None:
        self.engines._doing = text

    def everywhere(self, method: str, *arguments: Any) -> list[Reply]:
        """Run one of the worker's own methods on every rank."""
        engines = self.engines
        return engines._round(method, [arguments] * engines.world_size, doing=self.doing)

    def call(
        self,
        function: Callable[..., Any],
        mesh: DeviceMesh | None = None,
        axis: str | Sequence[str] = WORLD,
        arguments: tuple[Any, ...] = (),
        *,
        also: Sequence[str] = (),
        ranks: Collection[int] | None = None,
        deadline_s: float | None = None,
    ) -> list[Reply]:
        """Call ``function(communicator, *arguments)`` on every rank that is in a group along `axis`.

        Parameters
        ----------
        function, mesh, axis, arguments, deadline_s
            As in `Engines.run`.
        also : sequence of str, default ()
            More group sets; their communicators are handed over behind the first. Only ranks that are in all take part.
        ranks : collection of int, optional
            Only these take part; the others stay idle.
        """
        engines = self.engines
        names, colors = [], []
        for one in (axis, *also):
            name, groups = engines._make_group_set(mesh, one)
            names.append(name)
            colors.append(groups.color)
        members = [
            rank
            for rank in (range(engines.world_size) if ranks is None else sorted(ranks))
            if all(color[rank] >= 0 for color in colors)
        ]
        task = (function, arguments)
        shipped = task if engines.backend == "threads" else _pickled(task)
        given = [(tuple(names), shipped)] * len(members)
        # Ranks make the same calls only where they are together in all that they were handed.
        _, together = np.unique(np.stack(colors), axis=1, return_inverse=True)
        return engines._round(
            "run", given, ranks=members, groups=together.ravel().tolist(), doing=self.doing, deadline_s=deadline_s
        )

    def renew(self) -> None:
        """Close all communicators, so that fresh ones are made."""
        self.engines._forget_group_sets("to make fresh ones")


def _pickled(task: tuple[Callable[..., Any], tuple[Any, ...]]) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(task))
    except Exception as error:
        raise EngineError(
            f"the function or its arguments cannot be sent to the engines: {error}; "
            "they must not hold open files, locks or widgets"
        ) from error


def verify_mesh(lease: Lease, mesh: DeviceMesh) -> pd.DataFrame:
    """Do what `meshlab.engines.Engines.verify` promises."""
    import pandas as pd

    for reply in lease.everywhere("fingerprint", mesh):
        if reply.value != mesh.fingerprint:
            raise CommunicatorError(
                f"rank {reply.rank} sees mesh {reply.value or reply.error} and not {mesh.fingerprint}; "
                "install the same version of meshlab everywhere",
                rank=reply.rank,
            )
    rows = []
    for name in (WORLD, *mesh.axis_names, *(group.name for group in mesh.custom_groups)):
        replies = {reply.rank: reply for reply in lease.call(_who_is_here, mesh, name)}
        for group in mesh.group_set(name):
            for rank in group:
                _check_member(group, replies[rank])
            rows.append((name, group.name, len(group), group.ranks, True, tuple(replies[group.ranks[0]].value[0])))
    return pd.DataFrame(rows, columns=["axis", "group", "n_ranks", "ranks", "is_right", "seen"])


def _who_is_here(comm: Any) -> tuple[list[int], int]:
    """Runs on every rank: tell each other who we are, and add up a number that only the right ranks give."""
    me = comm.xp.asarray([comm.world_rank], dtype="int64")
    return [int(rank) for rank in comm.all_gather(me)], int(comm.all_reduce(me + 1)[0])


def _check_member(group: Group, reply: Reply) -> None:
    if reply.error is not None:
        raise CommunicatorError(
            f"rank {reply.rank} failed while group {group.name} was verified: {reply.error}",
            group=group.name,
            rank=reply.rank,
        )
    seen, total = reply.value
    if tuple(seen) != group.ranks or total != sum(rank + 1 for rank in group.ranks):
        raise CommunicatorError(
            f"group {group.name} should be {list(group.ranks)}, but rank {reply.rank} is together with {list(seen)}, "
            f"and their sum is {total}",
            group=group.name,
            rank=reply.rank,
        )


_MOST_GROUP_SETS = 32


class Engines:
    """Running ranks. Made by `launch` and `attach`.

    Any mesh with as many ranks can be used on them. One caller at a time: a second one is told what they are busy with.
    When a rank dies, raises while others wait for it, or does not answer within the deadline, the call raises
    `EngineError` naming the rank, the set of ranks is ended, and `restart` starts a fresh one.

    Examples
    --------
    >>> from meshlab.engines.launcher import launch
    >>> with launch(2, backend="threads") as engines:
    ...     engines
    ...     sums = engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())
    <Engines: 2 ranks · threads in this process, ready>
    >>> sums["value"].tolist()
    [2.0, 2.0]
    >>> engines.state
    'closed'
    """

    def __init__(self, ranks: RankSet, *, deadline_s: float, timeout_s: float) -> None:
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._turn = threading.Condition()
        self._is_taken = False
        self._is_asked = False
        self._n_waiting = 0
        self._doing = ""
        self._state: Literal["ready", "broken", "closed"] = "ready"
        self._why_broken = ""
        self._group_sets: OrderedDict[str, None] = OrderedDict()
        self._current: Round | None = None
        self.deadline_s = deadline_s
        self.facts: tuple[RankInfo, ...] = ranks.start(timeout_s)

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self._ranks.size

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._ranks.backend

    @property
    def client(self) -> Any:
        """The plain ipyparallel client, so that ``%%px`` works; None for threads."""
        return self._ranks.client

    @property
    def state(self) -> str:
        """ready, busy, broken or closed."""
        return "busy" if self._state == "ready" and self._is_taken and not self._is_asked else self._state

    @property
    def where(self) -> str:
        """What numbers measured here are numbers of, for titles: such as "4 ranks · MPI on this CPU"."""
        times = "×" if self.backend == "nccl" else f"rank{'s' * (self.world_size != 1)} ·"
        return f"{self.world_size} {times} {self.facts[0].capabilities.where}"

    def status(self) -> pd.DataFrame:
        """One row per rank: host, process, backend, library, state, collectives entered, communicators, memory.

        While the ranks are busy, communicators and memory are missing: only the ranks themselves know them.
        """
        import pandas as pd

        answers: list[dict[str, Any]] = [{} for _ in self.facts]
        with suppress(EngineError), self._lease("status", is_question=True) as lease:  # the state says why not
            answers = [reply.value or {} for reply in lease.everywhere("status")]
        counts = self._ranks.calls()
        state = self.state if self._state != "ready" or self.state != "busy" else f"busy with {self._doing}"
        rows = [
            {
                "rank": fact.rank,
                "host": fact.host,
                "pid": fact.pid,
                "backend": self.backend,
                "library": fact.capabilities.library,
                "state": state,
                "calls": counts[fact.rank] if counts[fact.rank] >= 0 else pd.NA,
                "communicators": answer.get("communicators", pd.NA),
                "memory_bytes": answer.get("memory_bytes", pd.NA),
            }
            for fact, answer in zip(self.facts, answers, strict=True)
        ]
        whole = dict.fromkeys(("calls", "communicators", "memory_bytes"), "Int64")
        return pd.DataFrame(rows).astype(whole)

    def library_logs(self) -> list[str]:
        """What NCCL tells about itself, one text per rank: start the engines with ``env={"NCCL_DEBUG": "INFO"}``."""
        ask = getattr(self._ranks, "library_logs", None)
        return [""] * self.world_size if ask is None else ask()

    # -- use -----------------------------------------------------------------------------------------------------------

    @contextmanager
    def lease(self, doing: str) -> Iterator[Lease]:
        """Take the ranks for a while; nobody else can use them meanwhile.

        Parameters
        ----------
        doing : str
            What for; others are told "busy with …".

        Raises
        ------
        EngineError
            If the ranks are busy, broken or closed.
        """
        with self._lease(doing) as lease:
            yield lease

    @contextmanager
    def _lease(self, doing: str, *, is_question: bool = False) -> Iterator[Lease]:
        self._take(doing, is_question=is_question)
        try:
            self._check_usable()
            yield Lease(self)
        finally:
            self._give_back()

    def _take(self, doing: str, *, is_question: bool = False, cure: str = "wait for it, or cancel it") -> None:
        """Have the ranks, or raise. A question for their status is soon over and is waited for; it waits for nobody."""
        with self._turn:
            self._n_waiting += not is_question
            try:
                self._turn.wait_for(lambda: not (self._is_taken and self._is_asked), self.deadline_s)
            finally:
                self._n_waiting -= not is_question
            if self._is_taken or (is_question and self._n_waiting):
                raise EngineError(f"the engines are busy with {self._doing}; {cure}")
            self._is_taken, self._is_asked, self._doing = True, is_question, doing

    def _give_back(self) -> None:
        with self._turn:
            self._is_taken, self._is_asked, self._doing = False, False, ""
            self._turn.notify_all()

    def run(
        self,
        function: Callable[..., Any],
        mesh: MeshLike | None = None,
        *,
        axis: str | Sequence[str] = WORLD,
        arguments: tuple[Any, ...] = (),
        deadline_s: float | None = None,
        check: bool = False,
    ) -> pd.DataFrame:
        """Call ``function(communicator, *arguments)`` on every rank at once.

        Parameters
        ----------
        function : callable
            Its first argument is the rank's `Communicator` along `axis`.
        mesh : DeviceMesh or str, optional
            Says what the groups are; needed unless `axis` is ``"world"``.
        axis : str or sequence of str, default "world"
            Anything `DeviceMesh.group_set` takes.
        arguments : tuple, default ()
            Further arguments, the same on every rank.
        deadline_s : float, optional
            How long it may take; the engines' own deadline by default.
        check : bool, default False
            Whether to raise what a rank raised, instead of telling it in the frame.

        Returns
        -------
        pandas.DataFrame
            One row per rank: ``rank``, ``group``, ``value`` (what the function returned) and ``error`` (what it raised,
            missing when it did not). ``attrs["tracebacks"]`` has the whole text of every error, by rank.

        Raises
        ------
        EngineError
            If a rank died or did not answer in time, or raised while others waited for it; with `check`, also if a
            rank raised at all.
        MeshError
            If the mesh has another number of ranks, or no such axis.

        Examples
        --------
        >>> from meshlab.engines.launcher import launch
        >>> with launch(4, backend="threads") as engines:
        ...     frame = engines.run(lambda comm: comm.ranks, DeviceMesh("dp=2, tp=2"), axis="dp")
        >>> frame["value"].tolist()
        [(0, 2), (1, 3), (0, 2), (1, 3)]

        What was raised, at its full length:

        >>> with launch(2, backend="threads") as engines:
        ...     frame = engines.run(lambda comm: 1 // comm.rank)
        >>> print(frame["error"][0])
        ZeroDivisionError: integer division or modulo by zero
        >>> print(frame.attrs["tracebacks"][0].splitlines()[0])
        Traceback (most recent call last):
        """
        import pandas as pd

        mesh = None if mesh is None else as_mesh(mesh, fill=self.world_size)
        name = getattr(function, "__name__", "a function")
        with self.lease(f"running {name}") as lease:
            replies = lease.call(function, mesh, axis, arguments, deadline_s=deadline_s)
        if check:
            _raise_first_error(replies, f"running {name}", self.facts)
        groups = (mesh or DeviceMesh(all_ranks=self.world_size)).group_set(axis)
        names = groups.names
        frame = pd.DataFrame(
            {
                "rank": [reply.rank for reply in replies],
                "group": [names[groups.color[reply.rank]] for reply in replies],
                "value": pd.Series([reply.value for reply in replies], dtype=object),
                "error": pd.Series([reply.error for reply in replies], dtype="string"),
            }
        )
        frame.attrs["tracebacks"] = {reply.rank: reply.trace for reply in replies if reply.error is not None}
        return frame

    def verify(self, mesh: MeshLike) -> pd.DataFrame:
        """Prove that every rank agrees on the mesh, and that every group contains exactly who it should.

        Every rank computes the mesh's fingerprint on its own. Then in every group of every axis, and in every group
        added by hand, the members tell each other who they are, and a rank-coded sum is checked.

        Returns
        -------
        pandas.DataFrame
            One row per group: ``axis``, ``group``, ``n_ranks``, ``ranks``, ``is_right``, ``seen`` (the members as the
            ranks saw them).

        Raises
        ------
        CommunicatorError
            At the first difference; it names the group, who should be in it, and who is.

        Examples
        --------
        >>> from meshlab.engines.launcher import launch
        >>> with launch(4, backend="threads") as engines:
        ...     proof = engines.verify(DeviceMesh("dp=2, tp=2"))
        >>> proof[["group", "ranks", "is_right"]]
           group         ranks  is_right
        0  world  (0, 1, 2, 3)      True
        1   dp_0        (0, 2)      True
        2   dp_1        (1, 3)      True
        3   tp_0        (0, 1)      True
        4   tp_1        (2, 3)      True
        """
        mesh = as_mesh(mesh, fill=self.world_size)
        with self.lease(f"verifying {mesh}") as lease:
            return verify_mesh(lease, mesh)

    def check_mesh(self, mesh: DeviceMesh) -> None:
        """Raise a `MeshError` unless the mesh has as many ranks as there are engines."""
        check_mesh_size(mesh, self.world_size)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in whatever the ranks are running."""
        if self._state == "ready":
            self._ranks.interrupt()

    def kill(self) -> None:
        """End the ranks at once, whatever they do; `restart` starts fresh ones."""
        if self._state == "ready":
            self._break("they were killed")

    def restart(self) -> None:
        """Start a fresh set of ranks, with the same client.

        Raises
        ------
        EngineError
            If the ranks are busy or closed, were started by somebody else, or do not start.

        Examples
        --------
        >>> from meshlab.engines.launcher import launch
        >>> with launch(2, backend="threads") as engines:
        ...     engines.kill()
        ...     print(engines.state)
        ...     engines.restart()
        ...     print(engines.state, engines.run(lambda comm: comm.rank)["value"].tolist())
        broken
        ready [0, 1]
        """
        if self._state == "closed":
            raise EngineError("the engines are closed; launch() starts new ones")
        if self._ranks.is_attached:
            raise EngineError(
                "these engines were started by somebody else; restart them there, and attach() to them again"
            )
        self._take("a restart", cure="cancel it first")
        try:
            if self._state == "ready":
                self._break("they are being restarted")
            self.facts = self._ranks.start(self._timeout_s)
            self._state = "ready"
        finally:
            self._give_back()

    def close(self) -> None:
        """End the ranks and leave nothing behind. A second call does nothing."""
        if self._state != "closed":
            self._state = "closed"
            self._ranks.close()
            if self._current is not None:
                self._current.give_up("the engines were closed")

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Engines: {self.where}, {self.state}>"

    def _repr_html_(self) -> str:
        frame = self.status()
        frame["memory"] = [format_size(size) for size in frame["memory_bytes"].fillna(0)]
        header = ["rank", "host", "pid", "library", "state", "calls", "communicators", "memory"]
        rows = frame[header].astype(object).where(frame.notna(), "–").to_numpy().tolist()
        return markup.card(f"Engines · {self.where}", f"{self.state}", markup.table(header, rows))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._state == "closed":
            raise EngineError("the engines are closed; launch() starts new ones")
        if self._state == "broken":
            cure = "restart them where they were started" if self._ranks.is_attached else "engines.restart()"
            raise EngineError(f"the engines cannot be used: {self._why_broken}; {cure} gives a fresh set")

    def _break(self, why: str) -> None:
        self._state = "broken"
        self._why_broken = why
        self._group_sets.clear()
        self._ranks.kill()

    def _make_group_set(self, mesh: DeviceMesh | None, axis: str | Sequence[str]) -> tuple[str, Groups]:
        """Have the communicators of a group set made, unless they are there; return what they are called, and it."""
        if mesh is None:
            if axis != WORLD:
                raise MeshError(f"to run along {axis!r}, say on which mesh")
            mesh = DeviceMesh(all_ranks=self.world_size)
        self.check_mesh(mesh)
        groups = mesh.group_set(axis)
        name = WORLD if groups.name == WORLD else f"{mesh.fingerprint} {groups.name}"
        if name in self._group_sets:
            self._group_sets.move_to_end(name)
            return name, groups
        if len(self._group_sets) >= _MOST_GROUP_SETS:
            oldest, _ = self._group_sets.popitem(last=False)
            self._round(
                "drop", [([oldest],)] * self.world_size, doing="closing communicators that were not used lately"
            )
        arguments = []
        for rank in range(self.world_size):
            color = int(groups.color[rank])
            group = groups[color] if color >= 0 else None
            arguments.append(
                (
                    name,
                    None if group is None else color,
                    int(groups.key[rank]),
                    "" if group is None else group.name,
                    () if group is None else group.ranks,
                )
            )
        replies = self._round("split", arguments, doing=f"making the communicators of {groups.name}")
        _raise_first_error(replies, f"making the communicators of {groups.name}", self.facts)
        self._group_sets[name] = None
        return name, groups

    def _round(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        *,
        ranks: Sequence[int] | None = None,
        groups: Sequence[int] | None = None,
        doing: str,
        deadline_s: float | None = None,
    ) -> list[Reply]:
        """Run a worker's method on several ranks at once; the set is ended when they do not all answer."""
        taking_part = range(self.world_size) if ranks is None else ranks
        self._current = Round(self._ranks, self.facts, taking_part, doing, groups)
        try:
            replies = self._current.run(method, arguments, self.deadline_s if deadline_s is None else deadline_s)
        except RoundFailedError as failure:
            if self._state != "ready":
                ended = "closed" if self._state == "closed" else f"ended ({self._why_broken})"
                raise EngineError(f"the engines were {ended} while {doing}") from failure
            self._break(failure.why)
            raise EngineError(
                f"{failure.why}; {self._cure()}",
                rank=failure.rank,
                host=self.facts[failure.rank].host,
                log=failure.log,
            ) from None
        if any(reply.error is not None for reply in replies):
            # What the ranks left unfinished in their communicators is unknown: make them anew.
            self._forget_group_sets("after an error")
        return replies

    def _forget_group_sets(self, why: str) -> None:
        names, self._group_sets = list(self._group_sets), OrderedDict()
        if names:
            self._round("drop", [(names,)] * self.world_size, doing=f"closing communicators {why}")

    def _cure(self) -> str:
        if self._ranks.is_attached:
            return "the engines were started by somebody else: restart them there, and attach() again"
        return "the set was ended; engines.restart() gives a fresh one"


def check_mesh_size(mesh: DeviceMesh, n: int) -> None:
    """Raise a `MeshError` unless the mesh has `n` ranks."""
    if mesh.world_size != n:
        raise MeshError(
            f"{mesh} is {mesh.world_size} rank{'s' * (mesh.world_size != 1)}, but there {'is' if n == 1 else 'are'} "
            f"{n} engine{'s' * (n != 1)}; start {mesh.world_size}, or let an axis "
            f"fill: DeviceMesh('…=-1', world_size={n})"
        )


def _raise_first_error(replies: Sequence[Reply], doing: str, facts: Sequence[RankInfo]) -> None:
    failed = [reply for reply in replies if reply.error is not None]
    if failed:
        first = failed[0]
        more = len(failed) - 1
        others = f", and {more} other{'s' * (more != 1)} failed too" if more else ""
        raise EngineError(
            f"rank {first.rank} failed while {doing}: {first.error}{others}",
            rank=first.rank,
            host=facts[first.rank].host,
            log=first.trace,
        )
