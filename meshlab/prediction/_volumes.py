"""Volumes: communication, computation and memory of a training step, as arrays over many layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._hints import Argument, Hint
from meshlab.comm._elements import find_dtype
from meshlab.prediction._popularity import rank_imbalance
from meshlab.topology.model._levels import Floats

if TYPE_CHECKING:
    from meshlab.prediction._job import Job


Overlap = Literal["nothing", "compute", "layer", "pass"]
"""The computation that may overlap with a call, see `meshlab.prediction.StepCall`."""

Phase = Literal["forward", "backward"]
"""A pass of a micro-batch."""

Sizes = npt.NDArray[np.int64]

_Cover = tuple[Overlap, Any]
"""The computation that may run during a call: its kind, and its floating-point operations."""

_UNUSED = 0.1  # workspaces, and what the allocator reserves but cannot use, relative to the tensors
_STATE_BYTES = 12  # of Adam per parameter in mixed precision: 32-bit weight and two moments


@dataclass(frozen=True, eq=False)
class Degrees:
    """Degrees of parallelism of k layouts: int64 of shape (k,) each."""

    pp: Sizes
    dp: Sizes  # ranks with different data, replicated or sharded
    cp: Sizes
    tp: Sizes
    ep: Sizes  # ranks that share the experts of a layer
    etp: Sizes  # ranks that share an expert
    edp: Sizes  # replicas of an expert
    replicas: Sizes  # data-parallel replicas over which weights are not sharded (dp_replicate), a factor of dp
    chunks: Sizes  # model chunks per pipeline stage, more than 1 if stages are interleaved

    def micro_batches(self, job: Job) -> Sizes:
        """Number of micro-batches per step, rounded down."""
        return np.asarray(job.global_batch // (job.micro_batch * self.dp))

    def layers(self, job: Job) -> Sizes:
        """Layers of the busiest pipeline stage."""
        return -(-job.layers // self.pp)

    def bubble(self, job: Job) -> Floats:
        """Idle time of the pipeline relative to the time that a stage works."""
        return np.asarray((self.pp - 1) / (self.chunks * np.maximum(self.micro_batches(job), 1)))

    @property
    def shards(self) -> Sizes:
        """Ranks over which ZeRO shards dense parameters."""
        return self.dp * self.cp // self.replicas

    @property
    def expert_shards(self) -> Sizes:
        """Ranks over which ZeRO shards expert parameters."""
        return np.asarray(np.maximum(self.edp // self.replicas, 1))


class Problem(NamedTuple):
    """A reason why a job cannot run on some layouts."""

    kind: str  # the field of the job that rules them out, such as "layers"
    bad: npt.NDArray[np.bool_]  # (k,): the layouts
    reason: Callable[[int], str]  # of the layout with an index
    fix: Callable[[int], str]  # with the nearest number that works


def problems(job: Job, d: Degrees) -> Iterator[Problem]:
    """Yield the reasons why a job cannot run, each with the layouts that it rules out."""
    yield _stage_problem(job, d)
    yield from _tensor_problems(job, d)
    yield from _batch_problems(job, d)
    yield from _expert_problems(job, d)


def _stage_problem(job: Job, d: Degrees) -> Problem:
    """Return the layouts whose stages do not divide the layers."""
    stages = d.pp * d.chunks
    # Uneven stages may consist of the embedding or the output layer only.
    most = job.layers + (2 if job.uneven_stages else 0)

    def layers_fix(i: int) -> str:
        v = int(d.chunks[i])
        if most < stages[i]:
            return Hint("use {} or fewer", Argument("pp", max(most // v, 1)))
        below = job.layers // int(stages[i]) * int(stages[i])
        nearest = nearest_divisor(job.layers // v if job.layers % v == 0 else job.layers, int(d.pp[i]))
        return Hint(
            "use {}, {} or {}, or {}",
            Argument("pp", nearest),
            Argument("layers", below),
            below + stages[i],
            Argument("uneven_stages", True),
        )

    return Problem(
        "layers",
        (most < stages) | ((job.layers % stages != 0) & (not job.uneven_stages)),
        lambda i: (
            f"{job.layers} layers do not divide into {_product(('pp', d.pp[i]), ('interleave', d.chunks[i]))} stages"
        ),
        layers_fix,
    )


def _tensor_problems(job: Job, d: Degrees) -> Iterator[Problem]:
    """Yield the layouts whose tensor parallelism does not divide the heads or the feed-forward network."""
    ulysses = job.context == "all_to_all"
    heads = d.tp * (d.cp if ulysses else 1)
    names = "tp × cp" if ulysses else "tp"

    def degrees_fix(degree: int) -> str:
        return f"use {names} = {degree}" if ulysses else _use("tp", degree, " = ")

    yield Problem(
        "heads",
        job.heads % heads != 0,
        lambda i: f"{job.heads} heads are not divisible by {names} = {heads[i]}",
        lambda i: degrees_fix(nearest_divisor(job.heads, int(heads[i]))),
    )
    kv = job.heads if job.latent is not None else int(job.kv_heads or 1)
    yield Problem(
        "kv_heads",
        (kv % heads != 0) & (heads % kv != 0),
        lambda i: f"neither of kv_heads={kv} and {names} = {heads[i]} divides the other",
        lambda i: degrees_fix(nearest_divisor(kv, int(heads[i]))),
    )
    inner = int(job.ffn_hidden or 1)
    yield Problem(
        "ffn_hidden",
        (inner % d.tp != 0) & (job.moe_layers < job.layers),
        lambda i: f"ffn_hidden={inner:,} is not divisible by tp={d.tp[i]}",
        lambda i: _use("ffn_hidden", _multiple(inner, int(d.tp[i]))),
    )


def _batch_problems(job: Job, d: Degrees) -> Iterator[Problem]:
    """Yield the layouts that do not divide the sequences, the batch or its micro-batches."""
    # Each rank of cp has two parts, one from each half of the sequence, to balance causal attention.
    parts = np.where(d.cp > 1, 2 * d.cp, 1) * (d.tp if job.sequence_parallel else 1)
    yield Problem(
        "sequence",
        job.sequence % parts != 0,
        lambda i: (
            f"{job.sequence:,} tokens do not divide into {parts[i]:,} parts for "
            + _product(("cp", d.cp[i]), ("tp", d.tp[i] if job.sequence_parallel else 1))
        ),
        lambda i: _use("sequence", _multiple(job.sequence, int(parts[i]))),
    )
    batch = job.micro_batch * d.dp
    yield Problem(
        "global_batch",
        job.global_batch % batch != 0,
        lambda i: (
            f"a global batch of {job.global_batch:,} is not divisible by micro_batch × dp = "
            f"{job.micro_batch} × {d.dp[i]}"
        ),
        lambda i: _use("global_batch", _multiple(job.global_batch, int(batch[i]))),
    )
    m = d.micro_batches(job)
    yield Problem(
        "interleave",
        (m % d.pp != 0) & (d.chunks > 1),
        lambda i: f"{m[i]} micro-batches are not a multiple of pp={d.pp[i]}, as interleave={d.chunks[i]} requires",
        lambda i: Hint(
            "use {}, or {}",
            Argument("global_batch", _multiple(job.global_batch, int(batch[i] * d.pp[i]))),
            Argument("interleave", 1),
        ),
    )


def _expert_problems(job: Job, d: Degrees) -> Iterator[Problem]:
    """Yield the layouts that do not divide the experts."""
    if not job.experts:
        yield Problem(
            "experts", d.ep > 1, lambda i: f"ep={d.ep[i]}, but the job has no experts", lambda i: _use("ep", 1)
        )
        return
    yield Problem(
        "experts",
        job.experts % d.ep != 0,
        lambda i: f"{job.experts} experts are not divisible by ep={d.ep[i]}",
        lambda i: _use("ep", nearest_divisor(job.experts, int(d.ep[i]))),
    )
    yield Problem(
        "sequence_parallel",
        (d.tp > 1) & (not job.sequence_parallel),
        lambda i: f"experts with tp={d.tp[i]} need sequence parallelism, so that every tp rank sends its own tokens",
        lambda i: Hint("pass {}, or use {}", Argument("sequence_parallel", True), Argument("tp", 1)),
    )


def _use(name: str, value: int, equals: str = "=") -> Hint:
    return Hint("use {}", Argument(name, value, equals))


def _product(*factors: tuple[str, Any]) -> str:
    return " × ".join(f"{name}={value}" for name, value in factors if value != 1) or "1"


def _multiple(number: int, of: int) -> int:
    """Return the multiple of `of` nearest to a number."""
    return max(round(number / of), 1) * of


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """A communication of k layouts, with the fields of `StepCall`: numbers are arrays of shape (k,)."""

    role: str  # of the group: tp, cp, pp, ep, etp, data, expert_data or replicas
    collective: str
    size: Floats
    dtype: str
    what: str
    times: Sizes  # calls in each repeat of the block
    between: Floats  # floating-point operations between these calls
    overlaps: Overlap
    cover: Floats
    once: bool  # in one micro-batch only


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Calls and computation (arrays of floating-point operations) that are repeated together."""

    name: str
    phase: Phase
    repeats: Sizes
    items: Sequence[Exchange | Floats]


