"""The outcome of a round for its engines: ranks that do not respond, raise, or call different collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meshlab.base._errors import EngineError
from meshlab.base._hints import Hint
from meshlab.engines._disagreement import describe_disagreement, find_disagreement
from meshlab.engines._positions import CallSummary
from meshlab.engines._rounds import RankSet, Round, RoundFailedError, without_banner

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines

_MOST_LIBRARY_LOG = 1 << 18  # characters per rank, for the explanation of an error


@contextmanager
def guarded(engines: Engines, current: Round) -> Iterator[None]:
    """Stop all ranks if not all ranks of the round respond, and raise if they called different collectives."""
    engines._round, task = current, current.task
    try:
        yield
    except RoundFailedError as failure:
        if engines._state != "ready":  # `close` or `kill`, called by another thread, made the round fail
            how = "closed" if engines._is_closed() else f"stopped ({engines._why_broken})"
            raise EngineError(f"the engines were {how} while {task}") from failure
        # First, because mpiexec also prints how the other ranks are killed.
        library_log = library_log_of(engines._rank_set)
        engines._break(failure.reason)
        recovery = engines._rank_set.recovery()
        raise EngineError(
            failure.reason,
            hint=Hint("{}, and {}", failure.fix, recovery) if failure.fix else recovery,
            rank=failure.rank,
            host=None if failure.rank is None else engines.ranks[failure.rank].host,
            log=failure.log,
            library_log=library_log,
        ) from failure.cause
    finally:
        engines._round = None
    if current.has_errors:
        # A rank that raised may have skipped collectives that its group entered, which would pair up with the wrong
        # calls of the next task. New communicators start from a clean state.
        engines._groups.close("after an error")
    elif disagreement := find_disagreement(current.calls):
        _raise_disagreement(engines, *disagreement, task)


def _raise_disagreement(engines: Engines, key: int, summaries: Mapping[int, CallSummary], task: str) -> None:
    """Raise because the ranks of a communicator called different collectives, although all functions returned."""
    ranks = list(summaries)
    group = summaries[ranks[0]].group
    arguments = [(key,)] * len(ranks)
    tails = engines._new_round("recent_calls", arguments, ranks=ranks, task="comparing the calls of ranks").run()
    reason = f"{describe_disagreement(group, {reply.rank: reply.value for reply in tails})} while {task}"
    hint = "issue the same calls on every rank, or pass checks='all' to launch() for an error before the call"
    if engines._facts.enqueues:  # calls may still be waiting for a rank on the GPU
        engines._break(reason)
        hint = Hint("{}, and {}", hint, engines._rank_set.recovery())
    else:
        engines._groups.close("after a disagreement")
    raise EngineError(reason, hint=hint, rank=ranks[0], host=engines.ranks[ranks[0]].host)


def library_log_of(rank_set: RankSet) -> str:
    """Return what the ranks and their library printed, for the explanation of an error."""
    parts = [without_banner(rank_set.printed())]
    for rank, log in enumerate(rank_set.library_logs()):
        # Prefixes keep the rank: most lines of NCCL name only the process.
        parts += [f"[rank{rank}]: {line}" for line in log[-_MOST_LIBRARY_LOG:].splitlines()]
    return "\n".join(part for part in parts if part)
