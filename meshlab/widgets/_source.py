"""Python code that creates a value again: numbers, strings, and clusters that no preset describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.topology.model._cluster import Cluster


def python(value: Any) -> str:
    """Return a value as code."""
    if isinstance(value, str):
        text = repr(value)
        return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
    if isinstance(value, bool | None):
        return repr(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(python, value))}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(map(python, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{python(key)}: {python(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, np.ndarray):
        return _array(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _constructor(value)
    return repr(value)


def cluster_code(cluster: Cluster) -> str:
    """Return an expression for a cluster, which needs ``import numpy as np`` and ``import meshlab as ml``."""
    return _constructor(cluster)


def _constructor(value: Any) -> str:
    """Return the call that creates a dataclass, without the fields that have their default."""
    arguments = []
    is_leading = True  # fields before the first default are positional
    for field in fields(value):
        argument = getattr(value, field.name)
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        is_leading = is_leading and not has_default and not field.kw_only
        if has_default and type(argument) is not np.ndarray and (argument == default or argument is default):
            continue
        arguments.append(python(argument) if is_leading else f"{field.name}={python(argument)}")
    return f"ml.topology.{type(value).__name__}({', '.join(arguments)})"


def _array(values: npt.NDArray[Any]) -> str:
    """Return an int32 array as runs of equal values."""
    if not values.size:
        return "np.zeros(0, dtype=np.int32)"
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    lengths = np.diff(starts, append=len(values))
    return f"np.repeat({values[starts].tolist()}, {lengths.tolist()}).astype(np.int32)"
