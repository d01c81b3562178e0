"""Comparisons of ranks. Simulated jobs are in test_flight_recorder, and logs in test_hangs."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._late_ranks import plain_name, rank_list


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([3], "rank 3"), ([1, 0], "ranks 0 and 1"), ([0, 1, 2], "ranks 0-2"), ([0, 2, 4, 5], "ranks 0, 2, 4 and 5")],
)
def test_ranks_in_words(ranks: list[int], expected: str) -> None:
    assert rank_list(ranks) == expected


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("ALLREDUCE", "all_reduce"),
        ("_ALLGATHER_BASE", "all_gather"),
        ("nccl:all_reduce_barrier", "all_reduce"),
        ("_REDUCE_SCATTER_BASE", "reduce_scatter"),
        ("ALLTOALL_BASE", "all_to_all"),
        ("barrier", "barrier"),
    ],
)
def test_the_names_of_all_sources_are_made_equal(op: str, expected: str) -> None:
    assert plain_name(op) == expected
