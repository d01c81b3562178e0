"""A round: one method call on several ranks, watched until all ranks respond or one of them clearly never will."""

from __future__ import annotations

import pickle
import queue
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from meshlab.base._backends import BACKENDS
from meshlab.base._errors import EngineError
from meshlab.base._hints import NEW_RANKS, Hint
from meshlab.base._units import format_seconds
from meshlab.comm._agreement import Checks
from meshlab.comm._backend import Capabilities
from meshlab.engines._positions import CallSummary, Position

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh._groups import Groups

_MOST_TEXT = 1 << 16  # characters of an error that a rank sends
_MOST_PICKLED = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Description of a running rank.

    Parameters
    ----------
    rank, world_size : int
        The global rank, and the number of ranks.
    host : str
        The host name.
    pid, parent_pid : int
        The process of the rank, and the process that started it.
    python, meshlab : str
        The versions of Python and meshlab in that process.
    capabilities : Capabilities
        Capabilities of its backend.
    segments : tuple of str, default ()
        Shared-memory files of its communication library, to be removed if the process is killed.
    interfaces : tuple of tuple of str, default ()
        The network interfaces of its host, each with its address and netmask, and RDMA devices, with "".
    network : str, default ""
        The interfaces that an environment variable of its communication library chooses. Empty if none is set.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    parent_pid: int
    python: str
    meshlab: str
    capabilities: Capabilities
    segments: tuple[str, ...] = ()
    interfaces: tuple[tuple[str, str], ...] = ()
    network: str = ""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration with which an engine becomes a rank."""

    backend: str
    positions_file: str | None  # of `Positions`, which the ranks of this host and the client map into memory
    size: int = -1  # -1 if the backend determines the size and the rank, as MPI does
    rank: int = -1
    device: int = -1  # CUDA device index
    unique_id: bytes = b""  # of the world, if its ranks need one
    checks: Checks = "first"
    # The file of `CallBoard`, and one that does not exist yet, through which the ranks can find each other. Only if all
    # ranks are on one host.
    board_file: str | None = None
    store_file: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Response of one rank: a value or an error."""

    rank: int
    value: Any = None
    error: str | None = None  # type and message of the exception that the function raised
    trace: str = field(default="", repr=False)
    is_interrupt: bool = False  # whether the rank was interrupted from outside
    # None if the rank is a different process and the exception cannot be pickled
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    # The collectives that a function called, by the key of the communicator. Empty if they are not compared.
    calls: Mapping[int, CallSummary] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of_error(cls, rank: int, error: BaseException, trace: str = "") -> Reply:
        """Return the response of a rank on which `error` was raised."""
        trace = trace or "".join(traceback.format_exception(error))
        text = f"{type(error).__name__}: {error}"
        # A message may contain an array. The other ranks wait while it travels, and no person reads it.
        return cls(rank, error=text[:_MOST_TEXT], trace=trace[-_MOST_TEXT:], exception=error)

    def __reduce__(self) -> tuple[Any, ...]:
        # The exception is pickled separately: its class may be unknown to the client or need other arguments, and then
        # the reply must still arrive.
        try:
            exception = None if self.exception is None else pickle.dumps(self.exception)
        except Exception:
            exception = None
        if exception is not None and len(exception) > _MOST_PICKLED:
            exception = None
        fields = self.rank, self.value, self.error, self.trace, self.is_interrupt, exception, self.calls
        return _unpickled_reply, fields


def _unpickled_reply(
    rank: int,
    value: Any,
    error: str | None,
    trace: str,
    is_interrupt: bool,
    exception: bytes | None,
    calls: Mapping[int, CallSummary],
) -> Reply:
    try:
        original = None if exception is None else pickle.loads(exception)
    except Exception:
        original = None
    original = original if isinstance(original, BaseException) else None
    return Reply(rank, value, error, trace, is_interrupt, original, calls)


