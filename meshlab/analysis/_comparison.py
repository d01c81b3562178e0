"""Comparison of two runs, row by row: ratios of times with intervals, verdicts, and other differences of the runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._launches import LaunchTimes, Ratio, ratio_of
from meshlab.analysis._sides import Difference, Side, differences, load_side, matching_keys
from meshlab.base._errors import BenchError
from meshlab.base._files import is_folder
from meshlab.base._forwarding import implementation
from meshlab.base._hints import Argument, Hint
from meshlab.base._markup import card, escape, table
from meshlab.base._outcome import Outcome
from meshlab.base._units import THIN, format_number, format_size, format_time_us
from meshlab.frames._labels import pair_label
from meshlab.frames._schema import LOAD, PAIR, is_plain, plain_value
from meshlab.plans._options import OPTIONS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.runs._redact import Redactor

_OTHER_RUN = 2.0  # median ratio of the slowest to the fastest run of a file, from which on they are no repeats

_SIGNS = {"WRONG": "✕", "SLOWER": "▲", "FASTER": "▼", "SAME": "=", "UNCLEAR": "?"}

_WORDS = {"WRONG": "WRONG", "SLOWER": "slower", "FASTER": "faster", "SAME": "the same", "UNCLEAR": "unclear"}

_ORDER = ("WRONG", "SLOWER", "FASTER", "UNCLEAR", "SAME")

# The columns that may appear in the name of a row, in this order. The group comes before the axis, because its name
# usually contains that of the axis.
_NAMING = ("collective", "op", "dtype", "root", "mode", *OPTIONS, *PAIR, "group", "axis", *LOAD, "n_ranks", "in_place")

_MOST_NAMED = 3

ONE_LAUNCH = (
    "one launch per side does not show how much launches differ, so no row has a verdict on its time; measure three "
    "launches of each (launches=3), or pass lists of runs"
)


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Parameters
    ----------
    rows : pandas.DataFrame
        One row per pair of matching rows, with the columns by which they were matched, and these columns:

        - ``before_us``, ``after_us``: the times, in µs.
        - ``ratio``: after / before, so that a ratio above 1 is slower.
        - ``ratio_lo``, ``ratio_hi``: the 95 % interval of the ratio, NaN with one launch per side.
        - ``p``: the probability of such a ratio by chance, adjusted for the number of rows (Benjamini and Hochberg).
        - ``detectable``: the smallest slowdown that the launches would show in 9 of 10 comparisons of such a row.
        - ``launches_before``, ``launches_after``: the numbers of launches.
        - ``verdict``: WRONG, SLOWER, FASTER, SAME or UNCLEAR.
        - ``note``: the reason why there is no ratio, or no verdict.
    differences : tuple of Difference
        Properties that differ between the sides.
    only_before, only_after : int
        Number of rows without a counterpart on the other side.
    effect : float
        The smallest relevant relative difference.
    before, after : str
        Names of the sides.
    oversubscribed : str, default ""
        A clause such as "4 ranks share 2 cores", if ranks waited for each other's cores on one of the sides. Times then
        depend on the scheduler of the operating system.
    """

    rows: pd.DataFrame = field(repr=False)
    differences: tuple[Difference, ...]
    only_before: int
    only_after: int
    effect: float
    before: str
    after: str
    oversubscribed: str = ""

    def frame(self) -> pd.DataFrame:
        """Return the comparison as a frame, with the columns of `rows`.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.compare(ml.example(), ml.example()).frame()[["verdict", "note"]].value_counts().to_dict()
        {('UNCLEAR', 'one launch'): 168}
        """
        return self.rows.copy()

    def plot(self, **options: Any) -> Axes:
        """Draw the ratios against message size. See `meshlab.plots.comparison`, which documents the options."""
        return implementation(Comparison.plot)(self, **options)

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows with each verdict."""
        return {verdict: int((self.rows["verdict"] == verdict).sum()) for verdict in _ORDER}

    @property
    def headline(self) -> str:
        """A summary: the number of rows with each verdict, and the most extreme row."""
        counts, n = self.counts, len(self.rows)
        parts = [f"{counts[verdict]} {_WORDS[verdict]}" for verdict in _ORDER if counts[verdict]]
        sentence = f"{n} {'row' if n == 1 else 'rows'} compared: {', '.join(parts)}"
        columns = distinguishing_columns(self.rows)
        wrong = self.rows[self.rows["verdict"] == "WRONG"]
        if len(wrong):
            named = [row_name(row, columns) for _, row in wrong.head(_MOST_NAMED).iterrows()]
            more = f" and {len(wrong) - len(named)} more" if len(wrong) > len(named) else ""
            sentence += f". Wrong: {', '.join(named)}{more}"
        for verdict, pick, extreme in (("SLOWER", "idxmax", "Slowest"), ("FASTER", "idxmin", "Fastest")):
            rows = self.rows[self.rows["verdict"] == verdict]
            if len(rows):
                row = rows.loc[getattr(rows["ratio"], pick)()]
                return f"{sentence}. {extreme}: {row_name(row, columns)}, {ratio_text(row)}."
        return f"{sentence}{self._reason_unclear()}."

    def _reason_unclear(self) -> str:
        """Return a clause about rows that are unclear because each side has one launch."""
        # One launch of each side gives no verdict, but a factor of seven on all rows is worth a sentence.
        single = self.rows[(self.rows["launches_before"] == 1) & (self.rows["launches_after"] == 1)]
        if not len(single) or len(single) != self.counts["UNCLEAR"]:
            return ""
        low, high = single["ratio"].min(), single["ratio"].max()
        if not (low > 1 + self.effect or high < 1 - self.effect):
            return ""
        span = f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"
        what = "all of them take" if len(single) > 1 else "it takes"
        return f", because each side has one launch; {what} {span} times as long after as before"

    @property
    def outcome(self) -> Outcome:
        """``"failed"`` if a row is wrong or slower, and ``"passed"`` if every row is as fast as before, or faster.

        Otherwise ``"not decided"``: a row is unclear or has no counterpart, the sides are not comparable, or their
        ranks shared cores, unless the sides took turns on them.
        """
        if (self.rows["verdict"] == "WRONG").any():
            return "failed"
        if self._sharing_favours_a_side or not len(self.rows):
            return "not decided"
        if (self.rows["verdict"] == "SLOWER").any():  # beyond the effect, which may be smaller than that of regressions
            return "failed"
        is_open = self.only_before or any(difference.blocks for difference in self.differences)
        return "passed" if not is_open and self.rows["verdict"].isin(["SAME", "FASTER"]).all() else "not decided"

    @property
    def _sharing_favours_a_side(self) -> bool:
        """True if shared cores may explain the difference of the sides."""
        return bool(self.oversubscribed)

    def regressions(self, threshold: float = 0.05) -> pd.DataFrame:
        """Return the rows that became slower or wrong.

        Parameters
        ----------
        threshold : float, default 0.05
            Smallest relative slowdown of a row.

        Returns
        -------
        pandas.DataFrame
            The rows with the verdict SLOWER and a ratio of at least 1 + `threshold`, and the rows with the verdict
            WRONG, with the columns of `rows`.

        Examples
        --------
        >>> import meshlab as ml
        >>> import pandas as pd
        >>> rows = dict(collective="all_reduce", size_bytes=1024, launch=[0, 1, 2], time_us=[10.0, 10.1, 9.9])
        >>> before = pd.DataFrame(rows)
        >>> after = before.assign(time_us=[12.0, 12.1, 11.8])
        >>> ml.compare(before, after).regressions(0.1)[["size_bytes", "verdict"]]
           size_bytes verdict
        0        1024  SLOWER
        """
        slower = (self.rows["verdict"] == "SLOWER") & (self.rows["ratio"] >= 1 + threshold)
        return self.rows[slower | (self.rows["verdict"] == "WRONG")]

    @property
    def notes(self) -> list[str]:
        """Sentences about the rows: those without a counterpart, the number of launches, and shared cores."""
        notes: list[str] = []
        for n, side, other in ((self.only_before, "before", "after"), (self.only_after, "after", "before")):
            if n:
                notes.append(f"{n} {'row' if n == 1 else 'rows'} of {side!r} without a counterpart in {other!r}")
        notes += self._evidence_notes()
        if self.oversubscribed:
            notes.append(self._sharing_note())
        return notes

    @property
    def reservation(self) -> str:
        """A short form of the note on shared cores, for the title of a figure. Empty if none were shared."""
        return f"{self.oversubscribed}, so times also depend on the scheduler" if self.oversubscribed else ""

    @property
    def needs_launches(self) -> bool:
        """True if each side has one launch, so that no row has a verdict on its time."""
        counts = self.rows[["launches_before", "launches_after"]]
        counts = counts[counts.min(axis=1) > 0]
        return bool(len(counts)) and bool((counts.sum(axis=1) <= 2).all())

    def _evidence_notes(self) -> list[str]:
        """Return sentences about the number of launches."""
        notes = []
        launches = self.rows[["launches_before", "launches_after"]]
        if len(launches) and (launches.min(axis=1) > 0).any():
            counts = launches[launches.min(axis=1) > 0]
            if self.needs_launches:
                notes.append(ONE_LAUNCH)
            elif (detectable := self.rows["detectable"].median()) == detectable:  # not NaN
                n_launches = " and ".join(dict.fromkeys(f"{int(count)}" for count in counts.median()))
                notes.append(
                    f"{n_launches} launches per side, which differ so much that a row must take "
                    f"{detectable:.2f}× as long to be detected in 9 of 10 comparisons (median of all rows)"
                )
        return notes

    def _sharing_note(self) -> str:
        return f"{self.oversubscribed}, so times also depend on the scheduler and on other programs"

    def _ratio_text(self, row: Any) -> str:
        return f"{format_time_us(row['before_us'])} → {format_time_us(row['after_us'])}, {ratio_text(row)}"

    def _evidence(self, row: Any) -> str:
        return f"{row['launches_before']} and {row['launches_after']} launches"

    def __repr__(self) -> str:
        title = f"<{type(self).__name__} of {self.before} with {self.after}; next: .frame(), .plot()>"
        return "\n".join([title, *self._lines()])

    def __str__(self) -> str:
        named = (("before", self.before), ("after", self.after))
        sides = [name if name == side else f"{name} ({side})" for side, name in named]
        return "\n".join([" → ".join(sides), *self._lines()])

    def _lines(self) -> list[str]:
        lines = [self.headline]
        lines += [f"  {'!' if difference.blocks else '·'} {difference}" for difference in self.differences]
        lines += [f"  · {note}" for note in self.notes]
        rows, columns = rows_by_interest(self.rows), distinguishing_columns(self.rows)
        for _, row in rows.head(20).iterrows():
            lines.append(
                f"  {_SIGNS[row['verdict']]} {row['verdict']:<7} {row_name(row, columns)}: {self._ratio_text(row)}"
            )
        if len(rows) > 20:
            lines.append(f"  … {len(rows) - 20} more rows")
        return lines

    def table(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Return the header and the rows of a table for people, the most interesting rows first.

        Examples
        --------
        >>> import meshlab as ml
        >>> header, rows = ml.compare(ml.example(), ml.example()).table()
        >>> header[:6], len(rows)
        (['', 'verdict', 'row', 'before', 'after', 'after / before'], 168)
        """
        columns = distinguishing_columns(self.rows)
        header = ["", "verdict", "row", "before", "after", "after / before", "95 % interval", ""]
        rows: list[tuple[str, ...]] = [
            (
                _SIGNS[row["verdict"]],
                row["verdict"],
                row_name(row, columns),
                format_time_us(row["before_us"]),
                format_time_us(row["after_us"]),
                "–" if math.isnan(row["ratio"]) else _factor_text(row["ratio"]),
                _interval(row) or "–",
                row["note"] or self._evidence(row),
            )
            for _, row in rows_by_interest(self.rows).iterrows()
        ]
        return header, rows

    def _repr_html_(self) -> str:
        parts = []
        if self.differences:
            rows = [
                (difference.what, difference.before, difference.after, "not comparable" if difference.blocks else "")
                for difference in self.differences
            ]
            parts.append(table(["difference", "before", "after", ""], rows))
        parts.append(table(*self.table()))
        parts += [f'<div class="ml-sub">{escape(note)}</div>' for note in self.notes]
        subtitle = f"{self.before} → {self.after} · smallest relevant difference {self.effect:.0%}"
        return card(self.headline, subtitle, *parts)


