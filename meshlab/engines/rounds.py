"""One round: a method on several ranks at once, watched until all have answered or clearly will not."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from meshlab.engines.rankset import RankDiedError, RankFacts, RankSet, Reply
from meshlab.units import format_seconds

__all__ = ["Round", "RoundFailedError"]

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
    facts : sequence of RankFacts
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
        facts: Sequence[RankFacts],
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