@dataclass(frozen=True, slots=True)
class RankExit:
    """The exit of a rank, or of another process of the run without which no rank can respond."""

    rank: int | None  # None if it is only known that the set has exited, or if it is another process
    how: str  # such as "killed by signal 9" or "exited with code 3"
    part: str = ""  # the other process, such as "the MPI launcher (process 71)"
    also: tuple[RankExit, ...] = ()  # those of other ranks that ended at the same time, and not because of this one

    @property
    def text(self) -> str:
        """The process and what happened to it."""
        names: dict[str, list[str]] = {}  # by what happened
        for rank_exit in (self, *self.also):
            names.setdefault(f"{rank_exit.verb}{rank_exit.how}", []).append(rank_exit.name)
        texts = (f"{' and '.join(subjects)} {_plural(what, len(subjects))}" for what, subjects in names.items())
        return ", and ".join(texts)

    @property
    def name(self) -> str:
        """The process."""
        return self.part or ("a rank" if self.rank is None else f"rank {self.rank}")

    @property
    def verb(self) -> str:
        """The verb in front of the description, if it needs one."""
        return "was " if self.how.startswith(("killed", "stopped", "closed")) else ""


def exit_of(ranks: Sequence[int], infos: Sequence[RankInfo], how: str) -> RankExit:
    """Return the exit of several ranks, or of their host if all its ranks are among them."""
    on_host: dict[str, list[int]] = {}
    for info in infos:
        on_host.setdefault(info.host, []).append(info.rank)
    if len(ranks) == len(infos):
        part = "the only rank" if len(infos) == 1 else "all ranks"
        return RankExit(ranks[0], how, part)
    exits = []
    for host, members in on_host.items():
        lost = [rank for rank in members if rank in set(ranks)]
        if len(lost) == len(members) > 1:
            exits.append(RankExit(lost[0], f"does not answer: {_ranks_text(lost)} {how}", host))
        else:
            exits += [RankExit(rank, how) for rank in lost]
    return replace(exits[0], also=tuple(exits[1:]))


def how_exited(code: int) -> str:
    """Describe the end of a process by its exit code, which is negative for a signal."""
    return f"killed by signal {-code}" if code < 0 else f"exited with code {code}"


def _plural(what: str, n: int) -> str:
    return what.replace("was ", "were ", 1) if n > 1 else what


class RankDiedError(Exception):
    """A rank ended before it responded. Used only between a rank set and `Engines`."""


class RankSet(Protocol):
    """A set of ranks that run the methods of `meshlab.engines._worker.Worker`."""

    size: int
    backend: str
    is_attached: bool
    """True if another process started the ranks. Such ranks are never killed."""
    launch_arguments: dict[str, Any] | None = None
    """The arguments with which `launch` starts the same ranks again. None if another process started them."""
    has_torch: bool = False
    """Whether the ranks may wait in calls of torch, which they do not record in shared memory."""

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Start the ranks and return their descriptions, in rank order."""

    def submit(
        self, ranks: Sequence[int], method: str, arguments: Sequence[tuple[Any, ...]]
    ) -> Sequence[Future[Reply]]:
        """Run a method of the worker on some ranks. A future raises `RankDiedError` if its rank ends first."""
        # If several ranks have the same arguments, those are one object, which need not be pickled once per rank.

    def positions(self) -> list[Position]:
        """Return the last call that each rank entered, in rank order."""

    def late_positions(self, before: Sequence[Position]) -> list[Position | None]:
        """Return the positions since earlier ones, when ranks are late. None for a rank that does not answer."""
        return [position.since(start) for position, start in zip(self.positions(), before, strict=True)]

    # The defaults below are those of a set that cannot watch processes: its ranks are threads, or on other hosts.

    def first_exit(self) -> RankExit | None:
        """Return the exit of the first rank or part that ended, so that ranks stop responding. None if all run."""
        return None

    def check(self) -> RankExit | None:
        """Return the same as `first_exit`, but immediately if nothing has ended. Called several times a second."""
        return None

    def stalled(self) -> RankExit | None:
        """Return a rank or another part that exists, but is stopped. None if nothing is."""
        return None

    def recovery(self) -> str:
        """Return how to go on after the ranks have failed."""
        return Hint("{}", NEW_RANKS)

    def leave_out_hosts(self, check_size: Callable[[int], None]) -> Sequence[str]:
        """Make the next start leave out the hosts that do not answer, if `check_size` allows it. Return their names."""
        raise EngineError("the engines have no hosts to leave out", hint=Hint("{}", NEW_RANKS))

    def leave_out_ranks(self, check_size: Callable[[int], None]) -> Sequence[str]:
        """Make the next start leave out the ranks that are lost, if `check_size` allows it. Return what is lost."""
        return self.leave_out_hosts(check_size)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt on every rank, as soon as it executes Python code."""

    def kill(self, *, reuse: bool = True) -> None:
        """Kill all ranks immediately. With `reuse`, ranks that `start` can reuse may survive."""

    def log_tail(self) -> str:
        """Return the last lines that the ranks printed, unless they are printed elsewhere."""
        return ""

    def printed(self) -> str:
        """Return what the ranks and their launcher printed, in the same case."""
        return ""

    def library_logs(self) -> list[str]:
        """Return NCCL's debug output, by rank. The strings are empty unless NCCL_DEBUG is set."""
        return [""] * self.size

    @property
    def client(self) -> Any:
        """The ipyparallel client, or None."""
        return None

    def close(self) -> None:
        """Stop all ranks and clean up within 10 seconds, also while `start` runs. It can be called again."""


