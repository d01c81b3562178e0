"""Popularity of experts: the share of every expert in the routed tokens, and how many places a token reaches.

A token has `top_k` different experts. They are assumed to be chosen one after the other with the probabilities of their
popularity, so that the chance of an expert is `top_k` times its share. For equal shares this is the exact
(hypergeometric) probability, and for a single expert it is exact, too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshError
from meshlab.mesh._axes import short
from meshlab.topology.model._levels import Floats

if TYPE_CHECKING:
    from meshlab.prediction._job import Job

Skew = float | tuple[float, ...]
"""The exponent of a Zipf law over the experts, or the tokens of every expert."""

_MOST_SKEW = 100.0
_SEED = 0  # of the order of popularity, which is not that of the experts
_HALVINGS = 60


def as_skew(value: Any, experts: int) -> Skew:
    """Return the skew of a job: a number, or the tokens of every expert as a tuple."""
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str):
        counts = np.asarray(value, dtype=object)
        return tuple(expert_counts(counts, experts).tolist()) if counts.ndim == 1 else _no_skew(value)
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) <= _MOST_SKEW:
        return _no_skew(value)
    return float(value)


def _no_skew(value: object) -> Skew:
    raise MeshError(
        f"skew must be a number from 0 to {_MOST_SKEW:g} or the tokens of every expert, not {short(value)}",
        hint="pass 0 for balanced experts, or 1.0",
    )


def expert_counts(counts: npt.ArrayLike, experts: int) -> Floats:
    """Return the tokens of every expert, or of every rank and expert, or raise a `MeshError`."""
    try:
        table = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MeshError(f"tokens of experts must be numbers, not {short(counts)}") from error
    if table.shape[-1:] != (experts,):
        raise MeshError(f"{table.shape[-1] if table.ndim else 0} numbers of tokens do not match the {experts} experts")
    if not np.isfinite(table).all() or (table < 0).any() or not table.any():
        raise MeshError("tokens of experts must be numbers of at least 0, and not all of them 0")
    return table


def shares_of(skew: Skew | Floats, experts: int, top_k: int) -> Floats:
    """Return the share of every expert in the routed tokens, at most 1 / top_k: of shape (experts,) or with ranks."""
    if isinstance(skew, float):
        popularity = np.arange(1, experts + 1) ** -skew
        shares = np.empty(experts)
        shares[np.random.default_rng(_SEED).permutation(experts)] = popularity / popularity.sum()
        return _limited(shares, 1 / top_k)
    counts = np.asarray(skew, dtype=np.float64)
    shares = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1e-300)
    if shares.max() > (1 + 1e-6) / top_k:
        expert = int(np.unravel_index(int(shares.argmax()), shares.shape)[-1])
        raise MeshError(
            f"expert {expert} has {shares.max():.0%} of the tokens, but with top_k={top_k} it has {1 / top_k:.3g} of "
            "them at most",
            hint="count every token once for each of its experts",
        )
    return np.asarray(shares)


def _limited(shares: Floats, most: float) -> Floats:
    """Return shares of at most `most`: a token has an expert at most once, so the others have the rest."""
    if shares.max() <= most:
        return shares
    if most * len(shares) <= 1:
        return np.full(len(shares), 1 / len(shares))
    low, high = 1.0, most / float(shares[shares > 0].min())
    for _ in range(_HALVINGS):
        factor = (low + high) / 2
        low, high = (factor, high) if np.minimum(shares * factor, most).sum() < 1 else (low, factor)
    limited = np.minimum(shares * high, most)
    return np.asarray(limited / limited.sum())


def reached(chances: Floats, selected: Floats | float = 1.0, top_k: int = 1) -> Floats:
    """Return the probability that a token has at least one of some experts, from the chance of each (last axis).

    With node-limited routing, `selected` is the probability that their host is among those of the token.
    """
    chance = -np.sort(-chances, axis=-1) / np.asarray(selected)[..., None]
    before = (np.cumsum(chance, axis=-1) - chance) / top_k  # share of the experts that were not chosen so far
    none = np.prod(1 - np.minimum(chance / np.maximum(1 - before, 1e-12), 1.0), axis=-1)
    return np.asarray((1 - none) * selected)


def selected_hosts(load: Floats, least: Floats, limit: float) -> Floats:
    """Return the probability that each host is among at most `limit` of a token, in proportion to its load (last axis).

    It is at least `least`, the chance of its most popular expert.
    """
    hosts = load.shape[-1]
    if limit >= hosts:
        return np.ones_like(load)
    low, high = np.zeros(load.shape[:-1]), np.full(load.shape[:-1], hosts / max(float(load[load > 0].min()), 1e-12))
    for _ in range(_HALVINGS):
        factor = (low + high) / 2
        is_less = np.clip(load * factor[..., None], least, 1.0).sum(axis=-1) < limit
        low, high = np.where(is_less, factor, low), np.where(is_less, high, factor)
    return np.asarray(np.clip(load * high[..., None], np.maximum(least, 1e-12), 1.0))


# -- imbalance of contiguous experts -----------------------------------------------------------------------------------


def rank_imbalance(job: Job, ep: npt.NDArray[np.integer]) -> Floats:
    """Return the tokens of the busiest rank of ep relative to the mean, for each of several degrees. 1 without skew."""
    if not job.skew or not job.experts:
        return np.ones(len(ep))
    degrees, number = np.unique(ep, return_inverse=True)
    factors = [_busiest(job.skew, job.experts, job.top_k, degree) for degree in degrees.tolist()]
    return np.asarray(np.array(factors)[number.ravel()])


def exchange_imbalance(job: Job, n_ranks: npt.NDArray[np.integer], domains: npt.NDArray[np.integer]) -> Floats:
    """Return the time of the busiest NIC or rank in the exchange of tokens relative to that of balanced experts."""
    shape = np.broadcast_shapes(n_ranks.shape, domains.shape)
    if not job.skew:
        return np.ones(shape)
    pairs = np.stack([np.broadcast_to(part, shape).ravel() for part in (n_ranks, domains)])
    unique, number = np.unique(pairs, axis=1, return_inverse=True)
    factors = [_exchange(job.skew, job.experts, job.top_k, job.expert_hosts, n, d) for n, d in unique.T.tolist()]
    return np.asarray(np.array(factors)[number.ravel()].reshape(shape))


@functools.lru_cache(maxsize=512)
def _busiest(skew: Skew, experts: int, top_k: int, ep: int) -> float:
    if ep == 1 or experts % ep:
        return 1.0  # one rank has all experts; other layouts are dropped
    return float(ep * shares_of(skew, experts, top_k).reshape(ep, -1).sum(axis=1).max())


@functools.lru_cache(maxsize=2048)
def _exchange(skew: Skew, experts: int, top_k: int, limit: int | None, n_ranks: int, domains: int) -> float:
    """Return the largest part that a place receives or sends, relative to that of balanced experts."""
    places = domains if domains > 1 else n_ranks
    if places == 1 or experts % n_ranks:
        return 1.0
    uneven, even = (
        _place_copies(shares, top_k, n_ranks, places, limit if domains > 1 else None)
        for shares in (shares_of(skew, experts, top_k), np.full(experts, 1 / experts))
    )
    # Each place receives its copies from all others, and sends to all others.
    sent, before = uneven.sum() - uneven, even.sum() - even
    return float(max(uneven.max() / even.max(), sent.max() / before.max()))


def _place_copies(shares: Floats, top_k: int, n_ranks: int, places: int, limit: int | None) -> Floats:
    """Return how many of the tokens have an expert on each place, of `places` with consecutive ranks."""
    of_rank = np.arange(n_ranks) * places // n_ranks
    of_expert = np.repeat(of_rank, len(shares) // n_ranks)
    chances = [top_k * shares[of_expert == place] for place in range(places)]
    load = np.array([part.sum() for part in chances])
    selected = np.ones(places)
    if limit is not None:
        least = np.array([part.max() for part in chances])
        selected = selected_hosts(load, least, float(host_limit(limit, top_k, places, len(shares))))
    return np.array([reached(part, selected[k], top_k) for k, part in enumerate(chances)])


def host_limit(limit: int, top_k: int, hosts: npt.ArrayLike, experts: int) -> Floats:
    """Return the most hosts of a token, in the shape of `hosts`: a host with few experts cannot have its share."""
    return np.asarray(np.maximum(float(limit), np.ceil(top_k * np.asarray(hosts) / experts)))
