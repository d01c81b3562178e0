"""Job: a training job, the communication of its steps, and the memory and compute of a rank.

All volumes are arrays over many layouts (`meshlab.prediction._volumes`), so that a search prices them with array
operations. The methods of a job use them with a single layout.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from meshlab.base import _markup as markup
from meshlab.base._errors import MeshError, did_you_mean
from meshlab.base._forwarding import implementation
from meshlab.base._hints import Argument, Hint
from meshlab.comm._elements import find_dtype
from meshlab.mesh._axes import as_integer, short
from meshlab.mesh._mesh import MeshLike, as_mesh
from meshlab.prediction._compute_rates import MATMUL_BITS
from meshlab.prediction._compute_time import SOFTWARE
from meshlab.prediction._job_layout import JobLayout
from meshlab.prediction._memory import Memory
from meshlab.prediction._models import MODELS, LatentAttention
from meshlab.prediction._popularity import Skew, as_skew, shares_of
from meshlab.prediction._routing import Copies, Routing, routing_of
from meshlab.prediction._step_calls import StepCall
from meshlab.prediction._volumes import (
    Exchange,
    memory_of,
    nearest_divisor,
    program,
    stage_flops,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from meshlab.topology.model._presets import ClusterLike
    from meshlab.topology.placement._placement import Placement
    from meshlab.traces._trace import Trace


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: a transformer, its batch, and the options of the training framework.

    Parameters
    ----------
    layers, hidden, heads : int
        Number of layers, hidden size, and number of attention heads.
    sequence : int
        Tokens per sequence.
    global_batch : int
        Sequences per step.
    micro_batch : int, default 1
        Sequences per micro-batch.
    parameters : float or str, optional
        Number of parameters, such as ``70e9`` or ``"70B"``. By default it is counted. If `ffn_hidden` (or
        `expert_hidden`, with experts) is omitted, it follows from this number.
    kv_heads : int, optional
        Number of heads of keys and values. By default `heads`.
    head_size : int, optional
        Size of a head. By default ``hidden / heads``.
    latent : LatentAttention, optional
        Ranks and head sizes of multi-head latent attention. By default the projections have full rank.
    ffn_hidden : int, optional
        Inner size of the feed-forward network. By default ``4 * hidden``.
    gated : bool, default True
        True for three matrices in the feed-forward network (SwiGLU), False for two.
    vocabulary : int, default 128256
        Number of tokens in the vocabulary.
    tied : bool, default False
        True if the output layer uses the weights of the embedding.
    experts : int, default 0
        Number of routed experts per layer, 0 for a dense model.
    top_k : int, default 2
        Experts per token.
    expert_hosts : int, optional
        Most hosts (NVLink domains) among which the experts of a token are chosen, as by the node-limited routing of
        DeepSeek-V3. By default there is no limit. It reduces the traffic between hosts in predicted times, in which
        every host receives one copy of a token. The calls of `step` are those of NCCL, with a copy per expert.
    skew : float or sequence of float, default 0.0
        Popularity of the experts: 0 if all have the same number of tokens, the exponent of a Zipf law over the experts
        in a random order, or a router's tokens of every expert. The rank with the most tokens of its experts then
        determines the computation, the memory and the exchange of predicted steps and searches, with consecutive
        experts on the ranks of ep. The calls of `step` keep the mean size, and `routing` has their traffic.
    expert_hidden : int, optional
        Inner size of an expert. By default that of the feed-forward network.
    shared_experts : int, default 0
        Number of experts that every token uses.
    dense_layers : int, default 0
        Number of layers without experts at the beginning.
    dtype : str, default "bfloat16"
        Element type of weights and activations.
    gradient_dtype : str, default "float32"
        Element type in which gradients are accumulated and reduced.
    dispatch_dtype : str, optional
        Element type in which tokens are sent to their experts. By default `dtype`. 8-bit floats have a 32-bit scale per
        128 elements.
    recompute : {"none", "selective", "full"}, default "none"
        Activations that the backward pass recomputes. ``"selective"``: norms, activation functions, and projections
        from latent vectors. ``"full"``: each layer, from its input.
    zero : {0, 1, 2, 3}, default 1
        Sharding over data-parallel ranks: 1 optimizer state, 2 gradients, 3 weights (FSDP).
    sequence_parallel : bool, default True
        True if activations outside of tensor-parallel regions are sharded over tp.
    context : {"p2p", "all_gather", "all_to_all"}, default "p2p"
        Exchange of keys and values in context parallelism: a ring, an all_gather, or an all_to_all that swaps the
        sharding of tokens for that of heads (Ulysses).
    interleave : int, default 1
        Model chunks per pipeline stage.
    uneven_stages : bool, default False
        True if stages may differ by one layer. By default the stages must divide the layers.
    matmul : str, optional
        Element type of the matrix products of layers in mixed precision: ``"float8_e4m3fn"`` or ``"nvfp4"``. Weights,
        activations, attention and logits keep `dtype`. By default `dtype`, but a `peak` of 8 or 4 bits that is passed
        to a search implies these types.
    overlap_experts : bool, optional
        True if the exchange of one micro-batch's tokens may overlap with the computation of another micro-batch
        (DualPipe, or Megatron's ``--overlap-moe-expert-parallel-comm``), False if only shared experts overlap. By
        default predicted times assume that a schedule overlaps them, and `step` does not.
    async_tp : bool, optional
        True if exchanges over tp run during the products before and after them (``tp_comm_overlap`` of Megatron, async
        TP of PyTorch). By default for the software of Megatron.
    reshard : bool, default True
        With ``zero=3``, False if gathered weights are kept from the forward to the backward pass
        (``reshard_after_forward=False``): one gather less, and the memory of all weights.
    offload : int, default 0
        Layers per stage whose activations are moved to the memory of the host until the backward pass.
    software : {"fused", "graphed", "compiled", "eager"}, optional
        The kernels: those of Transformer Engine in Megatron, the same in CUDA graphs, those of ``torch.compile``, or of
        eager PyTorch. By default ``"compiled"`` from ``zero=2`` on, otherwise
        ``"fused"``.
    attention : {"cudnn", "flash2"}, optional
        The kernel of attention: that of cuDNN, or FlashAttention-2, which is slower on Hopper. By default
        ``"flash2"`` with the software of PyTorch, as in the published steps of 2023 and 2024.
    name : str, default ""
        Name of the job.

    Raises
    ------
    MeshError
        If a number is out of range or contradicts another one.

    Examples
    --------
    >>> import meshlab as ml
    >>> job = ml.Job.preset("llama3-70b")
    >>> job
    <Job Llama 3 70B: 70.6 B parameters, 80 layers, hidden 8,192, 1,024 × 8,192 tokens, bfloat16, ZeRO-1;
    next: ml.search(cluster, job)>
    >>> job.micro_batches("pp=4, dp=8, tp=8")
    128
    >>> job.volumes("pp=4, dp=8, tp=8")[["axis", "collective", "size_bytes", "calls"]].tail(2).values.tolist()
    [['tp', 'reduce_scatter', 134217728, 5120], ['tp', 'reduce_scatter', 134217728, 5120]]
    >>> ml.Job(parameters="70B", layers=80, hidden=8192, heads=64, sequence=8192, global_batch=1024).ffn_hidden
    23552
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    global_batch: int
    micro_batch: int = 1
    parameters: float | str | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    latent: LatentAttention | None = None
    ffn_hidden: int | None = None
    gated: bool = True
    vocabulary: int = 128_256
    tied: bool = False
    experts: int = 0
    top_k: int = 2
    expert_hosts: int | None = None
    skew: Skew = 0.0
    expert_hidden: int | None = None
    shared_experts: int = 0
    dense_layers: int = 0
    dtype: str = "bfloat16"
    gradient_dtype: str = "float32"
    dispatch_dtype: str | None = None
    matmul: str | None = None
    recompute: str = "none"
    zero: int = 1
    sequence_parallel: bool = True
    context: str = "p2p"
    interleave: int = 1
    uneven_stages: bool = False
    overlap_experts: bool | None = None
    async_tp: bool | None = None
    reshard: bool = True
    offload: int = 0
    software: str | None = None
    attention: str | None = None
    name: str = ""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for field, least in _LEAST.items():
            value = getattr(self, field)
            if value is None and field in _OPTIONAL:
                continue
            number = as_integer(value)
            if number is None or number < least:
                raise MeshError(f"{field} must be an integer of at least {least}, not {short(value)}")
            if number > _MOST:
                raise MeshError(f"{field} must be at most {_MOST:,}, not {short(value)}")
            set_field(self, field, number)
        for field in ("gated", "sequence_parallel", "tied", "uneven_stages", "reshard"):
            if not isinstance(getattr(self, field), bool):
                raise MeshError(f"{field} must be True or False, not {getattr(self, field)!r}")
        for field in ("async_tp", "overlap_experts"):
            if getattr(self, field) is not None and not isinstance(getattr(self, field), bool):
                raise MeshError(f"{field} must be True, False or None, not {getattr(self, field)!r}")
        if not isinstance(self.name, str):
            raise MeshError(f"name must be a string, not {self.name!r}")
        if self.latent is not None and not isinstance(self.latent, LatentAttention):
            raise MeshError(
                f"latent must be a LatentAttention or None, not {self.latent!r}",
                hint="create one with ml.prediction.LatentAttention(…)",
            )
        for field, choices in _CHOICES.items():
            value = getattr(self, field)
            if isinstance(value, bool) or value not in choices:
                raise MeshError(
                    f"unknown {field} {getattr(self, field)!r}", hint=f"choose one of {', '.join(map(str, choices))}"
                )
        for field in ("dtype", "gradient_dtype", "dispatch_dtype"):
            name = self.dtype if field == "dispatch_dtype" and self.dispatch_dtype is None else getattr(self, field)
            dtype = "" if name is None else find_dtype(name).name
            if "float" not in dtype and (field != "dispatch_dtype" or not dtype):
                raise MeshError(f"{field} must be a floating-point type, not {name!r}", hint="pass bfloat16 or float32")
            set_field(self, field, dtype)
        if self.kv_heads is None:
            set_field(self, "kv_heads", self.heads)
        elif self.heads % self.kv_heads:
            raise MeshError(
                f"{self.heads} heads are not a multiple of kv_heads={self.kv_heads}",
                hint=Hint("use {}", Argument("kv_heads", nearest_divisor(self.heads, self.kv_heads))),
            )
        if self.head_size is None:
            if self.latent is None and self.hidden % self.heads:
                nearest = nearest_divisor(self.hidden, self.heads)
                raise MeshError(
                    f"hidden={self.hidden} is not a multiple of {self.heads} heads",
                    hint=Hint("pass {}, or use {}", Argument("head_size"), Argument("heads", nearest)),
                )
            set_field(self, "head_size", self.hidden // self.heads)
        if self.experts and self.top_k > self.experts:
            raise MeshError(
                f"top_k={self.top_k} exceeds the {self.experts} experts",
                hint=Hint("use {}", Argument("top_k", self.experts)),
            )
        set_field(self, "skew", as_skew(self.skew, self.experts))
        if self.skew:
            if not self.experts:
                raise MeshError(
                    "skew is the popularity of experts, but the job has no experts",
                    hint=Hint("use {}", Argument("skew", 0)),
                )
            shares_of(self.skew, self.experts, self.top_k)  # raises if a token would have an expert twice
        if self.dense_layers > self.layers:
            raise MeshError(
                f"dense_layers={self.dense_layers} exceeds the {self.layers} layers", hint="pass fewer dense_layers"
            )
        self._set_inner_sizes()

    def _set_inner_sizes(self) -> None:
        """Derive the inner size of the feed-forward networks from the number of parameters, and count them."""
        set_field = object.__setattr__
        total = None if self.parameters is None else _parse_count(self.parameters)
        unknown = "expert_hidden" if self.experts else "ffn_hidden"
        if total is not None and getattr(self, unknown) is None:
            set_field(self, unknown, 0)
            if self.ffn_hidden is None:
                set_field(self, "ffn_hidden", 4 * self.hidden)
            rest = self._count()
            set_field(self, unknown, 1)
            inner = round((total - rest) / (self._count() - rest) / 128) * 128  # aligned, as in real models
            if inner <= 0:
                raise MeshError(
                    f"parameters={self.parameters} is less than the {rest / 1e9:.3g} B of attention and embedding",
                    hint="check layers, hidden and vocabulary",
                )
            set_field(self, unknown, inner)
        if self.ffn_hidden is None:
            set_field(self, "ffn_hidden", 4 * self.hidden)
        if self.expert_hidden is None:
            set_field(self, "expert_hidden", self.ffn_hidden)
        counted = self._count()
        if total is not None and abs(total / counted - 1) > 0.02:
            raise MeshError(
                f"parameters={self.parameters} contradicts the architecture, which has {counted / 1e9:.4g} B",
                hint=f"omit parameters, or omit {unknown} to derive it",
            )
        set_field(self, "parameters", counted)

    @classmethod
    def from_trace(
        cls, trace: Trace, mesh: MeshLike | None = None, *, model: str | None = None, steps: int = 0, **fields: Any
    ) -> Job:
        """Return the job of a trace, with the sizes of the model that its calls do not show.

        The calls show how weights are sharded (`zero`), the element types, `sequence_parallel`, and for some layouts
        the number of layers and parameters. The rest must be passed.

        Parameters
        ----------
        trace : Trace
            The recorded job.
        mesh : DeviceMesh or str, optional
            The mesh of the job, with the names of `step`. By default that of its process groups, `Trace.mesh`.
        model : str, optional
            A preset with the sizes of the model.
        steps : int, default 0
            Number of steps in the trace. 0 for those of the profiler.
        **fields
            Arguments of `Job`. They replace those of the trace.

        Raises
        ------
        MeshError
            If a size is missing, an axis is none of a training job, or the trace contradicts the mesh.

        Warns
        -----
        UserWarning
            If the job moves other volumes along an axis than a step of the trace.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Job.from_trace(ml.Trace.example(), layers=2, hidden=1024, heads=8)
        Traceback (most recent call last):
        meshlab.errors.MeshError: a trace does not show sequence and global_batch of the job; pass them, or a preset
        such as model='llama3-8b'
        """
        return implementation(Job.from_trace)(trace, mesh, model=model, steps=steps, **fields)

    @classmethod
    def preset(cls, name: str, /, **changes: Any) -> Job:
        """Return a job that trains a well-known model.

        The architecture is the published one. The batch is published for ``"llama3-405b"``, ``"gpt3-175b"``,
        ``"megatron-1t"`` and ``"deepseek-v3"``. For the other models meshlab chose it, so pass your own. The attributes
        `source` and `chosen` of a model in ``ml.prediction.MODELS`` have the details.

        Parameters
        ----------
        name : str
            Name of the model, such as ``"llama3-405b"`` or ``"deepseek-v3"``. ``list(ml.prediction.MODELS)`` lists
            all names.
        **changes
            Arguments of `Job` that replace those of the model, such as ``recompute="full"``.

        Raises
        ------
        MeshError
            If the model or an argument is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.prediction.MODELS["llama3-70b"].chosen
        ('global_batch',)
        >>> ml.Job.preset("deepseek-v3", global_batch=4096)
        <Job DeepSeek-V3: 671 B parameters, 37.6 B per token, 61 layers, hidden 7,168, 256 experts (top 8),
        4,096 × 4,096 tokens, bfloat16, ZeRO-1, selective recomputation; next: ml.search(cluster, job)>
        """
        if not isinstance(name, str) or name not in MODELS:
            raise MeshError(
                f"unknown model {name!r}{did_you_mean(str(name), MODELS)}", hint=f"choose one of {', '.join(MODELS)}"
            )
        _check_fields(changes)
        return cls(**{"name": MODELS[name].title, **MODELS[name].fields, **changes})

    def replace(self, **changes: Any) -> Job:
        """Return a copy of the job with different values of some arguments. Its parameters are counted again.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Job.preset("llama3-8b").replace(sequence=32768).sequence
        32768
        """
        _check_fields(changes)
        return dataclasses.replace(self, **{"parameters": None, **changes})

    # -- the model -----------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The name of the job, or its number of parameters."""
        return self.name or f"{self.n_parameters / 1e9:.3g} B parameters"

    @property
    def summary(self) -> str:
        """The name, the model and the batch of the job in one line."""
        return f"{self.name + ': ' if self.name else ''}{', '.join(self._parts())}"

    @property
    def n_parameters(self) -> float:
        """Number of parameters."""
        assert isinstance(self.parameters, float)
        return self.parameters

    @cached_property
    def active_parameters(self) -> float:
        """Number of parameters that one token uses, with the embedding. It equals `n_parameters` without experts."""
        return self.n_parameters - self.moe_layers * (self.experts - self.top_k) * self.expert_parameters

    @property
    def kernels(self) -> str:
        """The software, by default that of PyTorch if gradients or weights are sharded, and else that of Megatron."""
        return self.software or ("compiled" if self.zero >= 2 else "fused")

    @property
    def is_pytorch(self) -> bool:
        """True if the software is PyTorch's instead of Megatron's."""
        return self.kernels in ("compiled", "eager")

    @property
    def is_flash(self) -> bool:
        """True if attention is computed by FlashAttention-2."""
        return self.is_pytorch if self.attention is None else self.attention == "flash2"

    @property
    def has_second_gather(self) -> bool:
        """True if the backward pass gathers weights that were freed after the forward pass."""
        return self.zero == 3 and self.reshard

    @property
    def has_async_tp(self) -> bool:
        """True if exchanges over tp run during the products before and after them."""
        return not self.is_pytorch if self.async_tp is None else self.async_tp

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.global_batch * self.sequence

    @property
    def moe_layers(self) -> int:
        """Number of layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def head_sizes(self) -> tuple[int, int]:
        """Size of a head of keys, and of a head of values."""
        if self.latent is not None:
            return self.latent.rotary_size + self.latent.plain_size, self.latent.value_size
        assert self.head_size is not None
        return self.head_size, self.head_size

    @property
    def kv_size(self) -> int:
        """Elements of keys and values per token, in the form in which attention uses them."""
        assert self.kv_heads is not None
        return (self.heads if self.latent is not None else self.kv_heads) * sum(self.head_sizes)

    @property
    def output_parameters(self) -> int:
        """Parameters of the projection after attention."""
        return self.heads * self.head_sizes[1] * self.hidden

    @property
    def attention_parameters(self) -> int:
        """Parameters of attention in one layer."""
        if self.latent is None:
            return self.hidden * (self.heads * self.head_sizes[0] + self.kv_size) + self.output_parameters
        rank, kv_rank, rotary, plain, value = self.latent
        queries = self.hidden * rank + rank * self.heads * (rotary + plain)
        keys = self.hidden * (kv_rank + rotary) + kv_rank * self.heads * (plain + value)
        return queries + keys + self.output_parameters

    @property
    def matrices(self) -> int:
        """Matrices of a feed-forward network."""
        return 3 if self.gated else 2

    @property
    def ffn_parameters(self) -> int:
        """Parameters of a dense feed-forward network."""
        assert self.ffn_hidden is not None
        return self.matrices * self.hidden * self.ffn_hidden

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        return self.matrices * self.hidden * (self.expert_hidden or 0)

    @property
    def router_parameters(self) -> int:
        """Parameters of the router in one layer."""
        return self.hidden * self.experts

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, or of the output layer."""
        return self.hidden * self.vocabulary

    def _count(self) -> float:
        norms = 2 * self.hidden
        dense = self.attention_parameters + norms + self.ffn_parameters
        experts = (self.experts + self.shared_experts) * self.expert_parameters + self.router_parameters
        moe = self.attention_parameters + norms + experts
        ends = self.embedding_parameters * (1 if self.tied else 2) + self.hidden
        return float((self.layers - self.moe_layers) * dense + self.moe_layers * moe + ends)

    @cached_property
    def model_flops(self) -> float:
        """Floating-point operations of a step without recomputation: 6 per active parameter and token, plus attention.

        Attention is causal, so only half of its scores count.
        """
        matrices = self.active_parameters - self.embedding_parameters * (0 if self.tied else 1)
        return 3.0 * self.tokens * (2 * matrices + self.layers * self.attention_flops)

    @property
    def attention_flops(self) -> float:
        """Floating-point operations of scores and weighted values in the forward pass, per token and layer."""
        return float(self.sequence * self.heads * sum(self.head_sizes))

    # -- one layout ----------------------------------------------------------------------------------------------------

    def micro_batches(self, mesh: MeshLike, experts: MeshLike | None = None) -> int:
        """Return the number of micro-batches per step on the layout of `step`.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Job.preset("llama3-405b").micro_batches("pp=16, dp=8, tp=8")
        256
        """
        return int(self._layout(mesh, experts).degrees.micro_batches(self)[0])

    def step(self, mesh: MeshLike, experts: MeshLike | None = None) -> tuple[StepCall, ...]:
        """Return the communication of one training step, in the order of one micro-batch.

        The list follows Megatron-Core with a 1F1B pipeline. Calls of a few bytes, such as those of the loss, and the
        exchange of tied embeddings are omitted. Tokens are exchanged in calls of the mean size (`routing` has the
        traffic of uneven experts), and each copy of a token is sent separately. Libraries such as DeepEP send one copy
        per host.

        Parameters
        ----------
        mesh : DeviceMesh or str
            The mesh, with any of the axes ``pp``, ``dp`` (or ``dp_replicate`` and ``dp_shard``), ``cp``, ``tp`` and
            ``ep``. An axis ``ep`` of the mesh divides the data-parallel ranks.
        experts : DeviceMesh or str, optional
            The expert layout of the same ranks (`DeviceMesh.view`), with the axes ``pp``, ``edp``, ``ep`` and ``etp``.

        Raises
        ------
        MeshError
            If the job cannot run on the mesh. The message names the nearest number that works.

        Examples
        --------
        >>> import meshlab as ml
        >>> calls = ml.Job.preset("llama3-8b").step("dp=4, tp=2")
        >>> [(call.collective, "-".join(call.axis), call.what) for call in calls][:2]
        [('all_gather', 'dp', 'embedding weights'), ('all_gather', 'dp', 'weights')]
        """
        layout = self._layout(mesh, experts)
        m = int(layout.degrees.micro_batches(self)[0])
        calls: list[StepCall] = []
        pending = 0.0  # computation since the last call
        for number, block in enumerate(program(self, layout.degrees)):
            repeats = int(block.repeats[0])
            if not repeats:
                continue
            first, gap = len(calls), pending
            for work in block.items:
                if not isinstance(work, Exchange):
                    gap += float(work[0])
                    continue
                axis = layout.axes[work.role]
                times = int(work.times[0])
                if math.prod(layout.sizes[name] for name in axis) == 1 or not times:
                    continue
                every = StepCall(
                    axis=axis,
                    collective=work.collective,
                    size_bytes=max(round(float(work.size[0])), 1),
                    dtype=work.dtype,
                    what=work.what,
                    phase=block.phase,
                    block=number,
                    repeats=repeats,
                    micro_batches=1 if work.once else m,
                    gap_flops=gap,
                    overlaps=work.overlaps if work.cover[0] else "nothing",
                    overlap_flops=float(work.cover[0]),
                )
                calls += [every, *(dataclasses.replace(every, gap_flops=float(work.between[0])),) * (times - 1)]
                gap = 0.0
            if len(calls) == first:
                pending += repeats * (gap - pending)
            elif repeats == 1:
                pending = gap
            else:
                # The computation at the end of a repeat is the gap before the first call of the next repeat.
                head = calls[first]
                calls[first] = dataclasses.replace(head, gap_flops=head.gap_flops + gap - pending + pending / repeats)
                pending = 0.0
        return tuple(calls)

    def volumes(self, mesh: MeshLike, experts: MeshLike | None = None) -> pd.DataFrame:
        """Return the communication volume of one rank and step on the layout of `step`, per axis and kind of data.

        Returns
        -------
        pandas.DataFrame
            ``axis``, ``collective``, ``what``, ``size_bytes`` (of one call, as in nccl-tests), ``dtype``, ``calls`` per
            step, ``total_bytes`` (their product) and ``overlaps`` (the computation that may overlap with the call).

        Examples
        --------
        >>> import meshlab as ml
        >>> frame = ml.Job.preset("llama3-8b", zero=0).volumes("dp=4, cp=2")
        >>> frame.loc[frame["what"] == "gradients", ["axis", "collective"]].values.tolist()
        [['dp-cp', 'all_reduce']]
        """
        import pandas as pd

        names = ["axis", "collective", "what", "size_bytes", "dtype", "overlaps"]
        rows = [
            ("-".join(call.axis), call.collective, call.what, call.size_bytes, call.dtype, call.overlaps, call.calls)
            for call in self.step(mesh, experts)
        ]
        calls = pd.DataFrame(rows, columns=[*names, "calls"])
        frame: pd.DataFrame = calls.groupby(names, sort=True)["calls"].sum().reset_index()
        frame["total_bytes"] = frame["size_bytes"] * frame["calls"]
        return frame[["axis", "collective", "what", "size_bytes", "dtype", "calls", "total_bytes", "overlaps"]]

    def routing(
        self,
        mesh: MeshLike | Placement,
        cluster: ClusterLike | None = None,
        *,
        experts: MeshLike | None = None,
        skew: float | Sequence[float] | Sequence[Sequence[float]] | npt.NDArray[Any] | None = None,
        copies: Copies | None = None,
    ) -> Routing:
        """Return the tokens between the ranks of ep in one layer and micro-batch, and the traffic of their exchange.

        The tokens are expected numbers. Experts are consecutive blocks on the ranks of ep, and `Routing.balanced` has a
        better placement. Pass ``routing.dispatch`` and ``routing.combine`` to `meshlab.bench` or `meshlab.predict`.

        Parameters
        ----------
        mesh : DeviceMesh, str or Placement
            The mesh, see `step`. A Placement includes the cluster.
        cluster : Cluster or str, optional
            The machine, or the name of a preset. Without it, there are no hosts and no links.
        experts : DeviceMesh or str, optional
            The expert layout, see `step`.
        skew : float or array_like, optional
            Popularity of the experts, by default that of the job: the exponent of a Zipf law, or a router's tokens per
            expert, or per rank of a group (rows) and expert.
        copies : {"expert", "rank", "host"}, optional
            What receives one copy of a token. By default each of its experts, as in calls of NCCL, or each of its hosts
            if `expert_hosts` limits them and the group has several.

        Raises
        ------
        MeshError
            If the job has no experts, the mesh has no axis for them, or the skew does not match the experts.

        Examples
        --------
        >>> import meshlab as ml
        >>> routing = ml.Job.preset("deepseek-v3", skew=0.5).routing("ep=32", ml.preset("dgx-h100", nodes=4))
        >>> routing
        <Routing of DeepSeek-V3, ep=32: busiest rank 2.56 times the mean; next: .explain(), .balanced(), .plot()>
        >>> routing.loads().busiest_nic, routing.balanced(replicas=32).imbalance.__round__(2)
        ('node1/NIC0', 1.15)
        """
        return routing_of(self, mesh, cluster, experts, skew, copies)

    def memory(self, mesh: MeshLike, experts: MeshLike | None = None) -> Memory:
        """Return the memory of one rank on the layout of `step`, at the busiest pipeline stage.

        Weights, gradients and the state of Adam are exact. Activations are an estimate for a fused attention kernel.
        Buffers of libraries are not included.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Job.preset("llama3-8b").memory("dp=8")  # doctest: +ELLIPSIS
        Memory(...GiB: weights 15.0...GiB, gradients 29.9...GiB, optimizer 11.2...GiB, activations ...GiB)
        """
        parts = memory_of(self, self._layout(mesh, experts).degrees)
        return Memory(*(float(part[0]) for part in parts))

    def flops(self, mesh: MeshLike, experts: MeshLike | None = None) -> float:
        """Return the floating-point operations of one rank and step, at the busiest pipeline stage.

        Examples
        --------
        >>> import meshlab as ml
        >>> job = ml.Job.preset("llama3-8b")
        >>> round(8 * job.flops("dp=8") / job.model_flops, 3)
        1.0
        """
        return float(stage_flops(self, self._layout(mesh, experts).degrees)[0])

    def bubble(self, mesh: MeshLike, experts: MeshLike | None = None) -> float:
        """Return the idle time of the pipeline relative to the time that a stage works.

        It is (pp - 1) / micro-batches, divided by the number of interleaved chunks.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Job.preset("llama3-405b").bubble("pp=17, dp=8, tp=8")
        0.0625
        """
        return float(self._layout(mesh, experts).degrees.bubble(self)[0])

    def _layout(self, mesh: MeshLike, experts: MeshLike | None) -> JobLayout:
        return JobLayout.of(self, as_mesh(mesh), experts)

    # -- display -------------------------------------------------------------------------------------------------------

    def _parts(self) -> list[str]:
        per_token = [f"{self.active_parameters / 1e9:.3g} B per token"] if self.experts else []
        parts = [f"{self.n_parameters / 1e9:.3g} B parameters", *per_token, f"{self.layers} layers"]
        parts += [f"hidden {self.hidden:,}", *([f"{self.experts} experts (top {self.top_k})"] if self.experts else [])]
        if self.skew:
            parts.append("measured popularity" if isinstance(self.skew, tuple) else f"skew {self.skew:g}")
        parts += [f"{self.global_batch:,} × {self.sequence:,} tokens", self.dtype, f"ZeRO-{self.zero}"]
        return [*parts, *([f"{self.recompute} recomputation"] if self.recompute != "none" else [])]

    def __repr__(self) -> str:
        return f"<Job {self.summary}; next: ml.search(cluster, job)>"

    def _repr_html_(self) -> str:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("name", "latent")}
        rows = [[name.replace("_", " "), _shown(value)] for name, value in values.items()]
        return markup.card(self.title, " · ".join(self._parts()), markup.table(["field", "value"], rows))


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):  # the tokens of hundreds of experts
        return "measured"
    if isinstance(value, float) and value < 100:
        return f"{value:g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else value


