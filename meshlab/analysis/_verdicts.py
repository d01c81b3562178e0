"""Verdicts on speed in words: a measurement beside published runs, the bound of the hardware, or the prediction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from meshlab.analysis._expectations import is_below_prediction, predicted_range
from meshlab.analysis._published_comparison import PublishedComparison
from meshlab.base._outcome import Outcome
from meshlab.base._units import THIN, format_bandwidth, format_range, format_size

if TYPE_CHECKING:
    import pandas as pd

VerdictWord = Literal["faster than published", "normal", "slow", "suspiciously slow", "not known"]

_OUTCOMES: dict[VerdictWord, Outcome] = {
    "faster than published": "passed",
    "normal": "passed",
    "slow": "failed",
    "suspiciously slow": "failed",
    "not known": "not decided",
}
_SERIOUS: tuple[VerdictWord, ...] = ("suspiciously slow", "slow", "not known", "normal", "faster than published")

REFERENCE_COLUMNS = (
    *("collective", "curve", "source", "date", "system", "gpu", "gpus_per_node", "nodes", "n_ranks"),
    *("nic_gbps_per_node", "nccl_version", "remark", "size_bytes", "busbw_gbs", "nic_share"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on the speed of one collective.

    Parameters
    ----------
    word : {"faster than published", "normal", "slow", "suspiciously slow", "not known"}
        The verdict.
    collective : str or None
        Name of the collective, None if the source does not contain it.
    machine : str
        The hosts, their GPUs and NICs, as recognised.
    size_bytes, busbw_gbs : int, float
        The compared size, and the measured bus bandwidth in GB/s at it.
    bound_gbs : float
        What the hardware allows in GB/s, NaN if unknown.
    reason : str
        Why the verdict is not known, as the end of a sentence. Empty if it is known.
    missing : bool
        Whether the reason is a missing fact, which the caller can state.
    sentence : str
        The verdict with its numbers.
    comparison : PublishedComparison
        The published runs with which the measurement was compared.
    has_network : bool, default False
        Whether the measurement needed the network between hosts.
    """

    word: VerdictWord
    collective: str | None
    machine: str
    size_bytes: int
    busbw_gbs: float
    bound_gbs: float
    reason: str
    missing: bool
    sentence: str
    comparison: PublishedComparison
    has_network: bool = False

    @property
    def outcome(self) -> Outcome:
        """``"passed"``, ``"failed"``, or ``"not decided"`` if the verdict is not known."""
        return _OUTCOMES[self.word]

    def __repr__(self) -> str:
        return f"<Verdict: {self.sentence} next: .comparison>"

    def __str__(self) -> str:
        return self.sentence


def verdict_of(row: Any) -> Verdict:
    """Return the verdict of a row of `expectations`."""
    comparison: PublishedComparison = row["published"]
    is_published = comparison.word is not None
    verdict = str(row["verdict"])
    word: VerdictWord = "normal" if verdict == "as expected" else "not known" if verdict == "unknown" else verdict  # type: ignore[assignment]
    # The prediction is compared at the largest size, and published runs where they agree.
    size, busbw = int(row["size_bytes"]), float(row["busbw_gbs"])
    if is_published:
        size, busbw = comparison.size_bytes, comparison.busbw_gbs
    reason = "" if word != "not known" else comparison.reason
    return Verdict(
        word=word,
        collective=row["collective"],
        machine=row["machine"].title,
        size_bytes=size,
        busbw_gbs=busbw,
        bound_gbs=float(row["bound_gbs"]),
        reason=reason,
        missing=bool(reason) and comparison.is_missing,
        sentence=_sentence(row, comparison, word, size, busbw),
        comparison=comparison,
        has_network=row["machine"].has_network,
    )


def one_placement(expected: pd.DataFrame) -> pd.DataFrame:
    """Return the rows out of place, and those in place of tests that have no others."""
    if not len(expected):
        return expected
    keys = ["axis", "collective", "dtype", "mode"]
    ordered = expected.sort_values("in_place", kind="stable", na_position="first")
    return ordered.drop_duplicates(keys).sort_index()


