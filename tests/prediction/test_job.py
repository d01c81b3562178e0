"""Jobs: parameters and volumes against published numbers, and layouts that cannot run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshlab.base._errors import MeshError
from meshlab.prediction._job import Job
from meshlab.prediction._models import MODELS
from meshlab.prediction._step_calls import StepCall
from meshlab.prediction._volumes import nearest_divisor

GPT: dict[str, Any] = {
    "layers": 24, "hidden": 2048, "heads": 16, "sequence": 1024, "global_batch": 64, "micro_batch": 2,
    "gated": False, "tied": True, "vocabulary": 51_200,
}  # fmt: skip


def ring_bytes(call: StepCall, n: int) -> float:
    """Bytes that a rank sends per step if the collective runs on a ring of n ranks."""
    factor = {"all_reduce": 2 * (n - 1) / n, "all_gather": (n - 1) / n, "reduce_scatter": (n - 1) / n, "send_recv": 1.0}
    return call.calls * call.size_bytes * factor[call.collective]


def near(published: float) -> object:
    """Return the range of a published count in 10^9: 0.4 %, or half of its last digit."""
    return pytest.approx(1e9 * published, rel=0.004, abs=0.5e9 if published.is_integer() else 0.05e9)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_that_were_published(name: str) -> None:
    job, model = Job.preset(name), MODELS[name]
    assert job.n_parameters == near(model.parameters)
    assert model.source
    assert set(model.chosen) <= set(model.fields)
    if job.experts:
        # DeepSeek counts the output layer but not the embedding.
        embedding = job.embedding_parameters if name == "deepseek-v3" else 0
        assert job.active_parameters - embedding == near(model.active)


def test_the_inner_size_follows_from_the_parameters() -> None:
    sizes = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "sequence": 8192, "global_batch": 64}
    assert Job(parameters="70.55B", **sizes).ffn_hidden == Job.preset("llama3-70b").ffn_hidden
    experts = {"experts": 8, "top_k": 2, "vocabulary": 32_000}
    job = Job(parameters=46.7e9, **{**sizes, "layers": 32, "hidden": 4096, "heads": 32}, **experts)
    assert job.expert_hidden == Job.preset("mixtral-8x7b").expert_hidden


def test_operations_are_those_of_megatron() -> None:
    """Equation 3 of arXiv 2104.04473, without recomputation and with causal attention."""
    job = Job.preset("gpt3-175b")
    tokens, h, layers, s, vocabulary = job.tokens, job.hidden, job.layers, job.sequence, job.vocabulary
    expected = 72 * tokens * layers * h**2 * (1 + s / (12 * h) + vocabulary / (12 * layers * h))
    assert job.model_flops == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_tensor_parallelism_sends_what_megatron_published(sequence_parallel: bool) -> None:
    """8 b s h (t - 1) / t elements per layer (arXiv 2205.05198), without the second gather of saved activations."""
    t, job = 8, Job(**GPT, sequence_parallel=sequence_parallel, zero=0)
    calls = [call for call in job.step(f"tp={t}") if call.axis == ("tp",) and call.what != "saved activations"]
    per_layer = sum(ring_bytes(call, t) for call in calls) / 2 / job.layers / job.micro_batches(f"tp={t}")
    assert per_layer == pytest.approx(8 * job.micro_batch * job.sequence * job.hidden * (t - 1) / t)
    assert (len(calls) == len(job.step(f"tp={t}"))) is not sequence_parallel


@pytest.mark.parametrize(("zero", "volume"), [(0, 2), (1, 2), (3, 3)])
def test_zero_sends_what_was_published(zero: int, volume: int) -> None:
    """2 Ψ up to ZeRO-2 and 3 Ψ with ZeRO-3 (arXiv 1910.02054, section 7), for one micro-batch."""
    d = 1024
    job = Job(**{**GPT, "micro_batch": 1, "global_batch": d}, zero=zero, gradient_dtype="bfloat16")
    sent = sum(ring_bytes(call, d) for call in job.step(f"dp={d}")) / 2
    assert sent / job.n_parameters == pytest.approx(volume * (d - 1) / d, rel=1e-4)


def test_weights_and_states_need_16_bytes_per_parameter() -> None:
    """Section 3.1 of arXiv 1910.02054."""
    memory = Job(**GPT, zero=0, gradient_dtype="bfloat16").memory("dp=2")
    parameters = Job(**GPT).n_parameters
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(16 * parameters, rel=1e-5)


def test_activations_are_those_of_korthikanti() -> None:
    """34 s b h bytes per layer (arXiv 2205.05198, with fused attention), less 2 s b h of dropout masks."""
    one, two = (Job(**{**GPT, "layers": n}).memory("tp=2").activations for n in (1, 2))
    job = Job(**GPT)
    assert 2 * (two - one) == pytest.approx(32 * job.sequence * job.micro_batch * job.hidden)


@pytest.mark.parametrize(
    ("what", "published"),
    [
        ("tokens", [(163, 46), (173, 43), (182, 41), (186, 40), (192, 39), (194, 39)]),
        ("tokens, back", [(318, 46), (329, 44), (350, 41), (353, 41), (369, 39), (360, 40)]),
    ],
)
def test_expert_parallelism_sends_what_deepep_published(what: str, published: list[tuple[int, int]]) -> None:
    """Latency and bandwidth of the low-latency kernels (README of DeepEP, first release), 128 tokens, EP 8 to 256."""
    job = Job.preset("deepseek-v3", sequence=128, global_batch=256)
    for ep, (time_us, gbs) in zip((8, 16, 32, 64, 128, 256), published, strict=True):
        (call,) = (call for call in job.step(f"ep={ep}") if call.what == what)
        assert call.size_bytes / (1e3 * time_us) == pytest.approx(gbs, rel=0.025)


def test_exchange_of_tokens_takes_the_time_that_was_published() -> None:
    """120.96 µs for 32 tokens per device at 50 GB/s (arXiv 2505.09343, section 2.3.2; its hidden size is 7,000)."""
    job = Job.preset("deepseek-v3", sequence=32, global_batch=64, hidden=7000, top_k=9, shared_experts=0, ffn_hidden=64)
    calls = [call for call in job.step("ep=64") if call.collective == "all_to_all"]
    sizes = [call.size_bytes for call in calls if call.phase == "forward"]
    scales = 4 / 128 * 9 * 32 * 7000  # which the paper omits
    assert (sum(sizes) - scales) / 50e3 == pytest.approx(120.96)


def test_context_parallelism() -> None:
    """A ring and a gather move the same keys and values, and Ulysses moves 4 N h / P (arXiv 2309.14509, section 3)."""
    mesh, c = "cp=4, tp=2", 4
    sent = {}
    for context in ("p2p", "all_gather", "all_to_all"):
        job = Job(**GPT, context=context, zero=0)
        calls = [call for call in job.step(mesh) if call.axis == ("cp",) and call.phase == "forward"]
        sent[context] = sum(
            call.calls * call.size_bytes if call.collective == "all_to_all" else ring_bytes(call, c) for call in calls
        )
    assert sent["p2p"] == pytest.approx(sent["all_gather"])
    job = Job(**GPT)
    times = job.layers * job.micro_batches(mesh)
    assert sent["all_to_all"] / times == pytest.approx(4 * 2 * job.sequence * 2 * job.hidden / (c * 2))


def test_gradients_are_reduced_over_dp_and_cp() -> None:
    job = Job(**GPT, zero=0)
    calls = {call.what: call for call in job.step("pp=2, dp=4, cp=2, tp=2")}
    assert calls["gradients"].axis == ("dp", "cp")
    # Of the layers of a stage, in 32 bits, halved by tp; cp does not shard parameters.
    layer = 12 * job.hidden**2 + 2 * job.hidden
    assert (calls["gradients"].size_bytes, calls["gradients"].repeats) == (4 * layer // 2, 12)


def test_hybrid_sharding_shards_inside_and_reduces_across() -> None:
    calls = Job(**GPT, zero=3).step("dp_replicate=4, dp_shard=8")
    found = {(call.axis, call.collective, call.what) for call in calls if "embedding" not in call.what}
    assert found == {
        (("dp_shard",), "all_gather", "weights"),
        (("dp_shard",), "reduce_scatter", "gradients"),
        (("dp_replicate",), "all_reduce", "gradients"),
    }
    sizes = {call.collective: call.size_bytes for call in calls if call.what == "gradients"}
    assert sizes["reduce_scatter"] == 8 * sizes["all_reduce"]


@pytest.mark.parametrize(
    ("name", "mesh", "experts"),
    [
        ("llama3-8b", "dp=8", None),
        ("llama3-8b", "pp=4, dp=4, cp=2, tp=2", None),
        ("llama3-8b", "pp=2, dp=4", None),
        ("deepseek-v3", "dp=4, ep=8", None),
        ("deepseek-v3", "dp=16, tp=2", "edp=2, ep=16"),
        ("mixtral-8x7b", "pp=4, cp=4, tp=2", "pp=4, ep=4, etp=2"),
    ],
)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_calls_contain_all_computation(name: str, mesh: str, experts: str | None, recompute: str) -> None:
    """The gaps of all calls add up to the operations of a stage, except for the output layer of the last stage."""
    job = Job.preset(name, recompute=recompute)
    m = job.micro_batches(mesh, experts)
    gaps = sum(call.gap_flops * call.repeats * m for call in job.step(mesh, experts))
    expected = job.flops(mesh, experts)
    if "pp" in mesh:
        head = 6 * job.micro_batch * job.sequence * job.embedding_parameters * m
        shards = {"pp=4, dp=4, cp=2, tp=2": 4, "pp=2, dp=4": 1, "pp=4, cp=4, tp=2": 8}[mesh]
        expected -= head / shards
    assert gaps == pytest.approx(expected, rel=1e-9)


def test_calls_of_one_layer_are_one_block() -> None:
    calls = Job.preset("llama3-8b").step("pp=4, dp=4, tp=2")
    blocks = {
        call.block: {(other.repeats, other.phase) for other in calls if other.block == call.block} for call in calls
    }
    assert all(len(values) == 1 for values in blocks.values())
    assert [call.block for call in calls] == sorted(call.block for call in calls)
    once = {(call.what, call.micro_batches) for call in calls if call.axis == ("dp",)}
    assert once == {(what, 1) for what in ("weights", "gradients", "embedding weights", "embedding gradients")}


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ("pp=7", "32 layers do not divide into pp=7 stages; use pp=8, layers=28 or 35, or uneven_stages=True"),
        ("pp=64", "use pp=32 or fewer"),
        ("tp=3", "32 heads are not divisible by tp = 3; use tp = 4"),
        ("tp=64", "32 heads are not divisible by tp = 64; use tp = 32"),
        ("cp=3", "8,192 tokens do not divide into 6 parts for cp=3; use sequence=8190"),
        ("dp=3", "a global batch of 512 is not divisible by micro_batch × dp = 1 × 3; use global_batch=513"),
        ("ep=2", "ep=2, but the job has no experts; use ep=1"),
        ("dp=2, dq=2", "a training job has no axis 'dq'"),
    ],
)
def test_a_mesh_that_does_not_fit(mesh: str, words: str) -> None:
    with pytest.raises(MeshError, match=re.escape(words)):
        Job.preset("llama3-8b").step(mesh)


def test_an_expert_layout_that_does_not_fit() -> None:
    job = Job.preset("mixtral-8x7b")
    with pytest.raises(MeshError, match="8 experts are not divisible by ep=16; use ep=8"):
        job.step("dp=16", experts="ep=16")
    with pytest.raises(MeshError, match="axis 'pp' is in both meshes"):
        job.step("pp=2, dp=8", experts="ep=8, pp=2")
    with pytest.raises(MeshError, match="sequence_parallel=True"):
        job.replace(sequence_parallel=False).step("dp=8, tp=2")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"axis": "tp"}, "axis of a call must be a tuple of names, not 'tp'"),
        ({"size_bytes": 0}, "size_bytes of a call must be a positive integer, not 0"),
        ({"repeats": 1.5}, "repeats of a call must be a positive integer, not 1.5"),
        ({"gap_flops": float("nan")}, "gap_flops of a call must be a number of at least 0, not nan"),
        ({"phase": "sideways"}, "unknown phase 'sideways' of a call; choose one of forward, backward"),
        ({"overlaps": "all"}, "unknown overlaps 'all' of a call; choose one of nothing, compute, layer, pass"),
    ],
)
def test_a_call_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    call = Job.preset("llama3-8b").step("dp=2")[0]
    with pytest.raises(MeshError, match=re.escape(words)):
        replace(call, **changes)


def test_a_preset_can_have_another_name_and_numbers_of_numpy() -> None:
    job = Job.preset("llama3-8b", name="mine", sequence=np.int64(4096))
    assert (job.name, job.sequence) == ("mine", 4096)
    assert isinstance(job.sequence, int)
    with pytest.raises(MeshError, match=r"a Job has no argument 'sequences' \(did you mean 'sequence'\?\)"):
        job.replace(sequences=3)
    with pytest.raises(MeshError, match=r"unknown model \['llama3-8b'\]"):
        Job.preset(["llama3-8b"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": 0}, "layers must be an integer of at least 1, not 0"),
        ({"layers": None}, "layers must be an integer of at least 1, not None"),
        ({"layers": 10**30}, "layers must be at most 1,099,511,627,776, not "),
        ({"tied": "no"}, "tied must be True or False, not 'no'"),
        ({"zero": True}, "unknown zero True; choose one of 0, 1, 2, 3"),
        ({"name": 3}, "name must be a string, not 3"),
        ({"latent": (1, 2, 3, 4, 5)}, "latent must be a LatentAttention or None, not (1, 2, 3, 4, 5)"),
        ({"dtype": "int32"}, "dtype must be a floating-point type, not 'int32'"),
        ({"gradient_dtype": None}, "gradient_dtype must be a floating-point type, not None"),
        ({"heads": 7}, "hidden=2048 is not a multiple of 7 heads; pass head_size=, or use heads=8"),
        ({"kv_heads": 5}, "16 heads are not a multiple of kv_heads=5; use kv_heads=4"),
        ({"zero": 4}, "unknown zero 4; choose one of 0, 1, 2, 3"),
        ({"parameters": "many"}, "parameters must be a positive number, not 'many'"),
        ({"parameters": "1B", "ffn_hidden": 8192}, "contradicts the architecture, which has 1.313 B"),
        ({"parameters": "0.1B"}, "is less than the"),
        ({"experts": 4, "top_k": 5}, "top_k=5 exceeds the 4 experts"),
    ],
)
def test_a_job_that_contradicts_itself(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MeshError, match=re.escape(words)):
        Job(**{**GPT, **changes})


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(MeshError, match=r"unknown model 'llama-405b'.*llama3-405b"):
        Job.preset("llama-405b")


def test_the_card_of_a_job_has_words_and_separated_thousands() -> None:
    card = Job.preset("llama3-8b")._repr_html_()
    assert "<td>yes</td>" in card
    assert "<td>no</td>" in card
    assert "True" not in card
    assert "8,030,261,248" in card


def test_hints_name_the_nearest_divisor() -> None:
    assert (nearest_divisor(126, 16), nearest_divisor(96, 5)) == (18, 6)