_CHOICES = {
    "zero": (0, 1, 2, 3),
    "context": ("p2p", "all_gather", "all_to_all"),
    "recompute": ("none", "selective", "full"),
    "matmul": (None, *MATMUL_BITS),
    "software": (None, *SOFTWARE),
    "attention": (None, "cudnn", "flash2"),
}
_POSITIVE = (
    *("layers", "hidden", "heads", "sequence", "global_batch", "micro_batch", "kv_heads", "head_size", "ffn_hidden"),
    *("vocabulary", "top_k", "expert_hosts", "expert_hidden", "interleave"),
)
_OPTIONAL = ("kv_heads", "head_size", "ffn_hidden", "expert_hidden", "expert_hosts")
_MOST = 1 << 40  # no array of sizes in bytes overflows
_LEAST = dict.fromkeys(_POSITIVE, 1) | dict.fromkeys(("experts", "shared_experts", "dense_layers", "offload"), 0)


def _check_fields(changes: Iterable[str]) -> None:
    """Raise if a change of a job is not one of its arguments."""
    fields = [field.name for field in dataclasses.fields(Job)]
    for name in changes:
        if name not in fields:
            raise MeshError(
                f"a Job has no argument {name!r}{did_you_mean(name, fields)}", hint=f"choose one of {', '.join(fields)}"
            )


def _parse_count(value: float | str) -> float:
    scales = {"M": 1e6, "B": 1e9, "T": 1e12}
    try:
        text = str(value).strip().upper()
        number = float(text[:-1]) * scales[text[-1]] if text[-1:] in scales else float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise MeshError(f"parameters must be a positive number, not {value!r}", hint='write 70e9 or "70B"')
    return number
