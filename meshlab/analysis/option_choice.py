"""The choice of an option for each size: from the trials of a search, and from their repetition on new ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshlab.frames.schema import conform, plain_key
from meshlab.frames.trials import CASE, DEFAULT, OPTION, TRIALS, TUNED, as_trials, is_default, option_key, option_label

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["REACH", "SizeRange", "best_options", "choose", "size_ranges", "usable_trials"]

REACH = 2.0
"""An option applies up to this factor from the size at which it was measured."""


def usable_trials(trials: pd.DataFrame, launch: str) -> pd.DataFrame:
    """Return the trials of a launch that were measured and had correct results."""
    ok = trials["status"].fillna("ok").eq("ok") & ~trials["n_wrong"].gt(0).fillna(value=False)
    return trials[ok & trials["launch"].fillna("search").eq(launch) & trials["time_us"].gt(0)]


def best_options(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the option of each call that the search found, which is to be confirmed on new ranks.

    This is the default unless the interval of the fastest option is below that of the default. Options whose time is
    within the interval of the fastest one are tied, and the simplest of them is chosen.

    Parameters
    ----------
    trials : pandas.DataFrame
        The rows of a search, with the columns of `meshlab.frames.TRIALS`.

    Returns
    -------
    pandas.DataFrame
        One row of `trials` per call. Calls whose default was not measured are left out.

    Examples
    --------
    >>> import meshlab as ml
    >>> found = ml.analysis.best_options(ml.example("tuning").trials)
    >>> len(found) == len(ml.example("tuning").frame())
    True
    """
    import pandas as pd

    found = [_best(rows) for rows in _cases(usable_trials(as_trials(trials), "search")) if is_default(rows).any()]
    return pd.concat(found, ignore_index=True) if found else conform(trials.iloc[:0], TRIALS)


def _cases(trials: pd.DataFrame) -> list[pd.DataFrame]:
    """Split trials into the options of each call."""
    return [rows for _, rows in trials.groupby(list(CASE), dropna=False, sort=False)]


