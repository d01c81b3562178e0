"""The popularity of experts: exact where a formula is known, near a simulation of routers elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import MeshError
from meshlab.prediction._popularity import (
    exchange_imbalance,
    rank_imbalance,
    reached,
    selected_hosts,
    shares_of,
)


@pytest.mark.parametrize(("experts", "top_k", "places"), [(256, 8, 8), (256, 8, 256), (8, 2, 4), (64, 6, 16)])
def test_balanced_experts_have_the_exact_probability(experts: int, top_k: int, places: int) -> None:
    each = experts // places
    exact = 1 - math.comb(experts - each, top_k) / math.comb(experts, top_k)
    assert reached(np.full(each, top_k / experts), 1.0, top_k) == pytest.approx(exact, rel=1e-12)


def test_a_single_expert_is_reached_with_its_own_chance() -> None:
    assert reached(np.array([0.7]), 1.0, 8) == pytest.approx(0.7)


@pytest.mark.parametrize("skew", [0.3, 0.6, 0.9])
def test_uneven_experts_are_near_a_simulated_router(skew: float) -> None:
    random, experts, top_k = np.random.default_rng(1), 64, 4
    scores = np.log(shares_of(skew, experts, top_k)) + random.gumbel(size=(100_000, experts))
    chosen = np.argpartition(-scores, top_k, axis=1)[:, :top_k]
    chances = np.bincount(chosen.ravel(), minlength=experts) / len(chosen)
    for places in (2, 8, 16):
        of_token = np.zeros((len(chosen), places), dtype=bool)
        of_token[np.arange(len(chosen))[:, None], chosen * places // experts] = True
        model = [reached(part, 1.0, top_k) for part in chances.reshape(places, -1)]
        assert model == pytest.approx(of_token.mean(axis=0).tolist(), abs=0.01)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0, 100.0])
@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (8, 2), (8, 8), (4, 1)])
def test_no_token_has_an_expert_twice(skew: float, experts: int, top_k: int) -> None:
    shares = shares_of(skew, experts, top_k)
    assert shares.sum() == pytest.approx(1.0)
    assert shares.max() <= (1 + 1e-9) / top_k
    assert shares.min() >= 0


def test_hosts_are_selected_up_to_the_limit() -> None:
    load = np.array([[4.0, 2.0, 1.0, 1.0]])
    selected = selected_hosts(load, np.array([[0.1, 0.9, 0.1, 0.1]]), 2)
    assert selected.sum() == pytest.approx(2.0)
    assert selected[0, 0] <= 1.0
    assert selected[0, 1] == pytest.approx(0.9)  # its most popular expert needs it
    assert selected_hosts(load, np.zeros((1, 4)), 4).tolist() == [[1.0] * 4]


def test_without_a_skew_all_factors_are_exactly_one() -> None:
    job = ml.Job.preset("deepseek-v3")
    degrees = np.array([1, 8, 64])
    assert rank_imbalance(job, degrees).tolist() == [1.0, 1.0, 1.0]
    assert exchange_imbalance(job, degrees, np.array([1, 1, 8])).tolist() == [1.0, 1.0, 1.0]
    equal = job.replace(skew=[5] * 256)
    assert rank_imbalance(equal, degrees) == pytest.approx([1.0] * 3)
    assert exchange_imbalance(equal, degrees, np.array([1, 1, 8])) == pytest.approx([1.0] * 3)


@pytest.mark.parametrize(
    ("skew", "message"),
    [
        (-1, "skew must be a number from 0 to 100 or the tokens of every expert, not -1"),
        (float("nan"), "skew must be a number from 0 to 100"),
        (True, "skew must be a number from 0 to 100"),
        ("1.2", "skew must be a number from 0 to 100"),
        ([1, 2], "2 numbers of tokens do not match the 8 experts"),
        ([0] * 8, "tokens of experts must be numbers of at least 0, and not all of them 0"),
        ([-1] * 8, "tokens of experts must be numbers of at least 0"),
        ([90, 10, 0, 0, 0, 0, 0, 0], "expert 0 has 90% of the tokens, but with top_k=2 it has 0.5 of them at most"),
    ],
)
def test_a_wrong_skew_is_explained(skew: object, message: str) -> None:
    with pytest.raises(MeshError) as error:
        ml.Job.preset("mixtral-8x7b", skew=skew)
    assert str(error.value).startswith(message)


def test_a_dense_job_has_no_skew() -> None:
    with pytest.raises(MeshError, match="but the job has no experts; use skew=0"):
        ml.Job.preset("llama3-8b", skew=1.0)
