"""How fast costs are, in processor time. Run with pytest-benchmark."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.prediction._costs import cost, prices
from meshlab.prediction._group_links import GroupLinks, _table

pytestmark = pytest.mark.benchmark(timer=time.process_time)

SIZES = np.geomspace(8, 1 << 34, 30).astype(np.int64)


@pytest.mark.parametrize("machine", ["dgx-h100", "tapered-h100"])
def test_all_axes_of_16384_ranks_and_30_sizes(benchmark: Any, machine: str) -> None:
    """Under 50 ms once placed, with seven collectives on every axis."""
    placement = ml.place("pp=16, dp=128, tp=8", ml.preset(machine, nodes=2048))

    def all_costs() -> float:
        of_axes = [GroupLinks.of(placement, axis)[0] for axis in placement.mesh.axis_names]
        return sum(
            float(cost(links, collective, SIZES).time_us.sum())
            for links in of_axes
            for collective in ml.prediction.COLLECTIVES
        )

    assert benchmark(all_costs) > 0
    assert benchmark.stats["median"] < 0.05


def test_groups_without_common_signatures(benchmark: Any) -> None:
    """3,200 of them, under 100 ms."""
    links, _ = GroupLinks.of(ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2)), "dp")
    many = links.rows(np.zeros(3200, dtype=np.intp))
    assert benchmark(cost, many, "all_reduce", SIZES).time_us.shape == (3200, 30)
    assert benchmark.stats["median"] < 0.1


@pytest.mark.parametrize(("machine", "limit_s"), [("dgx-h100", 0.02), ("tapered-h100", 1.0)])
def test_the_table_of_all_axes_of_16384_ranks(benchmark: Any, machine: str, limit_s: float) -> None:
    """In closed form under 20 ms, from exact crossings under 1 s."""
    cluster = ml.preset(machine, nodes=2048)

    def table() -> int:
        _table.cache_clear()
        return len(GroupLinks.by_stride(cluster).links)

    assert benchmark.pedantic(table, rounds=5, warmup_rounds=1) == 106
    assert benchmark.stats["median"] < limit_s


def test_prices_of_50000_calls(benchmark: Any) -> None:
    """10,000 layouts with five axes, each with its own size, under 100 ms."""
    table = GroupLinks.by_stride(ml.preset("dgx-h100", nodes=2048))
    rng = np.random.default_rng(1)
    rows, sizes = rng.integers(len(table.links), size=50_000), rng.integers(1 << 10, 1 << 32, size=50_000)
    of_table = prices(table.links, "all_reduce")
    assert (benchmark(of_table.time_us, rows, sizes) >= 0).all()
    assert benchmark.stats["median"] < 0.1


def test_the_routing_of_1024_ranks_with_its_loads(benchmark: Any) -> None:
    """With one copy per host, under 0.5 s together with its figure."""
    from matplotlib.figure import Figure

    job = ml.Job.preset("deepseek-v3", experts=1024, skew=0.8, parameters=None)
    placement = ml.place("ep=1024", ml.preset("dgx-h100", nodes=128))

    def drawn() -> int:
        routing = job.routing(placement)
        loads = routing.loads()
        ml.plot.traffic(routing.dispatch, ax=Figure((7, 6)).add_subplot())
        return len(loads.links)

    assert benchmark.pedantic(drawn, rounds=5, warmup_rounds=1) == 4
    assert benchmark.stats["median"] < 0.5


def test_the_prediction_of_a_traffic_of_1024_ranks(benchmark: Any) -> None:
    """One size, under 0.5 s."""
    placement = ml.place("ep=1024", ml.preset("dgx-h100", nodes=128))
    traffic = ml.Traffic.zipf(1.0).of(1024, "64M")
    prediction = benchmark.pedantic(lambda: ml.predict(placement, traffic=traffic), rounds=5, warmup_rounds=1)
    assert len(prediction.lines) == 1
    assert benchmark.stats["median"] < 0.5
