"""One round: a method on several ranks at once, watched until all have answered or clearly will not."""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshlab.comm.backend import Capabilities
from meshlab.units import format_seconds

__all__ = ["RankDiedError", "RankExit", "RankInfo", "RankSet", "Reply", "Round", "RoundFailedError", "WorkerConfig"]


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What one rank says about itself when it is ready.

    Parameters
    ----------
    rank, world_size : int
        Its place in the world.
    host : str
        The name of its host.
    pid, parent_pid : int
        Its process, and the process that started it.
    python : str
        The version of Python it runs.
    meshlab : str
        The version of meshlab it runs.
    capabilities : Capabilities
        What its backend can do.
    segments : tuple of str
        Shared-memory files that its library made and that should not outlive it.
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


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What an engine must know to become a rank.

    Parameters
    ----------
    backend : str
        ``"mpi"``, where the launcher has decided everything else, or ``"nccl"``.
    counts_file : str or None
        A file that ranks of this host share with the client: one int64 per rank to count collectives in, and one that
        the client sets when the ranks must not wait for each other any more.
    size, rank : int
        How many ranks, and which one; -1 where the backend knows.
    device : int
        The index of its GPU.
    identity : bytes
        What lets the ranks of one NCCL world find each other.
    """

    backend: str
    counts_file: str | None
    size: int = -1
    rank: int = -1
    device: int = -1
    identity: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from one rank: a value, or what was raised there.

    Parameters
    ----------
    rank : int
        The global rank.
    value : object
        What the function returned.
    error : str or None
        The type and message of what it raised.
    trace : str
        The traceback, as text.
    is_interrupt : bool
        True when it was interrupted from outside.
    """

    rank: int
    value: Any = None
    error: str | None = None
    trace: str = field(default="", repr=False)
    is_interrupt: bool = False

    @classmethod
    def of_error(cls, rank: int, error: BaseException) -> Reply:
        """What a rank answers when something was raised there."""
        trace = "".join(traceback.format_exception(error))
        return cls(rank, error=f"{type(error).__name__}: {error}", trace=trace)


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank ended.

    Parameters
    ----------
    rank : int or None
        Which; None when only the set's end is known.
    how : str
        Such as "killed by signal 9".
    """

    rank: int | None
    how: str


class RankDiedError(Exception):
    """The rank ended before it answered; only used between a rank set and `Engines`."""


class RankSet(Protocol):
    """A set of ranks that run methods of `meshlab.engines.worker.Worker`."""

    size: int
    backend: str
    is_attached: bool
    """True when somebody else started the ranks; they are never killed then."""

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Bring the ranks up and return their facts, by rank."""

    def submit(self, rank: int, method: str, arguments: tuple[Any, ...]) -> Future[Reply]:
        """Run a worker's method on one rank. The future raises `RankDiedError` when the rank ended."""

    def calls(self) -> list[int]:
        """How many collectives each rank has entered, by rank; -1 where that is not known."""

    def first_death(self) -> RankExit | None:
        """Who ended first, when some rank ended."""

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt on every rank, as far as its Python code lets it."""

    def kill(self) -> None:
        """End all ranks at once, but for those that can be used again by `start`."""

    def log_tail(self) -> str:
        """The last lines that the ranks printed."""

    @property
    def client(self) -> Any:
        """The ipyparallel client, where there is one."""

    def close(self) -> None:
        """End all ranks in an orderly way and leave nothing behind."""


_GRACE_S = 1.0  # how long others may still need once one rank has raised

_TOLD = 3


class RoundFailedError(Exception):
    """The ranks did not all answer; says whose fault it is."""

    def __init__(self, why: str, rank: int, log: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.rank = rank
        self.log = log


class Round:
    """A method on its way through some ranks.

    Parameters
    ----------
    rank_set : RankSet
        The set.
    facts : sequence of RankInfo
        Who they are, by rank.
    ranks : sequence of int
        Which of them take part.
    doing : str
        What for, for messages: "running f".
    groups : sequence of int, optional
        For every rank of the world, a number that it shares with those that must call what it calls; all of them by
        default. A rank is only compared with these.
    """

    def __init__(
        self,
        rank_set: RankSet,
        facts: Sequence[RankInfo],
        ranks: Sequence[int],
        doing: str,
        groups: Sequence[int] | None = None,
    ) -> None:
        self._set = rank_set
        self._facts = facts
        self._ranks = ranks
        self._doing = doing
        self._groups = groups
        self._calls_before = rank_set.calls()
        self._answers: queue.SimpleQueue[tuple[int, Future[Reply]]] = queue.SimpleQueue()

    def run(self, method: str, arguments: Sequence[tuple[Any, ...]], deadline_s: float) -> list[Reply]:
        """Send the method to every rank and wait for all answers.

        Once a rank has raised, the others have a moment to answer too: they may wait for it in a collective for ever.

        Raises
        ------
        RoundFailedError
            If a rank dies, or not all answer within the deadline.
        """
        for rank, given in zip(self._ranks, arguments, strict=True):
            future = self._set.submit(rank, method, given)
            future.add_done_callback(lambda finished, rank=rank: self._answers.put((rank, finished)))  # type: ignore[misc]
        replies: dict[int, Reply] = {}
        first_error: Reply | None = None
        deadline = time.monotonic() + deadline_s
        while len(replies) < len(self._ranks):
            try:
                rank, future = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
                replies[rank] = future.result()
            except queue.Empty:
                waiting = [rank for rank in self._ranks if rank not in replies]
                if first_error is not None:
                    raise self._after_error(first_error, waiting) from None
                raise self._too_late(waiting, deadline_s) from None
            except RankDiedError:
                raise self._after_death(rank) from None
            else:
                if replies[rank].error is not None and first_error is None:
                    first_error = replies[rank]
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        return [replies[rank] for rank in self._ranks]

    def give_up(self, why: str) -> None:
        """Free whoever waits in `run`, from another thread."""
        future: Future[Reply] = Future()
        future.set_exception(RankDiedError(why))
        self._answers.put((self._ranks[0], future))

    def _after_death(self, rank: int) -> RoundFailedError:
        death = self._set.first_death()
        if death is not None and death.rank is not None:
            rank = death.rank
        how = death.how if death is not None else "gone"
        fact = self._facts[rank]
        verb = "" if how.startswith("ended") else "was "
        why = f"rank {rank} (process {fact.pid} on {fact.host}) {verb}{how} while {self._doing}"
        return RoundFailedError(why, rank, _without_banner(self._set.log_tail()))

    def _after_error(self, error: Reply, waiting: Sequence[int]) -> RoundFailedError:
        verb = "was interrupted" if error.is_interrupt else f"raised {error.error}"
        why = f"rank {error.rank} {verb} while {self._doing}, and {_ranks_text(waiting)} still waited for it"
        return RoundFailedError(why, error.rank, error.trace)

    def _too_late(self, waiting: Sequence[int], deadline_s: float) -> RoundFailedError:
        """Name who has entered fewer collectives than the others of its group; else those that did not answer."""
        behind, told = [], []
        for group in self._waiting_groups(waiting):
            made = self._calls_made(group)
            late = _behind(made)
            if late:
                behind += late
                told.append(
                    f"{_ranks_text(late)} made {made[late[0]]} collective calls where others made {max(made.values())}"
                )
        if behind:
            more = f", and so in {len(told) - _TOLD} more groups" if len(told) > _TOLD else ""
            reason = f"{', '.join(told[:_TOLD])}{more}, and did not catch up"
        else:
            reason = f"{_ranks_text(waiting)} did not answer"
        why = f"{reason} within {format_seconds(deadline_s)} while {self._doing}"
        return RoundFailedError(why, (behind or waiting)[0], self._set.log_tail())

    def _waiting_groups(self, waiting: Sequence[int]) -> list[list[int]]:
        """The groups that somebody still waits in, with all their ranks of this round; others have nothing to tell."""
        members: dict[int, list[int]] = {}
        for rank in self._ranks:
            members.setdefault(0 if self._groups is None else self._groups[rank], []).append(rank)
        return [group for group in members.values() if not set(waiting).isdisjoint(group)]

    def _calls_made(self, ranks: Sequence[int]) -> dict[int, int]:
        """How many collectives ranks have entered in this round; what they did earlier is no fault of today's."""
        counts = self._set.calls()
        return {
            rank: counts[rank] - self._calls_before[rank] if min(counts[rank], self._calls_before[rank]) >= 0 else -1
            for rank in ranks
        }


def _behind(counts: Mapping[int, int]) -> list[int]:
    """The ranks with the fewest calls; none when all have made as many, or when that is not known."""
    least = min(counts.values())
    behind = [rank for rank, count in counts.items() if count == least]
    return behind if least >= 0 and len(behind) < len(counts) else []


def _ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"ranks {shown}{', …' if len(ranks) > 8 else ''}"


def _without_banner(log: str) -> str:
    """What the ranks printed, without mpiexec's own frame around it."""
    banner = ("=", "YOUR APPLICATION TERMINATED", "This typically refers", "Please see the FAQ")
    return "\n".join(line for line in log.splitlines() if not line.startswith(banner))
