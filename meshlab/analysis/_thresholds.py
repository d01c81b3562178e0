"""Thresholds: the limits that results must meet, read from a small TOML file, and the check of a run against them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meshlab.base import _markup as markup
from meshlab.base._documents import parse_toml
from meshlab.base._errors import BenchError, ParseError, did_you_mean
from meshlab.base._files import TextSource, text_of
from meshlab.base._outcome import Outcome, overall
from meshlab.base._units import THIN, format_bandwidth, format_size, format_time_us, parse_size
from meshlab.comm._catalog import WITHOUT_OUTPUT
from meshlab.frames._labels import is_wrong, value_label
from meshlab.frames._schema import is_plain, plain_value
from meshlab.runs._store import as_results

if TYPE_CHECKING:
    import pandas as pd

METRICS: dict[str, str] = {
    "busbw_gbs": "bus bandwidth in GB/s",
    "algbw_gbs": "algorithm bandwidth in GB/s",
    "of_bound": "share of the bandwidth that the hardware allows; results have it if the cluster is known",
    "time_us": "median time of a call in µs",
    "p95_us": "95th percentile in µs",
    "p99_us": "99th percentile in µs",
    "skew_us": "time between the first and the last rank in µs",
    "n_wrong": "number of wrong elements",
}
"""The columns of results that a threshold can limit, with their descriptions."""

_HIGHER_IS_BETTER = ("busbw_gbs", "algbw_gbs", "of_bound")
_SELECTING = ("collective", "axis", "op", "dtype", "mode", "n_ranks")
_CASE = ["collective", "axis", "op", "dtype", "mode", "n_ranks", "size_bytes"]
_MOST_NAMED = 3

LimitOutcome = Literal["passed", "failed", "not measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A limit for one metric of some results.

    Parameters
    ----------
    metric : str
        One of `METRICS`.
    at_least, at_most : float, optional
        The limit. Exactly one of them is given.
    tolerance : float, default 0
        The share of the limit by which a value may miss it, such as 0.05.
    collective, axis, op, dtype, mode : str, optional
        The rows to which the limit applies. By default those with any value.
    n_ranks : int, optional
        The number of ranks of their groups.
    min_size, max_size : int, optional
        The range of their sizes, in bytes. Both ends belong to it.
    source : str, default ""
        The origin of the number.

    Raises
    ------
    BenchError
        If the metric is unknown, or not exactly one limit is given.

    Examples
    --------
    >>> print(Threshold(metric="busbw_gbs", at_least=460, collective="all_reduce", n_ranks=8, min_size=2**33))
    all_reduce, 8 ranks, from 8 GiB: busbw at least 460 GB/s
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    tolerance: float = 0.0
    collective: str | None = None
    axis: str | None = None
    op: str | None = None
    dtype: str | None = None
    mode: str | None = None
    n_ranks: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise BenchError(
                f"unknown metric {self.metric!r}{did_you_mean(self.metric, METRICS)}",
                hint=f"choose one of {', '.join(METRICS)}",
            )
        if (self.at_least is None) == (self.at_most is None):
            limits = "neither" if self.at_least is None else "both"
            raise BenchError(
                f"a threshold needs at_least or at_most, but has {limits}",
                hint=f"write {'at_least' if self.metric in _HIGHER_IS_BETTER else 'at_most'} = a number",
            )
        if not 0 <= self.tolerance < 1:
            raise BenchError(f"the tolerance must be from 0 to 1, not {self.tolerance:g}", hint='write "5%" or 0.05')
        if self.min_size is not None and self.max_size is not None and self.min_size > self.max_size:
            raise BenchError(
                f"min_size {format_size(self.min_size)} exceeds max_size {format_size(self.max_size)}",
                hint="exchange them",
            )

    @property
    def limit(self) -> float:
        """The limit without the tolerance."""
        return float(self.at_most if self.at_least is None else self.at_least)  # type: ignore[arg-type]

    @property
    def subject(self) -> str:
        """The rows to which the limit applies, in words."""
        parts = [self.collective or "every collective"]
        parts += [f"on {self.axis}"] if self.axis else []
        parts += [part for part in (self.op, self.dtype, self.mode) if part]
        parts += [f"{self.n_ranks} ranks"] if self.n_ranks else []
        if self.min_size is not None and self.min_size == self.max_size:
            parts.append(f"at {format_size(self.min_size)}")
        else:
            parts += [f"from {format_size(self.min_size)}"] if self.min_size is not None else []
            parts += [f"up to {format_size(self.max_size)}"] if self.max_size is not None else []
        return ", ".join(parts)

    @property
    def requirement(self) -> str:
        """The metric and its limit, in words."""
        bound = "at most" if self.at_least is None else "at least"
        allowed = f", {100 * self.tolerance:g} % tolerated" if self.tolerance else ""
        return f"{_NAMES[self.metric]} {bound} {format_metric(self.metric, self.limit)}{allowed}"

    def __str__(self) -> str:
        return f"{self.subject}: {self.requirement}"

    def select(self, results: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a results frame to which the limit applies."""
        chosen = np.array(is_plain(results), dtype=bool)
        for name in _SELECTING:
            value = getattr(self, name)
            if value is not None:
                chosen &= results[name].eq(value).fillna(value=False).to_numpy(bool)
        sizes = results["size_bytes"]
        for value, is_inside in ((self.min_size, sizes.ge), (self.max_size, sizes.le)):
            if value is not None:
                chosen &= is_inside(value).fillna(value=False).to_numpy(bool)
        return results[chosen]

    def is_met_by(self, value: float) -> bool:
        """Return whether a value is within the limit and its tolerance."""
        if self.at_least is not None:
            return value >= self.at_least * (1 - self.tolerance)
        return value <= self.limit * (1 + self.tolerance)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits that the results of a machine must meet.

    Parameters
    ----------
    limits : tuple of Threshold
        The limits.
    title : str, default ""
        The machine that they describe.
    gpu : str, default ""
        The name of its GPUs. A run on other GPUs is checked too, with a note.

    Examples
    --------
    >>> thresholds = Thresholds.read("dgx-h100")
    >>> thresholds.title, len(thresholds.limits)
    ('8 × H100 SXM in one node', 4)
    """

    limits: tuple[Threshold, ...]
    title: str = ""
    gpu: str = ""

    @classmethod
    def presets(cls) -> tuple[str, ...]:
        """Return the names of the machines whose limits are part of meshlab.

        Examples
        --------
        >>> Thresholds.presets()
        ('dgx-a100', 'dgx-h100', 'dgx-h200')
        """
        folder = files("meshlab.analysis").joinpath("threshold_presets")
        return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir()))

    @classmethod
    def read(cls, source: TextSource) -> Thresholds:
        r"""Read limits from a TOML file.

        Parameters
        ----------
        source : str, bytes or path
            A file, its text, or the name of one of `presets`.

        Returns
        -------
        Thresholds

        Raises
        ------
        ParseError
            If the text is not TOML, or a key or a value is invalid. The error names the nearest key.
        OSError
            If the file cannot be read.

        Examples
        --------
        >>> text = '[[limits]]\nmetric = "p99_us"\ncollective = "barrier"\nat_most = 100'
        >>> print(Thresholds.read(text).limits[0])
        barrier: p99 at most 100 µs
        """
        if isinstance(source, str) and source in cls.presets():
            preset = files("meshlab.analysis").joinpath("threshold_presets", f"{source}.toml")
            return _parsed(preset.read_text(encoding="utf-8"), f"{source}.toml")
        text, name = text_of(source, hint="pass a file of thresholds")
        if name is None and isinstance(source, (str, os.PathLike)) and not any(sign in text for sign in "\n=["):
            presets = cls.presets()
            raise ParseError(
                f"no file {str(source)[:200]!r} exists{did_you_mean(str(source), presets)}",
                hint=f"pass a TOML file, or one of {', '.join(presets)}",
            )
        return _parsed(text, name)

    def check(self, run: Any) -> ThresholdCheck:
        """Check results against the limits.

        Parameters
        ----------
        run : RunData, DataFrame, path, object with ``.results``, or a list of these
            Results. ``of_bound`` needs the results of `meshlab.prediction.with_bounds`.

        Returns
        -------
        ThresholdCheck
            The value of each limit and each size, and whether it is met.

        Raises
        ------
        BenchError
            If `run` has no results.

        Examples
        --------
        >>> import meshlab as ml
        >>> limit = Threshold(metric="busbw_gbs", collective="all_reduce", mode="graph", min_size=2**28, at_least=300)
        >>> print(Thresholds((limit,), "2 × H200").check(ml.example()).verdict)
        The only threshold is met (2 × H200).
        """
        import pandas as pd

        results = run if isinstance(run, pd.DataFrame) and "of_bound" in run else as_results(run)
        rows = [row for number, limit in enumerate(self.limits) for row in _checked(number, limit, results)]
        names = ["threshold", *_CASE, "group", "value", "margin", "outcome", "note"]
        frame = pd.DataFrame(rows, columns=names).astype(
            {"n_ranks": "Int64", "size_bytes": "Int64", "value": "float64", "margin": "float64"}
        )
        gpu = str(results.attrs.get("gpu") or "")
        other = f"The thresholds are for {self.gpu}, but the results are from {gpu}." if self.gpu and gpu else ""
        return ThresholdCheck(self, frame, other if self.gpu.casefold() not in gpu.casefold() else "")


@dataclass(frozen=True)
class ThresholdCheck:
    """The results of a machine next to their limits. `Thresholds.check` returns it."""

    thresholds: Thresholds
    rows: pd.DataFrame = field(repr=False)
    """One row per limit and case, which is a collective along an axis at one size: ``threshold`` (index of the limit),
    the columns of the case, ``group`` (the worst one), ``value``, ``margin`` (the distance to the limit as a share of
    it; negative if it is missed), ``outcome`` (passed, failed, or not measured) and ``note``."""
    note: str = ""
    """A difference between the machine of the limits and that of the results."""

    def frame(self) -> pd.DataFrame:
        """Return a copy of the rows."""
        return self.rows.copy()

    @cached_property
    def outcomes(self) -> tuple[LimitOutcome, ...]:
        """The outcome of each limit, which is the worst one of its rows."""
        order: dict[LimitOutcome, int] = {"passed": 0, "not measured": 1, "failed": 2}
        worst: list[LimitOutcome] = ["passed"] * len(self.thresholds.limits)
        for number, outcome in zip(self.rows["threshold"], self.rows["outcome"], strict=True):
            worst[number] = max(worst[number], outcome, key=lambda name: order[name])
        return tuple(worst)

    @property
    def outcome(self) -> Outcome:
        """``"failed"`` if a limit is missed, and ``"not decided"`` if one was not measured, or there are none."""
        return overall("not decided" if outcome == "not measured" else outcome for outcome in self.outcomes)

    @property
    def is_passed(self) -> bool:
        """True if every limit was measured and met."""
        return self.outcome == "passed"

    @property
    def verdict(self) -> str:
        """The number of limits that are missed, with the worst cases, in a sentence or two."""
        total, failed = len(self.outcomes), self.outcomes.count("failed")
        missing = self.outcomes.count("not measured")
        of = f" ({self.thresholds.title})" if self.thresholds.title else ""
        if not total:
            return f"There are no thresholds{of}."
        if not failed and not missing:
            return f"The only threshold is met{of}." if total == 1 else f"All {total} thresholds are met{of}."
        parts = []
        if failed:
            named = "; ".join(self._sentences(_MOST_NAMED))
            parts.append(f"{_count_text(failed, total)} {'is' if failed == 1 else 'are'} MISSED{of}: {named}.")
        if missing:
            first = self.thresholds.limits[self.outcomes.index("not measured")]
            verb = "was" if missing == 1 else "were"
            suffix = "" if failed else of
            more = f", such as {first.subject}" if missing > 1 else f": {first.subject}"
            if missing == total > 1:
                parts.append(f"None of the {total} thresholds was measured{suffix}{more}.")
            else:
                parts.append(f"{_count_text(missing, total)} {verb} not measured{suffix}{more}.")
        return " ".join(parts)

    def sentences(self, number: int) -> list[str]:
        """Return a sentence about each case of a limit, by its index, that is missed or was not measured."""
        rows = self.rows[(self.rows["threshold"] == number) & (self.rows["outcome"] != "passed")]
        return [
            f"{self.thresholds.limits[number].subject}: {row.note}"
            if row.outcome == "not measured"
            else self._sentence(row)
            for row in _rows(rows)
        ]

    def _sentences(self, most: int) -> Iterator[str]:
        """Yield the worst case of each limit that is missed."""
        failed = self.rows[self.rows["outcome"] == "failed"].sort_values("margin", kind="stable")
        worst = failed.drop_duplicates("threshold")
        for row in _rows(worst.head(most)):
            yield self._sentence(row)
        if len(worst) > most:
            yield f"and {len(worst) - most} more"

    @cached_property
    def _varying(self) -> list[str]:
        """The columns, apart from those that every name has, in which the cases differ."""
        return [name for name in ("op", "dtype", "mode", "n_ranks") if self.rows[name].nunique() > 1]

    def _sentence(self, row: Any) -> str:
        limit = self.thresholds.limits[row.threshold]
        where = _case(row, self._varying)
        if not np.isfinite(row.value):
            return f"{where} {row.note}"
        value = format_metric(limit.metric, row.value)
        group = "" if plain_value(row.group) is None else f" in {row.group}"
        return f"{where} has {_NAMES[limit.metric]} {value}{group}, required: {limit.requirement.split(' ', 1)[1]}"

    def table(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Return the header and the texts of all rows, the largest misses first."""
        header = ["outcome", "case", "value", "required", "margin", "source"]
        order = self.rows["outcome"].map({"failed": 0, "not measured": 1, "passed": 2})
        rows = self.rows.assign(order=order).sort_values(["order", "margin"], kind="stable")
        texts: list[tuple[str, ...]] = []
        for row in _rows(rows):
            limit = self.thresholds.limits[row.threshold]
            has_value = np.isfinite(row.value)
            texts.append(
                (
                    {"passed": "✓ passed", "failed": "✕ failed"}.get(str(row.outcome), f"– {row.outcome}"),
                    limit.subject if row.outcome == "not measured" else _case(row, self._varying),
                    format_metric(limit.metric, row.value) if has_value else (str(row.note) or "–"),
                    limit.requirement,
                    f"{100 * row.margin:+.1f} %" if np.isfinite(row.margin) else "–",
                    limit.source or "–",
                )
            )
        return header, texts

    def __str__(self) -> str:
        header, rows = self.table()
        widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header) - 1)]
        lines = [
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
            for row in [tuple(header), *rows]
        ]
        return "\n".join([self.verdict, *([self.note] if self.note else []), "", *lines])

    def __repr__(self) -> str:
        return f"<ThresholdCheck: {self.verdict}; next: .rows>"

    def _repr_html_(self) -> str:
        header, rows = self.table()
        note = f"<div>{markup.escape(self.note)}</div>" if self.note else ""
        return markup.card(
            self.verdict, self.thresholds.title or "Thresholds", note, markup.table(header, rows, right=[2, 4])
        )


