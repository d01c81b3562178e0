"""Compares two runs row by row: how much slower or faster, how sure, and what differs between them besides."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis.bootstrap import Interval, estimate, log_ratio, student_quantile
from meshlab.errors import BenchError
from meshlab.frames.schema import STEP, is_plain
from meshlab.frames.store import as_frames
from meshlab.markup import card, escape, table
from meshlab.nccl_tests.reader import read as read_nccl_tests
from meshlab.units import format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = [
    "CLEAR_WITHOUT_INTERVAL",
    "KEYS",
    "Comparison",
    "Difference",
    "Side",
    "compare",
    "differences",
    "load_side",
    "matching_keys",
    "row_name",
    "telling_columns",
]


KEYS = (
    "collective",
    "op",
    "dtype",
    "root",
    "in_place",
    "mode",
    "axis",
    "group",
    "grouping",
    "concurrent_axis",
    "concurrent_collective",
    "src_rank",
    "dst_rank",
    "n_ranks",
    "size_bytes",
)
"""The columns in which two rows must agree to be compared."""

_COLUMN_WORDS = {
    "n_ranks": "ranks",
    "in_place": "in place",
    "size_bytes": "sizes",
    "concurrent_axis": "concurrent axis",
    "concurrent_collective": "concurrent collective",
    "src_rank": "source rank",
    "dst_rank": "destination rank",
}

_KINDS = {"nccl": "a GPU", "nccl-tests": "a GPU"}

_FEWEST_BATCHES = 6

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same on both sides.

    Parameters
    ----------
    what : str
        Such as GPU, library, mode, or the name of a variable.
    before, after : str
        What the sides say; ``"unknown"`` when a side does not.
    blocks : bool
        True if times must not be compared across it, except with ``anyway=True``.
    """

    what: str
    before: str
    after: str
    blocks: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.before} before, {self.after} after"


@dataclass(frozen=True)
class Side:
    """One side: its results, and the batches behind them where there are any."""

    results: pd.DataFrame
    batches: dict[tuple[Any, ...], Floats]
    label: str

    @cached_property
    def time_us(self) -> Floats:
        """Times that may be compared; NaN where there is none, and where the run failed or the result was wrong."""
        usable = ~self.results["status"].isin(["failed"]) & (self.results["time_us"] > 0) & ~self.is_wrong
        return self.results["time_us"].where(usable).to_numpy(dtype=np.float64)

    @cached_property
    def intervals_us(self) -> Floats:
        """Shape (rows, 2): both ends of the interval, NaN where there is none."""
        return self.results[["time_us_lo", "time_us_hi"]].to_numpy(dtype=np.float64)

    @cached_property
    def is_wrong(self) -> npt.NDArray[np.bool_]:
        """Whether the result of a row was wrong."""
        wrong = (self.results["status"] == "wrong").fillna(value=False) | self.results["n_wrong"].gt(0).fillna(False)
        return wrong.to_numpy(dtype=bool)

    @cached_property
    def steps(self) -> list[tuple[Any, ...]]:
        """The key of the samples of each row, see `STEP`."""
        return _tuples(self.results, STEP)

    def groups(self, keys: Sequence[str]) -> dict[tuple[Any, ...], list[int]]:
        """The rows that share a key."""
        rows: dict[tuple[Any, ...], list[int]] = {}
        for index, key in enumerate(_tuples(self.results, keys)):
            rows.setdefault(key, []).append(index)
        return rows

    def launches(self, rows: Sequence[int]) -> list[Floats]:
        """The times of the batches behind these rows, in order, the slowest rank of each: one series per launch."""
        found: dict[tuple[Any, ...], list[Floats]] = {}
        for row in rows:
            series = self.batches.get(self.steps[row])
            if series is not None and series.size >= _FEWEST_BATCHES and self.time_us[row] > 0:
                found.setdefault(self.steps[row][:2], []).append(series)
        return [np.concatenate(parts) for parts in found.values()]


