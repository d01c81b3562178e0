"""Whether results are correct: wrong elements, times that cannot be, and results that were not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.base._outcome import Outcome
from meshlab.comm._catalog import WITHOUT_OUTPUT
from meshlab.frames._labels import is_wrong
from meshlab.report._words import MOST_NAMED, UNFINISHED, count, is_missing, named_results, was

if TYPE_CHECKING:
    import pandas as pd

Mask = npt.NDArray[np.bool_]

# What one check covers. nccl-tests cannot check some collectives in place, but does so out of place.
_CALL = ("run_id", "source", "collective", "op", "dtype", "axis", "size_bytes")


def judge_results(results: pd.DataFrame) -> tuple[Outcome, str]:
    """Return the outcome of the checks of results, and a sentence or two about them."""
    if not len(results):
        return "not decided", "Nothing was measured."
    status = results["status"].astype(object)
    # A barrier returns nothing that could be wrong.
    has_output = ~results["collective"].isin(WITHOUT_OUTPUT).to_numpy()
    failed, skipped = status.isin(UNFINISHED).to_numpy(), status.eq("skipped").to_numpy()
    has_ended = ~(failed | skipped)
    time_us = results["time_us"].to_numpy(dtype=float)
    impossible = status.isin(("ok", "wrong")).to_numpy() & ~((time_us >= 0) & np.isfinite(time_us))
    wrong, checked = np.asarray(is_wrong(results)), results["n_wrong"].notna().to_numpy()
    unchecked = has_output & has_ended & ~checked & ~wrong
    undecided = unchecked.any() and not _is_covered(results, unchecked, checked)
    n_failed, n_skipped = int(failed.sum()), int(skipped.sum())
    if wrong.any():
        text = _wrong(results[wrong], len(results))
    elif impossible.any():
        text = _impossible(results[impossible], len(results))
    else:
        text = _checked(len(results), int(checked.sum()), int(unchecked.sum()), has_any=bool(has_output.any()))
    text += f" {count(n_failed, 'measurement')} did not finish." if n_failed else ""
    exceed = f"because {'its' if n_skipped == 1 else 'their'} buffers exceed the memory"
    text += f" {count(n_skipped, 'measurement')} {was(n_skipped)} skipped {exceed}." if n_skipped else ""
    has_failed = bool(wrong.any() or impossible.any() or n_failed)
    is_open = undecided or not has_ended.any() or not (checked.any() or not has_output.any())
    return "failed" if has_failed else "not decided" if is_open else "passed", text


def _is_covered(results: pd.DataFrame, unchecked: Mask, checked: Mask) -> bool:
    """Return whether a call of the same kind was checked for each of the unchecked results."""
    names = [name for name in _CALL if name in results]
    keys = results[names].astype(object)
    keys = keys.where(keys.notna(), None)
    return set(map(tuple, keys[unchecked].to_numpy())) <= set(map(tuple, keys[checked].to_numpy()))


def _wrong(rows: pd.DataFrame, total: int) -> str:
    counts = ["" if is_missing(number) else f" ({number:,} elements)" for number in rows["n_wrong"].head(MOST_NAMED)]
    verb = "is" if len(rows) == 1 else "are"
    return f"{len(rows):,} of {count(total, 'result')} {verb} WRONG: {named_results(rows, counts)}."


def _impossible(rows: pd.DataFrame, total: int) -> str:
    """Name results whose time is negative or not a number."""
    times = [f" ({time_us:g} µs)" for time_us in rows["time_us"].head(MOST_NAMED)]
    verb = "has an IMPOSSIBLE time" if len(rows) == 1 else "have IMPOSSIBLE times"
    reason = "so the file is damaged or was edited"
    return f"{len(rows):,} of {count(total, 'result')} {verb}, {reason}: {named_results(rows, times)}."


def _checked(total: int, n_checked: int, n_unchecked: int, *, has_any: bool) -> str:
    if not has_any:
        return "There is nothing to check: a barrier returns nothing."
    if not n_checked:
        return f"None of the {total:,} results were checked." if total > 1 else "The result was not checked."
    if n_unchecked:
        text = f"All {n_checked:,} checked results are" if n_checked > 1 else "The only checked result is"
        return f"{text} correct; {n_unchecked:,} {was(n_unchecked)} not checked."
    return f"All {n_checked:,} results are correct." if n_checked > 1 else "The result is correct."