def program(job: Job, d: Degrees) -> list[Block]:
    """Return one micro-batch of a step: the calls of the busiest stage, and the computation between them."""
    return _Program(job, d).blocks()


class _Program:
    """The volumes of a step. One object per job and set of layouts."""

    def __init__(self, job: Job, d: Degrees) -> None:
        self.job, self.d = job, d
        self.one = np.ones_like(d.tp)
        self.zero = np.zeros(len(d.tp))
        self.bytes = find_dtype(job.dtype).itemsize
        self.grad_bytes = find_dtype(job.gradient_dtype).itemsize
        self.tokens = job.micro_batch * job.sequence / d.cp  # of a rank, before tp shards them
        self.activation = self.tokens * job.hidden * self.bytes
        # Floating-point operations of one layer in the forward pass.
        per_parameter = 2 * self.tokens / d.tp
        self.out = per_parameter * job.output_parameters
        self.qkv = per_parameter * (job.attention_parameters - job.output_parameters)
        self.core = self.tokens / d.tp * job.attention_flops
        self.ffn = per_parameter * job.ffn_parameters
        # The rank with the most popular experts has more tokens than the mean, and all others wait for it.
        self.busiest = rank_imbalance(job, d.ep)
        self.routed = per_parameter * job.top_k * job.expert_parameters * self.busiest
        self.shared = per_parameter * (job.shared_experts * job.expert_parameters + job.router_parameters)
        # Exact shards of a layer's parameters.
        attention = job.attention_parameters + 2 * job.hidden
        self.dense_weights = (attention + job.ffn_parameters) / d.tp
        moe = attention + job.shared_experts * job.expert_parameters + job.router_parameters
        self.moe_weights = moe / d.tp
        self.expert_weights = job.experts * job.expert_parameters / (d.ep * d.etp)
        has_both_ends = (d.pp == 1) & (not job.tied)
        self.end_weights = job.embedding_parameters / d.tp * np.where(has_both_ends, 2, 1)
        self.first_part = (job.matrices - 1) / job.matrices  # of the feed-forward network, before its activation

    def rank_weights(self, kind: str) -> Floats:
        """Parameters of a layer on one rank, except for those of its experts."""
        return self.dense_weights if kind == "dense" else self.moe_weights

    def layer_flops(self, kind: str) -> Floats:
        """Forward computation of a layer."""
        inner = self.ffn if kind == "dense" else self.routed + self.shared
        return self.qkv + self.core + self.out + inner

    def recomputed(self, kind: str) -> Floats:
        """Computation of a layer that the backward pass repeats."""
        if self.job.recompute == "full":
            return self.layer_flops(kind)
        if self.job.recompute == "selective" and self.job.is_pytorch:  # every other product, and not attention
            return np.asarray((self.layer_flops(kind) - self.core) / 2)
        if self.job.recompute == "none" or self.job.latent is None:
            return self.zero  # norms and activation functions are not matrix products
        rank, kv_rank, rotary, plain, value = self.job.latent
        up = self.job.heads * (rank * (rotary + plain) + kv_rank * (plain + value))
        return np.asarray(2 * self.tokens / self.d.tp * up)

    def head_flops(self) -> Floats:
        """Forward computation of the output layer."""
        return np.asarray(2 * self.tokens / self.d.tp * self.job.embedding_parameters)

    def layer_counts(self) -> dict[str, Sizes]:
        """Layers of each kind in the busiest stage. It has layers with experts, because dense layers are the first."""
        stage = self.d.layers(self.job)
        moe = np.minimum(stage, self.job.moe_layers)
        return {"dense": stage - moe, "moe": moe}

    def blocks(self) -> list[Block]:
        d = self.d
        counts = self.layer_counts()
        single = d.pp == 1
        head = np.where(single, self.head_flops(), 0.0)
        blocks = [Block("embedding", "forward", self.one, self._gather("embedding weights", self.end_weights))]
        blocks += [Block(kind, "forward", counts[kind], [*self.fetch(kind), *self.forward(kind)]) for kind in counts]
        blocks.append(Block("boundary", "forward", self.one, [head, *self.boundary("activations")]))
        backward = [Block(kind, "backward", counts[kind], self._backward_block(kind)) for kind in reversed(counts)]
        last = self._reduce("embedding gradients", self.end_weights, "data")
        sends = Block("boundary", "backward", self.one, self.boundary("gradients of activations"))
        again = self._gather("embedding weights", self.end_weights) if self.job.has_second_gather else []
        head_block = Block("output", "backward", self.one, [*again, 2 * head])
        return [*blocks, head_block, *backward, sends, Block("embedding", "backward", self.one, list(last))]

    def _backward_block(self, kind: str) -> list[Exchange | Floats]:
        again = list(self.forward(kind)) if self.job.recompute == "full" else [self.recomputed(kind)]
        fetched = self.fetch(kind, "backward") if self.job.has_second_gather else []
        return [*fetched, *again, *self.backward(kind), *self.reduce(kind)]

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _call(
        self,
        role: str,
        collective: str,
        size: Any,
        what: str,
        cover: _Cover | None = None,
        *,
        dtype: str | None = None,
        once: bool = False,
    ) -> Exchange:
        """Return a call that is issued once per repeat, and exposed unless it has a cover."""
        overlaps, flops = cover or ("nothing", 0.0)
        return Exchange(
            role=role,
            collective=collective,
            size=size + self.zero,
            dtype=dtype or self.job.dtype,
            what=what,
            times=self.one,
            between=self.zero,
            overlaps=overlaps,
            cover=flops + self.zero,
            once=once,
        )

    def _tp(self, collective: str, what: str, cover: _Cover | None = None) -> list[Exchange]:
        return [self._call("tp", collective, self.activation, what, cover)]

    def _gather_input(self, what: str = "activations") -> list[Exchange]:
        return self._tp("all_gather", what) if self.job.sequence_parallel else []

    def _reduce_output(self, what: str = "activations", cover: _Cover | None = None) -> list[Exchange]:
        return self._tp("reduce_scatter" if self.job.sequence_parallel else "all_reduce", what, cover)

    def forward(self, kind: str) -> Iterator[Exchange | Floats]:
        """Yield one layer of the forward pass."""
        yield from self._gather_input()
        yield self.qkv
        yield from self.attention("forward")
        yield self.out
        yield from self._reduce_output()
        if kind == "dense":
            yield from self._gather_input()
            yield self.ffn
            yield from self._reduce_output()
        else:
            yield from self._experts("forward")

    def backward(self, kind: str) -> Iterator[Exchange | Floats]:
        """Yield one layer of the backward pass, which computes two products for each one of the forward pass."""
        if kind == "dense":
            yield from self._gather_input("gradients of activations")
            yield 2 * self.ffn * (1 - self.first_part)
            yield from self._input_backward(self.ffn * self.first_part)
        else:
            yield from self._experts("backward")
        yield from self._gather_input("gradients of activations")
        yield 2 * self.out
        yield from self.attention("backward")
        yield from self._input_backward(self.qkv)

    def _input_backward(self, product: Floats) -> Iterator[Exchange | Floats]:
        """Yield the backward pass of a column-parallel product, as in Megatron's tensor_parallel/layers.py."""
        # The saved shards of the input are gathered again during the first product, and the gradient of the input is
        # reduced during the second one.
        cover: _Cover = ("compute", product)
        if self.job.sequence_parallel:
            yield from self._tp("all_gather", "saved activations", cover)
        yield product
        yield from self._reduce_output("gradients of activations", cover)
        yield product

    def attention(self, phase: Phase) -> Iterator[Exchange | Floats]:
        """Yield the attention of one layer, with the exchange of keys and values between the ranks of cp."""
        job, d = self.job, self.d
        factor = 1 if phase == "forward" else 2
        core = factor * self.core
        sequence = job.micro_batch * job.sequence * self.bytes
        kv = sequence * job.kv_size / d.tp  # of all ranks of cp
        if job.context == "p2p":
            # Each rank computes one part of the scores per hop. The backward pass also passes on the gradients.
            what = "keys and values" if phase == "forward" else "keys, values and their gradients"
            part = core / d.cp
            hop = self._call("cp", "send_recv", factor * kv / d.cp, what, ("compute", part))
            yield replace(hop, times=d.cp - 1, between=part)
            yield core - part * np.maximum(d.cp - 2, 0)
        elif job.context == "all_gather":
            if phase == "forward":
                yield self._call("cp", "all_gather", kv, "keys and values")
                yield core
            else:
                yield core
                yield self._call("cp", "reduce_scatter", kv, "gradients of keys and values")
        else:
            shard = sequence / (d.cp * d.tp)
            queries = self._call("cp", "all_to_all", shard * job.heads * job.head_sizes[0], "queries")
            values = self._call("cp", "all_to_all", shard * job.kv_size / 2, "keys and values")
            values = replace(values, times=2 * self.one)
            output = self._call("cp", "all_to_all", shard * job.heads * job.head_sizes[1], "attention output")
            yield from (queries, values) if phase == "forward" else (output,)
            yield core
            yield from (output,) if phase == "forward" else (queries, values)

    def _experts(self, phase: Phase) -> Iterator[Exchange | Floats]:
        """Yield the routed and shared experts of one layer. The dtypes of dispatched and combined tokens may differ."""
        job, d = self.job, self.d
        factor = 1 if phase == "forward" else 2
        routed, shared = factor * self.routed, factor * self.shared
        elements = job.top_k * self.tokens / d.tp * job.hidden
        dispatch = str(job.dispatch_dtype)
        width = find_dtype(dispatch).itemsize
        scales = 4 / 128 if width == 1 else 0  # a float32 per 128 elements, as in DeepEP
        cover: _Cover | None = None
        if job.overlap_experts:
            # Four exchanges per layer share the computation of a layer's forward and backward pass.
            cover = "layer", 3 * self.layer_flops("moe") / 4
        elif job.shared_experts:
            cover = "compute", shared / 2
        what = "tokens" if phase == "forward" else "gradients of tokens"
        if job.shared_experts:
            yield from self._gather_input(f"{what} of shared experts")
        yield self._call("ep", "all_to_all", elements * (width + scales), what, cover, dtype=dispatch)
        yield shared / 2
        size = elements * self.bytes * d.etp * self.busiest
        yield self._call("etp", "all_gather", size, what)
        yield routed
        yield self._call("etp", "reduce_scatter", size, what)
        yield self._call("ep", "all_to_all", elements * self.bytes, f"{what}, back", cover)
        yield shared / 2
        if job.shared_experts:
            yield from self._reduce_output(f"{what} of shared experts")

    def boundary(self, what: str) -> list[Exchange]:
        """Return the exchange between pipeline stages. Megatron overlaps it only if stages are interleaved."""
        job, d = self.job, self.d
        size = self.activation / (d.tp if job.sequence_parallel else 1)
        v = d.chunks
        counts = self.layer_counts()
        stage = sum(counts[kind] * self.layer_flops(kind) for kind in counts) * (1 if what == "activations" else 2)
        send = self._call("pp", "send_recv", size, what, ("compute", np.where(v > 1, stage / v, 0.0)))
        return [replace(send, times=v)]

    # -- parameters ----------------------------------------------------------------------------------------------------

    def weights(self, kind: str) -> list[tuple[str, str, Floats]]:
        """Return role, prefix and parameters of a layer's weights on one rank."""
        if kind == "dense":
            return [("data", "", self.dense_weights)]
        return [("data", "", self.moe_weights), ("expert_data", "expert ", self.expert_weights)]

    def fetch(self, kind: str, phase: Phase = "forward") -> Iterator[Exchange]:
        """Yield the gathers of a layer's sharded weights: in every micro-batch with ZeRO-3, else once per step."""
        factor = 1 if phase == "forward" else 2
        for role, prefix, weights in self.weights(kind):
            yield from self._gather(f"{prefix}weights", weights, role, factor * self.layer_flops(kind))

    def _gather(self, what: str, weights: Floats, role: str = "data", cover: Any = 0.0) -> list[Any]:
        zero = self.job.zero
        if not zero:
            return []
        overlaps: Overlap = "nothing" if not np.any(cover) else "layer" if zero == 3 else "pass"
        return [self._call(role, "all_gather", weights * self.bytes, what, (overlaps, cover), once=zero < 3)]

    def reduce(self, kind: str) -> Iterator[Exchange]:
        """Yield the reductions of a layer's gradients."""
        for role, prefix, weights in self.weights(kind):
            overlaps: Overlap = "layer" if self.job.zero >= 2 else "pass"
            yield from self._reduce(f"{prefix}gradients", weights, role, (overlaps, 2 * self.layer_flops(kind)))

    def _reduce(self, what: str, weights: Floats, role: str, cover: _Cover | None = None) -> Iterator[Exchange]:
        zero = self.job.zero
        # ZeRO-2 reduces the gradients of every micro-batch before they are accumulated, in the dtype of the model.
        dtype = self.job.dtype if zero == 2 else self.job.gradient_dtype
        size = weights * find_dtype(dtype).itemsize
        collective = "reduce_scatter" if zero else "all_reduce"
        yield self._call(role, collective, size, what, cover, dtype=dtype, once=zero < 2)
        shards = self.d.shards if role == "data" else self.d.expert_shards
        yield self._call("replicas", "all_reduce", size / (shards if zero else 1), what, cover, dtype=dtype, once=True)


