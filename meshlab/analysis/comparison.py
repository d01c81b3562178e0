"""Compares two runs row by row: how much slower or faster, how sure, and what differs between them besides."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.comparison import CLEAR_WITHOUT_INTERVAL, Comparison
from meshlab.benchmark.comparison_data import Side, differences, load_side, matching_keys
from meshlab.analysis.bootstrap import Estimate, estimate, log_ratio, student_quantile
from meshlab.errors import BenchError, MeshlabError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compare", "print_comparison"]

_CONFIDENCE = 0.95
_SIGNIFICANT = 0.05
_FEWEST_REPEATS = 3


def compare(before: Any, after: Any, *, effect: float = 0.05, anyway: bool = False, seed: int = 0) -> Comparison:
    """Compare two runs row by row.

    The interval of a ratio comes from the batches where there are any (block bootstrap, launches first), else from
    ``time_us_lo`` and ``time_us_hi``, else from at least three repeats of a row. Where there is none of these, only a
    ratio beyond 1.25 gets a verdict. The verdicts:

    - WRONG: the results are wrong after, whatever they were before.
    - SLOWER, FASTER: the ratio is beyond `effect`, and beyond the noise that was seen: among all rows that get these
      verdicts, one in twenty may be due to that noise, however many rows there are (Benjamini and Hochberg). With one
      launch on each side that is the noise within a launch; launches may differ by more, which only several show.
    - SAME: the ratio is within `effect`, and twice of `effect` lies outside the interval.
    - UNCLEAR: anything else; measure more.

    Times of wrong results are not compared. ``attrs`` of the results may have ``gpu``, ``library`` and ``environment``
    (a dict); they are shown where they differ.

    Parameters
    ----------
    before, after : DataFrame, pair of DataFrames, path, object with ``.results`` (and ``.samples``), or a list of these
        A list is a set of repeats with fresh launches.
    effect : float, default 0.05
        The relative difference that matters.
    anyway : bool, default False
        Compare across different GPUs, numbers of ranks, dtypes, modes and the like.
    seed : int, default 0
        Of the bootstrap.

    Returns
    -------
    Comparison

    Raises
    ------
    BenchError
        If the sides are not comparable and `anyway` is not given, or have no row in common.

    Examples
    --------
    >>> import pandas as pd
    >>> row = dict(collective="all_reduce", size_bytes=1024, time_us=10.0, time_us_lo=9.9, time_us_hi=10.1)
    >>> before = pd.DataFrame([row])
    >>> print(compare(before, before.assign(time_us=10.1)).headline)
    1 row compared: 1 the same.
    """
    return _compare(before, after, effect=effect, anyway=anyway, seed=seed, insist="pass anyway=True")


def _compare(before: Any, after: Any, *, effect: float, anyway: bool, seed: int, insist: str) -> Comparison:
    """`insist` is how whoever asks would insist."""
    if not 0 < effect < 1:
        raise BenchError(f"effect is a relative difference between 0 and 1, not {effect!r}")
    sides = load_side(before, "before"), load_side(after, "after")
    found = differences(*sides)
    blocking = [str(difference) for difference in found if difference.blocks]
    if blocking and not anyway:
        raise BenchError(
            f"not comparable: {'; '.join(blocking)}; {insist} to compare across this, by what both sides share"
        )
    keys = matching_keys(*sides, anyway=anyway)
    frame, n_common, only = _match(*sides, keys, seed)
    if not n_common or not len(frame):
        raise BenchError(f"no row before has a counterpart after: rows are matched by {', '.join(keys)}")
    labels = [side.label for side in sides]
    are_paths = all(isinstance(source, (str, os.PathLike)) for source in (before, after))
    if labels[0] == labels[1] and are_paths and before != after:
        labels = [os.fspath(before), os.fspath(after)]  # two folders may be called alike
    return Comparison(_judge(frame, effect), found, *only, effect, *labels)


def _match(before: Side, after: Side, keys: list[str], seed: int) -> tuple[pd.DataFrame, int, tuple[int, int]]:
    """One row per key that both sides have, how many these are, and how many keys only one side has.

    Wrong results after are in the frame even where nothing answers them before: nobody should have to look for them.
    """
    import pandas as pd

    old, new = before.groups(keys), after.groups(keys)
    rng = np.random.default_rng(seed)
    rows = []
    for key, places in new.items():
        were = key in old and bool(before.is_wrong[old[key]].any())
        are = bool(after.is_wrong[places].any())
        if key not in old and not are:
            continue
        first, second = _estimate(before, old.get(key, []), rng), _estimate(after, places, rng)
        if first is not None or second is not None or are:
            note = _note(first, second, were, are)
            known = {"is_wrong": are, "note": note}
            rows.append({**dict(zip(keys, key, strict=True)), **_ratio_of(first, second), **known})
    common = len(old.keys() & new.keys())
    frame = pd.DataFrame(rows)
    if len(frame):
        order = [name for name in ("collective", "axis", "group", "in_place", "size_bytes") if name in keys]
        frame = frame.sort_values(order, kind="stable", na_position="first", ignore_index=True)
    return frame, common, (len(old) - common, len(new) - common)


def _note(first: Estimate | None, second: Estimate | None, were: bool, are: bool) -> str:
    """Why a row has no ratio, or should not be trusted; empty for all others."""
    if are:
        return "results are wrong before and after" if were else "results are wrong after"
    if were:
        return "results were wrong before"
    return "no time before" if first is None else "no time after" if second is None else ""


def _estimate(side: Side, rows: list[int], rng: np.random.Generator) -> Estimate | None:
    """What a side says about one key; None without a usable time."""
    usable = [row for row in rows if side.time_us[row] > 0]
    if not usable:
        return None
    launches = side.launches(usable)
    if launches:
        return estimate(launches, rng)
    time, (low, high), n = side.time_us[usable], side.intervals_us[usable].T, len(usable)
    log_time = math.log(time.mean())
    spread = float(np.log(time).std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    if (low > 0).all() and (high >= low).all():
        reach = 2 * student_quantile(_CONFIDENCE, math.inf)
        within = float(np.sqrt(np.mean((np.log(high / low) / reach) ** 2) / n))
        return Estimate(log_time, max(spread, within, 1e-6), n - 1 if n > 1 else math.inf, n, "intervals", n)
    if n >= _FEWEST_REPEATS:
        return Estimate(log_time, max(spread, 1e-6), n - 1, n, "repeats", n)
    return Estimate(log_time, math.nan, math.inf, n, "single", n)


def _ratio_of(first: Estimate | None, second: Estimate | None) -> dict[str, Any]:
    """The ratio of two times with its interval."""
    known = {
        "before_us": math.nan if first is None else math.exp(first.log_time),
        "after_us": math.nan if second is None else math.exp(second.log_time),
        "ratio": math.nan,
        "ratio_lo": math.nan,
        "ratio_hi": math.nan,
        "p": math.nan,
        "basis": "",
    }
    if first is None or second is None:
        return known
    value, low, high, p = log_ratio(first, second, _CONFIDENCE)
    return known | {
        "ratio": math.exp(value),
        "ratio_lo": math.exp(low),
        "ratio_hi": math.exp(high),
        "p": p,
        "basis": _basis(first, second),
    }


def _basis(first: Estimate, second: Estimate) -> str:
    if "single" in (first.basis, second.basis):
        return "single"
    texts = dict.fromkeys(
        f"{e.basis}, {e.launches} {'launch' if e.launches == 1 else 'launches'}" if e.basis == "samples" else e.basis
        for e in (first, second)
    )
    return " / ".join(texts)


def _judge(frame: pd.DataFrame, effect: float) -> pd.DataFrame:
    """Add the verdicts; probabilities are corrected for the number of rows."""
    p = _correct(frame["p"].to_numpy(dtype=np.float64))
    ratio, low, high = (frame[name].to_numpy(dtype=np.float64) for name in ("ratio", "ratio_lo", "ratio_hi"))
    with np.errstate(invalid="ignore"):
        unknown = np.isnan(low)
        sure = np.where(unknown, np.maximum(ratio, 1 / ratio) >= CLEAR_WITHOUT_INTERVAL, p <= _SIGNIFICANT)
        slower, faster = ratio >= 1 + effect, ratio <= 1 / (1 + effect)
        same = ~slower & ~faster & (low > 1 / (1 + 2 * effect)) & (high < 1 + 2 * effect)
    usable = (frame["note"] == "").to_numpy()
    cases = [frame["is_wrong"].to_numpy(), usable & sure & slower, usable & sure & faster, usable & same]
    verdict = np.select(cases, ["WRONG", "SLOWER", "FASTER", "SAME"], "UNCLEAR")
    return frame.drop(columns="is_wrong").assign(p=p, verdict=verdict)


def _correct(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Benjamini and Hochberg: the i-th smallest of m probabilities times m / i, never above a later one."""
    adjusted = p.copy()
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known])]
    scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return adjusted


