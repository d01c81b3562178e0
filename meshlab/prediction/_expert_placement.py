"""Placements of experts: which ranks of a group have which experts, and the greedy search for a balanced one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshError
from meshlab.topology.model._levels import Bools, Floats, Ints

_TINY_SLOTS, _SMALL_SLOTS = 16, 96  # up to which the search starts again from other placements
_TINY_STARTS, _SMALL_STARTS = 80, 8
_MOST_STEPS = 1000
_MOST_CANDIDATES = 1 << 21  # changes of replicas that are compared in one step
_GAIN = 1 - 1e-9  # a change that gains less is an error of rounding
_GOOD_ENOUGH = 1.002  # relative to the least that any placement could have


def contiguous_slots(experts: int, ranks: int) -> Ints:
    """Return the usual placement: a block of consecutive experts on every rank, of shape (ranks, slots)."""
    return np.arange(experts, dtype=np.int32).reshape(ranks, -1)


def rank_loads(load: Floats, slots: Ints) -> Floats:
    """Return the load of every rank if the replicas of an expert have equal parts of its load."""
    counts = np.bincount(slots.ravel(), minlength=len(load))
    return np.asarray((load / np.maximum(counts, 1))[slots].sum(axis=1))


def check_replicas(experts: int, ranks: int, replicas: int) -> int:
    """Return the slots per rank for the experts and further replicas, or raise a `MeshError`."""
    most = experts * (ranks - 1)
    if replicas < 0:
        raise MeshError(f"replicas must be an integer of at least 0, not {replicas}")
    if replicas > most:
        raise MeshError(
            f"{replicas:,} replicas are more than the {most:,} slots in which {ranks} ranks can have a second copy of "
            f"{experts} experts",
            hint=f"pass {most:,} or fewer",
        )
    if (experts + replicas) % ranks:
        below = (experts + replicas) // ranks * ranks - experts
        options = [f"{number:,}" for number in (below, below + ranks) if 0 <= number <= most]
        raise MeshError(
            f"{experts} experts and {replicas} replicas do not fill the slots of {ranks} ranks evenly",
            hint=f"pass {' or '.join(options)}",
        )
    return (experts + replicas) // ranks


def balanced_slots(load: Floats, slots: Ints, replicas: int = 0, domains: Sequence[int] | Ints = ()) -> Ints:
    """Return a balanced placement. Without replicas, its largest load is at most that of the present placement.

    It is a greedy search as in EPLB (deepseek-ai/EPLB, eplb.py): the experts with the largest load per replica get the
    replicas, and the replicas, the largest first, the rank with the least load that has a free slot. Exchanges of two
    slots, and replicas of other experts, then lower the largest load as long as they can. With `domains`, one per
    rank, experts stay in their domain, as node-limited routing needs it.
    """
    ranks = len(slots)
    width = check_replicas(len(load), ranks, replicas)
    balanced = np.empty((ranks, width), dtype=np.int32)
    of_rank = np.zeros(ranks, dtype=np.int64) if not len(domains) else np.asarray(domains)
    for domain in np.unique(of_rank).tolist():
        members = np.flatnonzero(of_rank == domain)
        experts = np.unique(slots[members])
        if len(experts) > width * len(members) or width * len(members) > len(experts) * len(members):
            raise MeshError(
                f"{replicas:,} replicas do not fill the slots of {len(members)} ranks with {len(experts)} experts",
                hint="pass a multiple of the number of ranks",
            )
        balanced[members] = experts[_searched(load[experts], len(members), width)]
    if replicas == 0 and rank_loads(load, slots).max() <= rank_loads(load, balanced).max():
        return slots
    return balanced


def _searched(load: Floats, ranks: int, width: int) -> Ints:
    """Return the best placement that the search finds from one or several starts, of shape (ranks, width)."""
    counts = _replica_counts(load, ranks, ranks * width)
    best = _improved(load, _packed(load, counts, ranks, width))
    least = rank_loads(load, best).max()
    lower = max(float(load.sum()) / ranks, float(load.max()) / (ranks if best.size > len(load) else 1))
    starts = _TINY_STARTS if best.size <= _TINY_SLOTS else _SMALL_STARTS if best.size <= _SMALL_SLOTS else 0
    random = np.random.default_rng(0)
    for number in range(starts):
        if least <= _GOOD_ENOUGH * lower:
            break
        counts = np.bincount(best.ravel(), minlength=len(load))
        more, less = np.flatnonzero(counts < ranks), np.flatnonzero(counts > 1)
        if number % 2 and len(less) and len(more):  # other replicas
            counts[random.choice(less)] -= 1
            counts[random.choice(more)] += 1
        slots = _improved(load, _dealt(random.permutation(len(load)), counts, ranks))
        largest = rank_loads(load, slots).max()
        if largest < least:
            best, least = slots, largest
    return best


def _replica_counts(load: Floats, ranks: int, total: int) -> npt.NDArray[np.int64]:
    """Return the number of replicas of every expert: each further one goes to the largest load per replica."""
    counts = np.ones(len(load), dtype=np.int64)
    for _ in range(total - len(load)):
        counts[np.argmax(np.where(counts < ranks, load / counts, -1.0))] += 1
    return counts


def _packed(load: Floats, counts: npt.NDArray[np.int64], ranks: int, width: int) -> Ints:
    """Return the placement that gives every replica, the largest first, the rank with the least load."""
    part = load / counts
    order = np.argsort(-part, kind="stable")
    slots = np.full((ranks, width), -1, dtype=np.int32)
    sums, filled = np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    for expert in np.repeat(order, counts[order]).tolist():
        is_free = filled < width
        if counts[expert] > 1:
            is_free &= ~(slots == expert).any(axis=1)
        if not is_free.any():  # the last free slots are on ranks that have the expert
            return _dealt(order, counts, ranks)
        rank = int(np.where(is_free, sums, np.inf).argmin())
        slots[rank, filled[rank]] = expert
        filled[rank] += 1
        sums[rank] += part[expert]
    return slots


def _dealt(order: npt.NDArray[np.integer], counts: npt.NDArray[np.int64], ranks: int) -> Ints:
    """Return the placement that deals the replicas to the ranks in turn, so that no rank has an expert twice."""
    return np.repeat(order, counts[order]).reshape(-1, ranks).T.astype(np.int32)


def _improved(load: Floats, slots: Ints) -> Ints:
    """Return a placement after all changes that lower the largest load."""
    slots = slots.copy()
    ranks = len(slots)
    for _ in range(_MOST_STEPS):
        counts = np.bincount(slots.ravel(), minlength=len(load))
        part = load / counts
        has = np.zeros((ranks, len(load)), dtype=bool)
        has[np.arange(ranks)[:, None], slots] = True
        sums = part[slots].sum(axis=1)
        busiest = int(sums.argmax())
        largest, change = _best_exchange(slots, part, sums, has, busiest)
        by_replica, other = _best_replica(load, slots, counts, sums, has, busiest)
        if min(largest, by_replica) >= sums[busiest] * _GAIN:
            break
        if by_replica < largest:
            rank, slot, expert = other
            slots[rank, slot] = expert
        else:
            place, rank, slot = change
            slots[busiest, place], slots[rank, slot] = slots[rank, slot], slots[busiest, place]
    return slots


def _best_exchange(
    slots: Ints, part: Floats, sums: Floats, has: Bools, busiest: int
) -> tuple[float, tuple[int, int, int]]:
    """Return the larger load of both ranks after the best exchange of a slot of the busiest one, and its place."""
    gain = part[slots][None] - part[slots[busiest]][:, None, None]
    after = np.maximum(sums[busiest] + gain, sums[:, None] - gain)
    twice = has[busiest][slots][None] | has[:, slots[busiest]].T[:, :, None]
    after = np.where(twice, np.inf, after)
    place, rank, slot = np.unravel_index(int(after.argmin()), after.shape)
    return float(after[place, rank, slot]), (int(place), int(rank), int(slot))


def _best_replica(
    load: Floats, slots: Ints, counts: npt.NDArray[np.int64], sums: Floats, has: Bools, busiest: int
) -> tuple[float, tuple[int, int, int]]:
    """Return the largest load after the best replica in the slot of another one, with its rank, slot and expert."""
    spare = np.argwhere(counts[slots] > 1)
    nothing = np.inf, (0, 0, 0)
    if not len(spare) or len(spare) * (slots.shape[1] + 1) * len(slots) > _MOST_CANDIDATES:
        return nothing
    popular = slots[busiest][counts[slots[busiest]] < len(slots)]
    # More replicas of an expert of the busiest rank, or an expert of another rank in one of its slots.
    rank, slot = np.repeat(spare, len(popular), axis=0).T
    expert = np.tile(popular, len(spare))
    others = np.flatnonzero((counts < len(slots)) & ~has[busiest])
    at = np.flatnonzero(counts[slots[busiest]] > 1)
    rank = np.concatenate([rank, np.full(len(at) * len(others), busiest)])
    slot, expert = (
        np.concatenate([slot, np.repeat(at, len(others))]),
        np.concatenate([expert, np.tile(others, len(at))]),
    )
    usable = ~has[rank, expert]
    rank, slot, expert = rank[usable], slot[usable], expert[usable]
    if not len(rank):
        return nothing
    gone = slots[rank, slot]
    more, fewer = load / (counts + 1), load / np.maximum(counts - 1, 1)
    part = load / counts
    after = (
        sums[None] + has[:, expert].T * (more - part)[expert][:, None] + has[:, gone].T * (fewer - part)[gone][:, None]
    )
    after[np.arange(len(rank)), rank] += more[expert] - fewer[gone]
    largest = after.max(axis=1)
    best = int(largest.argmin())
    return float(largest[best]), (int(rank[best]), int(slot[best]), int(expert[best]))