def rows_by_interest(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows by verdict, and then by their relative difference, the largest first."""
    rank = frame["verdict"].map({verdict: index for index, verdict in enumerate(_ORDER)})
    far = -np.abs(np.log(frame["ratio"].fillna(1.0)))
    return (
        frame.assign(_rank=rank, _far=far).sort_values(["_rank", "_far"], kind="stable").drop(columns=["_rank", "_far"])
    )


def distinguishing_columns(frame: pd.DataFrame) -> list[str]:
    """Return the columns that are needed in the names of rows, in addition to the size, to make the names unique."""
    # Greedy: a column is added if it distinguishes more rows than the columns before it.
    columns: list[str] = []
    distinct = 1
    for name in _NAMING:
        if name not in frame:
            continue
        n_combinations = len(frame[[*columns, name]].drop_duplicates())
        if n_combinations > distinct:
            columns.append(name)
            distinct = n_combinations
    return columns


def row_name(row: Any, columns: Sequence[str], *, is_line: bool = False) -> str:
    """Return the collective, the size and the distinguishing values of a row. A line of a plot has only the last."""
    parts = []
    for name in _NAMING:
        value = plain_value(row.get(name))
        if name == "collective" and not is_line:
            parts.append(str(value or "unknown"))
            size = plain_value(row.get("size_bytes"))
            parts += [] if size is None else [format_size(size)]  # a function has none
        elif name == "src_rank" and value is not None:
            parts.append(pair_label(str(row.get("collective")), int(value), int(row["dst_rank"])))
        elif name == "concurrent_axis" and name in columns and value is not None:
            parts.append(f"while {value} runs {row.get('concurrent_collective')}")
        elif name == "concurrent_collective" and "concurrent_axis" in columns:
            continue  # named together with its axis
        elif name in columns and value is not None and name not in ("dst_rank", "concurrent_axis"):
            parts.append(_value_text(name, value))
    return " ".join(parts)


def _value_text(name: str, value: Any) -> str:
    match name:
        case "in_place":
            return "in place" if value else "out of place"
        case "n_ranks":
            return f"{value:g} ranks"
        case "root":
            return f"root {value:g}"
        case "concurrent_collective":
            return f"with {value}"
    return str(value)


def ratio_text(row: Any) -> str:
    if math.isnan(row["ratio"]):
        return str(row["note"] or "no ratio")
    interval = _interval(row)
    return _factor_text(row["ratio"]) + (f" ({interval})" if interval else " (no interval)")


def change_text(ratio: float) -> str:
    """Return a ratio of times in words, such as "7 % more time" or "1,200 times faster"."""
    if not math.isfinite(ratio) or ratio <= 0:
        return "–"
    word, factor = ("slower", ratio) if ratio > 1 else ("faster", 1 / ratio)
    if factor < 1.005:
        return "as fast"
    if factor < 2:
        return f"{100 * abs(ratio - 1):.0f}{THIN}% {'more' if ratio > 1 else 'less'} time"
    return f"{float(f'{factor:.2g}'):,.{0 if factor >= 10 else 1}f} times {word}"


_EXTREME = 10.0  # from which on a factor is easier to read in words


def _factor_text(ratio: float) -> str:
    is_extreme = ratio > 0 and max(ratio, 1 / ratio) >= _EXTREME
    return change_text(ratio) if is_extreme else f"{format_number(ratio)}×"


def _interval(row: Any) -> str:
    if math.isnan(row["ratio_lo"]):
        return ""
    return f"{format_number(row['ratio_lo'])} to {format_number(row['ratio_hi'])}"


_SIGNIFICANT = 0.05


def compare(before: Any, after: Any, *, effect: float = 0.05, anyway: bool = False, redact: bool = False) -> Comparison:
    """Compare two runs row by row.

    Rows are matched by the columns that describe a measurement, from the collective to the message size. The interval
    of a ratio comes from the variation between launches, by Student's t-test on the logarithms of the median times. A
    launch is a set of processes: pass ``launches=3`` to `bench`, or lists of runs. The verdicts:

    - WRONG: the results are wrong after, regardless of before.
    - SLOWER, FASTER: the ratio is beyond `effect`, and significant. Among all rows with these verdicts, the expected
      share of false ones is at most 5 %, regardless of the number of rows (Benjamini and Hochberg).
    - SAME: the ratio is within `effect`, and its interval is within twice `effect`.
    - UNCLEAR: all other rows, and every row with one launch on each side. More launches may decide them.

    Times of wrong results are not compared. If ``attrs`` of the results contain ``gpu``, ``library`` or
    ``environment`` (a dict), their differences are reported.

    Parameters
    ----------
    before, after : RunData, DataFrame, pair of DataFrames, path, object with ``.results``, or a list of these
        The two sides: runs, results frames, pairs (results, samples), the folder of a run, a file of results (Parquet,
        CSV or JSON), or a log of nccl-tests. The items of a list are further launches.
    effect : float, default 0.05
        The smallest relevant relative difference.
    anyway : bool, default False
        If True, compare across different GPUs, numbers of ranks, element types, modes and other differences.
    redact : bool, default False
        If True, show hashes instead of names, addresses and secrets, see `RunData.redacted`.

    Returns
    -------
    Comparison
        The ratios and verdicts, and the other differences of the two sides.

    Raises
    ------
    BenchError
        If the sides are not comparable, and `anyway` is False.
        If no row of one side matches a row of the other.
        If a side has no results.
    ParseError
        If a file is corrupt.

    Examples
    --------
    >>> import meshlab as ml
    >>> import pandas as pd
    >>> rows = dict(collective="all_reduce", size_bytes=1024, launch=[0, 1, 2], time_us=[10.0, 10.1, 9.9])
    >>> before = pd.DataFrame(rows)
    >>> print(ml.compare(before, before.assign(time_us=[12.0, 12.1, 11.8])).headline)
    1 row compared: 1 slower. Slowest: all_reduce 1 KiB, 1.20× (1.17 to 1.23).
    >>> print(ml.compare(before[:1], before[1:2]).headline)
    1 row compared: 1 unclear.
    """
    if not isinstance(effect, (int, float, np.number)) or not 0 < effect < 1:
        raise BenchError(f"effect must be a relative difference between 0 and 1, not {effect!r}")
    sides = _with_same_loads(load_side(before, "before"), load_side(after, "after"))
    redactor = _redactor_of((before, after), sides) if redact else None
    if redactor is not None:
        sides = _redacted(sides[0], redactor), _redacted(sides[1], redactor)
    different = differences(*sides)
    blocking = [str(difference) for difference in different if difference.blocks]
    if blocking and not anyway:
        raise BenchError(
            f"not comparable: {'; '.join(blocking)}",
            hint=Hint("pass {} to compare the rows by the columns that both sides share", Argument("anyway", True)),
        )
    keys = matching_keys(*sides, anyway=anyway)
    if not anyway:
        for side in sides:
            _check_repeats(side, keys)
    frame, n_common, only = _match(*sides, keys)
    if not n_common or not len(frame):
        raise BenchError(f"no row of 'before' has a counterpart in 'after'; rows are matched by {', '.join(keys)}")
    labels = [side.label for side in sides]
    are_paths = all(isinstance(source, (str, os.PathLike)) for source in (before, after))
    if labels[0] == labels[1] and are_paths and before != after:
        labels = [os.fspath(before), os.fspath(after)]  # two files with the same name
        if redactor is not None:
            labels = [redactor.text(label) for label in labels]
    shared = dict.fromkeys(side.oversubscribed for side in sides if side.oversubscribed)
    return Comparison(judge(frame, effect), different, *only, effect, labels[0], labels[1], " and ".join(shared))


def _redactor_of(sources: Sequence[Any], sides: Sequence[Side]) -> Redactor:
    """Return a redactor that has learned the names in both sides, and those that only their runs record."""
    from meshlab.runs._redact import redactor_of
    from meshlab.runs._rundata import RunData
    from meshlab.runs._store import load, to_document

    parts = [part for source in sources for part in (source if isinstance(source, list) else [source])]
    sources = [load(Path(part)) if isinstance(part, (str, os.PathLike)) and is_folder(part) else part for part in parts]
    runs = [source for source in sources if isinstance(source, RunData)]
    hosts = [host for run in runs for host in (*run.hosts, run.environment.get("Host", {}).get("name", ""))]
    owners = [{"user": run.user} for run in runs]
    contents = [(side.results, side.label) for side in sides]
    mesh = runs[0].mesh if runs else None
    return redactor_of(None, contents, owners, *map(to_document, runs), hosts=hosts, mesh=mesh)


def _redacted(side: Side, redactor: Redactor) -> Side:
    # Rows are matched by the names of axes and groups, which stay as they are.
    return Side(redactor.frame(side.results, {}), redactor.text(side.label))


def _check_repeats(side: Side, keys: Sequence[str]) -> None:
    """Raise if a log has several runs whose times differ so much that they cannot repeat one measurement."""
    if "file" not in side.results.attrs or side.results["run_id"].nunique() < 2:
        return
    spreads = []
    for rows in side.groups(keys).values():
        times = side.times(rows)
        if times is not None and times.n > 1:
            spreads.append(math.exp(float(np.ptp(times.log_times))))
    if spreads and float(np.median(spreads)) >= _OTHER_RUN:
        raise BenchError(
            f"{side.label} has {side.results['run_id'].nunique()} runs whose times differ by a factor of up to "
            f"{max(spreads):.1f}, so they do not repeat one measurement",
            hint=Hint(
                "compare two of its sections, as in compare(log.sections[0], log.sections[1]), or pass {} to take them "
                "as repeats",
                Argument("anyway", True),
            ),
        )


def _with_same_loads(before: Side, after: Side) -> tuple[Side, Side]:
    """Keep only the plain rows of both sides if one of them does not record the grouping."""
    # The grouping is then not one of the matching columns, and a row of nccl-tests would match the rows of groups alone
    # and of concurrent axes as well.
    if before.results["grouping"].notna().any() and after.results["grouping"].notna().any():
        return before, after

    def plain_side(side: Side) -> Side:
        rows = is_plain(side.results)
        if rows.all() or not rows.any():
            return side
        return replace(side, results=side.results[rows].reset_index(drop=True))

    return plain_side(before), plain_side(after)


def _match(before: Side, after: Side, keys: list[str]) -> tuple[pd.DataFrame, int, tuple[int, int]]:
    """Return one row per key of both sides, the number of these keys, and the number of keys of each side only."""
    import pandas as pd

    old, new = before.groups(keys), after.groups(keys)
    rows = []
    for key, indices in new.items():
        were = key in old and bool(before.is_wrong[old[key]].any())
        are = bool(after.is_wrong[indices].any())
        if key not in old and not are:  # wrong results are reported even without a counterpart
            continue
        first, second = before.times(old.get(key, [])), after.times(indices)
        if first is not None or second is not None or are:
            outcome = {"is_wrong": are, "note": _note(first, second, were, are)}
            rows.append({**dict(zip(keys, key, strict=True)), **_ratio_columns(first, second), **outcome})
    common = len(old.keys() & new.keys())
    frame = pd.DataFrame(rows)
    if len(frame):
        order = [name for name in ("collective", "axis", "group", "in_place", "size_bytes") if name in keys]
        frame = frame.sort_values(order, kind="stable", na_position="first", ignore_index=True)
    return frame, common, (len(old) - common, len(new) - common)


def _note(first: LaunchTimes | None, second: LaunchTimes | None, were: bool, are: bool) -> str:
    """Return the reason why a row has no ratio or no verdict, or an empty string."""
    if are:
        return "results are wrong before and after" if were else "results are wrong after"
    if were:
        return "results were wrong before"
    if first is None or second is None:
        return "no time before" if first is None else "no time after"
    return "one launch" if first.n == second.n == 1 else ""


def _ratio_columns(first: LaunchTimes | None, second: LaunchTimes | None) -> dict[str, Any]:
    """Return the columns of a row with the ratio of two times."""
    ratio = Ratio(math.nan) if first is None or second is None else ratio_of(first, second)
    return {
        "before_us": math.nan if first is None else first.time_us,
        "after_us": math.nan if second is None else second.time_us,
        "ratio": ratio.value,
        "ratio_lo": ratio.low,
        "ratio_hi": ratio.high,
        "p": ratio.p,
        "detectable": ratio.detectable,
        "launches_before": 0 if first is None else first.n,
        "launches_after": 0 if second is None else second.n,
    }


def judge(frame: pd.DataFrame, effect: float, significant: float = _SIGNIFICANT) -> pd.DataFrame:
    """Add the verdicts, with p-values that are adjusted for the number of rows."""
    p, ratio, low, high = (frame[name].to_numpy(dtype=np.float64) for name in ("p", "ratio", "ratio_lo", "ratio_hi"))
    with np.errstate(invalid="ignore"):
        slower, faster = ratio >= 1 + effect, ratio <= 1 / (1 + effect)
        # Rows within the effect get no verdict, however significant they are. If they kept their small p-values, they
        # would loosen the threshold of the others.
        p = _adjusted(np.where(slower | faster | np.isnan(p), p, 1.0))
        sure = p <= significant
        # A test of equivalence, because "not significantly different" is also true of rows with large noise. The margin
        # is twice the effect: an interval within the effect itself would need very many batches for a ratio near it.
        same = ~slower & ~faster & (low > 1 / (1 + 2 * effect)) & (high < 1 + 2 * effect)
    usable = (frame["note"] == "").to_numpy()
    cases = [frame["is_wrong"].to_numpy(), usable & sure & slower, usable & sure & faster, usable & same]
    verdict = np.select(cases, ["WRONG", "SLOWER", "FASTER", "SAME"], "UNCLEAR")
    return frame.drop(columns="is_wrong").assign(p=p, verdict=verdict)


def _adjusted(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return p-values adjusted by Benjamini and Hochberg (J. R. Statist. Soc. B 57, 1995). NaN is ignored."""
    # At a threshold of 5 %, one in twenty equal rows would be slower or faster by chance: fifty in a run of a thousand
    # rows. Adjusted values bound the share of false verdicts among all verdicts instead. The i-th smallest of m values
    # is multiplied by m / i, and the running minimum from the largest value down keeps them in order.
    adjusted = p.copy()
    indices = np.flatnonzero(~np.isnan(p))
    order = indices[np.argsort(p[indices])]
    scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return adjusted
