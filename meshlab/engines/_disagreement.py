"""Comparison of the calls of all ranks when a function has returned, by the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshlab.engines._positions import CallSummary


def find_disagreement(calls: Mapping[int, Mapping[int, CallSummary]]) -> tuple[int, dict[int, CallSummary]] | None:
    """Return the key of a communicator whose ranks called different collectives, and their calls. None if all agree."""
    by_key: dict[int, dict[int, CallSummary]] = {}
    for rank, summaries in calls.items():
        for key, summary in summaries.items():
            by_key.setdefault(key, {})[rank] = summary
    # Communicators are in the order of their creation, so the first one is not a consequence of another.
    for key, summaries in by_key.items():
        if len({(summary.n, summary.digest) for summary in summaries.values()}) > 1:
            return key, summaries
    return None


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
