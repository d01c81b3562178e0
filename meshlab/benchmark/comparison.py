"""What a comparison found, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.benchmark.comparison_data import Difference, plain
from meshlab.markup import card, escape, table
from meshlab.units import format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CLEAR_WITHOUT_INTERVAL", "Comparison", "row_name", "telling_columns"]

CLEAR_WITHOUT_INTERVAL = 1.25
"""Below this, one single reading per side proves nothing: small messages vary that much from run to run."""

_SIGNS = {"WRONG": "✕", "SLOWER": "▲", "FASTER": "▼", "SAME": "=", "UNCLEAR": "?"}
_WORDS = {"WRONG": "WRONG", "SLOWER": "slower", "FASTER": "faster", "SAME": "the same", "UNCLEAR": "unclear"}
_ORDER = ("WRONG", "SLOWER", "FASTER", "UNCLEAR", "SAME")
# The group before the axis, because it mostly tells the axis too.
_TELLING = ("collective", "op", "dtype", "root", "mode", "group", "axis", "n_ranks", "in_place")
_MOST_NAMED = 3


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Parameters
    ----------
    frame : pandas.DataFrame
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

    frame: pd.DataFrame = field(repr=False)
    differences: tuple[Difference, ...]
    only_before: int
    only_after: int
    effect: float
    before: str
    after: str

    @property
    def counts(self) -> dict[str, int]:
        """How many rows got each verdict."""
        return {verdict: int((self.frame["verdict"] == verdict).sum()) for verdict in _ORDER}

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        counts, n = self.counts, len(self.frame)
        parts = [f"{counts[verdict]} {_WORDS[verdict]}" for verdict in _ORDER if counts[verdict]]
        sentence = f"{n} {'row' if n == 1 else 'rows'} compared: {', '.join(parts)}"
        telling = telling_columns(self.frame)
        wrong = self.frame[self.frame["verdict"] == "WRONG"]
        if len(wrong):
            named = [row_name(row, telling) for _, row in wrong.head(_MOST_NAMED).iterrows()]
            more = f" and {len(wrong) - len(named)} more" if len(wrong) > len(named) else ""
            sentence += f". Wrong: {', '.join(named)}{more}"
        for verdict, pick, extreme in (("SLOWER", "idxmax", "Slowest"), ("FASTER", "idxmin", "Fastest")):
            rows = self.frame[self.frame["verdict"] == verdict]
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
        slower = (self.frame["verdict"] == "SLOWER") & (self.frame["ratio"] >= 1 + threshold)
        return self.frame[slower | (self.frame["verdict"] == "WRONG")]

    def _notes(self) -> list[str]:
        notes = []
        for n, side in ((self.only_before, "before"), (self.only_after, "after")):
            if n:
                notes.append(f"{n} {'row' if n == 1 else 'rows'} only {side}")
        if (self.frame["basis"] == "single").any():
            notes.append(
                f"single values have no interval: below {CLEAR_WITHOUT_INTERVAL:g}× they are unclear; repeat the runs"
            )
        if self.frame["basis"].str.contains("1 launch").any():
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
        rows, telling = _by_interest(self.frame), telling_columns(self.frame)
        for _, row in rows.head(20).iterrows():
            time = f"{format_time_us(row['before_us'])} → {format_time_us(row['after_us'])}"
            name = row_name(row, telling)
            lines.append(f"  {_SIGNS[row['verdict']]} {row['verdict']:<7} {name}: {time}, {_ratio(row)}")
        if len(rows) > 20:
            lines.append(f"  … {len(rows) - 20} more rows in .frame")
        return lines

    def _repr_html_(self) -> str:
        parts = []
        if self.differences:
            rows = [
                (difference.what, difference.before, difference.after, "not comparable" if difference.blocks else "")
                for difference in self.differences
            ]
            parts.append(table(["differs", "before", "after", ""], rows))
        telling = telling_columns(self.frame)
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
                    for _, row in _by_interest(self.frame).iterrows()
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
        elif name in telling and value is not None:
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
    return str(value)


def _ratio(row: Any) -> str:
    if math.isnan(row["ratio"]):
        return str(row["note"] or "no ratio")
    interval = _interval(row)
    return f"{row['ratio']:.3g}×" + (f" ({interval})" if interval else " (no interval)")


def _interval(row: Any) -> str:
    return "" if math.isnan(row["ratio_lo"]) else f"{row['ratio_lo']:.3g} to {row['ratio_hi']:.3g}"