def plain(value: Any) -> Any:
    """None for anything missing."""
    import pandas as pd

    return None if value is pd.NA or value is None or value != value else value


def _tuples(frame: pd.DataFrame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows as tuples of these columns, None for anything missing."""
    return list(zip(*([plain(value) for value in frame[name].tolist()] for name in names), strict=True))


def load_side(source: Any, label: str) -> Side:
    """Read one side of a comparison; see `compare` for what it takes."""
    results, samples, name = as_frames(source, read_other=read_nccl_tests)
    if not len(results):
        raise BenchError(f"{name or label} has no results to compare")
    return Side(results.reset_index(drop=True), _batches(samples), name or label)


def _batches(samples: pd.DataFrame) -> dict[tuple[Any, ...], Floats]:
    """For each step and group, the time of every batch that counts: the slowest rank."""
    if not len(samples):
        return {}
    good = ~samples["is_warmup"].fillna(value=False).astype(bool) & (samples["status"].fillna("ok") == "ok")
    slowest = (
        samples[good & samples["time_us"].notna()]
        .groupby([*STEP, "batch"], dropna=False, sort=True)["time_us"]
        .max()
        .reset_index()
    )
    number = slowest.groupby(list(STEP), dropna=False, sort=False).ngroup().to_numpy()
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    series = np.split(slowest["time_us"].to_numpy(dtype=np.float64), starts[1:])
    return dict(zip(_tuples(slowest.iloc[starts], STEP), series, strict=True))


def differences(before: Side, after: Side) -> tuple[Difference, ...]:
    """How two sides differ, what blocks a comparison first."""
    found = [
        difference
        for what, name in (("GPU", "gpu"), ("library", "library"))
        if (difference := _attr_difference(what, *(side.results.attrs.get(name) for side in (before, after))))
    ]
    found += _source_difference(before, after)
    found += [difference for name in KEYS if (difference := _column_difference(name, before, after))]
    old, new = (side.results.attrs.get("environment") or {} for side in (before, after))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            found.append(Difference(name, str(old.get(name, "not seen")), str(new.get(name, "not seen")), blocks=False))
    return tuple(sorted(found, key=lambda difference: not difference.blocks))


def _attr_difference(what: str, old: Any, new: Any) -> Difference | None:
    if not (old or new) or old == new:
        return None
    return Difference(what, str(old or "unknown"), str(new or "unknown"), what == "GPU" and bool(old and new))


def _source_difference(before: Side, after: Side) -> list[Difference]:
    old, new = ({str(value) for value in side.results["source"].dropna()} for side in (before, after))
    if old == new or not old or not new:
        return []
    blocks = {_KINDS.get(name, name) for name in old} != {_KINDS.get(name, name) for name in new}
    return [Difference("source", ", ".join(sorted(old)), ", ".join(sorted(new)), blocks)]


def _column_difference(name: str, before: Side, after: Side) -> Difference | None:
    old, new = (set(side.results[name].dropna().unique().tolist()) for side in (before, after))
    if old == new or (name == "size_bytes" and old & new):
        return None
    unknown = name != "collective" and not (old and new)
    if unknown and name not in ("mode", "n_ranks", "dtype"):
        return None
    before_text, after_text = (", ".join(map(str, sorted(values))) or "unknown" for values in (old, new))
    return Difference(_COLUMN_WORDS.get(name, name), before_text, after_text, blocks=not old & new and not unknown)


def matching_keys(before: Side, after: Side, *, anyway: bool) -> list[str]:
    """The columns by which rows are matched: those that both sides know, and that have a value in common.

    With `anyway`, columns without a common value are left out, except the collective and the size.
    """
    keys = []
    for name in KEYS:
        old, new = (set(side.results[name].dropna().unique().tolist()) for side in (before, after))
        known = bool(old) and bool(new)
        if name in ("collective", "size_bytes") or (known and (old & new or not anyway)):
            keys.append(name)
    return keys


CLEAR_WITHOUT_INTERVAL = 1.25
"""Below this, one single reading per side proves nothing: small messages vary that much from run to run."""

_SIGNS = {"WRONG": "✕", "SLOWER": "▲", "FASTER": "▼", "SAME": "=", "UNCLEAR": "?"}

_WORDS = {"WRONG": "WRONG", "SLOWER": "slower", "FASTER": "faster", "SAME": "the same", "UNCLEAR": "unclear"}

_ORDER = ("WRONG", "SLOWER", "FASTER", "UNCLEAR", "SAME")

# The group before the axis, because its name mostly includes that of the axis.
_TELLING = (
    "collective",
    "op",
    "dtype",
    "root",
    "mode",
    "src_rank",
    "dst_rank",
    "group",
    "axis",
    "grouping",
    "concurrent_axis",
    "concurrent_collective",
    "n_ranks",
    "in_place",
)

_MOST_NAMED = 3


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Parameters
    ----------
    rows : pandas.DataFrame
        One row per pair of rows, with the columns that they were matched by and

        - before_us, after_us: the times; ratio: after / before, above 1 is slower; ratio_lo, ratio_hi: its 95 %
          interval, missing when nothing is known about the noise;
        - p: probability of such a ratio by chance, corrected for the number of rows (Benjamini and Hochberg);
        - verdict: WRONG, SLOWER, FASTER, SAME or UNCLEAR; basis: what the interval rests on;
        - note: why there is no ratio.
    differences : tuple of Difference
        What is not the same on both sides.
    only_before, only_after : int
        Rows that have no counterpart.
    effect : float
        The relative difference from which on a difference matters.
    before, after : str
        The names of the sides.
    """

    rows: pd.DataFrame = field(repr=False)
    differences: tuple[Difference, ...]
    only_before: int
    only_after: int
    effect: float
    before: str
    after: str

    def frame(self) -> pd.DataFrame:
        """Return the comparison as a frame, with the columns of `rows`."""
        return self.rows.copy()

    def plot(self, **options: Any) -> Axes:
        """Draw the ratios over message size; see `meshlab.plots.comparison`, which takes the options."""
        from meshlab.plots.ratios import comparison

        return comparison(self, **options)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows got each verdict."""
        return {verdict: int((self.rows["verdict"] == verdict).sum()) for verdict in _ORDER}

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        counts, n = self.counts, len(self.rows)
        parts = [f"{counts[verdict]} {_WORDS[verdict]}" for verdict in _ORDER if counts[verdict]]
        sentence = f"{n} {'row' if n == 1 else 'rows'} compared: {', '.join(parts)}"
        telling = telling_columns(self.rows)
        wrong = self.rows[self.rows["verdict"] == "WRONG"]
        if len(wrong):
            named = [row_name(row, telling) for _, row in wrong.head(_MOST_NAMED).iterrows()]
            more = f" and {len(wrong) - len(named)} more" if len(wrong) > len(named) else ""
            sentence += f". Wrong: {', '.join(named)}{more}"
        for verdict, pick, extreme in (("SLOWER", "idxmax", "Slowest"), ("FASTER", "idxmin", "Fastest")):
            rows = self.rows[self.rows["verdict"] == verdict]
            if len(rows):
                row = rows.loc[getattr(rows["ratio"], pick)()]
                return f"{sentence}. {extreme}: {row_name(row, telling)}, {_ratio(row)}."
        return f"{sentence}."

    def regressions(self, threshold: float = 0.05) -> pd.DataFrame:
        """Rows that are slower by more than `threshold` and surely so, and rows whose results are wrong after.

        Examples
        --------
        >>> import pandas as pd
        >>> from meshlab.analysis.comparison import compare
        >>> row = dict(collective="all_reduce", size_bytes=1024, time_us=10.0, time_us_lo=9.9, time_us_hi=10.1)
        >>> before = pd.DataFrame([row])
        >>> after = before.assign(time_us=12.0, time_us_lo=11.9, time_us_hi=12.1)
        >>> compare(before, after).regressions(0.1)[["size_bytes", "verdict"]]
           size_bytes verdict
        0        1024  SLOWER
        """
        slower = (self.rows["verdict"] == "SLOWER") & (self.rows["ratio"] >= 1 + threshold)
        return self.rows[slower | (self.rows["verdict"] == "WRONG")]

    def _notes(self) -> list[str]:
        notes = []
        for n, side in ((self.only_before, "before"), (self.only_after, "after")):
            if n:
                notes.append(f"{n} {'row' if n == 1 else 'rows'} only {side}")
        if (self.rows["basis"] == "single").any():
            notes.append(
                f"single values have no interval: below {CLEAR_WITHOUT_INTERVAL:g}× they are unclear; repeat the runs"
            )
        if self.rows["basis"].str.contains("1 launch").any():
            notes.append("one launch cannot show how much launches differ")
        return notes

    def __repr__(self) -> str:
        return "\n".join([f"<Comparison of {self.before} with {self.after}>", *self._lines()])

    def __str__(self) -> str:
        named = (("before", self.before), ("after", self.after))
        sides = [name if name == side else f"{name} ({side})" for side, name in named]
        return "\n".join([" → ".join(sides), *self._lines()])

    def _lines(self) -> list[str]:
        lines = [self.headline]
        lines += [f"  {'!' if difference.blocks else '·'} {difference}" for difference in self.differences]
        lines += [f"  · {note}" for note in self._notes()]
        rows, telling = _by_interest(self.rows), telling_columns(self.rows)
        for _, row in rows.head(20).iterrows():
            time = f"{format_time_us(row['before_us'])} → {format_time_us(row['after_us'])}"
            name = row_name(row, telling)
            lines.append(f"  {_SIGNS[row['verdict']]} {row['verdict']:<7} {name}: {time}, {_ratio(row)}")
        if len(rows) > 20:
            lines.append(f"  … {len(rows) - 20} more rows in .frame()")
        return lines

    def _repr_html_(self) -> str:
        parts = []
        if self.differences:
            rows = [
                (difference.what, difference.before, difference.after, "not comparable" if difference.blocks else "")
                for difference in self.differences
            ]
            parts.append(table(["differs", "before", "after", ""], rows))
        telling = telling_columns(self.rows)
        header = ["", "verdict", "row", "before", "after", "after / before", "95 % interval", "rests on"]
        parts.append(
            table(
                header,
                [
                    (
                        _SIGNS[row["verdict"]],
                        row["verdict"],
                        row_name(row, telling),
                        format_time_us(row["before_us"]),
                        format_time_us(row["after_us"]),
                        "–" if math.isnan(row["ratio"]) else f"{row['ratio']:.3g}×",
                        _interval(row) or "–",
                        row["note"] or {"single": "single values"}.get(row["basis"], row["basis"]),
                    )
                    for _, row in _by_interest(self.rows).iterrows()
                ],
            )
        )
        parts += [f'<div class="ml-sub">{escape(note)}</div>' for note in self._notes()]
        subtitle = f"{self.before} → {self.after}; a difference below {self.effect:.0%} does not matter"
        return card(self.headline, subtitle, *parts)


def _by_interest(frame: pd.DataFrame) -> pd.DataFrame:
    rank = frame["verdict"].map({verdict: index for index, verdict in enumerate(_ORDER)})
    far = -np.abs(np.log(frame["ratio"].fillna(1.0)))
    return (
        frame.assign(_rank=rank, _far=far).sort_values(["_rank", "_far"], kind="stable").drop(columns=["_rank", "_far"])
    )


def telling_columns(frame: pd.DataFrame) -> list[str]:
    """The first few columns that tell apart, but for the size, all rows that can be told apart.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [("all_reduce", "sum", "tp_0"), ("all_gather", None, "tp_0"), ("all_gather", None, "dp_0")]
    >>> telling_columns(pd.DataFrame(rows, columns=["collective", "op", "group"]))
    ['collective', 'group']
    """
    telling: list[str] = []
    distinct = 1
    for name in _TELLING:
        if name not in frame:
            continue
        found = len(frame[[*telling, name]].drop_duplicates())
        if found > distinct:
            telling.append(name)
            distinct = found
    return telling


def row_name(row: Any, telling: Sequence[str], *, is_line: bool = False) -> str:
    """Name a row by what it is and what varies, as `telling_columns` says; a line of many sizes by what varies only."""
    parts = []
    for name in _TELLING:
        value = plain(row.get(name))
        if name == "collective" and not is_line:
            parts.append(str(value or "unknown"))
            size = plain(row.get("size_bytes"))
            parts += [] if size is None else [format_size(size)]  # a function has none
        elif name == "src_rank" and value is not None:
            parts.append(f"{value:g}→{plain(row.get('dst_rank')):g}")
        elif name in telling and value is not None and name != "dst_rank":
            parts.append(_say(name, value))
    return " ".join(parts)


def _say(name: str, value: Any) -> str:
    match name:
        case "in_place":
            return "in place" if value else "out of place"
        case "n_ranks":
            return f"{value:g} ranks"
        case "root":
            return f"root {value:g}"
        case "concurrent_axis":
            return f"while {value} is busy"
        case "concurrent_collective":
            return f"with {value}"
    return str(value)


def _ratio(row: Any) -> str:
    if math.isnan(row["ratio"]):
        return str(row["note"] or "no ratio")
    interval = _interval(row)
    return f"{row['ratio']:.3g}×" + (f" ({interval})" if interval else " (no interval)")


def _interval(row: Any) -> str:
    return "" if math.isnan(row["ratio_lo"]) else f"{row['ratio_lo']:.3g} to {row['ratio_hi']:.3g}"


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
    if not 0 < effect < 1:
        raise BenchError(f"effect is a relative difference between 0 and 1, not {effect!r}")
    sides = _with_same_loads(load_side(before, "before"), load_side(after, "after"))
    found = differences(*sides)
    blocking = [str(difference) for difference in found if difference.blocks]
    if blocking and not anyway:
        raise BenchError(
            f"not comparable: {'; '.join(blocking)}",
            hint="pass anyway=True to compare across this, by what both sides share",
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


def _with_same_loads(before: Side, after: Side) -> tuple[Side, Side]:
    """Keep only plain rows if one side does not record the load, as logs of nccl-tests do not."""
    if before.results["grouping"].notna().any() and after.results["grouping"].notna().any():
        return before, after

    def plain_side(side: Side) -> Side:
        rows = is_plain(side.results)
        if rows.all() or not rows.any():
            return side
        return replace(side, results=side.results[rows].reset_index(drop=True))

    return plain_side(before), plain_side(after)


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


def _note(first: Interval | None, second: Interval | None, were: bool, are: bool) -> str:
    """Why a row has no ratio, or should not be trusted; empty for all others."""
    if are:
        return "results are wrong before and after" if were else "results are wrong after"
    if were:
        return "results were wrong before"
    return "no time before" if first is None else "no time after" if second is None else ""


def _estimate(side: Side, rows: list[int], rng: np.random.Generator) -> Interval | None:
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
        return Interval(log_time, max(spread, within, 1e-6), n - 1 if n > 1 else math.inf, n, "intervals", n)
    if n >= _FEWEST_REPEATS:
        return Interval(log_time, max(spread, 1e-6), n - 1, n, "repeats", n)
    return Interval(log_time, math.nan, math.inf, n, "single", n)


def _ratio_of(first: Interval | None, second: Interval | None) -> dict[str, Any]:
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


def _basis(first: Interval, second: Interval) -> str:
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
