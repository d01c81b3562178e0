"""How fast a search is, in processor time. Run with pytest-benchmark."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.prediction import _search as module
from meshlab.prediction._search import Layouts, search

pytestmark = pytest.mark.benchmark(timer=time.process_time)


@pytest.fixture(scope="module")
def found() -> Layouts:
    """Thousands of layouts with tp, cp, pp, ep, and two kinds of data parallelism."""
    job = ml.Job.preset("deepseek-v3", global_batch=2**15, recompute="full")
    return search(ml.preset("dgx-h100", nodes=2048), job)


def test_prices_of_10000_layouts(benchmark: Any, found: Layouts) -> None:
    """All communication of 10,000 layouts with five axes and more, under 100 ms."""
    placed = found._placed
    index = np.resize(np.arange(len(found)), 10_000)
    many = module._Placed(
        links=placed.links,
        which=placed.which[index],
        orders=[],
        merged=placed.merged[index],
        rows={role: row[index] for role, row in placed.rows.items()},
    )
    settings = ml.prediction.NcclSettings()
    times = benchmark(module._times, found.job, found._hardware, found._all_degrees, many, settings)
    assert times.exposed.shape[2] == 10_000
    assert benchmark.stats["median"] < 0.1


@pytest.mark.parametrize("model", ["llama3-405b", "deepseek-v3"])
def test_a_search_on_16384_gpus(benchmark: Any, model: str) -> None:
    """From the enumeration to the ranking, under 250 ms once the table of the cluster is known."""
    cluster = ml.preset("dgx-h100", nodes=2048)
    job = ml.Job.preset(model, global_batch=2**15, recompute="full")
    layouts = benchmark(search, cluster, job)
    assert len(layouts) > 1000
    assert benchmark.stats["median"] < 0.25