_GRACE_S = 1.0  # time that the other ranks get to respond after one rank has raised
_CHECK_S = 0.2  # time between checks that all processes of the run are alive
_MOVING_S = 0.1  # between two looks at the calls of late ranks
_MOST_GROUPS = 3  # groups that a message describes
_MOST_PLACES = 6  # calls that a message lists


class RoundFailedError(Exception):
    """Not all ranks responded. Names the rank that is responsible. None if it is another process."""

    def __init__(
        self, reason: str, rank: int | None, log: str = "", *, fix: str = "", cause: BaseException | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rank = rank
        self.log = log
        self.fix = fix
        self.cause = cause


@dataclass(eq=False)
class Round:
    """A method call on several ranks, which `run` makes."""

    rank_set: RankSet
    infos: Sequence[RankInfo]
    guard: Callable[[Round], AbstractContextManager[None]]
    """Handles the errors of the round, and its outcome."""
    ranks: Sequence[int]
    method: str
    arguments: Sequence[tuple[Any, ...]]
    """Those of each rank."""
    task: str
    """The words for it in messages, such as "running f"."""
    deadline_s: float
    groups: Sequence[int] | None = None
    """For every rank of the world, the number of the group whose ranks enter the same collectives. Only their call
    counts can be compared. None if all ranks are one group."""
    communicators: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The ranks of those that the task may use."""

    def __post_init__(self) -> None:
        self._before: list[Position] = []
        self._responses: queue.SimpleQueue[tuple[int, Future[Reply]]] = queue.SimpleQueue()
        self._cancel_reason = ""
        self.has_errors = False
        """True if the method raised on a rank."""
        self.calls: dict[int, Mapping[int, CallSummary]] = {}
        """The collectives that each rank called, in the order of the ranks, once all have responded."""

    def run(self) -> list[Reply]:
        """Call the method on every rank, and return the replies in the order of the ranks."""
        with self.guard(self):
            replies = self._replies()
            self.calls = {rank: replies[rank].calls for rank in self.ranks}
        return [replies[rank] for rank in self.ranks]

    def _replies(self) -> dict[int, Reply]:
        """Return the reply of every rank. Raise a `RoundFailedError` unless all respond within the deadline."""
        self._before = self.rank_set.positions()
        lost = self.rank_set.check()
        if lost is not None:
            raise self._lost(lost)
        for rank, future in zip(self.ranks, self.rank_set.submit(self.ranks, self.method, self.arguments), strict=True):
            # The callback may run on any thread, so it only queues the future. Decisions are made on this thread.
            future.add_done_callback(lambda done, rank=rank: self._responses.put((rank, done)))  # type: ignore[misc]
        replies: dict[int, Reply] = {}
        first_error: Reply | None = None
        deadline = time.monotonic() + self.deadline_s
        while len(replies) < len(self.ranks):
            try:
                rank, future = self._responses.get(timeout=max(0.0, min(_CHECK_S, deadline - time.monotonic())))
                replies[rank] = future.result()
            except queue.Empty:
                lost = self.rank_set.check()
                if lost is not None and not self._cancel_reason:
                    raise self._lost(lost) from None
                if time.monotonic() < deadline:
                    continue
                waiting = [rank for rank in self.ranks if rank not in replies]
                if first_error is not None:
                    # The other ranks may have raised because of a rank that names itself in its error.
                    itself = [reply for reply in replies.values() if getattr(reply.exception, "rank", -1) == reply.rank]
                    raise self._blocked_by_error(itself[0] if itself else first_error, waiting) from None
                raise self._deadline_exceeded(waiting) from None
            except RankDiedError:
                if self._cancel_reason:
                    raise RoundFailedError(self._cancel_reason, rank) from None
                raise self._rank_died(rank) from None
            else:
                # An error on one rank is an ordinary result if the others finish too. But they may be blocked in a
                # collective that this rank will never enter, and waiting for the full deadline would add no
                # information.
                if replies[rank].error is not None and first_error is None:
                    first_error, self.has_errors = replies[rank], True
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        return replies

    def cancel(self, reason: str) -> None:
        """Make `run` raise, from another thread."""
        self._cancel_reason = reason
        future: Future[Reply] = Future()
        future.set_exception(RankDiedError(reason))
        self._responses.put((self.ranks[0], future))

    def _rank_died(self, rank: int) -> RoundFailedError:
        # The first future that fails need not belong to the rank that died first: MPI kills all ranks together, and
        # their disconnections arrive in any order.
        exited = self.rank_set.first_exit() or RankExit(rank, "disconnected")
        return self._lost(exited if exited.part or exited.rank is not None else replace(exited, rank=rank))

    def _lost(self, exited: RankExit) -> RoundFailedError:
        """Describe the end of a rank or another process."""
        rank = exited.rank
        exited = replace(self._named(exited), also=tuple(map(self._named, exited.also)))
        return RoundFailedError(f"{exited.text} while {self.task}", rank, without_banner(self.rank_set.log_tail()))

    def _named(self, rank_exit: RankExit) -> RankExit:
        if rank_exit.rank is None or rank_exit.part:
            return rank_exit
        info = self.infos[rank_exit.rank]
        return replace(rank_exit, part=f"rank {info.rank} (process {info.pid} on {info.host})")

    def _blocked_by_error(self, error: Reply, waiting: Sequence[int]) -> RoundFailedError:
        verb = "was interrupted" if error.is_interrupt else f"raised {error.error}"
        reason = f"rank {error.rank} {verb} while {self.task}, and {_ranks_text(waiting)} still waited for it"
        return RoundFailedError(reason, error.rank, error.trace, cause=error.exception)

    def _deadline_exceeded(self, waiting: Sequence[int]) -> RoundFailedError:
        """Describe where the ranks wait, and name those that are responsible, or else all that did not respond."""
        # The waiting ranks are usually the innocent ones: they are blocked in a collective until the rank that is
        # behind enters it. That rank may even have responded, if its function skipped the collective.
        stalled = self.rank_set.stalled()
        answers = [] if stalled is not None else self.rank_set.late_positions(self._before)
        silent = [rank for rank, position in enumerate(answers) if position is None]
        if silent:
            stalled = exit_of(silent, self.infos, f"did not respond within {format_seconds(self.deadline_s)}")
        if stalled is not None:
            # A stopped process or a host without a network explains the wait, regardless of the calls of the ranks.
            return self._lost(stalled)
        positions = [position for position in answers if position is not None]
        within = f"within {format_seconds(self.deadline_s)} while {self.task}"
        if self._still_call(waiting, positions):
            reason = f"{_ranks_text(waiting)} did not finish {within}, but still called collectives then"
            return RoundFailedError(reason, waiting[0], self.rank_set.log_tail(), fix="pass a larger deadline_s")
        places = self._places(waiting, positions)
        behind, details = self._ranks_behind(waiting, positions)
        if behind:
            reason, fix = f"{details} {within}", ""
            places += self._returns(behind, waiting)
        else:
            behind, cause, fix = self._cause(waiting, positions)
            is_called = any(_has_called(positions[rank]) for rank in waiting)
            reason = f"no progress {within}" if is_called else f"{_ranks_text(waiting)} did not respond {within}"
            places += [cause] if cause else []
        if places:
            reason += f": {'; '.join(places)}"
        return RoundFailedError(reason, (behind or waiting)[0], self.rank_set.log_tail(), fix=fix)

    def _still_call(self, waiting: Sequence[int], positions: Sequence[Position]) -> bool:
        """Return whether all ranks that did not respond enter further calls: they are slow, and not stuck."""
        if not all(positions[rank].calls > 0 for rank in waiting):
            return False
        time.sleep(_MOVING_S)
        later = self.rank_set.late_positions(self._before)
        return all((position := later[rank]) and position.calls > positions[rank].calls for rank in waiting)

    def _returns(self, behind: Sequence[int], waiting: Sequence[int]) -> list[str]:
        """Describe whether the ranks that are behind have returned from the user's function."""
        if self.method != "run":
            return []
        texts = []
        for verb, is_waiting in (("returned", False), ("not returned", True)):
            if ranks := [rank for rank in behind if (rank in waiting) == is_waiting]:
                texts.append(f"{_ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'} {verb} from the function")
        return texts

    def _ranks_behind(self, waiting: Sequence[int], positions: Sequence[Position]) -> tuple[list[int], str]:
        """Return the ranks that entered fewer collectives than others in their group, and their description."""
        behind, details = [], []
        for group in self._groups_with(waiting):
            counts = {rank: positions[rank].calls for rank in group}
            late = _behind(counts)
            if late:
                behind += late
                most = max(counts.values())
                details.append(
                    f"{_ranks_text(late)} entered {counts[late[0]]} of {'its' if len(late) == 1 else 'their'} group's "
                    f"{most} collective call{'s' * (most != 1)}"
                )
        n_more = len(details) - _MOST_GROUPS
        more = f", and the same happened in {n_more} more group{'s' * (n_more != 1)}," if n_more > 0 else ""
        return behind, ", ".join(details[:_MOST_GROUPS]) + more

    def _groups_with(self, waiting: Sequence[int]) -> list[list[int]]:
        """Return the members of each group that has a waiting rank. Finished groups may have any call counts."""
        members: dict[int, list[int]] = {}
        for rank in self.ranks:
            members.setdefault(0 if self.groups is None else self.groups[rank], []).append(rank)
        return [group for group in members.values() if not set(waiting).isdisjoint(group)]

    def _places(self, waiting: Sequence[int], positions: Sequence[Position]) -> list[str]:
        """Describe the call in which each rank waits, or the last one that it has left."""
        ranks_at: dict[tuple[str, str], list[int]] = {}
        has_left = "last enqueued" if BACKENDS[self.rank_set.backend].enqueues else "last called"
        for rank in waiting:
            if _has_called(positions[rank]):
                verb = "waits in" if positions[rank].is_inside else has_left
                ranks_at.setdefault((verb, str(positions[rank])), []).append(rank)
        texts = [
            f"{_ranks_text(ranks)} {'wait in' if verb == 'waits in' and len(ranks) > 1 else verb} {place}"
            for (verb, place), ranks in ranks_at.items()
        ]
        n_more = len(texts) - _MOST_PLACES
        more = [f"the other ranks are in {n_more} other call{'s' * (n_more != 1)}"] if n_more > 0 else []
        return texts[:_MOST_PLACES] + more

    def _cause(self, waiting: Sequence[int], positions: Sequence[Position]) -> tuple[list[int], str, str]:
        """Return the ranks that are responsible, and the cause and its fix if the positions show them."""
        # Without messages: whether a rank should have sent one is unknown.
        inside = [rank for rank in waiting if positions[rank].is_inside and positions[rank].number > 0]
        # A rank waits for the members of its communicator that have not reached its call. Those that are in another
        # communicator may have passed it, so this is an upper bound: one of them is responsible only if none of them
        # can still come.
        waits_for = {
            rank: [
                other
                for other in self.communicators.get(positions[rank].group, ())
                if other != rank and not _has_reached(positions[other], positions[rank])
            ]
            for rank in inside
        }
        absent = sorted(
            {other for others in waits_for.values() if set(inside).isdisjoint(others) for other in others}
            & set(self.ranks)
        )
        # A rank that waits in a message is in a call, although not in a counted one.
        absent = [rank for rank in absent if not (rank in waiting and positions[rank].is_inside)]
        if absent:
            returned = [rank for rank in absent if rank not in waiting]
            if returned:
                text = f"{_ranks_text(returned)} {'has' if len(returned) == 1 else 'have'} returned"
                return returned, text, "issue the same calls on every rank"
            return absent, f"{_ranks_text(absent)} {'is' if len(absent) == 1 else 'are'} not in a call", ""
        calls: dict[tuple[str, int], set[str]] = {}
        for rank in inside:
            calls.setdefault((positions[rank].group, positions[rank].number), set()).add(positions[rank].call)
        if any(len(names) > 1 for names in calls.values()):
            return [], "the ranks call different collectives", "issue the same calls on every rank"
        # The members of communicators that a function has split are unknown, except that they have opened one of this
        # name. Several may have the same name, so such a wait counts only if all of these ranks are blocked.
        for rank in inside:
            group = positions[rank].group
            if group not in self.communicators:
                others = [other for other in self.ranks if other != rank and positions[other].has_opened(group)]
                missing = [other for other in others if not _has_reached(positions[other], positions[rank])]
                waits_for[rank] = missing if set(missing) <= set(inside) else []
        # If all ranks are blocked, one wait of each rank is real, and these form a circle.
        if len({positions[rank].group for rank in _circle(waits_for)}) > 1:
            cause = "the ranks use the communicators in different orders"
            return [], cause, "use the same order on all ranks"
        return [], "", ""


def _has_called(position: Position) -> bool:
    """Return whether a rank has entered a call in this round. A message is not counted, but may block."""
    return position.calls > 0 or position.is_inside


def _has_reached(position: Position, target: Position) -> bool:
    """Return whether a rank has entered a call of a communicator, or a later one of the same communicator."""
    return position.group == target.group and position.number >= target.number


def _circle(waits_for: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the ranks of a circle of waits, or an empty list."""
    done: set[int] = set()

    def visit(rank: int, path: list[int]) -> list[int]:
        if rank in path:
            return path[path.index(rank) :]
        if rank in done:
            return []
        done.add(rank)
        for other in waits_for.get(rank, ()):
            if circle := visit(other, [*path, rank]):
                return circle
        return []

    return next((circle for rank in waits_for if (circle := visit(rank, []))), [])


def _behind(counts: Mapping[int, int]) -> list[int]:
    """Return the ranks with the fewest calls, or an empty list if all counts are equal or one is unknown."""
    fewest = min(counts.values())
    behind = [rank for rank, count in counts.items() if count == fewest]
    return behind if fewest >= 0 and len(behind) < len(counts) else []


def _ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{', …' if len(ranks) > 8 else ''}"


def without_banner(log: str) -> str:
    """Remove the frame that mpiexec prints around the output of the ranks."""
    banner = ("=", "YOUR APPLICATION TERMINATED", "This typically refers", "Please see the FAQ")
    return "\n".join(line for line in log.splitlines() if not line.startswith(banner))


def frame_of(replies: Sequence[Reply], groups: Groups) -> pd.DataFrame:
    """Return the result of `Engines.run`."""
    import pandas as pd

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


def status_frame(
    ranks: Sequence[RankInfo], backend: str, state: str, counts: Sequence[int], answers: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    """Return the result of `Engines.status`."""
    import pandas as pd

    rows = [
        {
            "rank": info.rank,
            "host": info.host,
            "pid": info.pid,
            "backend": backend,
            "library": info.capabilities.library,
            "state": state,
            "calls": counts[info.rank] if counts[info.rank] >= 0 else pd.NA,
            "communicators": answer.get("communicators", pd.NA),
            "memory_bytes": answer.get("memory_bytes", pd.NA),
        }
        for info, answer in zip(ranks, answers, strict=True)
    ]
    return pd.DataFrame(rows).astype(dict.fromkeys(("calls", "communicators", "memory_bytes"), "Int64"))