def stage_flops(job: Job, d: Degrees) -> Floats:
    """Return the floating-point operations of a step on a rank of the busiest stage, with recomputation."""
    p = _Program(job, d)
    counts = p.layer_counts()
    of_layer = {kind: 3 * p.layer_flops(kind) + p.recomputed(kind) for kind in counts}
    layers: Any = sum(counts[kind] * of_layer[kind] for kind in counts)
    # The last stage also computes the logits, and has one layer less if the stages are uneven.
    last_kind = "moe" if job.moe_layers else "dense"
    less = np.where(job.layers % d.pp == 0, 0, 1) * of_layer[last_kind]
    return np.asarray(d.micro_batches(job) * np.maximum(layers, layers - less + 3 * p.head_flops()))


def memory_of(job: Job, d: Degrees) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return weights, gradients, optimizer state, activations and the rest of a rank of the busiest stage, in bytes."""
    p = _Program(job, d)
    counts = p.layer_counts()
    dense = counts["dense"] * p.dense_weights + counts["moe"] * p.moe_weights + p.end_weights
    experts = counts["moe"] * p.expert_weights

    def sharded(width: float, since: int) -> Floats:
        of_dense, of_expert = (d.shards, d.expert_shards) if job.zero >= since else (1, 1)
        return np.asarray(width * (dense / of_dense + experts / of_expert))

    weights, gradients = sharded(p.bytes, 3), sharded(p.grad_bytes, 2)
    if job.zero == 3:
        # The gathered weights of the current and of the next layer, and the gradients of one before and after their
        # conversion for the reduction. The output layer is gathered while all activations are saved.
        layer = np.where(counts["moe"] > 0, p.moe_weights + p.expert_weights, p.dense_weights)
        output = job.embedding_parameters / d.tp
        weights = weights + p.bytes * (2 * layer + output) if job.reshard else p.bytes * (dense + experts)
        gradients = gradients + (p.bytes + p.grad_bytes) * np.maximum(layer, output)
    saved = {kind: _saved_bytes(p, kind) for kind in counts}
    stage: Any = sum(counts[kind] * saved[kind] for kind in counts)
    if job.recompute == "full":
        inputs = p.activation / (d.tp if job.sequence_parallel else 1)
        stage = (counts["dense"] + counts["moe"]) * inputs
    m = d.micro_batches(job)
    # 1F1B: the first stage has one micro-batch in flight per stage.
    more = np.where(d.chunks > 1, (d.pp - 1) / d.chunks, 0.0)
    in_flight = np.minimum(d.pp + more, np.maximum(m, 1))
    working = np.maximum(saved["dense"] * (counts["dense"] > 0), saved["moe"] * (counts["moe"] > 0))
    if job.offload:
        # The activations of these layers are in the memory of the host until the backward pass needs them.
        stage = stage * (1 - np.minimum(job.offload / np.maximum(counts["dense"] + counts["moe"], 1), 1.0))
    logits = p.tokens * job.vocabulary * (p.bytes + 8) / d.tp  # also as float32, and the gradient of that
    first = stage * in_flight + np.where(d.pp == 1, logits, 0.0)
    activations = np.maximum(first, stage + logits) + (working if job.recompute == "full" else 0.0)
    state = sharded(_STATE_BYTES, 1)
    return weights, gradients, state, activations, _UNUSED * (weights + gradients + state + activations)


def offloaded_bytes(job: Job, d: Degrees) -> Floats:
    """Return the activations of one micro-batch that a rank of the busiest stage moves to the host, in bytes."""
    p = _Program(job, d)
    counts = p.layer_counts()
    layers = counts["dense"] + counts["moe"]
    if job.recompute == "full":
        saved = p.activation / (d.tp if job.sequence_parallel else 1)
    else:
        saved = sum(counts[kind] * _saved_bytes(p, kind) for kind in counts) / np.maximum(layers, 1)
    return np.asarray(saved * np.minimum(job.offload, layers))


def _saved_bytes(p: _Program, kind: str) -> Floats:
    """Return the activations that one layer saves for the backward pass, with a fused attention kernel."""
    # For a dense layer without gates: the 34 s b h of Korthikanti et al. (2022), less 2 s b h for dropout masks.
    job, d = p.job, p.d
    is_selective = job.recompute == "selective"
    if is_selective and job.is_pytorch:
        return _saved_half(p, kind)
    outside = 2 * job.hidden * (1 if is_selective else 2)  # inputs of both norms, and their outputs
    attention = job.heads * job.head_sizes[1]
    if job.latent is not None:
        attention += job.latent.query_rank + job.latent.kv_rank + job.latent.rotary_size
    if job.latent is None or not is_selective:
        attention += job.heads * job.head_sizes[0] + job.kv_size
    # A feed-forward network saves the inputs and the output of its activation function.
    per_inner = job.matrices - 1 + (0 if is_selective else 1)
    if kind == "dense":
        inner: Any = float(per_inner * (job.ffn_hidden or 0))
    else:
        per_expert = per_inner * (job.expert_hidden or 0)
        width = find_dtype(str(job.dispatch_dtype)).itemsize / p.bytes
        copies = width + (0 if is_selective else 1)  # a token before its expert, and the result
        inner = job.top_k * (copies * job.hidden + per_expert) * p.busiest + job.shared_experts * per_expert
    by = d.tp if job.sequence_parallel else 1
    return np.asarray(p.tokens * p.bytes * ((attention + inner) / d.tp + outside / by))


def _saved_half(p: _Program, kind: str) -> Floats:
    """Return what PyTorch's selective checkpointing saves: the input, attention, and every other product."""
    job, d = p.job, p.d
    queries = job.heads * job.head_sizes[0] + job.kv_size
    width: Any = job.ffn_hidden or 0
    if kind != "dense":
        width = (job.top_k * p.busiest + job.shared_experts) * (job.expert_hidden or 0)
    products = queries + job.hidden + (job.matrices - 1) * width + job.hidden
    by = d.tp if job.sequence_parallel else 1
    inside = products / 2 + job.heads * job.head_sizes[1]
    return np.asarray(p.tokens * p.bytes * (inside / d.tp + job.hidden / by))


def nearest_divisor(number: int, near: int, least: int = 1) -> int:
    """Return the divisor of a number that is nearest to another number."""
    # Up to the square root, each divisor has a partner beyond it. The limit is for numbers that no model has.
    small = [d for d in range(1, min(math.isqrt(number), 1_000_000) + 1) if number % d == 0]
    divisors = [d for divisor in small for d in (divisor, number // divisor) if d >= least] or [number]
    return min(divisors, key=lambda d: (abs(math.log(d / near)), -d))
