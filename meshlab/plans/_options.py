"""Options of a call: their names, their defaults, and the words for their values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "buffers": "plain",
        "algorithm": None,
        "protocol": None,
        "min_ctas": None,
        "max_ctas": None,
        "cta_policy": None,
        "alignment_bytes": 0,
        "n_aggregated": 1,
    }
)
"""The columns of the options of a call, with their defaults. None means that the library chose."""

_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "min_ctas": "minimum of CTAs",
        "max_ctas": "maximum of CTAs",
        "cta_policy": "CTA policy",
        "alignment_bytes": "alignment",
        "n_aggregated": "aggregation",
    }
    | {name: name for name in ("buffers", "algorithm", "protocol")}
)


def option_label(key: str, value: Any) -> str:
    """Describe the value of one option of a call (see `OPTIONS`), or return an empty string for its default.

    Examples
    --------
    >>> option_label("buffers", "symmetric"), option_label("protocol", "ll128"), option_label("max_ctas", 4)
    ('symmetric buffers', 'LL128', 'at most 4 CTAs')
    >>> option_label("buffers", "plain"), option_label("algorithm", None)
    ('', '')
    """
    import pandas as pd

    if pd.isna(value) or value == OPTIONS[key]:
        return ""
    match key:
        case "buffers":
            return f"{value} buffers"
        case "protocol":
            return str(value).upper()
        case "min_ctas" | "max_ctas":
            return f"at {'least' if key == 'min_ctas' else 'most'} {value} CTA{'s' * (value != 1)}"
        case "cta_policy":
            return f"CTA policy {value}"
        case "alignment_bytes":
            return f"{value} B off alignment"
        case "n_aggregated":
            return f"{value} calls together"
    return str(value)


def option_texts(values: Mapping[str, Any]) -> list[str]:
    """Describe the options of a call that are not the default.

    Examples
    --------
    >>> option_texts({"buffers": "symmetric", "algorithm": "ring", "protocol": None, "n_aggregated": 1})
    ['symmetric buffers', 'ring']
    """
    labels = (option_label(name, values.get(name)) for name in OPTIONS)
    return [label for label in labels if label]


def option_value(key: str, value: Any) -> str:
    """Describe the value of one option of a call, also if it is the default. None stands for a missing value.

    Examples
    --------
    >>> option_value("buffers", "plain"), option_value("algorithm", None), option_value("n_aggregated", None)
    ('plain buffers', 'default algorithm', 'aggregation unknown')
    """
    if value is not None and value == OPTIONS[key]:
        return {"buffers": "plain buffers", "alignment_bytes": "aligned", "n_aggregated": "separate calls"}[key]
    if value is None and OPTIONS[key] is not None:
        return f"{_WORDS[key]} unknown"
    return f"default {_WORDS[key]}" if value is None else option_label(key, value)
