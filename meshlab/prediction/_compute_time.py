"""ComputeTime: seconds of computation of a rank per step, by kernel, as arrays over many layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshlab.prediction._compute_rates import MATMUL_BITS, ComputeRates
from meshlab.prediction._volumes import Degrees, _Program, offloaded_bytes, stage_flops
from meshlab.topology.model._levels import Floats

if TYPE_CHECKING:
    from meshlab.prediction._job import Job


class Software(NamedTuple):
    """What the kernels of a framework cost."""

    passes: float  # memory traffic of elementwise kernels, relative to the least
    kernels: float  # kernels per dense layer and micro-batch, forward and backward
    launch: float  # time of a launch relative to that of the rates


# The passes of fused kernels are fitted. Eager ones were measured on an H200 with PyTorch 2.11 and took 1.5 times as
# long. Kernels of a layer are counted, and replaying a graph takes a tenth of launching its kernels.
SOFTWARE = {
    "fused": Software(1.4, 60.0, 1.0),
    "graphed": Software(1.4, 60.0, 0.1),
    "compiled": Software(1.4, 80.0, 1.0),
    "eager": Software(2.1, 150.0, 1.0),
}


@dataclass(frozen=True)
class Coefficients:
    """Fitted numbers of the time of computation."""

    share: float = 0.9  # of its rate alone that a kernel reaches in a step on several GPUs, which wait for each other
    grouped: float = 0.68  # rate of the products of experts relative to one product
    permuted: float = 10.0  # copies of the routed tokens per layer, forward
    expert_kernels: float = 1050.0  # more kernels per layer with experts
    quantised: float = 4.0  # bytes per element of an 8-bit conversion
    per_micro_batch: float = 0.001  # seconds in which the GPU waits for the host around a micro-batch, measured


COEFFICIENTS = Coefficients()


@dataclass(frozen=True, eq=False)
class ComputeTime:
    """Seconds of computation of k layouts, per step on a rank of the busiest stage: arrays of shape (k,)."""

    seconds: Floats  # of the GPU
    launches: Floats  # of the host, which launches the kernels
    ending: Floats  # of the optimizer, after the last micro-batch, without a bubble
    speed: Floats  # operations per second on average
    attention_speed: Floats  # operations per second of attention
    product: Floats  # seconds of one of the four products of a layer, on average
    layer: Floats  # seconds of the last layer in one micro-batch, forward and backward


def compute_time(job: Job, d: Degrees, rates: ComputeRates, matmul: str) -> ComputeTime:
    """Return the seconds of computation of a step on the busiest stage."""
    keys = np.stack([d.tp, d.cp, d.ep, d.etp])
    _, first, index = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    small = Degrees(**{name: getattr(d, name)[first] for name in Degrees.__dataclass_fields__})
    few = _Kernels(job, small, rates, matmul)
    index = index.ravel()
    p = _Program(job, d)
    counts, m = {kind: number for kind, number in p.layer_counts().items() if number.any()}, d.micro_batches(job)
    of_layer = {kind: few.layer(kind)[index] for kind in counts}
    head = few.head()[index]
    layers: Any = sum(counts[kind] * of_layer[kind] for kind in counts)
    last_kind = "moe" if job.moe_layers else "dense"
    less = np.where(job.layers % d.pp == 0, 0, 1) * of_layer[last_kind]
    busiest = np.maximum(layers, layers - less + head)
    # Gradients of a micro-batch are added to the sum of those before: 4 bytes are read and written.
    dense = sum(counts[kind] * p.rank_weights(kind) for kind in counts) + p.end_weights
    experts = counts.get("moe", 0) * p.expert_weights
    accumulated = 8 * (dense + experts) / (rates.memory_tbs * 1e12) if job.zero < 2 else 0.0
    updated = dense / np.where(job.zero > 0, d.shards, 1) + experts / np.where(job.zero > 0, d.expert_shards, 1)
    ending = 34 * updated / (rates.memory_tbs * 1e12)
    software = SOFTWARE[job.kernels]
    launched = sum(counts[kind] * few.kernels(kind) for kind in counts) * rates.launch_us * 1e-6 * software.launch
    if job.offload:
        # Activations leave during the forward pass and return during the backward pass, which is twice as long.
        moved = offloaded_bytes(job, d) / (rates.host_gbs * 1e9)
        busiest = busiest + np.maximum(moved - busiest / 3, 0) + np.maximum(moved - 2 * busiest / 3, 0)
    seconds = m * (busiest + accumulated + COEFFICIENTS.per_micro_batch * SOFTWARE[job.kernels].launch)
    attention = few.attention_seconds()[index]
    factor = 3 * p.core / np.maximum(attention, 1e-30)
    return ComputeTime(
        seconds,
        m * launched,
        ending,
        stage_flops(job, d) / np.maximum(seconds, 1e-30),
        np.asarray(factor),
        few.product()[index],
        of_layer[last_kind],
    )


def constant_time(job: Job, d: Degrees, speed: float) -> ComputeTime:
    """Return the seconds of computation at one speed for all kernels, in operations per second."""
    flops = stage_flops(job, d)
    zero, same = np.zeros(len(flops)), np.full(len(flops), speed)
    kind = "moe" if job.moe_layers else "dense"
    layer = 3 * _Program(job, d).layer_flops(kind) / speed
    return ComputeTime(flops / speed, zero, zero, same, same, layer / 12, layer)


class _Kernels:
    """Seconds of the kernels of a layer in one micro-batch, forward and backward with recomputation."""

    def __init__(self, job: Job, d: Degrees, rates: ComputeRates, matmul: str) -> None:
        self.job, self.d, self.rates = job, d, rates
        self.p = _Program(job, d)
        self.software = SOFTWARE[job.kernels]
        self.tbs = rates.memory_tbs * 1e12
        self.tokens = job.micro_batch * job.sequence / d.cp
        is_alone = int((d.pp * d.dp * d.cp * d.tp).max()) == 1
        self.share = 1.0 if is_alone else COEFFICIENTS.share
        self.matmul, self.bits = matmul, MATMUL_BITS[matmul]

    def layer(self, kind: str) -> Floats:
        """Return the seconds of a layer."""
        job = self.job
        forward = sum(self._products(kind))
        core, core_back = self._attention("forward"), self._attention("backward")
        passes = self._elementwise(kind)
        again: Any = 0.0
        if job.recompute == "full":
            again = forward + core + passes
        elif job.recompute == "selective":
            again = passes / 2 + self.p.recomputed(kind) / self._rate(self.tokens, job.hidden, job.hidden)
        return np.asarray(3 * forward + core + core_back + 3 * passes + again)

    def head(self) -> Floats:
        """Return the seconds of the output layer and the loss."""
        job, d = self.job, self.d
        columns = job.vocabulary / d.tp
        flops = 2 * self.tokens * job.hidden * columns
        rate = self.rates.products(_wide(self.matmul), self.tokens, columns, job.hidden) * 1e12 * self.share
        # The loss reads and writes logits of 4 bytes, and their gradients.
        return np.asarray(3 * flops / rate + 24 * self.software.passes * self.tokens * columns / self.tbs)

    def product(self) -> Floats:
        return np.asarray(sum(self._products("dense")) / 4)

    def attention_seconds(self) -> Floats:
        return self._attention("forward") + self._attention("backward")

    def kernels(self, kind: str) -> float:
        """Return the number of kernels of a layer and micro-batch."""
        more = COEFFICIENTS.expert_kernels if kind == "moe" else 0.0
        again = 4 / 3 if self.job.recompute == "full" else 1.0
        return (self.software.kernels + more) * again

    def _rate(self, m: Any, n: Any, k: Any) -> Floats:
        return self.rates.products(self.matmul, m, n, k) * 1e12 * self.share

    def _products(self, kind: str) -> Iterator[Floats]:
        """Yield the seconds of the matrix products of a layer in the forward pass."""
        job, d, p, t = self.job, self.d, self.p, self.tokens
        width = job.heads * job.head_sizes[1] / d.tp
        yield p.qkv / self._rate(t, (job.heads * job.head_sizes[0] + job.kv_size) / d.tp, job.hidden)
        yield p.out / self._rate(t, job.hidden, width)
        inner = int(job.ffn_hidden or 1)
        if kind == "dense":
            up, down = job.matrices - 1, 1
            yield p.ffn * up / job.matrices / self._rate(t, up * inner / d.tp, job.hidden)
            yield p.ffn * down / job.matrices / self._rate(t, job.hidden, inner / d.tp)
            return
        each = np.maximum(t * job.top_k / d.tp * d.ep / job.experts, 1.0)  # tokens of one expert
        hidden = int(job.expert_hidden or 1) / d.etp
        yield p.routed / (self._rate(each * job.experts / d.ep, hidden, job.hidden) * COEFFICIENTS.grouped)
        if job.shared_experts:
            yield p.shared / self._rate(t, job.shared_experts * hidden, job.hidden)

    def _attention(self, phase: str) -> Floats:
        job, d = self.job, self.d
        sequence = job.sequence / d.cp
        rate = self.rates.attention(phase, job.micro_batch, job.heads / d.tp, sequence, job.head_sizes[0])
        operations = self.p.core * (1.0 if phase == "forward" else 2.5)
        factor = self.rates.flash if job.is_flash else 1.0
        return np.asarray(operations / (rate * 1e12 * self.share * factor))

    def _elementwise(self, kind: str) -> Floats:
        """Return the seconds of norms, rotary embeddings, activation functions, conversions and permutations."""
        job, d = self.job, self.d
        by = d.tp if job.sequence_parallel else 1
        outside = 20 * job.hidden / by  # two norms, and two sums with the residual
        heads = 4 * (job.heads * job.head_sizes[0] + job.kv_size / 2) / d.tp
        routed = job.top_k * self.p.busiest
        inner: Any = (
            int(job.ffn_hidden or 1)
            if kind == "dense"
            else (routed * int(job.expert_hidden or 1) + job.shared_experts * int(job.expert_hidden or 1))
        )
        acts = 2 * job.matrices * inner / d.tp
        converted: Any = 0.0
        if self.bits < 16:
            inputs = job.hidden / by * 2 + job.heads * job.head_sizes[1] / d.tp + inner / d.tp
            if kind == "moe":
                inputs = inputs + routed * job.hidden / d.tp
            converted = COEFFICIENTS.quantised * inputs
        permuted = COEFFICIENTS.permuted * routed * job.hidden / d.tp if kind == "moe" else 0.0
        total = self.software.passes * (outside + heads + acts) + converted + permuted
        return np.asarray(self.tokens * total / self.tbs)


def _wide(dtype: str) -> str:
    """Return the element type of the logits: 8 and 4 bits are too few for them."""
    return "bfloat16" if dtype.startswith("float8") or dtype == "nvfp4" else dtype
