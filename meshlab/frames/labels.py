"""Where something was measured, in words: the column ``axis`` of a frame is short, a heading need not be."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.mesh.axes import WORLD
from meshlab.units import SEPARATOR

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CPU_SOURCES",
    "PAIRS_OF",
    "SOURCES",
    "axis_words",
    "describe_groups",
    "is_plain",
    "is_wrong",
    "say",
    "say_axes",
    "title_parts",
    "where_text",
]


SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "mpi": "MPI on this CPU",
        "threads": "threads in this process, not a machine's numbers",
        "nccl": "NCCL",
        "nccl-tests": "nccl-tests",
    }
)
"""What a title says about the source of its numbers."""

CPU_SOURCES: Mapping[str, str] = MappingProxyType({"mpi": "CPU", "threads": "threads"})
"""Sources that run on a CPU, each with the word that must stand in the title of their numbers."""

_ALONE, _PAIRS, _BESIDE = " alone", " pairs", "+"

PAIRS_OF = "pairs of "
"""How the words for pairs begin."""


def axis_words(axis: str, doing: str = "") -> str:
    """Say the column ``axis`` in words.

    Parameters
    ----------
    axis : str
        As it stands in the frames; words stay as they are.
    doing : str, default ""
        What the other axis does meanwhile, where that is known.

    Examples
    --------
    >>> axis_words("tp"), axis_words("tp alone"), axis_words("tp pairs"), axis_words("world pairs")
    ('tp', 'tp, one group at a time', 'pairs of tp', 'pairs of all ranks')
    >>> axis_words("tp+dp", "reduce_scatter"), axis_words("tp+dp")
    ('tp, while dp does reduce_scatter', 'tp, while dp is busy')
    """
    if axis.endswith(_ALONE):
        return f"{axis.removesuffix(_ALONE)}, one group at a time"
    if axis.endswith(_PAIRS):
        own = axis.removesuffix(_PAIRS)
        return f"{PAIRS_OF}{'all ranks' if own == WORLD else own}"
    own, joint, other = axis.partition(_BESIDE)
    if not joint:
        return axis
    return f"{own}, while {other} {f'does {doing}' if doing else 'is busy'}"


def is_plain(axis: str) -> bool:
    """Whether all groups of an axis worked at once and nothing beside them, which is what axes are compared by.

    Examples
    --------
    >>> [is_plain(axis) for axis in ("tp", "dp-cp", "tp alone", axis_words("tp alone"), "tp+dp")]
    [True, True, False, False, False]
    """
    return axis_words(axis) == axis and ", " not in axis and not axis.startswith(PAIRS_OF)


def say_axes(results: pd.DataFrame) -> pd.DataFrame:
    """The same rows with the column ``axis`` in words; `attrs` are kept.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [("all_reduce", "tp+dp"), ("reduce_scatter", "dp+tp"), ("all_reduce", "tp")]
    >>> frame = pd.DataFrame(rows, columns=["collective", "axis"]).assign(launch=0, step=[2, 2, 0])
    >>> say_axes(frame)["axis"].tolist()
    ['tp, while dp does reduce_scatter', 'dp, while tp does all_reduce', 'tp']
    """
    axes = [str(axis) for axis in results["axis"].dropna().unique()]
    if all(axis_words(axis) == axis for axis in axes):
        return results
    axis = results["axis"].astype(object)
    named = [name for name in ("run_id", "launch", "step") if name in results]
    steps = list(zip(*(results[name] for name in named), axis, strict=True))
    does = dict(zip(steps, results["collective"], strict=True)) if any(_BESIDE in axis for axis in axes) else {}
    words = []
    for *step, own in steps:
        if not isinstance(own, str):
            words.append(own)
            continue
        first, _, other = own.partition(_BESIDE)
        words.append(axis_words(own, str(does.get((*step, f"{other}{_BESIDE}{first}"), ""))))
    told = results.assign(axis=words).astype({"axis": results["axis"].dtype})
    told.attrs = dict(results.attrs)
    return told


def say(key: str, value: Any) -> str:
    """One key's value in words."""
    import pandas as pd

    missing = pd.isna(value)
    match key:
        case "in_place":
            return "placement unknown" if missing else ("in place" if value else "out of place")
        case "n_ranks":
            return "ranks unknown" if missing else f"{value} rank{'s' * (value != 1)}"
        case "root" | "run_id":
            return f"no {key.removesuffix('_id')}" if missing else f"{key.removesuffix('_id')} {value}"
    return f"no {key}" if missing else str(value)


def is_wrong(results: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows have a wrong result."""
    counted = results["n_wrong"].gt(0).fillna(False).to_numpy(bool)
    said = results["status"].eq("wrong").fillna(False).to_numpy(bool)
    return np.asarray(counted | said)


def where_text(results: pd.DataFrame) -> str:
    """Where the numbers come from, for a title; numbers from a CPU always say so.

    The text in ``results.attrs["where"]`` comes first; the column ``source`` speaks when it is silent.

    Examples
    --------
    >>> import pandas as pd
    >>> where_text(pd.DataFrame({"source": ["mpi", "mpi"]}))
    'MPI on this CPU'
    """
    where = str(results.attrs.get("where") or "")
    sources = [str(source) for source in results["source"].dropna().unique()]
    if not where:
        return " and ".join(SOURCES.get(source, source) for source in sources)
    silent = [source for source in sources if CPU_SOURCES.get(source, "").lower() not in where.lower()]
    return SEPARATOR.join([where, *(SOURCES[source] for source in silent)])


def title_parts(results: pd.DataFrame) -> list[str]:
    """The parts of a title that hold for all rows: collective, axis and groups, where, mode.

    Examples
    --------
    >>> import pandas as pd
    >>> row = {"collective": "all_reduce", "axis": "tp", "source": "mpi", "mode": "pipelined", "n_ranks": 2}
    >>> title_parts(pd.DataFrame([row | {"group": "tp_0"}, row | {"group": "tp_1"}]))
    ['all_reduce', 'tp (2 groups of 2)', 'MPI on this CPU', 'pipelined']
    """
    parts = [
        _constant(results, "collective"),
        describe_groups(results),
        where_text(results),
        _constant(results, "mode"),
    ]
    return [part for part in parts if part]


def _constant(results: pd.DataFrame, column: str) -> str:
    values = results[column].dropna().unique()
    return str(values[0]) if len(values) == 1 else ""


def describe_groups(results: pd.DataFrame) -> str:
    """The axis in words and its groups, such as "tp (2 groups of 4)"; empty where they are not the same in all rows."""
    results = say_axes(results)
    axis, n_ranks = _constant(results, "axis"), _constant(results, "n_ranks")
    groups = results["group"].nunique()
    if not axis:
        return f"{n_ranks} rank{'s' * (n_ranks != '1')}" if n_ranks and results["axis"].isna().all() else ""
    if axis.startswith(PAIRS_OF):
        return axis
    if not n_ranks or not groups:
        return axis
    return f"{axis} ({groups} group{'s' * (groups != 1)} of {n_ranks})"
