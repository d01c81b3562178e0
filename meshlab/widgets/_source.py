"""Python code that creates a value again: numbers, strings, and clusters that no preset describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.topology.model._cluster import Cluster


def python(value: Any) -> str:
    """Return a value as code.

    Examples
    --------
    >>> python("a"), python(2.0), python((1,)), python({"dp": 4})
    ('"a"', '2', '(1,)', '{"dp": 4}')
    """
    if isinstance(value, str):
        text = repr(value)
        return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
    if isinstance(value, bool | None):
        return repr(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(python(one) for one in value)}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(python(one) for one in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{python(key)}: {python(one)}' for key, one in value.items())}}}"
    if isinstance(value, np.ndarray):
        return _array(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _made(value)
    return repr(value)


def cluster_code(cluster: Cluster) -> str:
    """Return an expression for a cluster, which needs ``import numpy as np`` and ``import meshlab as ml``.

    Examples
    --------
    >>> from meshlab.topology.model._hardware import Node
    >>> cluster_code(Cluster.from_nodes([Node("a"), Node("b")], title="two"))
    'ml.topology.Cluster((ml.topology.Node("a"),), np.repeat([0], [2]).astype(np.int32), ("a", "b"),
    levels=(ml.topology.Level("cluster", np.repeat([0], [2]).astype(np.int32)),), title="two")'
    """
    return _made(cluster)


def _made(value: Any) -> str:
    """Return the call that creates a dataclass, without the fields that have their default."""
    given = []
    is_leading = True  # fields before the first default are positional
    for item in fields(value):
        own = getattr(value, item.name)
        has_default = item.default is not MISSING or item.default_factory is not MISSING
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        is_leading = is_leading and not has_default and not item.kw_only
        if has_default and type(own) is not np.ndarray and (own == default or own is default):
            continue
        given.append(python(own) if is_leading else f"{item.name}={python(own)}")
    return f"ml.topology.{type(value).__name__}({', '.join(given)})"


def _array(values: npt.NDArray[Any]) -> str:
    """Return an int32 array as runs of equal values."""
    if not values.size:
        return "np.zeros(0, dtype=np.int32)"
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    lengths = np.diff(starts, append=len(values))
    return f"np.repeat({values[starts].tolist()}, {lengths.tolist()}).astype(np.int32)"
