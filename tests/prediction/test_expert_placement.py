"""Placements of experts: never worse than before, near the optimum of exhaustive searches, and no expert twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshError
from meshlab.prediction._expert_placement import balanced_slots, check_replicas, contiguous_slots, rank_loads
from tests.examples import examples

# Layer 0 of the example in the README of deepseek-ai/EPLB, and the largest load of the placement that it prints.
EPLB_LOADS = np.array([90.0, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86])
EPLB_SLOTS = np.array([5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1]).reshape(8, 2)


@st.composite
def loads_of_experts(draw: st.DrawFn, sizes: list[tuple[int, int]]) -> tuple[np.ndarray, int, int]:
    """Loads of experts, with the ranks and the slots of a rank."""
    ranks, width = draw(st.sampled_from(sizes))
    experts = draw(st.integers(max(2, width), ranks * width))
    kind = draw(st.sampled_from(["uniform", "exponential", "zipf", "integers"]))
    random = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    if kind == "zipf":
        load = random.permutation(np.arange(1, experts + 1) ** -random.uniform(0.2, 2.0))
    elif kind == "integers":
        load = random.integers(0, 9, experts).astype(float)
    else:
        load = random.random(experts) if kind == "uniform" else random.exponential(size=experts)
    return load + 1e-9, ranks, width


def all_counts(experts: int, ranks: int, total: int) -> Iterator[tuple[int, ...]]:
    """All numbers of replicas of every expert."""
    for extra in itertools.combinations_with_replacement(range(experts), total - experts):
        counts = tuple(1 + extra.count(expert) for expert in range(experts))
        if max(counts) <= ranks:
            yield counts


def optimum(load: np.ndarray, ranks: int, width: int) -> float:
    """The least largest load of a rank of all placements, by depth-first search with bounds."""
    best = float("inf")

    def search(items: list[int], part: np.ndarray, sums: list[float], content: list[list[int]]) -> None:
        nonlocal best
        if not items:
            best = min(best, max(sums))
            return
        expert, *rest = items
        seen = set()
        for rank in range(ranks):
            state = (round(sums[rank], 12), tuple(sorted(content[rank])))
            full = len(content[rank]) == width or expert in content[rank]
            if full or state in seen or sums[rank] + part[expert] >= best:
                continue
            seen.add(state)
            more = [total + part[expert] * (k == rank) for k, total in enumerate(sums)]
            search(rest, part, more, [[*held, expert] if k == rank else held for k, held in enumerate(content)])

    for counts in all_counts(len(load), ranks, ranks * width):
        part = load / np.array(counts)
        order = [expert for expert in np.argsort(-part).tolist() for _ in range(counts[expert])]
        search(order, part, [0.0] * ranks, [[] for _ in range(ranks)])
    return best


@settings(max_examples=examples(120), deadline=None)
@given(case=loads_of_experts([(2, 2), (2, 3), (3, 2), (4, 2), (3, 3), (2, 4)]))
def test_the_largest_load_is_within_5_percent_of_the_optimum(case: tuple[np.ndarray, int, int]) -> None:
    load, ranks, width = case
    slots = searched(load, ranks, width)
    assert rank_loads(load, slots).max() <= 1.05 * optimum(load, ranks, width)


def searched(load: np.ndarray, ranks: int, width: int) -> np.ndarray:
    """The placement of experts on ranks, whatever their first one."""
    first = np.resize(np.arange(len(load), dtype=np.int32), (ranks, -(-len(load) // ranks)))
    return balanced_slots(load, first, ranks * width - len(load))


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_the_largest_load_is_never_worse(data: st.DataObject) -> None:
    ranks, per_rank = data.draw(st.sampled_from([2, 3, 4, 8, 16])), data.draw(st.integers(1, 6))
    experts = ranks * per_rank
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    load = random.exponential(size=experts) ** data.draw(st.sampled_from([0.3, 1.0, 3.0]))
    hosts = data.draw(st.sampled_from([1, 2])) if ranks % 2 == 0 else 1
    domains = np.repeat(np.arange(hosts), ranks // hosts) if hosts > 1 else ()
    most = ranks * min((ranks // hosts - 1) * per_rank, 3)
    replicas = data.draw(st.integers(0, most // ranks)) * ranks
    before = random.permutation(experts).reshape(ranks, per_rank).astype(np.int32)
    if hosts > 1:
        before = contiguous_slots(experts, ranks)
    after = balanced_slots(load, before, replicas, domains)
    assert rank_loads(load, after).max() <= rank_loads(load, before).max() * (1 + 1e-9)
    assert after.shape == (ranks, per_rank + replicas // ranks)
    assert set(after.ravel().tolist()) == set(range(experts))
    assert all(len(set(row)) == len(row) for row in after.tolist())
    for host in range(hosts if hosts > 1 else 0):
        members = slice(host * ranks // hosts, (host + 1) * ranks // hosts)
        assert set(after[members].ravel().tolist()) == set(before[members].ravel().tolist())


def test_the_example_of_eplb_is_not_worse_than_there() -> None:
    first = np.resize(np.arange(12, dtype=np.int32), (8, 2))
    slots = balanced_slots(EPLB_LOADS, first, 4)
    assert rank_loads(EPLB_LOADS, slots).max() <= rank_loads(EPLB_LOADS, EPLB_SLOTS).max()


def test_a_placement_that_cannot_be_better_is_kept() -> None:
    slots = contiguous_slots(16, 4)
    assert balanced_slots(np.ones(16), slots) is slots


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        (-1, "replicas must be an integer of at least 0, not -1"),
        (3, "8 experts and 3 replicas do not fill the slots of 4 ranks evenly; pass 0 or 4"),
        (25, "25 replicas are more than the 24 slots in which 4 ranks can have a second copy of 8 experts; pass 24 or"),
    ],
)
def test_wrong_replicas_are_explained(replicas: int, message: str) -> None:
    with pytest.raises(MeshError) as error:
        check_replicas(8, 4, replicas)
    assert str(error.value).startswith(message)
