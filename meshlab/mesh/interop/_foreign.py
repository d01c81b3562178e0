"""Frameworks whose texts meshlab recognises but does not read, so that an error can name them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import ParseError
from meshlab.mesh.interop._clues import Clue, Followed

_COMMANDS: Mapping[str, Clue] = {
    "LMDeploy": Followed(re.compile(r"\blmdeploy\b"), re.compile(r"--(?:tp|dp|ep)\b")),
    "ColossalAI": re.compile(r"\b(?:HybridParallelPlugin|GeminiPlugin|MoeHybridParallelPlugin)\s*\("),
}

_KEYS = {
    "NeMo RL": re.compile(r"(?:^|\.)dtensor_cfg\."),
    "VeOmni": re.compile(r"(?:^|\.)ulysses_parallel_size$"),
}

_OF_TWO = re.compile(r"^distributed\.(?:tp|cp|pp|dp)_size$")

_OF_ONE = re.compile(
    r"^distributed\.(?:_target_|strategy|dp_replicate_size|ep_size|sequence_parallel|pp_engine|use_cpu|backend)"
)

_WITHOUT_SIZES = {
    "axolotl": re.compile(r"^(?:base_model|datasets\.\d+\.type)$"),
    "LLaMA-Factory": re.compile(r"^(?:finetuning_type|template)$"),
}
"""Frameworks whose configs are read, if they have sizes."""

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
    if any(map(_OF_TWO.match, config)) and not any(map(_OF_ONE.match, config)):
        raise ParseError(
            "this section distributed may be one of picotron, whose order is dp, pp, cp, tp, or of NeMo AutoModel, "
            "whose order is pp, dp, cp, tp",
            hint="pass framework='picotron' or framework='automodel'",
        )


def check_sizes(config: Mapping[str, Any]) -> None:
    """Raise a `ParseError` for a config without sizes of parallelism of a framework that is known by other keys."""
    for name, pattern in _WITHOUT_SIZES.items():
        key = next((key for key in config if pattern.search(key)), None)
        if key is not None:
            raise ParseError(
                f"this config of {name} has no sizes of parallelism ({key} is one of its keys)",
                hint="without them, every rank is data parallel: write 'dp=-1'",
            )
