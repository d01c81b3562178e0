"""The choice of an option for each size: from the trials of a search, and from their repetition on new ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.frames._schema import conform
from meshlab.frames._trials import CASE, DEFAULT, OPTION, TUNED, as_trials, option_key, option_label

if TYPE_CHECKING:
    import pandas as pd

_TIED = 0.02
"""Options that differ by less than this share are tied. One option differs by 1 to 4 % between launches (two H200)."""

REACH = 2.0
"""An option applies up to this factor from the size at which it was measured."""


def usable_trials(trials: pd.DataFrame, launch: str) -> pd.DataFrame:
    """Return the trials of a launch that were measured and had correct results."""
    ok = trials["status"].fillna("ok").eq("ok") & ~trials["n_wrong"].gt(0).fillna(value=False)
    return trials[ok & trials["launch"].fillna("search").eq(launch) & trials["time_us"].gt(0)]


def best_options(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the option of each call that the search found, which is to be confirmed on new ranks.

    This is the default unless the interval of the fastest option is below that of the default. Options whose time is
    within the interval of the fastest one, or at most 2 % above its time, are tied, and the simplest of them is chosen.

    Parameters
    ----------
    trials : pandas.DataFrame
        The rows of a search, with the columns of `meshlab.frames.TRIALS`.

    Returns
    -------
    pandas.DataFrame
        One row of `trials` per call. Calls whose default was not measured are omitted.

    Examples
    --------
    >>> import meshlab as ml
    >>> found = ml.analysis.best_options(ml.example("tuning").trials)
    >>> len(found) == len(ml.example("tuning").frame())
    True
    """
    trials = as_trials(trials)
    cases = trials_by_call(usable_trials(trials, "search")).values()
    return trials.loc[[_best(rows)["index"] for rows in cases if _default_of(rows) is not None]].reset_index(drop=True)


Row = Mapping[str, Any]
"""A trial, with None for missing values, its position as ``index`` and its option as ``option_key``."""


def trials_by_call(trials: pd.DataFrame) -> dict[tuple[Any, ...], list[Row]]:
    """Return the trials of each call."""
    trials_of: dict[tuple[Any, ...], list[Row]] = {}
    values = trials.astype(object).where(trials.notna(), None)
    # Plain dictionaries, because pandas takes as long for one row as for a thousand.
    for index, row in zip(trials.index, values.to_dict("records"), strict=True):
        row |= {"index": index, "option_key": tuple(row[name] for name in OPTION)}
        trials_of.setdefault(tuple(row[name] for name in CASE), []).append(row)  # type: ignore[arg-type]
    return trials_of


def _default_of(rows: Sequence[Row]) -> Row | None:
    """Return the trial of the default, if there is one."""
    return next((row for row in rows if row["option_key"] == DEFAULT), None)


def _best(rows: Sequence[Row]) -> Row:
    """Return the chosen trial of one call, whose default was measured."""
    default, fastest = _default_of(rows), _fastest(rows)
    limit = _bound(fastest, "time_us_hi")
    if default is not None and _bound(default, "time_us_lo") <= limit:
        return default
    limit = max(limit, float(fastest["time_us"]) * (1 + _TIED))
    below = math.inf if default is None else _bound(default, "time_us_lo")
    tied = [row for row in rows if row["time_us"] <= limit and row is not default]
    tied = [row for row in tied if row is fastest or _bound(row, "time_us_hi") < below]
    return min(tied, key=lambda row: (_complexity(row), row["time_us"]))


def _fastest(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: float(row["time_us"]))


def _bound(row: Row, name: str) -> float:
    """Return a bound of the interval of a row. With too few rounds for an interval, it is the time."""
    return float(row["time_us"] if row[name] is None else row[name])


def _complexity(row: Row) -> int:
    """Count the settings of an option. Environment variables need new processes, so they count twice."""
    named = sum(row[name] is not None for name in OPTION if name not in ("setting", "buffers"))
    return named + 2 * (row["setting"] is not None) + int(row["buffers"] != "plain")


def choose(trials: pd.DataFrame) -> pd.DataFrame:
    """Choose the option of each call, from trials with the columns `TRIALS`. Returns rows with the columns `TUNED`."""
    # The default stays unless an option was measured again on new ranks, and its interval is below that of the default
    # that was measured there.
    import pandas as pd

    trials = as_trials(trials)
    again = trials_by_call(usable_trials(trials, "confirmation"))
    choices = []
    for case, rows in trials_by_call(usable_trials(trials, "search")).items():
        default = _default_of(rows)
        if default is not None:
            choices.append(_choice(rows, default, again.get(case, [])))
    tuned = conform(pd.DataFrame(choices, columns=[column.name for column in TUNED], dtype=object), TUNED)
    order = {name: number for number, name in enumerate(dict.fromkeys(tuned["collective"]))}
    tuned["position"] = tuned["collective"].map(order)
    tuned = tuned.sort_values(["position", "size_bytes"], kind="stable", ignore_index=True)
    return tuned.drop(columns="position")


