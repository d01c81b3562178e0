"""Well-known models: their published architecture, and a batch, which is published only for some of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class LatentAttention(NamedTuple):
    """Multi-head latent attention: queries, keys and values are projected through vectors of low rank.

    The size of a head is that of its keys, with and without rotary embedding, and that of its values.
    """

    query_rank: int
    kv_rank: int
    rotary_size: int
    plain_size: int
    value_size: int


class Model(NamedTuple):
    """A model with a published architecture."""

    title: str
    parameters: float  # published number, in 10^9
    active: float  # the published number that a token uses, in 10^9; equal without experts
    source: str  # of the counts, and of the fields that are not `chosen`
    chosen: tuple[str, ...]  # fields without published values, so that meshlab chose them: mostly the batch
    fields: Mapping[str, Any]  # arguments of `meshlab.Job`


# How the values were checked. Papers: against their text. Models on Hugging Face: against copies of config.json in
# derived models, because the repositories of Llama 3 are gated. The counts of Llama 3 8B and 70B are those that Hugging
# Face shows for derived models. That of Qwen2.5 72B is from quotations of its model card, and those of Mixtral are from
# quotations of mistral.ai and docs.mistral.ai.

# Llama 3: table 3 is the architecture, without the 256 special tokens of the vocabulary. Section 3.4.1 has sequences of
# 8,192 tokens and batches of up to 16 M tokens for 405B, and only "similar recipes" for 8B and 70B. Section 3.3.2: the
# first and the last stage of 405B have one layer less.
_LLAMA3: dict[str, Any] = {"sequence": 8192, "vocabulary": 128_256, "kv_heads": 8}

_BATCH = ("global_batch",)

# Models with uneven stages are split with --pipeline-model-parallel-layout of Megatron, or with
# --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split.
#
# Not formatted: with one field per line, a model would not fit on a screen, and the models could not be compared.
_MODELS = {
    "llama3-8b": Model(
        "Llama 3 8B", 8.03, 8.03, "arXiv 2407.21783, table 3; huggingface.co/meta-llama/Meta-Llama-3-8B", _BATCH,
        _LLAMA3 | {"layers": 32, "hidden": 4096, "heads": 32, "ffn_hidden": 14_336, "global_batch": 512},
    ),
    "llama3-70b": Model(
        "Llama 3 70B", 70.6, 70.6, "arXiv 2407.21783, table 3; huggingface.co/meta-llama/Meta-Llama-3-70B", _BATCH,
        _LLAMA3 | {"layers": 80, "hidden": 8192, "heads": 64, "ffn_hidden": 28_672, "global_batch": 1024},
    ),
    "llama3-405b": Model(
        "Llama 3 405B", 405.0, 405.0, "arXiv 2407.21783, table 3 and sections 3.3.2, 3.4.1", (),
        _LLAMA3 | {
            "layers": 126, "hidden": 16_384, "heads": 128, "ffn_hidden": 53_248, "global_batch": 2048,
            "uneven_stages": True,
        },
    ),
    # Table 2.1 has a batch of 3.2 M tokens. The 1,536 sequences (3.15 M) are those of arXiv 2104.04473, section 5.1.
    # The published 175.0 also counts positions and biases. The vocabulary is that of GPT-2.
    "gpt3-175b": Model(
        "GPT-3 175B", 175.0, 175.0, "arXiv 2005.14165, table 2.1; arXiv 2104.04473, section 5.1", (),
        {
            "layers": 96, "hidden": 12_288, "heads": 96, "sequence": 2048, "vocabulary": 50_257, "global_batch": 1536,
            "gated": False, "tied": True,
        },
    ),
    # The largest model of the paper, with tp=8 and pp=64 on 3,072 A100. It recomputes activations (section 3.5).
    "megatron-1t": Model(
        "Megatron 1T", 1008.0, 1008.0, "arXiv 2104.04473, table 1 and section 5", (),
        {
            "layers": 128, "hidden": 25_600, "heads": 160, "sequence": 2048, "vocabulary": 51_200,
            "global_batch": 3072, "gated": False, "tied": True, "recompute": "full",
        },
    ),
    "qwen2.5-72b": Model(
        "Qwen2.5 72B", 72.7, 72.7, "huggingface.co/Qwen/Qwen2.5-72B; arXiv 2412.15115, section 3.3", _BATCH,
        {
            "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn_hidden": 29_568, "sequence": 4096,
            "vocabulary": 152_064, "global_batch": 1024,
        },
    ),
    "qwen3-32b": Model(
        "Qwen3 32B", 32.8, 32.8, "huggingface.co/Qwen/Qwen3-32B; arXiv 2505.09388, section 3.2", _BATCH,
        {
            "layers": 64, "hidden": 5120, "heads": 64, "kv_heads": 8, "head_size": 128, "ffn_hidden": 25_600,
            "sequence": 4096, "vocabulary": 151_936, "global_batch": 1024,
        },
    ),
    "qwen3-235b-a22b": Model(
        "Qwen3 235B-A22B", 235.0, 22.0, "huggingface.co/Qwen/Qwen3-235B-A22B; arXiv 2505.09388, section 3.2",
        ("global_batch", "uneven_stages"),
        {
            "layers": 94, "hidden": 4096, "heads": 64, "kv_heads": 4, "head_size": 128, "experts": 128, "top_k": 8,
            "expert_hidden": 1536, "sequence": 4096, "vocabulary": 151_936, "global_batch": 1024,
            "uneven_stages": True,
        },
    ),
    # The paper has a context of 32 k tokens in training (section 1). These presets use shorter sequences.
    "mixtral-8x7b": Model(
        "Mixtral 8x7B", 46.7, 12.9, "arXiv 2401.04088, table 1; mistral.ai/news/mixtral-of-experts",
        ("global_batch", "sequence"),
        {
            "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "experts": 8, "top_k": 2,
            "expert_hidden": 14_336, "sequence": 4096, "vocabulary": 32_000, "global_batch": 1024,
        },
    ),
    "mixtral-8x22b": Model(
        "Mixtral 8x22B", 140.6, 39.1, "huggingface.co/mistralai/Mixtral-8x22B-v0.1; docs.mistral.ai",
        ("global_batch", "sequence"),
        {
            "layers": 56, "hidden": 6144, "heads": 48, "kv_heads": 8, "experts": 8, "top_k": 2,
            "expert_hidden": 16_384, "sequence": 4096, "vocabulary": 32_000, "global_batch": 1024,
        },
    ),
    # Sections 4.2 (sequences of 4,096, batches of 15,360), 3.2.3 (recomputation), 3.3.3 (tokens are sent to experts in
    # 8 bits) and 2.1.2 (each token is sent to at most 4 nodes; n_limited_groups of the configuration). The repository
    # has the architecture in inference/configs/config_671B.json, and the counts in README_WEIGHTS.md, without the
    # module that predicts a second token. It states that the 36.7 include the embedding, but the architecture has 36.6
    # without it, and 37.6 with it. The paper has 37.
    "deepseek-v3": Model(
        "DeepSeek-V3", 671.0, 36.7, "arXiv 2412.19437, sections 3 and 4.2; github.com/deepseek-ai/DeepSeek-V3",
        ("uneven_stages",),
        {
            "layers": 61, "hidden": 7168, "heads": 128, "latent": LatentAttention(1536, 512, 64, 128, 128),
            "ffn_hidden": 18_432, "dense_layers": 3, "experts": 256, "top_k": 8, "expert_hidden": 2048,
            "expert_hosts": 4, "shared_experts": 1, "sequence": 4096, "vocabulary": 129_280, "global_batch": 15_360,
            "dispatch_dtype": "float8_e4m3fn", "recompute": "selective", "uneven_stages": True,
        },
    ),
}  # fmt: skip

MODELS: Mapping[str, Model] = MappingProxyType(_MODELS)
"""The models of `Job.preset`, by name."""
