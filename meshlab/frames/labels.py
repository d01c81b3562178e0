"""Where something was measured, in words: the column ``axis`` of a frame is short, a heading need not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshlab.mesh.axes import WORLD

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PAIRS_OF", "axis_words", "is_plain", "say_axes"]

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