def print_comparison(
    before: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    after: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    threshold: float = 0.05,
    anyway: bool = False,
    file: TextIO | None = None,
) -> int:
    """Compare two files (or two lists of files) and print what was found; for the command line.

    Parameters
    ----------
    before, after : path or list of paths
        Folders of runs, frames that meshlab wrote (Parquet, CSV, JSON), or logs of nccl-tests (text or JSON).
    threshold : float, default 0.05
        From which slowdown on a row is a regression.
    anyway : bool, default False
        As in `compare`.
    file : text file, optional
        Where to print; by default to standard output, and what is refused to standard error.

    Returns
    -------
    int
        An exit code: 0 without regressions, 1 with rows that are slower or wrong, 2 when nothing could be compared.
    """
    refusals = file or sys.stderr
    try:
        if not threshold > 0:
            raise BenchError(f"the threshold {threshold:g} must be above 0: 0.05, or 5%, means 5 % slower")
        sides = [paths if isinstance(paths, (str, os.PathLike)) else list(paths) for paths in (before, after)]
        comparison = _compare(*sides, effect=min(threshold, 0.05), anyway=anyway, seed=0, insist="give --anyway")
    except (MeshlabError, OSError) as error:
        print(f"meshlab: {error}", file=refusals)
        return 2
    print(comparison, file=file)
    regressions = comparison.regressions(threshold)
    n_wrong = int((regressions["verdict"] == "WRONG").sum())
    n_slower = len(regressions) - n_wrong
    if n_wrong:
        print(f"{n_wrong} {'row is' if n_wrong == 1 else 'rows are'} wrong after", file=file)
    if n_slower:
        print(f"{n_slower} {'regression' if n_slower == 1 else 'regressions'} beyond {100 * threshold:g}%", file=file)
    return 1 if len(regressions) else 0
