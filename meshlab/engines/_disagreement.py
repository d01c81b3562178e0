"""Comparison of the calls of all ranks when a function has returned, by the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshlab.engines._rounds import Reply


def find_disagreement(replies: Sequence[Reply]) -> tuple[int, list[int]] | None:
    """Return the key of a communicator whose ranks called different collectives, and these ranks. None if all agree."""
    # If a rank raised, others may have issued calls that it did not reach.
    if any(reply.error is not None for reply in replies):
        return None
    ranks: dict[int, list[int]] = {}
    first: dict[int, tuple[int, int]] = {}
    wrong: set[int] = set()
    for reply in replies:
        for key, summary in reply.calls.items():
            ranks.setdefault(key, []).append(reply.rank)
            if first.setdefault(key, (summary.n, summary.digest)) != (summary.n, summary.digest):
                wrong.add(key)
    # Communicators are in the order of their creation, so the first one is not a consequence of another.
    return next(((key, ranks[key]) for key in ranks if key in wrong), None)


def describe_disagreement(group: str, tails: Mapping[int, tuple[int, Sequence[str]]]) -> str:
    """Describe the first difference. The tails are those of `meshlab.engines._positions.CallHistory.tail`, by rank."""
    # Only calls that all ranks still have can be compared by name.
    start = max(n_before for n_before, _ in tails.values())
    recent = {rank: calls[start - n_before :] for rank, (n_before, calls) in tails.items()}
    for number in range(max(len(calls) for calls in recent.values())):
        texts = {rank: calls[number] if number < len(calls) else "nothing" for rank, calls in recent.items()}
        rank, text = next(iter(texts.items()))
        for other, other_text in texts.items():
            if other_text != text:
                return (
                    f"ranks disagree: as call {start + number + 1} of {group}, rank {rank} called {text}, but rank "
                    f"{other} called {other_text}"
                )
    return f"ranks disagree: the ranks of {group} called different collectives within the first {start} calls"