_NAMES = {name: name.rpartition("_")[0] for name in METRICS}
_NAMES |= {"of_bound": "share of the bound", "n_wrong": "wrong elements"}


def format_metric(metric: str, value: float) -> str:
    """Format a value of a metric with its unit."""
    if metric == "of_bound":
        return f"{100 * value:.0f}{THIN}%"
    if metric == "n_wrong":
        return f"{value:,.0f}"
    return format_bandwidth(value) if metric.endswith("_gbs") else format_time_us(value)


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows as named tuples without types, because mypy cannot infer those of their fields."""
    yield from frame.itertuples()


def _count_text(number: int, total: int) -> str:
    return "The only threshold" if total == 1 else f"{number} of {total} thresholds"


def _case(row: Any, varying: Sequence[str] = ()) -> str:
    """Name a case: the collective, the axis and the size, and the columns that distinguish it from other cases."""
    axis, size = plain_value(row.axis), plain_value(row.size_bytes)
    parts = [str(row.collective), f"on {axis}" if axis else "", f"at {format_size(size)}" if size else ""]
    more = [value_label(name, value) for name in varying if (value := plain_value(getattr(row, name))) is not None]
    return " ".join(part for part in parts if part) + (f" ({', '.join(more)})" if more else "")


def _checked(number: int, limit: Threshold, results: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each case of a limit, or a row with the reason why there is none."""
    rows = limit.select(results)
    missing = [None] * len(_CASE)
    if not len(rows):
        yield number, *missing, None, np.nan, np.nan, "not measured", "no result matches"
        return
    if limit.metric not in rows:
        yield number, *missing, None, np.nan, np.nan, "not measured", "the cluster is unknown"
        return
    bad = is_wrong(rows)
    rows = rows.assign(
        _value=rows[limit.metric].astype("float64"),
        _bad=bad | rows["status"].isin(["failed", "cancelled"]).to_numpy(bool),
    )
    valued = rows[rows["_value"].notna() | rows["_bad"]]
    if not len(valued):
        yield number, *missing, None, np.nan, np.nan, "not measured", f"{_NAMES[limit.metric]} is unknown"
    for case, part in valued.groupby(_CASE, sort=False, dropna=False):
        yield number, *map(plain_value, case), *_outcome(limit, part)
    if limit.metric == "n_wrong":
        yield from _unchecked(number, rows[rows["_value"].isna() & ~rows["_bad"]], valued)