def unmeasured(reason: str, *, collective: str | None = None, machine: str = "") -> Verdict:
    """Return the verdict on a text without rows that can be compared."""
    subject = f"{collective or 'the log'}{f' on {machine}' if machine else ''}"
    return Verdict(
        word="not known",
        collective=collective,
        machine=machine,
        size_bytes=0,
        busbw_gbs=math.nan,
        bound_gbs=math.nan,
        reason=reason,
        missing=True,
        sentence=f"{subject}: not known, because {reason}.",
        comparison=PublishedComparison(None, 0, math.nan, reason=reason, is_missing=True),
    )


def most_serious(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that a reader needs first."""
    return min(verdicts, key=lambda verdict: _SERIOUS.index(verdict.word))


def references_frame(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return the published rows of verdicts, each once."""
    import pandas as pd

    rows = []
    for verdict in verdicts:
        for run in verdict.comparison.runs:
            facts = {name: getattr(run.curve, name, None) for name in REFERENCE_COLUMNS}
            rows.append(facts | {"size_bytes": run.size_bytes, "busbw_gbs": run.busbw_gbs, "nic_share": run.nic_share})
    return pd.DataFrame(rows, columns=list(REFERENCE_COLUMNS)).drop_duplicates(ignore_index=True)


# -- sentences ---------------------------------------------------------------------------------------------------------


def _sentence(row: Any, comparison: PublishedComparison, word: VerdictWord, size: int, busbw: float) -> str:
    """Write a verdict in one sentence: the measurement, its share of what others reach and of the bound, the word."""
    axis = f" along {row['axis']}" if isinstance(row["axis"], str) else ""
    start = (
        f"{row['collective'] or 'an unnamed test'}{axis} on {_machine(row, comparison)}: {format_bandwidth(busbw)} at "
    )
    start += format_size(size)
    bound = float(row["bound_gbs"])
    of_bound = f"{_percent(busbw / bound)} of the bound ({_number(bound)})" if math.isfinite(bound) else ""
    if word == "not known":
        return f"{start}{f' is {of_bound}' if of_bound else ''}: not known, because {comparison.reason}."
    if comparison.word is not None:
        first, rest = _of_published(comparison)
        return f"{start} is {' and '.join(filter(None, [first, of_bound]))}{rest}: {word}."
    band = predicted_range(row)
    predicted = (
        f"at least {format_bandwidth(_lowest_predicted(row))} is predicted"
        if is_below_prediction(row)
        else (f"{band} is predicted" if band else "")
    )
    measured = f" is {of_bound}" if of_bound else ""
    return f"{start}{measured}, and {predicted}: {word}. Published runs do not decide, because {comparison.reason}."


def _machine(row: Any, comparison: PublishedComparison) -> str:
    """Return the machine with the NICs that were assumed."""
    title: str = row["machine"].title
    if not comparison.assumed:
        return title
    if comparison.is_only_network:
        return f"{title} (NICs not stated; all known ones have {comparison.assumed})"
    return f"{title} (NICs not stated; true even of {comparison.assumed})"


def _lowest_predicted(row: Any) -> float:
    return float(row["busbw_gbs"] * row["time_us"] / row["predicted_us_hi"])


def _of_published(comparison: PublishedComparison) -> tuple[str, str]:
    """Write the share of what published runs reach, and what follows the share of the bound."""
    count, busbw = len(comparison.runs), comparison.busbw_gbs
    if comparison.basis == "network":
        limit, lowest = comparison.nic_limit_gbs, comparison.low
        others = (
            f"three quarters of {count} published runs on other machines reach {_percent(lowest / limit)} of theirs"
        )
        return f"{_percent(busbw / limit)} of the line rate of its NICs ({_number(limit)})", f", while {others}"
    span = format_range(_number(comparison.low), _number(comparison.high))
    where = " on other numbers of hosts" if comparison.basis == "hosts" else ""
    runs = f"the only published run{where} reaches" if count == 1 else f"{count} published runs{where} reach"
    return f"{_percent(busbw / comparison.median)} of what {runs} ({span})", ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f}{THIN}%"


def _number(gbs: float) -> str:
    return format_bandwidth(gbs).partition(THIN)[0]
