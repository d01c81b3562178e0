"""Frameworks whose texts meshlab recognises but does not read, so that an error can name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import ParseError
from meshlab.mesh.interop._clues import AnyOf, CallWith, Clue, Followed

_COMMANDS: Mapping[str, Clue] = {
    "TensorRT-LLM": Followed(
        re.compile(r"\btrtllm-(?:serve|build|bench|llmapi-launch|eval)\b"), re.compile("--(?:tp|pp|ep)_size")
    ),
    "LMDeploy": Followed(re.compile(r"\blmdeploy\b"), re.compile(r"--(?:tp|dp|ep)\b")),
    "ColossalAI": re.compile(r"\b(?:HybridParallelPlugin|GeminiPlugin|MoeHybridParallelPlugin)\s*\("),
    "Accelerate": AnyOf(
        (
            Followed(re.compile(r"\baccelerate\s+launch\b"), re.compile("--parallelism_config_")),
            CallWith(re.compile(r"\bParallelismConfig\s*\("), re.compile(r"\b\w+_size\s*=")),
        )
    ),
}

_KEYS = {
    "MaxText": re.compile(r"(?:^|\.)(?:ici|dcn)_\w+_parallelism$"),
    "Accelerate": re.compile(r"^(?:parallelism_config\.|fsdp_config\.fsdp_|distributed_type$|megatron_lm_config\.)"),
    "TensorRT-LLM": re.compile(r"(?:^|\.)(?:moe_expert_parallel_size|moe_cluster_parallel_size|gpus_per_node_tp)$"),
    "NeMo RL": re.compile(r"(?:^|\.)dtensor_cfg\."),
    "VeOmni": re.compile(r"(?:^|\.)ulysses_parallel_size$"),
    "axolotl": re.compile(r"^(?:dp_replicate_size|dp_shard_size|datasets\.\d+\.type)$"),
    "NeMo AutoModel": re.compile(r"^distributed\.(?:dp|tp|cp|pp|ep)_(?:replicate_)?size$"),
    "LLaMA-Factory": re.compile(r"^(?:finetuning_type|template)$"),
}

_HINT = "write the sizes as text, slowest axis first, such as 'pp=2, dp=4, tp=8'"


def check_text(text: str) -> None:
    """Raise a `ParseError` if a text is a command or code of a framework that meshlab does not read."""
    for name, clue in _COMMANDS.items():
        if clue.search(text):
            raise ParseError(f"this looks like {name}, which meshlab does not read", hint=_HINT)


def check_config(config: Mapping[str, Any]) -> None:
    """Raise a `ParseError` if a config is one of a framework that meshlab does not read."""
    for name, pattern in _KEYS.items():
        key = next((key for key in config if pattern.search(key)), None)
        if key is not None:
            raise ParseError(f"the key {key} is one of {name}, which meshlab does not read", hint=_HINT)
