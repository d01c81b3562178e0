"""Seconds of computation: measured steps on one GPU, and what micro-batches, precision and software change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import MeshError
from meshlab.prediction._compute_rates import measured_h200, rates_of_rows, scaled_rates
from meshlab.prediction._step_range import layout_error, pair_errors, step_range, step_rows

# Forward, backward and AdamW (bfloat16) in PyTorch 2.11 on one H200: hidden, layers, micro-batch, sequences, tokens,
# software, and seconds per step.
MEASURED = [
    (1024, 4, 1, 8, 4096, "eager", 0.0652), (1024, 4, 8, 8, 4096, "eager", 0.0573),
    (4096, 4, 1, 8, 4096, "eager", 0.4270), (4096, 4, 4, 8, 4096, "eager", 0.4121),
    (2048, 24, 1, 8, 2048, "eager", 0.3593), (2048, 24, 4, 8, 2048, "eager", 0.3264),
    (4096, 2, 1, 4, 16384, "eager", 0.5502), (4096, 4, 1, 8, 4096, "compiled", 0.4113),
    (2048, 24, 1, 8, 2048, "compiled", 0.3335),
]  # fmt: skip


def small_job(hidden: int, layers: int, micro_batch: int, batch: int, tokens: int, software: str) -> ml.Job:
    return ml.Job(
        layers=layers, hidden=hidden, heads=hidden // 128, ffn_hidden=hidden * 7 // 2, sequence=tokens,
        vocabulary=32_000, micro_batch=micro_batch, global_batch=batch, zero=0, gradient_dtype="bfloat16",
        software=software, attention="cudnn",
    )  # fmt: skip


@pytest.mark.parametrize("row", MEASURED)
def test_a_measured_step_is_in_its_range(row: tuple[Any, ...]) -> None:
    *sizes, seconds = row
    step = ml.prediction.step_time(small_job(*sizes), "dp=1", ml.preset("dgx-h200", nodes=1))
    assert step.low_s < seconds < step.high_s
    assert step.expected_s == pytest.approx(seconds, rel=0.15)


def test_small_micro_batches_take_longer_per_token() -> None:
    cluster = ml.preset("dgx-h100", nodes=2)
    job = ml.Job.preset("llama3-8b", sequence=2048, global_batch=64)
    steps = [ml.prediction.step_time(job.replace(micro_batch=b), "dp=16", cluster).expected_s for b in (1, 2, 4)]
    assert steps[0] > steps[1] > steps[2]


def test_experts_with_few_tokens_are_bound_by_launches() -> None:
    cluster = ml.preset("dgx-b200", nodes=1)
    job = ml.Job.preset("deepseek-v3", layers=4, dense_layers=0, global_batch=64)
    eager, graphed = (
        ml.prediction.step_time(job.replace(software=software, sequence=512), "dp=8", cluster, experts="ep=8")
        for software in ("fused", "graphed")
    )
    assert eager.compute_s > 1.5 * graphed.compute_s


@pytest.mark.parametrize(
    ("changes", "is_faster"),
    [
        ({"matmul": "float8_e4m3fn"}, True),
        ({"software": "eager"}, False),
        ({"attention": "flash2"}, False),
        ({"recompute": "full"}, False),
        ({"async_tp": False}, False),
    ],
)
def test_named_choices_change_the_step(changes: dict[str, Any], is_faster: bool) -> None:
    cluster, job = ml.preset("dgx-h100", nodes=2), ml.Job.preset("llama3-8b")
    before, after = (ml.prediction.step_time(j, "dp=4, tp=4", cluster) for j in (job, job.replace(**changes)))
    assert (after.expected_s < before.expected_s) == is_faster


def test_experts_on_few_hosts_send_fewer_copies() -> None:
    """Of 8 experts on 8 hosts, a token reaches 8 (1 - (7/8)^8) hosts, and 4 (1 - (3/4)^8) if it is limited to 4."""
    cluster, free = ml.preset("dgx-h100", nodes=8), ml.Job.preset("deepseek-v3", expert_hosts=None)

    def seconds(job: ml.Job, mesh: str = "pp=1, dp=64", experts: str = "pp=1, edp=1, ep=64") -> float:
        return ml.prediction.step_time(job, mesh, cluster, experts=experts).axis("ep").high_s

    limited = free.replace(expert_hosts=4)
    expected = 4 * (1 - (3 / 4) ** 8) / (8 * (1 - (7 / 8) ** 8))
    assert seconds(limited) / seconds(free) == pytest.approx(expected, rel=0.05)
    assert seconds(free.replace(expert_hosts=8)) == seconds(free)
    assert seconds(free.replace(expert_hosts=1)) < seconds(free.replace(expert_hosts=2)) < seconds(limited)
    inside = {"mesh": "pp=1, dp=64", "experts": "pp=1, edp=8, ep=8"}
    assert seconds(limited, **inside) == seconds(free, **inside)


def test_a_token_reaches_as_many_hosts_as_its_experts_need() -> None:
    """Of 64 experts on 8 hosts, the 32 experts of a token are on at least 4 hosts."""
    cluster = ml.preset("dgx-h100", nodes=8)
    sizes: dict[str, Any] = {"experts": 64, "top_k": 32}
    one, four, three = (
        ml.prediction.step_time(
            ml.Job.preset("deepseek-v3", expert_hosts=hosts, **sizes), "dp=64", cluster, experts="edp=1, ep=64"
        ).axis("ep").high_s
        for hosts in (1, 4, 3)
    )  # fmt: skip
    assert one == three == four


def test_published_models_limit_the_hosts_of_a_token() -> None:
    limits = {name: ml.Job.preset(name).expert_hosts for name in ml.prediction.MODELS}
    assert {name: limit for name, limit in limits.items() if limit is not None} == {"deepseek-v3": 4}


def test_weights_that_stay_gathered_need_memory_instead_of_a_gather() -> None:
    cluster, job = ml.preset("dgx-h100", nodes=2), ml.Job.preset("llama3-8b", zero=3)
    before, after = (ml.prediction.step_time(j, "dp=16", cluster) for j in (job, job.replace(reshard=False)))
    assert after.axis("dp").high_s < before.axis("dp").high_s
    assert after.memory.weights > 2 * before.memory.weights


def test_offloaded_activations_are_not_in_the_memory_of_the_device() -> None:
    cluster, job = ml.preset("dgx-h100", nodes=1), ml.Job.preset("llama3-8b")
    before, after = (ml.prediction.step_time(j, "dp=8", cluster) for j in (job, job.replace(offload=16)))
    assert after.memory.activations < 0.7 * before.memory.activations
    assert after.expected_s >= before.expected_s


def test_a_peak_of_8_bits_implies_their_products() -> None:
    """The measured attention keeps its rate, so a step is not twice as fast."""
    cluster, job = ml.preset("dgx-h100", nodes=1), ml.Job.preset("llama3-8b", global_batch=128)
    implied = ml.prediction.step_time(job, "dp=8", cluster, peak=1979)
    named = ml.prediction.step_time(job.replace(matmul="float8_e4m3fn"), "dp=8", cluster)
    assert implied.expected_s == pytest.approx(named.expected_s, rel=1e-3)


@pytest.mark.parametrize(("machine", "peak"), [("gb300-nvl72", 5000), ("dgx-b300", 4500), ("dgx-h100", 1979)])
def test_published_peaks_of_narrow_products_are_known(machine: str, peak: float) -> None:
    job = ml.Job.preset("llama3-8b", global_batch=144)
    mesh = {"gb300-nvl72": "dp=72", "dgx-b300": "dp=8", "dgx-h100": "dp=8"}[machine]
    named = ml.prediction.step_time(job.replace(matmul="float8_e4m3fn"), mesh, ml.preset(machine))
    assert named.hardware.flops == pytest.approx(peak * 1e12)
    assert ml.prediction.step_time(job, mesh, ml.preset(machine), peak=peak).hardware.matmul == "float8_e4m3fn"


def test_rates_at_the_measured_shapes_are_the_measured_ones() -> None:
    table = measured_h200()
    kernel = table.kernels["product", "bfloat16"]
    shapes = np.round(2**kernel.shape).T
    assert table.products("bfloat16", *shapes) == pytest.approx(kernel.rate, rel=0.15)
    assert "measured on an H200" in repr(table)


def test_measured_rates_replace_those_of_the_package() -> None:
    sizes = {"dtype": "bfloat16", "time_us": 1.0, "head_size": 128}
    rows = [sizes | {"kernel": "product", "m": 4096, "n": 4096, "k": 4096, "rate": 100.0}]
    rows += [
        sizes | {"kernel": f"attention {phase}", "m": 1, "n": 32, "k": 4096, "rate": 50.0}
        for phase in ("forward", "backward")
    ]
    rows.append(sizes | {"kernel": "add", "m": 8192, "n": 8192, "k": "", "rate": 1.0})
    slow = rates_of_rows("Other", "measured on 1 GPU", rows, launch_us=10.0)
    cluster = ml.preset("dgx-h100", nodes=1)
    usual, other = (ml.prediction.step_time("llama3-8b", "dp=8", cluster, rates=r) for r in (None, slow))
    assert other.compute_s > 4 * usual.compute_s
    layouts = ml.search(cluster, "llama3-8b", rates=slow)
    assert layouts.frame(1)["step_s"][0] > 4 * ml.search(cluster, "llama3-8b").frame(1)["step_s"][0]
    assert "measured on 1 GPU" in layouts.rate_text


@pytest.mark.parametrize("gpu", ["A100 80GB", "H100 80GB", "H200", "B200", "GB200", "L40S", "RTX 3090"])
def test_other_gpus_are_scaled_and_say_so(gpu: str) -> None:
    rates = scaled_rates(gpu)
    assert 10 < rates.products("bfloat16", 8192, 8192, 8192) < 2500
    assert rates.source == ("measured on an H200" if gpu == "H200" else "scaled from an H200")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("matmul", "int8"),
        ("software", "fast"),
        ("attention", "slow"),
        ("async_tp", 1),
        ("reshard", 0),
        ("offload", -1),
        ("expert_hosts", 0),
        ("expert_hosts", 2.5),
    ],
)
def test_unknown_choices(field: str, value: Any) -> None:
    with pytest.raises(MeshError, match=field):
        ml.Job.preset("llama3-8b", **{field: value})


def test_ranges_rest_on_published_steps_and_are_wider_without_them() -> None:
    rows = step_rows()
    assert len(rows) == 116
    dense, mixture = ml.Job.preset("llama3-8b"), ml.Job.preset("deepseek-v3")
    at_home = step_range(dense, "H100 80GB", "float8_e4m3fn")
    assert at_home.has_stack
    assert "NeMo" in at_home.text
    elsewhere = step_range(dense, "L40S", "bfloat16")
    assert not elsewhere.has_stack
    assert elsewhere.factor > at_home.factor
    assert step_range(mixture, "B200", "float8_e4m3fn").factor > at_home.factor
    errors = np.array([row.error for row in rows])
    assert np.median(np.abs(errors)) < 0.11  # of fits without the rows of the same model and source


@pytest.mark.parametrize(("has_experts", "count"), [(False, 48), (True, 16)])
def test_the_error_of_a_layout_covers_published_pairs(has_experts: bool, count: int) -> None:
    """The ratio of two layouts has the errors of both. Pairs of models with experts are of different releases."""
    pairs = pair_errors(has_experts=has_experts)
    assert len(pairs) == count
    spread = np.sqrt(2) * np.log(layout_error(has_experts=has_experts))
    assert np.mean([pair.error <= spread for pair in pairs]) == pytest.approx(0.9, abs=0.05)
    assert layout_error(has_experts=True) > layout_error(has_experts=False) > 1.1


def test_the_error_of_a_layout_covers_pairs_of_a_source_that_is_left_out() -> None:
    pairs = pair_errors(has_experts=False)
    inside = []
    for source in {pair.source for pair in pairs}:
        spread = np.quantile([pair.error for pair in pairs if pair.source != source], 0.9)
        inside += [pair.error <= spread for pair in pairs if pair.source == source]
    assert 0.8 <= np.mean(inside) <= 0.96


def test_steps_that_differ_in_the_micro_batch_have_errors_of_their_own() -> None:
    cluster, job = ml.preset("dgx-h100", nodes=2), ml.Job.preset("llama3-8b")
    one, two = (ml.prediction.step_time(job.replace(micro_batch=size), "dp=16", cluster) for size in (1, 2))
    assert not two.ratio(one).is_decided
    assert "on one layout and not on another" in two.ratio(one).cause


def test_a_range_has_two_sides() -> None:
    frame = ml.search("dgx-h100", "llama3-8b").frame(5)
    assert (frame["step_s_lo"] < 0.95 * frame["step_s"]).all()
    assert (frame["step_s_hi"] > 1.05 * frame["step_s"]).all()


def test_a_given_utilisation_replaces_the_rates() -> None:
    cluster, job = ml.preset("dgx-h100", nodes=1), ml.Job.preset("llama3-8b", global_batch=128)
    step = ml.prediction.step_time(job, "dp=8", cluster, utilisation=(0.4, 0.5))
    assert step.compute_s == pytest.approx(job.flops("dp=8") / (989e12 * 0.45))
    assert replace(step.hardware, utilisation=None).compute_time(job, step.layout.degrees).seconds[0] != step.compute_s