def _best(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the chosen row of one call, as a frame."""
    default = rows[is_default(rows)].iloc[[0]]
    fastest = rows.loc[[rows["time_us"].idxmin()]]
    limit = float(_edge(fastest, "time_us_hi"))
    if float(_edge(default, "time_us_lo")) <= limit:
        return default
    tied = rows[(rows["time_us"] <= limit) & ~is_default(rows)]
    order = sorted(tied.index, key=lambda index: (_complexity(tied.loc[index]), tied.at[index, "time_us"]))
    return tied.loc[[order[0]]]


def _edge(row: pd.DataFrame, name: str) -> float:
    """Return a bound of the interval of a row. With too few rounds for an interval, it is the time."""
    value = float(row[name].iloc[0])
    return float(row["time_us"].iloc[0]) if math.isnan(value) else value


def _complexity(row: Any) -> int:
    """Count what a user has to set for an option. Environment variables need new processes, so they count twice."""
    key = dict(zip(OPTION, option_key(row), strict=True))
    named = sum(value is not None for name, value in key.items() if name not in ("setting", "buffers"))
    return int(named + 2 * (key["setting"] is not None) + (key["buffers"] != "plain"))


def choose(trials: pd.DataFrame) -> pd.DataFrame:
    """Choose the option of each call.

    The default stays unless an option was measured again on new ranks, and its interval is below that of the default
    that was measured there.

    Parameters
    ----------
    trials : pandas.DataFrame
        Trials of the search and of the confirmation, with the columns of `meshlab.frames.TRIALS`.

    Returns
    -------
    pandas.DataFrame
        One row per call, with the columns of `meshlab.frames.TUNED`, sorted by size within a collective.
    """
    import pandas as pd

    trials = as_trials(trials)
    again = {_case_key(rows): rows for rows in _cases(usable_trials(trials, "confirmation"))}
    cases = [rows for rows in _cases(usable_trials(trials, "search")) if is_default(rows).any()]
    found = [_chosen(rows, again.get(_case_key(rows))) for rows in cases]
    tuned = conform(pd.DataFrame(found, columns=[column.name for column in TUNED], dtype=object), TUNED)
    order = {name: number for number, name in enumerate(dict.fromkeys(tuned["collective"]))}
    tuned["position"] = tuned["collective"].map(order)
    tuned = tuned.sort_values(["position", "size_bytes"], kind="stable", ignore_index=True)
    return tuned.drop(columns="position")


def _case_key(rows: pd.DataFrame) -> tuple[Any, ...]:
    return plain_key(rows[list(CASE)].iloc[0])


def _chosen(search: pd.DataFrame, again: pd.DataFrame | None) -> dict[str, Any]:
    """Return the row of one call."""
    searched_default = search[is_default(search)].iloc[0]
    best = _best(search).iloc[0]
    default, tuned, verdict = searched_default, searched_default, "default"
    others = None if again is None else again[~is_default(again)]
    if again is not None and is_default(again).any():
        default = tuned = again[is_default(again)].iloc[0]
    if others is not None and len(others) and default is not searched_default:
        repeated = others.iloc[int(others["time_us"].to_numpy().argmin())]
        key = option_key(repeated)
        same = [row for _, row in search.iterrows() if option_key(row) == key]
        best = same[0] if same else repeated
        is_faster = _bound(repeated, "time_us_hi") < _bound(default, "time_us_lo")
        verdict = "faster" if is_faster else "not confirmed"
        tuned = repeated if is_faster else default
    elif option_key(best) != option_key(searched_default):
        verdict = "not repeated"
    times = {f"time_us{end}": tuned[f"time_us{end}"] for end in ("", "_lo", "_hi")}
    times |= {f"default_us{end}": default[f"time_us{end}"] for end in ("", "_lo", "_hi")}
    has_candidate = option_key(best) != option_key(searched_default)
    return {
        **{name: searched_default[name] for name in CASE},
        **{name: tuned[name] for name in OPTION},
        **times,
        "option": option_label(tuned),
        "gain": 1 - tuned["time_us"] / default["time_us"],
        "is_confirmed": verdict == "faster",
        "verdict": verdict,
        "candidate": option_label(best) if has_candidate else None,
        "candidate_us": best["time_us"] if has_candidate else None,
        "candidate_gain": 1 - best["time_us"] / searched_default["time_us"] if has_candidate else None,
    }


def _bound(row: Any, name: str) -> float:
    """Return a bound of an interval. Without an interval nothing is certain, so a comparison with it is false."""
    return float(row[name])


@dataclass(frozen=True, slots=True)
class SizeRange:
    """A range of message sizes with the option that applies to it.

    Parameters
    ----------
    min_bytes, max_bytes : int
        The smallest and the largest size, both included.
    row : pandas.Series or None
        A row of a tuning with this option. None for sizes that were not tuned, which keep the default.
    sizes : tuple of int
        The measured sizes in the range.
    """

    min_bytes: int
    max_bytes: int
    row: Any
    sizes: tuple[int, ...]


def size_ranges(tuned: pd.DataFrame, *, reach: float = REACH) -> list[SizeRange]:
    """Return the ranges of sizes with one option, from the rows of one collective.

    A measured option applies half way to the next measured size on a logarithmic scale, and at most to twice or half
    its own size. Sizes outside the tuned range, and gaps between sizes that are farther apart, keep the default.

    Parameters
    ----------
    tuned : pandas.DataFrame
        Rows of one collective that differ in their sizes.
    reach : float, default 2
        The factor from a measured size at which its option ends, if the next size is farther away.

    Returns
    -------
    list of SizeRange
        Ascending and without overlaps. They cover the sizes from the smallest to the largest measured one.
    """
    rows = [row for _, row in tuned.sort_values("size_bytes").iterrows()]
    sizes = [int(row["size_bytes"]) for row in rows]
    found: list[SizeRange] = []
    for number, (size, row) in enumerate(zip(sizes, rows, strict=True)):
        low = size if number == 0 else _ends(sizes[number - 1], size, reach)[1]
        high = size if number == len(sizes) - 1 else _ends(size, sizes[number + 1], reach)[0]
        if found and low > found[-1].max_bytes + 1:
            found = _joined(found, SizeRange(found[-1].max_bytes + 1, low - 1, None, ()))
        found = _joined(found, SizeRange(low, high, row, (size,)))
    return found


def _ends(size: int, following: int, reach: float) -> tuple[int, int]:
    """Return the last size of one option, and the first of the next, between two measured sizes."""
    middle = math.isqrt(size * following)
    return int(min(middle, size * reach)), int(max(middle + 1, math.ceil(following / reach)))


def _joined(found: Sequence[SizeRange], added: SizeRange) -> list[SizeRange]:
    """Append a range, or extend the last one if it has the same option."""
    last = found[-1] if found else None
    if last is not None and _option_of(last) == _option_of(added):
        row = added.row if last.row is None else last.row
        joined = SizeRange(last.min_bytes, added.max_bytes, row, (*last.sizes, *added.sizes))
        return [*found[:-1], joined]
    return [*found, added]


def _option_of(part: SizeRange) -> tuple[Any, ...]:
    """Return the option of a range. Sizes that were not tuned have the default, like sizes that keep it."""
    return DEFAULT if part.row is None else option_key(part.row)
