"""How certain the times of a run are, and the load of its hosts that explains it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._units import THIN

if TYPE_CHECKING:
    import pandas as pd

_WIDE = 0.1  # width of the interval of a time, relative to the time
WIDE_TEXT = f"wider than {100 * _WIDE:.0f}{THIN}%"
_LEAST_CORES = 0.2  # of other processes: fewer are the background of every host
_LEAST_STEAL_PERCENT = 2.0


@dataclass(frozen=True, slots=True)
class Certainty:
    """The number of intervals of times, and of those that are wider than 10 % of their times."""

    n: int = 0
    n_wide: int = 0

    def with_rows(self, rows: Iterable[Mapping[Any, Any]]) -> Certainty:
        """Return the numbers with those of further rows of results."""
        n, n_wide = self.n, self.n_wide
        for row in rows:
            time, low, high = (_number(row, name) for name in ("time_us", "time_us_lo", "time_us_hi"))
            if time is not None and low is not None and high is not None:
                n += 1
                n_wide += bool(has_wide_interval(time, low, high))
        return Certainty(n, n_wide)

    @property
    def is_low(self) -> bool:
        """True if most intervals are wide."""
        return 2 * self.n_wide > self.n

    def sentence(self, conditions: Sequence[Mapping[str, Any]], oversubscribed: str = "") -> str:
        """Return the numbers and their likely causes, from rows of the conditions frame and a note of the run."""
        if self.n_wide == self.n:
            subject = "The interval is" if self.n == 1 else f"All {self.n:,} intervals are"
        else:
            subject = f"{self.n_wide:,} of {self.n:,} intervals are"
        causes = ", and ".join(filter(None, [oversubscribed, load_text(conditions)]))
        text = f"{subject} {WIDE_TEXT}"
        return f"{text}: {causes}." if causes else f"{text}."


def has_wide_interval(
    time_us: npt.ArrayLike, low_us: npt.ArrayLike, high_us: npt.ArrayLike
) -> npt.NDArray[np.bool_] | np.bool_:
    """Return whether intervals are wider than 10 % of their times, element by element. False for missing ones."""
    return np.subtract(high_us, low_us) > np.multiply(_WIDE, time_us)


def load_text(conditions: Sequence[Mapping[str, Any]]) -> str:
    """Describe what else ran on the busiest host, such as "other programs use 1.4 of 2 cores". Empty if nothing did."""
    by_host: dict[str, list[Mapping[str, Any]]] = {}
    for row in conditions:
        by_host.setdefault(str(row.get("host")), []).append(row)
    parts = {host: _parts(rows) for host, rows in by_host.items()}
    host, (_, texts) = max(parts.items(), key=lambda item: item[1][0], default=("", (0.0, [])))
    text = ", ".join(texts)
    return f"{text} on {host}" if text and len(by_host) > 1 else text


def _parts(rows: Sequence[Mapping[str, Any]]) -> tuple[float, list[str]]:
    """Return how busy a host was with other work, and clauses about it."""
    texts = []
    cores = _mean(rows, "cores") or 1.0
    other, load = _mean(rows, "other_cores") or 0.0, _mean(rows, "load") or 0.0
    steal, n_on_gpus = _mean(rows, "steal_percent") or 0.0, _mean(rows, "gpu_other_processes") or 0.0
    if other >= _LEAST_CORES:
        texts.append(f"other programs use {other:.1f} of {cores:.0f} cores")
    if load > cores:
        on = "" if texts else f" on {cores:.0f} core{'s' * (cores > 1)}"
        texts.append(f"load {load:.1f}{on}")
    if steal >= _LEAST_STEAL_PERCENT:
        texts.append(f"other virtual machines take {steal:.0f}{THIN}% of the time")
    if n_on_gpus >= 0.5:
        n = round(n_on_gpus)
        texts.append(f"{n} other process{'es' * (n > 1)} on the GPUs")
    reasons = [row["gpu_throttle"] for row in rows if isinstance(row.get("gpu_throttle"), str) and row["gpu_throttle"]]
    if 2 * len(reasons) > len(rows):
        texts.append(f"GPU clocks reduced by {max(set(reasons), key=reasons.count)}")
    return other / cores + steal / 100 + n_on_gpus + bool(reasons), texts


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a column, weighted by the time of the rows, or None without values."""
    pairs = [(_number(row, name), _number(row, "seconds")) for row in rows]
    weighted = [(value, seconds) for value, seconds in pairs if value is not None and seconds]
    total_s = sum(seconds for _, seconds in weighted)
    return sum(value * seconds for value, seconds in weighted) / total_s if total_s > 0 else None


def _number(row: Mapping[Any, Any], name: str) -> float | None:
    """Return a number of a row, or None if it is missing. A damaged file may have anything in its place."""
    value = row.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    return float(value) if is_number else None  # type: ignore[arg-type]


def certainty_of(results: pd.DataFrame) -> Certainty:
    """Return the numbers of intervals of results."""
    columns = (results[name].to_numpy("float64", na_value=np.nan) for name in ("time_us", "time_us_lo", "time_us_hi"))
    time, low, high = columns
    return Certainty(int((~np.isnan(time + low + high)).sum()), int(np.sum(has_wide_interval(time, low, high))))


def uncertainty_of(results: pd.DataFrame) -> str:
    """Return the sentence about results without a run, whose hosts are unknown. Empty if most times are certain."""
    certainty = certainty_of(results)
    return certainty.sentence((), str(results.attrs.get("oversubscribed", ""))) if certainty.is_low else ""