def _choice(search: Sequence[Row], searched_default: Row, again: Sequence[Row]) -> dict[str, Any]:
    """Return the row of one call."""
    best, repeated_default = _best(search), _default_of(again)
    others = [row for row in again if row is not repeated_default]
    default = tuned = searched_default if repeated_default is None else repeated_default
    verdict = "default"
    if others and repeated_default is not None:
        repeated = _fastest(others)
        best = next((row for row in search if row["option_key"] == repeated["option_key"]), repeated)
        # Without an interval, nothing is certain.
        high, low = repeated["time_us_hi"], default["time_us_lo"]
        is_faster = high is not None and low is not None and high < low
        verdict, tuned = ("faster", repeated) if is_faster else ("not confirmed", default)
    elif best is not searched_default:
        verdict = "not repeated"
    times = {f"time_us{end}": tuned[f"time_us{end}"] for end in ("", "_lo", "_hi")}
    times |= {f"default_us{end}": default[f"time_us{end}"] for end in ("", "_lo", "_hi")}
    has_candidate = best is not searched_default
    return {
        **{name: searched_default[name] for name in CASE},
        **{name: tuned[name] for name in OPTION},
        **times,
        **{name: tuned[name] for name in ("compute_us", "alone_us")},
        "exposed_us": None if tuned["compute_us"] is None else max(tuned["time_us"] - tuned["compute_us"], 0.0),
        "option": option_label(tuned),
        "gain": 1 - tuned["time_us"] / default["time_us"],
        "is_confirmed": verdict == "faster",
        "verdict": verdict,
        "candidate": option_label(best) if has_candidate else None,
        "candidate_us": best["time_us"] if has_candidate else None,
        "candidate_gain": 1 - best["time_us"] / searched_default["time_us"] if has_candidate else None,
    }


def mean_gain(rows: pd.DataFrame) -> float:
    """Return 1 - the geometric mean of time / time of the default over these rows."""
    ratios = rows["time_us"].to_numpy(float) / rows["default_us"].to_numpy(float)
    return float(1 - np.exp(np.log(ratios).mean()))


@dataclass(frozen=True, slots=True)
class SizeRange:
    """A range of message sizes, both ends included, with the option that applies to it."""

    min_bytes: int
    max_bytes: int
    row: Any
    """A row of a tuning with this option. None for sizes that were not tuned, which keep the default."""
    sizes: tuple[int, ...]
    """The measured sizes in the range."""


def size_ranges(tuned: pd.DataFrame, *, reach: float = REACH) -> list[SizeRange]:
    """Return the ascending ranges from the smallest to the largest size of the rows of one collective."""
    # A measured option applies half way to the next measured size on a logarithmic scale, and at most up to the factor
    # `reach` from its own size. Gaps between sizes that are farther apart keep the default.
    rows = [row for _, row in tuned.sort_values("size_bytes").iterrows()]
    sizes = [int(row["size_bytes"]) for row in rows]
    ranges: list[SizeRange] = []
    for number, (size, row) in enumerate(zip(sizes, rows, strict=True)):
        low = size if number == 0 else _ends(sizes[number - 1], size, reach)[1]
        high = size if number == len(sizes) - 1 else _ends(size, sizes[number + 1], reach)[0]
        if ranges and low > ranges[-1].max_bytes + 1:
            ranges = _with_range(ranges, SizeRange(ranges[-1].max_bytes + 1, low - 1, None, ()))
        ranges = _with_range(ranges, SizeRange(low, high, row, (size,)))
    return ranges


def _ends(size: int, following: int, reach: float) -> tuple[int, int]:
    """Return the last size of one option, and the first of the next, between two measured sizes."""
    middle = math.isqrt(size * following)
    return int(min(middle, size * reach)), int(max(middle + 1, math.ceil(following / reach)))


def _with_range(ranges: Sequence[SizeRange], added: SizeRange) -> list[SizeRange]:
    """Append a range, or extend the last one if it has the same option."""
    last = ranges[-1] if ranges else None
    if last is not None and _option_of(last) == _option_of(added):
        row = added.row if last.row is None else last.row
        joined = SizeRange(last.min_bytes, added.max_bytes, row, (*last.sizes, *added.sizes))
        return [*ranges[:-1], joined]
    return [*ranges, added]


def _option_of(part: SizeRange) -> tuple[Any, ...]:
    """Return the option of a range. Sizes that were not tuned have the default, like sizes that keep it."""
    return DEFAULT if part.row is None else option_key(part.row)
