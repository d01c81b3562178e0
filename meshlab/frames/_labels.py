"""Labels that describe the rows of a frame, for titles, legends and tables."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._backends import BACKENDS, CPU_BACKENDS, GPU_BACKENDS
from meshlab.base._units import SEPARATOR
from meshlab.frames._schema import LOAD, numbered_rows
from meshlab.mesh._axes import WORLD
from meshlab.plans._options import OPTIONS, option_texts, option_value

if TYPE_CHECKING:
    import pandas as pd

SOURCES: Mapping[str, str] = MappingProxyType(
    {**{name: facts.title for name, facts in BACKENDS.items()}, "nccl-tests": "nccl-tests"}
)
"""Titles of the sources of numbers."""

CPU_SOURCES: Mapping[str, str] = MappingProxyType({name: BACKENDS[name].mark for name in CPU_BACKENDS})
"""Sources that run on a CPU, each with the word that the titles of their numbers must contain."""

GPU_SOURCES = (*GPU_BACKENDS, "nccl-tests")
"""Sources that run on GPUs."""


def axis_label(
    axis: str, grouping: str | None = None, concurrent_axis: str | None = None, concurrent_collective: str | None = None
) -> str:
    """Describe a measurement along an axis, and the ranks and axes that were active at the same time."""
    if grouping == "pairs":
        return f"pairs of {'all ranks' if axis == WORLD else axis}"
    label = f"{axis}, one group at a time" if grouping == "alone" else axis
    if concurrent_axis is None:
        return label
    return f"{label}, while {concurrent_axis} {f'runs {concurrent_collective}' if concurrent_collective else 'is busy'}"


def pair_label(collective: str, src_rank: int, dst_rank: int) -> str:
    """Write a pair of ranks with the direction of its messages."""
    return f"{src_rank}{'→' if collective == 'send' else '↔'}{dst_rank}"


LABELLED = ("axis", *LOAD)
"""The columns that an axis label is made of."""


def axis_labels(results: pd.DataFrame) -> pd.Series[str]:
    """Return the axis label of every row, or a missing value for rows without an axis."""
    import pandas as pd

    numbers, keys = numbered_rows(results, LABELLED)  # few labels, many rows
    labels = pd.array([None if key[0] is None else axis_label(*key) for key in keys], dtype="string")
    return pd.Series(labels.take(numbers), index=results.index, name="axis_label")


def value_label(key: str, value: Any) -> str:
    """Describe the value of one column, for a legend."""
    import pandas as pd

    missing = pd.isna(value)
    if key in OPTIONS:
        return option_value(key, None if missing else value)
    match key:
        case "in_place":
            return "placement unknown" if missing else ("in place" if value else "out of place")
        case "n_ranks":
            return "ranks unknown" if missing else f"{value} rank{'' if value == 1 else 's'}"
        case "root" | "run_id":
            return f"no {key.removesuffix('_id')}" if missing else f"{key.removesuffix('_id')} {value}"
    return f"no {key}" if missing else str(value)


def is_wrong(results: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Select the rows with a wrong result."""
    counted = results["n_wrong"].gt(0).fillna(False).to_numpy(bool)
    marked = results["status"].eq("wrong").fillna(False).to_numpy(bool)
    return np.asarray(counted | marked)


def where_text(results: pd.DataFrame) -> str:
    """Describe the measured system, for a title. Numbers from a CPU are always labelled as such."""
    where = str(results.attrs.get("where") or "")
    sources = [str(source) for source in results["source"].dropna().unique()]
    if not where:
        return " and ".join(SOURCES.get(source, source) for source in sources)
    silent = [source for source in sources if CPU_SOURCES.get(source, "").lower() not in where.lower()]
    return SEPARATOR.join([where, *(SOURCES[source] for source in silent)])


def title_parts(results: pd.DataFrame) -> list[str]:
    """Return the parts of a title that all rows share: progress, collective, axis and groups, system, mode, options."""
    parts = [
        str(results.attrs.get("progress") or ""),
        _constant(results, "collective"),
        describe_groups(results),
        where_text(results),
        _constant(results, "mode"),
        *option_texts({name: _constant_value(results, name) for name in OPTIONS}),
    ]
    return [part for part in parts if part]


def _constant_value(results: pd.DataFrame, column: str) -> Any:
    """Return the value that all rows have, or None."""
    values = results[column].unique()
    return values[0] if len(values) == 1 else None


def _constant(results: pd.DataFrame, column: str) -> str:
    values = results[column].dropna().unique()
    return str(values[0]) if len(values) == 1 else ""


def describe_groups(results: pd.DataFrame) -> str:
    """Describe the axis and its groups, such as "tp (2 groups of 4)". Return "" if the rows differ in them."""
    labels = {axis_label(*key) for key in numbered_rows(results, LABELLED)[1] if key[0] is not None}
    n_ranks, groups = _constant(results, "n_ranks"), results["group"].nunique()
    if not labels:
        return f"{n_ranks} rank{'s' * (n_ranks != '1')}" if n_ranks else ""
    if len(labels) > 1:
        return ""
    (label,) = labels
    if results["grouping"].eq("pairs").any() or not n_ranks or not groups:
        return label
    return f"{label} ({groups} group{'s' * (groups != 1)} of {n_ranks})"