def _unchecked(number: int, rows: pd.DataFrame, checked: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each case that was measured, but whose results were not checked although others were."""
    # nccl-tests cannot check some collectives in place, but checks the same case out of place.
    cases = {tuple(map(plain_value, case)) for case in checked[_CASE].itertuples(index=False)}
    has_output = rows["status"].ne("skipped").fillna(value=True) & ~rows["collective"].isin(WITHOUT_OUTPUT)
    for case in rows.loc[has_output, _CASE].drop_duplicates().itertuples(index=False) if cases else ():
        values = tuple(map(plain_value, case))
        if values not in cases:
            yield number, *values, None, np.nan, np.nan, "not measured", f"{_case(case)} was not checked"


def _outcome(limit: Threshold, rows: pd.DataFrame) -> tuple[str | None, float, float, LimitOutcome, str]:
    """Return the worst group of a case, its value, margin and outcome, and a note."""
    if limit.metric != "n_wrong" and rows["_bad"].any():
        first = rows[rows["_bad"]].iloc[0]
        what = "did not finish" if first["status"] in ("failed", "cancelled") else "has a wrong result"
        return plain_value(first["group"]), np.nan, np.nan, "failed", what
    values = rows.dropna(subset="_value")
    # The slowest group of each launch, and the median over launches: one slow launch is not evidence about the machine.
    is_floor = limit.at_least is not None
    by_launch = values.groupby(["run_id", "launch"], dropna=False)["_value"]
    worst = float(np.median(by_launch.min() if is_floor else by_launch.max()))
    nearest = values.iloc[int((values["_value"] - worst).abs().to_numpy().argmin())]
    scale = abs(limit.limit) or 1.0
    margin = (worst - limit.limit) / scale if is_floor else (limit.limit - worst) / scale
    outcome: LimitOutcome = "passed" if limit.is_met_by(worst) else "failed"
    return plain_value(nearest["group"]), worst, margin, outcome, ""


_KEYS = tuple(key.name for key in fields(Threshold))
_TOP = ("title", "gpu", "limits")
_TEXTS = ("metric", "collective", "axis", "op", "dtype", "mode", "source")


def _parsed(text: str, name: str | None) -> Thresholds:
    document = parse_toml(text, file=name)
    _check_keys(document, _TOP, "a file of thresholds", name)
    limits = document.get("limits", [])
    if not isinstance(limits, list) or not all(isinstance(table, dict) for table in limits) or not limits:
        raise ParseError("the file has no limits", hint="write a table [[limits]] for each one", file=name)
    for key in ("title", "gpu"):
        if not isinstance(document.get(key, ""), str):
            raise ParseError(f"{key} must be a string, not {document[key]!r}", hint="put it in quotes", file=name)
    parsed = tuple(_threshold(number, table, name) for number, table in enumerate(limits, 1))
    return Thresholds(parsed, document.get("title", ""), document.get("gpu", ""))


def _check_keys(table: Mapping[str, Any], keys: tuple[str, ...], what: str, name: str | None) -> None:
    for key in table:
        if key not in keys:
            raise ParseError(
                f"unknown key {key!r} in {what}{did_you_mean(key, keys)}",
                hint=f"choose one of {', '.join(keys)}",
                file=name,
            )


def _threshold(number: int, table: Mapping[str, Any], name: str | None) -> Threshold:
    what = f"limit {number}"
    _check_keys(table, _KEYS, what, name)
    if "metric" not in table:
        raise ParseError(f"{what} has no metric", hint=f"choose one of {', '.join(METRICS)}", file=name)
    try:
        return Threshold(**{key: _value(key, value) for key, value in table.items()})
    except (BenchError, ParseError) as error:
        raise ParseError(f"{what}: {error.message}", hint=error.hint, file=name) from error


def _value(key: str, value: Any) -> Any:
    """Return the value of a key of a limit, or raise if it has the wrong type."""
    if key in ("min_size", "max_size"):
        return parse_size(value)
    if key == "tolerance" and isinstance(value, str) and value.rstrip().endswith("%"):
        value = _number(key, value.rstrip().removesuffix("%")) / 100
    if key in _TEXTS:
        if not isinstance(value, str):
            raise ParseError(f"{key} must be a string, not {value!r}", hint="put it in quotes")
        return value
    if key == "n_ranks":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ParseError(f"n_ranks must be a positive integer, not {value!r}", hint="write n_ranks = 8")
        return value
    return _number(key, value)


def _number(key: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else np.nan
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise ParseError(f"{key} must be a number, not {value!r}", hint=f"write {key} = 1.5")
    return number
