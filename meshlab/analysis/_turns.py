"""Comparisons of two sides that took turns: the ratios of neighbouring batches, and their variation between rounds.

A batch of each side follows within milliseconds, so a busy host delays both alike, and only their ratio is judged. The
ratios of one round share a communicator, with its place in memory, so a round is the unit of the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._comparison import Comparison, judge, ratio_text
from meshlab.analysis._concurrency import block_medians
from meshlab.analysis._launches import CONFIDENCE, Ratio, detectable_ratio, student_p, student_quantile
from meshlab.analysis._sides import KEYS, Difference
from meshlab.base._outcome import Outcome
from meshlab.base._units import format_number, format_seconds, format_time_us
from meshlab.frames._schema import STEP, plain_key

if TYPE_CHECKING:
    from meshlab.runs._rundata import RunData

Floats = npt.NDArray[np.float64]

FEWEST_ROUNDS = 7
"""The fewest rounds of the signed-rank test: even if all of six agree, that happens by chance in 3 % of the cases."""

_SIGNIFICANT = 0.02
"""The adjusted p-value of a verdict. With 5 %, two of twenty comparisons of equal sides would often differ."""

_BUSY = 0.05
"""The share of the time that ranks wait for a core from which a host is busy."""

_SMALLEST_SPREAD = 1e-3
"""Least standard deviation between a few rounds, which may agree by chance."""


@dataclass(frozen=True, slots=True)
class RoundRatio:
    """What one round of turns shows about one row."""

    log_ratio: float
    """Natural logarithm of the second time divided by the first."""
    n_pairs: int
    before_us: float
    after_us: float


def round_ratio(pairs_us: Floats) -> RoundRatio:
    """Return the ratio of a round, from the times in µs of its pairs of neighbours, shape (pairs, 2)."""
    # The median, because a rank that loses its core adds milliseconds to one batch of a pair. The ratio of the total
    # times would mostly compare these additions, which do not depend on the calls: under a load of 12 per core, calls
    # that take 1.4 times as long took 1.32 to 1.36 times as long by the median, and 1.15 to 1.32 times by the total.
    before_us, after_us = np.median(pairs_us, axis=0)
    log_ratio = float(np.median(np.log(pairs_us[:, 1] / pairs_us[:, 0])))
    return RoundRatio(log_ratio, len(pairs_us), float(before_us), float(after_us))


def ratio_of_rounds(log_ratios: npt.ArrayLike, confidence: float = CONFIDENCE) -> Ratio:
    """Return the typical ratio of the rounds with its interval and p-value, by the signed-rank test of Wilcoxon."""
    # Some rounds are much worse than others: their ranks share one core, and complete a few batches. The signed-rank
    # test assumes only that the errors are symmetric, which the order of the turns ensures. Resampled from rounds that
    # were recorded beside other programs, it is as sensitive as Student's test, or more sensitive (+20 % in 97 instead
    # of 91 % of the comparisons of 40 rounds), and 3 to 6 % of equal sides differ. With weights from the spread of the
    # pairs within a round, it was less sensitive: the spread of a few pairs is hardly known.
    values = np.asarray(log_ratios, dtype=np.float64)
    n = len(values)
    if n < 2:
        return Ratio(math.exp(values[0]) if n else math.nan)
    if n < FEWEST_ROUNDS:
        error = max(float(values.std(ddof=1)), _SMALLEST_SPREAD) / math.sqrt(n)
        middle, half = float(values.mean()), student_quantile(confidence, n - 1) * error
        p = student_p(middle / error, n - 1)
        return _ratio(middle, middle - half, middle + half, p, n, confidence)
    first, second = np.triu_indices(n)
    means = np.sort((values[first] + values[second]) / 2)  # Walsh averages, whose median is that of Hodges and Lehmann
    below = _rank_sums(n)
    # The statistic is the number of positive averages. The sums that are too improbable are 0 to `n_outside` - 1, so a
    # bound is passed by as many averages.
    n_outside = int(np.searchsorted(below, (1 - confidence) / 2, side="right"))
    n_positive = float((means > 0).sum() + (means == 0).sum() / 2)
    p = min(1.0, 2 * float(below[math.floor(min(n_positive, len(means) - n_positive))]))
    return _ratio(float(np.median(means)), float(means[n_outside - 1]), float(means[-n_outside]), p, n, confidence)


def _ratio(middle: float, low: float, high: float, p: float, n: int, confidence: float) -> Ratio:
    error = (high - low) / 2 / student_quantile(confidence, n - 1)
    detectable = detectable_ratio(error, n - 1, 1 - _SIGNIFICANT)
    return Ratio(math.exp(middle), math.exp(low), math.exp(high), p, detectable)


@lru_cache(maxsize=64)
def _rank_sums(n: int) -> Floats:
    """Return the probability that the positive ranks of `n` symmetric values add up to at most 0, 1, 2, …."""
    counts = np.ones(1)
    for rank in range(1, n + 1):  # each rank is positive or not
        counts = np.concatenate([counts, np.zeros(rank)]) / 2 + np.concatenate([np.zeros(rank), counts]) / 2
    return np.cumsum(counts)


_NOT_SHARED: dict[str, Any] = {"oversubscribed": ""}


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
    def outcome(self) -> Outcome:
        """As that of `Comparison`, also where ranks shared cores, because both sides shared them alike."""
        return Comparison(**{item.name: getattr(self, item.name) for item in fields(Comparison)} | _NOT_SHARED).outcome

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
        judge(frame, effect, _SIGNIFICANT), tuple(differences), 0, 0, effect, *names, " and ".join(clauses), duration_s
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
    frame = judge(pd.DataFrame(rows), comparison.effect, _SIGNIFICANT)
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
