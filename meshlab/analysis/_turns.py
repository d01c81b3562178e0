"""Comparisons of two sides that took turns.

A batch of each side follows within milliseconds, so a busy host delays both alike, and only their ratio is judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis._comparison import Comparison, judge, ratio_text
from meshlab.analysis._concurrency import block_medians
from meshlab.analysis._launches import Ratio
from meshlab.analysis._sides import KEYS, Difference
from meshlab.analysis._turn_ratios import SIGNIFICANT, RoundRatio, ratio_of_rounds, round_ratio
from meshlab.base._units import format_number, format_seconds, format_time_us
from meshlab.frames._schema import STEP, plain_key

if TYPE_CHECKING:
    from meshlab.runs._rundata import RunData

_BUSY = 0.05
"""The share of the time that ranks wait for a core from which a host is busy."""


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One row of a comparison of two sides that took turns."""

    columns: Mapping[str, Any]
    """The columns that describe the call and its group."""
    rounds: Sequence[RoundRatio] = ()
    n_wrong: tuple[int | None, int | None] = (None, None)
    """The number of wrong elements of each side. None if unchecked."""
    note: str = ""
    """The reason why it was not measured."""


@dataclass(frozen=True, repr=False)
class TurnComparison(Comparison):
    """The result of `compare_now`: two sides that took turns within the same seconds.

    It is a `Comparison`. The first side is ``before`` and the second ``after``. Its rows have ``n_pairs``, the number
    of pairs of neighbouring batches, and ``n_rounds``, the number of rounds, instead of the numbers of launches.

    Parameters
    ----------
    duration_s : float, default 0
        The duration of all turns, in seconds.
    """

    duration_s: float = 0.0

    @property
    def headline(self) -> str:
        """A summary: the number of rows with each verdict, the most extreme row, and whether the host was busy."""
        sentence = super().headline
        if len(self.rows) == 1:
            row = self.rows.iloc[0]
            sentence = f"{row['verdict'].capitalize()}: {self._ratio_text(row)}."
        return f"{sentence} Relative, on a busy host." if self.oversubscribed else sentence

    @property
    def reservation(self) -> str:
        """A short form of the note on a busy host, for the title of a figure. Empty if it was not busy."""
        return f"relative, on a busy host: {self.oversubscribed}" if self.oversubscribed else ""

    @property
    def _sharing_favours_a_side(self) -> bool:
        return False  # within the same seconds, both sides share the cores alike

    def _reason_unclear(self) -> str:
        return ""

    def _sharing_note(self) -> str:
        return (
            f"relative, on a busy host ({self.oversubscribed}): both sides took turns within the same seconds and "
            "shared the cores alike, so the ratios count, but not the times"
        )

    def _evidence_notes(self) -> list[str]:
        measured = self.rows[self.rows["n_rounds"] > 0]
        if measured.empty:
            return []
        notes = [
            f"{int(measured['n_rounds'].median())} rounds of turns in {format_seconds(self.duration_s)}, each on new "
            "communicators"
        ]
        if (detectable := measured["detectable"].median()) == detectable:  # not NaN
            factor = format_number(detectable)
            notes.append(
                f"a row must take {factor}× as long to be detected in 9 of 10 comparisons (median of all rows)"
            )
        return notes

    def _ratio_text(self, row: Any) -> str:
        if math.isnan(row["ratio"]):
            return str(row["note"])
        sentence = f"{self.after} takes {ratio_text(row)} as long as {self.before}"
        if not self.oversubscribed:  # otherwise the scheduler has a part in the times, and in their ratio
            sentence += f", {format_time_us(row['before_us'])} → {format_time_us(row['after_us'])}"
        return f"{sentence}, {self._evidence(row)}"

    def _evidence(self, row: Any) -> str:
        n_pairs, n_rounds = int(row["n_pairs"]), int(row["n_rounds"])
        return f"{n_pairs:,} pair{'s' * (n_pairs != 1)} in {n_rounds} round{'s' * (n_rounds != 1)}"


def compare_turns(
    rows: Sequence[TurnRow],
    names: tuple[str, str],
    *,
    effect: float,
    differences: Sequence[Difference] = (),
    waiting: float = math.nan,
    sharing: str = "",
    duration_s: float = 0.0,
) -> TurnComparison:
    """Return the comparison of two sides. `waiting` is the share of the time that the ranks waited for a core."""
    import pandas as pd

    frame = pd.DataFrame([{**row.columns, **_ratio_columns(row)} for row in rows])
    clauses = [sharing] if sharing else []
    if waiting >= _BUSY:
        clauses.append(f"ranks waited {100 * waiting:.0f} % of the time for a core")
    return TurnComparison(
        judge(frame, effect, SIGNIFICANT), tuple(differences), 0, 0, effect, *names, " and ".join(clauses), duration_s
    )


def compare_blocks(
    comparison: Comparison,
    before: Sequence[RunData],
    after: Sequence[RunData],
    *,
    names: tuple[str, str],
    busy: str = "",
) -> TurnComparison:
    """Return a comparison of runs whose blocks took turns, pair by pair. The runs at one position did so together."""
    import pandas as pd

    keys = [name for name in KEYS if name in comparison.rows]
    rounds: dict[tuple[Any, ...], list[RoundRatio]] = {}
    for runs in zip(before, after, strict=False):
        first, second = ({key[1:]: value for key, value in block_medians(run.samples).items()} for run in runs)
        for row in runs[0].results.to_dict("records"):
            step = plain_key(row[name] for name in STEP[1:])
            after_us = second.get(step, {})
            times = [(time_us, after_us[block]) for block, time_us in first.get(step, {}).items() if block in after_us]
            if times:
                rounds.setdefault(plain_key(row[name] for name in keys), []).append(round_ratio(np.array(times)))
    rows = []
    for row in comparison.rows.drop(columns="verdict").to_dict("records"):
        note = row["note"] if row["note"] != "one launch" else ""
        pairs = [] if note else rounds.get(plain_key(row[name] for name in keys), [])
        is_wrong = note.endswith("after") and note.startswith("results are wrong")
        columns: dict[Any, Any] = {**row, **_ratio_columns(TurnRow({}, pairs, note=note))}
        rows.append(columns | {"is_wrong": is_wrong})
    duration_s = sum(run.progress.elapsed_s for run in before)
    frame = judge(pd.DataFrame(rows), comparison.effect, SIGNIFICANT)
    counts = comparison.only_before, comparison.only_after
    sharing = " and ".join(clause for clause in (comparison.oversubscribed, busy) if clause)
    return TurnComparison(frame, comparison.differences, *counts, comparison.effect, *names, sharing, duration_s)


def _ratio_columns(row: TurnRow) -> dict[str, Any]:
    rounds = row.rounds
    were, are = (bool(n) for n in row.n_wrong)
    ratio = ratio_of_rounds([item.log_ratio for item in rounds]) if rounds and not (were or are) else Ratio(math.nan)
    note = row.note
    if are:
        note = f"results are wrong {'before and ' * were}after"
    elif were:
        note = "results were wrong before"
    elif not rounds:
        note = note or "not measured"
    elif len(rounds) == 1:
        note = "1 round does not show how much rounds differ"
    return {
        "before_us": _median([item.before_us for item in rounds]),
        "after_us": _median([item.after_us for item in rounds]),
        "ratio": ratio.value,
        "ratio_lo": ratio.low,
        "ratio_hi": ratio.high,
        "p": ratio.p,
        "detectable": ratio.detectable,
        "n_pairs": sum(item.n_pairs for item in rounds),
        "n_rounds": len(rounds),
        "is_wrong": are,
        "note": note,
    }


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan
