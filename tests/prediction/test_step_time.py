"""The time of a step on one layout, next to that of the search, and the ratio of two steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import MeshError, TopologyError
from meshlab.base._units import THIN
from meshlab.prediction import step_time
from meshlab.prediction._costs import cost
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._step_ratio import ErrorTerm, Factor, formula_factors, ratio_of


@pytest.fixture(scope="module")
def machine() -> ml.Cluster:
    return ml.preset("dgx-h100", nodes=4)


@pytest.mark.parametrize(("model", "nodes"), [("llama3-70b", 4), ("mixtral-8x7b", 2)])
def test_a_layout_of_a_search_has_the_same_time_alone(model, nodes):
    cluster = ml.preset("dgx-h100", nodes=nodes)
    layouts = ml.search(cluster, model, order="pp, dp, cp, tp")
    frame = layouts.frame(40)
    for i in range(0, len(frame), 5):
        step = step_time(model, layouts.mesh(i), cluster, experts=layouts.experts(i))
        row = frame.iloc[i]
        assert step.low_s == pytest.approx(row["step_s_lo"])
        assert step.high_s == pytest.approx(row["step_s_hi"])
        assert step.memory.total / 2**30 == pytest.approx(row["memory_gib"])
        assert step.memory_state == row["memory"]
        for axis in step.axes:
            assert (axis.low_s, axis.high_s) == pytest.approx((row[f"{axis.name}_s_lo"], row[f"{axis.name}_s_hi"]))


def test_the_parts_add_up_to_the_step(machine):
    step = step_time("llama3-8b", "pp=2, dp=4, tp=4", machine)
    low, high = step.exposed_s
    work = step.compute_s + step.bubble_s
    assert work + low < step.expected_s < work + high
    assert step.low_s < step.expected_s < step.high_s
    assert step.expected_s**2 == pytest.approx(step.low_s * step.high_s)
    frame = step.frame()
    assert frame["part"].tolist() == ["compute", "bubble", "tp", "pp", "dp"]
    assert frame["high_s"].sum() == pytest.approx(work + high)
    assert "tp takes" in step.limit
    assert "of activations" in step.limit
    assert "4 ranks inside NVLink" in step.explain()
    assert step.verdict in repr(step)


def test_a_failed_nic_slows_only_the_axes_that_use_it(machine):
    whole = step_time("llama3-8b", "dp=4, tp=8", machine)
    failed = step_time("llama3-8b", "dp=4, tp=8", machine.without_nic("node1", "NIC0"))
    assert failed.axis("tp") == whole.axis("tp")
    assert failed.axis("dp").high_s > whole.axis("dp").high_s
    assert (whole.axis("dp").state, failed.axis("dp").state) == ("rail", "shared")
    ratio = failed.ratio(whole)
    assert 1 < ratio.low < ratio.expected < ratio.high < 1.01


@pytest.mark.parametrize(
    ("failed", "links"),
    [
        (["node1/NIC0=50%"], "1 NIC, 24.0 GB/s"),
        (["node1/NIC0"], "1 NIC with the traffic of 1.33 groups, 36.0 GB/s"),  # a third of a group joins each of 3
        (["leaf:3", "node0/NIC1=50%"], "1 NIC with the traffic of 1.33 groups, 20.0 GB/s"),
    ],
)
def test_the_limit_is_the_narrowest_group_of_the_placement(machine, failed, links):
    placement = ml.place("dp=4, tp=8", machine.with_failed(*failed))
    step = step_time("llama3-8b", "dp=4, tp=8", placement.cluster)
    assert step.axis("dp").limit.replace(THIN, " ").endswith(links)
    assert f"{links.split(', ')[-1]} per group" in placement.explain("dp").replace(THIN, " ")


def test_words_links_and_step_agree_for_nics_of_different_rates(machine):
    """Groups on NICs 0, 1 and 2, of which one has half the rate, send it a fifth: 1.2 groups over 24 GB/s."""
    slow = machine.with_failed("leaf:3", "node0/NIC1=50%")
    placement = ml.place("dp=4, tp=8", slow)
    nic = next(link for link in placement.loads("dp", size="256M").links if link.name == "nic")
    seconds = nic.bytes / 1e9 / np.where(nic.gbs > 0, nic.gbs, np.inf)
    ring = 2 * 3 / 4 * 2**28 / 1e9
    assert ring / seconds.max() == pytest.approx(20)
    assert "20.0 GB/s per group" in placement.explain("dp").replace(THIN, " ")


def test_a_job_that_does_not_fit_names_the_change(machine):
    step = step_time("llama3-8b", "dp=32", machine, memory_gib=48)
    assert not step.fits
    assert step.memory_state == "over"
    assert step.memory_fix.startswith("pass recompute='full'")
    with pytest.raises(MeshError, match="32 heads are not divisible by tp = 3"):
        step_time("llama3-8b", "tp=3", machine)
    with pytest.raises(MeshError, match="job must be a Job or the name of a model"):
        step_time(3, "dp=32", machine)
    with pytest.raises(TopologyError, match="the peak of"):
        step_time(
            "llama3-8b",
            "dp=2",
            ml.topology.read("        GPU0 GPU1\nGPU0     X    NV4\nGPU1    NV4    X"),
            memory_gib=80,
        )


def test_the_ratio_of_a_step_to_itself_is_exactly_1(machine):
    step = step_time("llama3-8b", "dp=4, tp=8", machine)
    ratio = step.ratio(step)
    assert (ratio.expected, ratio.low, ratio.high) == (1, 1, 1)
    assert not ratio.is_decided


def test_ratios_are_reciprocal_and_narrower_than_the_bands(machine):
    a, b = (step_time("llama3-8b", mesh, machine) for mesh in ("dp=2, tp=16", "dp=8, tp=4"))
    ratio, inverse = b.ratio(a), a.ratio(b)
    assert (ratio.expected, ratio.low, ratio.high) == pytest.approx(
        (1 / inverse.expected, 1 / inverse.high, 1 / inverse.low)
    )
    assert b.low_s / a.high_s < ratio.expected < b.high_s / a.low_s
    assert ratio.high < 1
    assert ratio.is_decided


def test_twice_the_batch_takes_the_same_time_per_token(machine):
    job = ml.Job.preset("llama3-8b")
    small = step_time(job, "dp=4, tp=8", machine)
    large = step_time(job.replace(global_batch=2 * job.global_batch), "dp=4, tp=8", machine)
    assert large.ratio(small).expected == pytest.approx(1, abs=0.01)


def test_shared_errors_cancel_and_others_combine_as_squares():
    a, b = (Factor((name,), 0.5, 2.0, name) for name in "ab")
    ratio = ratio_of([ErrorTerm(3.0, (a,))], [ErrorTerm(2.0, (a,))])
    assert (ratio.expected, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    ratio = ratio_of([ErrorTerm(1.0, (a,))], [ErrorTerm(1.0, (b,))])
    width = math.exp(math.sqrt(2) * math.log(2))
    assert (ratio.expected, ratio.low, ratio.high) == pytest.approx((1.0, 1 / width, width))
    both = ratio_of([ErrorTerm(1.0, (a, b))], [ErrorTerm(1.0, (b,))])
    assert (both.low, both.high, both.cause) == (pytest.approx(0.5), pytest.approx(2.0), "a")


def test_the_errors_of_a_call_multiply_to_its_band(machine):
    links, _ = GroupLinks.of(ml.place("dp=4, tp=8", machine), "dp")
    for size in (1 << 20, 1 << 28, 1 << 29, 1 << 30, 1 << 40):
        factors = formula_factors(links, 0, "all_reduce", size)
        low, high = np.exp(cost(links, "all_reduce", [size]).errors.band(0, size))
        assert math.prod(factor.high for factor in factors) == pytest.approx(high)
        assert math.prod(factor.low for factor in factors) == pytest.approx(low)
