"""Comparisons of two sides that took turns: the ratios of neighbouring batches, and their variation between rounds.

A batch of each side follows within milliseconds, so a busy host delays both alike, and only their ratio is judged. The
ratios of one round share a communicator, with its place in memory, so a round is the unit of the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._comparison import Comparison, judge, ratio_text
from meshlab.analysis._launches import CONFIDENCE, Ratio, detectable_ratio, student_p, student_quantile
from meshlab.analysis._sides import Difference
from meshlab.base._units import format_seconds, format_time_us

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

FEWEST_ROUNDS = 6

_BUSY = 0.05
"""The share of the time that ranks wait for a core from which a host is busy."""

_SMALLEST_ERROR = 1e-3
"""Least standard error of the ratio of a round: its batches are not independent of each other."""


@dataclass(frozen=True, slots=True)
class RoundRatio:
    """What one round of turns shows about one row: the logarithm of the ratio, its error, and the times in µs."""

    log_ratio: float
    error: float
    """The standard error of `log_ratio` from the pairs of the round."""
    n_pairs: int
    before_us: float
    after_us: float


def round_ratio(time_us: Floats) -> RoundRatio:
    """Return the ratio of a round, from the times of its turns in the order before, after, after, before."""
    logs = np.log(time_us)
    # Neighbours: the first two batches of a turn are a pair, and so are the last two.
    pairs = np.concatenate([logs[:, 1] - logs[:, 0], logs[:, 2] - logs[:, 3]])
    n, middle = len(pairs), float(np.median(pairs))
    # Most pairs are near their median, but a rank that loses its core adds milliseconds to one batch of a pair. The
    # median and the absolute deviation from it ignore these. For normal pairs, 1.4826 deviations are a standard
    # deviation, and the error of a median is 1.2533 times that of a mean.
    spread = 1.4826 * float(np.median(np.abs(pairs - middle)))
    error = max(1.2533 * spread / math.sqrt(n), _SMALLEST_ERROR)
    before_us, after_us = float(np.median(time_us[:, ::3])), float(np.median(time_us[:, 1:3]))
    return RoundRatio(middle, error, n, before_us, after_us)


def ratio_of_rounds(rounds: Sequence[RoundRatio], confidence: float = CONFIDENCE) -> Ratio:
    """Return the ratio of all rounds, weighted by their precision, with Student's interval of its variation."""
    # In some rounds the ranks share one core and complete a few batches, and in others hundreds of them. So this is a
    # meta-analysis of the rounds: the variance between them by R. DerSimonian and N. Laird (Controlled Clinical Trials
    # 7, 1986), and the interval by G. Knapp and J. Hartung (Statistics in Medicine 22, 2003), whose variance is that of
    # the weighted residuals. So it does not depend on the errors of the rounds, but only on their proportions.
    values = np.array([item.log_ratio for item in rounds])
    n = len(values)
    if n < 2:
        return Ratio(math.exp(values[0]) if n else math.nan)
    errors = np.array([item.error for item in rounds])
    # The spread of a few pairs may be small by chance, and such a round would outweigh all others.
    n_pairs = np.array([item.n_pairs for item in rounds])
    errors = np.maximum(errors, np.median(errors * np.sqrt(n_pairs)) / np.sqrt(n_pairs))
    weights = errors**-2
    mean = np.average(values, weights=weights)
    excess = float((weights * (values - mean) ** 2).sum()) - (n - 1)
    between = max(0.0, excess / float(weights.sum() - (weights**2).sum() / weights.sum()))
    weights = 1 / (errors**2 + between)
    mean = float(np.average(values, weights=weights))
    residual = float((weights * (values - mean) ** 2).sum()) / (n - 1)
    error = math.sqrt(max(residual, 1.0) / float(weights.sum()))
    half = student_quantile(confidence, n - 1)
    return Ratio(
        math.exp(mean),
        math.exp(mean - half * error),
        math.exp(mean + half * error),
        student_p(mean / error, n - 1),
        detectable_ratio(error, n - 1, confidence),
    )


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

    It is a `Comparison`. The first side is ``before`` and the second ``after``. Its rows have ``n_pairs``, the number of
    neighbouring batches of both sides, and ``n_rounds`` instead of the numbers of launches.

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
            sentence = f"{row['verdict'].capitalize()}: {self._outcome(row)}."
        return f"{sentence} Relative, on a busy host." if self.oversubscribed else sentence

    @property
    def notes(self) -> list[str]:
        """Sentences about the turns: their number, and whether the ranks had the cores for themselves."""
        notes = self._evidence_notes()
        if self.oversubscribed:
            notes.append(
                f"relative, on a busy host ({self.oversubscribed}): both sides took turns within the same seconds and "
                "shared the cores alike, so the ratios count, but not the times"
            )
        return notes

    def _reason_unclear(self) -> str:
        return ""

    def _evidence_notes(self) -> list[str]:
        measured = self.rows[self.rows["n_rounds"] > 0]
        if measured.empty:
            return []
        notes = [
            f"{int(measured['n_rounds'].median())} rounds of turns in {format_seconds(self.duration_s)}, each on new "
            "communicators"
        ]
        if (detectable := measured["detectable"].median()) == detectable:  # not NaN
            notes.append(
                f"a row must take {detectable:.2f}× as long to be detected in 9 of 10 comparisons (median of all rows)"
            )
        return notes

    def _outcome(self, row: Any) -> str:
        if math.isnan(row["ratio"]):
            return str(row["note"])
        sentence = f"{self.after} takes {ratio_text(row)} as long as {self.before}"
        if not self.oversubscribed:  # otherwise the times are those of the scheduler, and their ratio is a different one
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
        clauses.append(f"ranks waited {waiting:.0%} of the time for a core")
    return TurnComparison(
        judge(frame, effect), tuple(differences), 0, 0, effect, *names, " and ".join(clauses), duration_s
    )


def _ratio_columns(row: TurnRow) -> dict[str, Any]:
    rounds = row.rounds
    were, are = (bool(n) for n in row.n_wrong)
    ratio = ratio_of_rounds(rounds) if rounds and not (were or are) else Ratio(math.nan)
    note = row.note
    if are:
        note = f"results are wrong {'before and ' * were}after"
    elif were:
        note = "results were wrong before"
    elif not rounds:
        note = note or "not measured"
    elif len(rounds) < FEWEST_ROUNDS:
        note = f"only {len(rounds)} round{'s were' if len(rounds) > 1 else ' was'} measured, but a verdict needs {FEWEST_ROUNDS}"
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
