"""`Replay`: the calls of a trace that were made again, next to their times in the trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.base._collectives import COLLECTIVES
from meshlab.base._forwarding import implementation
from meshlab.base._units import SEPARATOR, format_size, format_time_us
from meshlab.benchmark.rehearsal._rehearsal import fraction
from meshlab.frames._statistics import FEWEST_FOR_INTERVAL, median_interval
from meshlab.mesh._axes import format_ranks
from meshlab.traces._call_list import CallKind, CallList
from meshlab.traces._sentences import records

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_SLOW = 1.25  # ratio of the time in the trace to that in the replay, from which a call was slow
_EFFECT = 0.05  # the smallest relevant relative difference between two options
_ALIKE = 0.05  # relative difference of two transfers that agree
_MOST_SENTENCES = 4

_KIND_COLUMNS = {
    **dict.fromkeys(("axis", "collective"), "string"),
    **dict.fromkeys(("size_bytes", "replayed_bytes", "n_ranks"), "Int64"),
    "dtype": "string",
    "calls": "Int64",
    **dict.fromkeys(("then_us", "now_us", "now_us_lo", "now_us_hi", "ratio"), "float64"),
    **dict.fromkeys(("then_total_us", "now_total_us", "exposed_share"), "float64"),
    "is_slow": "boolean",
    "slow_calls": "Int64",
    "n_wrong": "Int64",
}
"""The columns of `Replay.frame`, with their dtypes."""


@dataclass(frozen=True, eq=False)
class ReplaySide:
    """The measurements of one option.

    Parameters
    ----------
    name : str
        The name: ``default``, or that of the option.
    where : str
        Label of the measured system.
    transfers : numpy.ndarray
        The transfer of each call without gaps in µs, of shape (rounds, repetitions, calls).
    durations : numpy.ndarray
        The duration of all calls on the slowest rank in µs, of shape (programs, rounds, repetitions): without gaps,
        and if gaps were replayed, with those of the trace, and of the default with the mean gaps of all ranks.
    """

    name: str
    where: str
    transfers: Floats = field(repr=False)
    durations: Floats = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Replay:
    """The calls of a trace that were made again on engines. Created by `replay`.

    Parameters
    ----------
    call_list : CallList
        The calls of the trace.
    sides : tuple of ReplaySide
        The default, and the options that were compared with it.
    sizes : mapping of CallKind to int
        The replayed size of each kind of call, in bytes.
    n_wrong : mapping of CallKind to int
        The number of wrong elements of the results, over all ranks and sides.
    where : str
        Label of the measured system.
    backend : str
        Name of the backend.
    sharing : str
        A clause such as "4 ranks share 2 cores" if the times do not characterise the machine. Empty otherwise.
    size_scale : float
        The size of the messages, relative to the trace.
    like : mapping of str to str
        The element types that the backend lacks, and those of the same size that replaced them.
    error_us : float
        The error of a wait in the trace, in µs.
    places : (str, str)
        Where the calls of the trace and those of the replay ran: ``"GPUs"``, or ``"gloo on CPUs"``.
    overlaps : bool
        Whether calls of different axes could run at the same time.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(4, backend="threads") as engines:
    ...     replayed = ml.benchmark.replay(engines, ml.Trace.example(), size_scale=1 / 1024, budget_s=1)
    >>> replayed.why_incomparable, len(replayed.calls())
    ('4 ranks are threads of one process', 24)
    """

    call_list: CallList
    sides: tuple[ReplaySide, ...]
    sizes: Mapping[CallKind, int]
    n_wrong: Mapping[CallKind, int]
    where: str
    backend: str
    sharing: str
    size_scale: float
    like: Mapping[str, str]
    error_us: float
    places: tuple[str, str]
    overlaps: bool

    # -- arrays over the calls -----------------------------------------------------------------------------------------

    @cached_property
    def _then(self) -> Floats:
        return np.array([call.transfer_us for call in self.call_list.calls])

    @cached_property
    def _now(self) -> Floats:
        """The median transfer of each call in the replay."""
        return np.asarray(np.median(self._samples(self.sides[0]), axis=0))

    @staticmethod
    def _samples(side: ReplaySide) -> Floats:
        """The transfers of all repetitions: shape (repetitions, calls)."""
        return side.transfers.reshape(-1, side.transfers.shape[-1])

    @cached_property
    def _is_slow(self) -> npt.NDArray[np.bool_]:
        """Whether each call was slow in the trace."""
        if self.why_incomparable:
            return np.zeros(len(self._then), dtype=bool)
        with np.errstate(invalid="ignore"):
            return (self._then > _SLOW * self._now) & (self._then - self._now > self.error_us)

    @cached_property
    def _numbers(self) -> Mapping[CallKind | str, list[int]]:
        """The indices of the calls of each kind, and along each axis."""
        numbers: dict[CallKind | str, list[int]] = {}
        for index, call in enumerate(self.call_list.calls):
            numbers.setdefault(call.kind, []).append(index)
            numbers.setdefault(call.kind.axis, []).append(index)
        return numbers

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes with calls."""
        return tuple(dict.fromkeys(kind.axis for kind in self.call_list.kinds))

    # -- tables --------------------------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """Return a row per axis and different call.

        Returns
        -------
        pandas.DataFrame
            ``axis``, ``collective``, ``size_bytes``, ``replayed_bytes``, ``n_ranks``, ``dtype`` and ``calls`` (of a
            rank); ``then_us`` and ``now_us``, the median transfer of a call in the trace and in the replay, with its
            95 % interval ``now_us_lo`` and ``now_us_hi``; ``ratio`` of the two (above 1 if the trace was slower);
            ``then_total_us`` and ``now_total_us``, the sums over the calls of a rank whose transfer the trace
            contains; ``exposed_share`` of the transfer in the trace; ``is_slow`` (the median call took more than 1.25
            times as long in the trace, by more than its error; missing if the times cannot be compared);
            ``slow_calls``, the number of such calls; and ``n_wrong``, the number of wrong elements.
        """
        import pandas as pd

        rows = []
        for kind in self.call_list.kinds:
            numbers = self._numbers[kind]
            n_groups = self.call_list.n_groups(kind.axis)
            middle, replayed_us = _median(self._then[numbers]), float(np.median(self._now[numbers]))
            low, high = median_interval(np.median(self._samples(self.sides[0])[:, numbers], axis=1))
            is_slow = middle > _SLOW * replayed_us and middle - replayed_us > self.error_us
            rows.append(
                {
                    "axis": kind.axis,
                    "collective": kind.collective,
                    "size_bytes": kind.size_bytes,
                    "replayed_bytes": self.sizes[kind],
                    "n_ranks": self.call_list.mesh[kind.axis].size,
                    "dtype": kind.dtype,
                    "calls": round(len(numbers) / n_groups),
                    "then_us": middle,
                    "now_us": replayed_us,
                    "now_us_lo": low,
                    "now_us_hi": high,
                    "ratio": middle / replayed_us,
                    **self._totals(numbers, n_groups),
                    "is_slow": pd.NA if self.why_incomparable else is_slow,
                    "slow_calls": round(int(self._is_slow[numbers].sum()) / n_groups),
                    "n_wrong": self.n_wrong.get(kind, 0),
                }
            )
        frame = pd.DataFrame(rows, columns=list(_KIND_COLUMNS)).astype(_KIND_COLUMNS)
        frame.attrs = {"where": self.where, "notes": self.notes}
        return frame

    def _totals(self, numbers: list[int], n_groups: int) -> dict[str, float]:
        """Return the sums over the calls of a rank whose transfer is in the trace."""
        compared = [number for number in numbers if np.isfinite(self._then[number])]
        exposed = np.array([self.call_list.calls[number].exposed_us for number in compared])
        then = float(self._then[compared].sum()) / n_groups if compared else math.nan
        replayed = np.median(self._samples(self.sides[0])[:, compared].sum(axis=1)) / n_groups if compared else math.nan
        share = float(exposed.sum()) / n_groups / then if compared and then else math.nan
        return {"then_total_us": then, "now_total_us": float(replayed), "exposed_share": share}

    def by_axis(self) -> pd.DataFrame:
        """Return the transfer along each axis, in the trace and with each option.

        Returns
        -------
        pandas.DataFrame
            A row per axis and side: ``axis``, ``side`` (``trace``, ``default`` for the replay, or the name of an
            option), ``n_ranks``, ``calls`` and ``size_bytes`` of a rank in the trace, ``transfer_us`` with its 95 %
            interval ``transfer_us_lo`` and ``transfer_us_hi``, ``ratio`` to the default, and of the trace ``wait_us``,
            the mean time for which a rank waited for others, and ``exposed_us`` of the transfer. The transfers are sums
            over the calls whose transfer the trace contains, or over all calls if it contains none.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for axis in self.axes:
            numbers, n_groups = self._numbers[axis], self.call_list.n_groups(axis)
            members = [self.call_list.calls[number] for number in numbers]
            compared = [number for number in numbers if np.isfinite(self._then[number])]
            facts = {
                "axis": axis,
                "n_ranks": self.call_list.mesh[axis].size,
                "calls": len(numbers) / n_groups,
                "size_bytes": sum(call.kind.size_bytes for call in members) / n_groups,
            }
            then = self._then[compared].sum() / n_groups if compared else math.nan
            samples = {
                side.name: self._samples(side)[:, compared or numbers].sum(axis=1) / n_groups for side in self.sides
            }
            default = float(np.median(samples[self.sides[0].name]))
            rows.append(
                facts
                | {
                    "side": "trace",
                    "transfer_us": then,
                    "ratio": then / default,
                    "wait_us": _sum(call.wait_us for call in members) / n_groups,
                    "exposed_us": _sum(call.exposed_us for call in members) / n_groups,
                }
            )
            for name, values in samples.items():
                low, high = median_interval(values)
                middle = float(np.median(values))
                interval = {"transfer_us_lo": low, "transfer_us_hi": high}
                rows.append(facts | {"side": name, "transfer_us": middle, "ratio": middle / default} | interval)
        names = ["axis", "side", "n_ranks", "calls", "size_bytes", "transfer_us", "transfer_us_lo", "transfer_us_hi"]
        frame = pd.DataFrame(rows, columns=[*names, "ratio", "wait_us", "exposed_us"])
        frame.attrs = {"where": self.where, "notes": self.notes}
        return frame

    def options(self) -> pd.DataFrame:
        """Return a row per option, the default first.

        Returns
        -------
        pandas.DataFrame
            ``side``, ``where``; ``calls_us``, the duration of all calls without gaps, with its 95 % interval
            ``calls_us_lo`` and ``calls_us_hi``; ``step_us`` with ``step_us_lo`` and ``step_us_hi``, the duration with
            the gaps of the trace (missing if they were not replayed); ``ratio`` to the default and ``gain_us``, the
            time that the option saves: of the step, or of the calls if the gaps were not replayed; and ``verdict``.
        """
        import pandas as pd

        rows = []
        for side in self.sides:
            program = min(1, len(side.durations) - 1)  # with gaps, if they were replayed
            default = self.sides[0].durations[program]
            middle = float(np.median(side.durations[program]))
            row: dict[str, Any] = {"side": side.name, "where": side.where}
            for name, number in (("calls_us", 0), ("step_us", 1)):
                values = side.durations[number].ravel() if number < len(side.durations) else np.empty(0)
                low, high = median_interval(values)
                row |= {name: _median(values), f"{name}_lo": low, f"{name}_hi": high}
            row |= {"ratio": middle / float(np.median(default)), "gain_us": float(np.median(default)) - middle}
            rows.append(row | {"verdict": "" if side is self.sides[0] else self._verdict(side, program)})
        return pd.DataFrame(rows)

    def _verdict(self, side: ReplaySide, program: int) -> str:
        """Compare an option with the default, round by round."""
        if self.sharing:
            return ""
        medians = [np.median(part.durations[program], axis=1) for part in (side, self.sides[0])]
        ratios = medians[0] / medians[1]
        if len(ratios) < FEWEST_FOR_INTERVAL:
            return "unclear"
        ratio = float(np.median(ratios))
        if (ratios < 1).all() or (ratios > 1).all():  # by chance in 2 of 2^rounds cases
            return "same" if abs(ratio - 1) <= _EFFECT else "faster" if ratio < 1 else "slower"
        return "same" if abs(ratios - 1).max() <= _EFFECT else "unclear"

    def calls(self) -> pd.DataFrame:
        """Return a row per call of the trace, in the order in which the calls began.

        Returns
        -------
        pandas.DataFrame
            ``call`` (its number in `Trace.frame`), ``step``, ``axis``, ``ranks``, ``collective``, ``size_bytes``,
            ``dtype``, ``then_us``, ``now_us``, ``ratio`` and ``is_slow``.
        """
        import pandas as pd

        frame = pd.DataFrame(
            [(call.number, call.step, call.kind.axis, call.groups[0], *call.kind[1:]) for call in self.call_list.calls],
            columns=["call", "step", "axis", "ranks", "collective", "size_bytes", "dtype"],
        ).astype({"step": "Int64"})
        ratio = self._then / self._now
        return frame.assign(then_us=self._then, now_us=self._now, ratio=ratio, is_slow=self._is_slow)

    # -- words ---------------------------------------------------------------------------------------------------------

    @property
    def why_incomparable(self) -> str:
        """The reason why the times of the trace and of the replay cannot be compared. Empty if they can."""
        if self.sharing:
            return self.sharing
        if self.places[0] != self.places[1]:
            return f"the trace is of {self.places[0]}, and the replay of {self.places[1]}"
        if self.size_scale != 1:
            return f"the messages of the replay are {fraction(self.size_scale)} of those of the trace"
        if not np.isfinite(self._then).any():
            return "the trace contains no transfers, which need the files of all ranks of a group"
        return ""

    @property
    def late_us(self) -> float:
        """The cost of late ranks in µs: the duration with the gaps of each rank, minus that with their mean."""
        durations = self.sides[0].durations
        return float(np.median(durations[1]) - np.median(durations[2])) if len(durations) > 2 else math.nan

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        wrong = sum(self.n_wrong.values())
        if wrong:
            return f"WRONG: {wrong:,} elements of the results of the replay are wrong"
        n = len(self.call_list.calls)
        size = sum(call.kind.size_bytes for call in self.call_list.calls)
        if self.why_incomparable:
            return (
                f"{n:,} call{'s' * (n != 1)} of {format_size(size)} {'were' if n != 1 else 'was'} made again in their "
                f"order. No verdict on times: {self.why_incomparable}"
            )
        slow = self._slow_kinds()
        if slow:
            more = f"; so did {len(slow) - 1} other kind{'s' * (len(slow) > 2)} of calls" if len(slow) > 1 else ""
            return f"{slow[0]}{more}"
        then, replayed = self._sums()
        change = replayed / then - 1
        agree = (
            f"agree within {100 * _ALIKE:.0f} %" if abs(change) <= _ALIKE else f"differ by {100 * abs(change):.0f} %"
        )
        text = f"The transfers {agree}: {format_time_us(then)} in the trace, {format_time_us(replayed)} in the replay"
        n_slow = int(self._is_slow.sum())
        return (
            f"{text}; {n_slow:,} single call{'s were' if n_slow != 1 else ' was'} slow in the trace" if n_slow else text
        )

    def _sums(self) -> tuple[float, float]:
        """Return the sum of the transfers of a rank in the trace and in the replay."""
        frame = self.frame()
        return float(frame["then_total_us"].sum()), float(frame["now_total_us"].sum())

    def _slow_kinds(self) -> list[str]:
        """Return a clause about each kind of call that was slow in the trace, the most expensive first."""
        frame = self.frame()
        slow = frame[frame["is_slow"].fillna(value=False)]
        slow = slow.assign(lost=slow["then_total_us"] - slow["now_total_us"]).sort_values("lost", ascending=False)
        return [
            f"{row['collective']} {format_size(row['size_bytes'])} along {row['axis']} took "
            f"{row['ratio']:.1f} times as long in the trace: {format_time_us(row['then_us'])} instead of "
            f"{format_time_us(row['now_us'])} ({row['calls']:,} call{'s' * (row['calls'] != 1)}, "
            f"{format_time_us(row['lost'])} in all)"
            for row in records(slow)
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the difference between the calls of the trace and those of the replay."""
        calls = self.call_list
        notes: list[str] = []
        if self.sharing:
            notes.append(f"{self.sharing}, so the times do not characterise the machine")
        if self.size_scale != 1:
            notes.append(f"messages are {fraction(self.size_scale)} of the job's")
        if calls.left_out:
            notes.append(f"left out: {calls.left_out_text}")
        if calls.without_file:
            verb = "make" if len(calls.without_file) > 1 else "makes"
            notes.append(f"{format_ranks(calls.without_file)} without a file {verb} the calls of the other ranks")
        notes += [f"{name} is replayed as {other}, which has the same size" for name, other in self.like.items()]
        if n := sum(1 for call in calls.calls if call.kind.dtype is None and call.kind.size_bytes):
            notes.append(f"the trace contains no element type of {n:,} call{'s' * (n != 1)}")
        if calls.uneven:
            notes.append(f"{calls.uneven:,} calls with uneven chunks are replayed with equal ones")
        if rooted := sum(1 for call in calls.calls if COLLECTIVES[call.kind.collective].rooted):
            notes.append(f"the trace contains no root of {rooted:,} calls, which is the first rank of the group")
        if not self.overlaps and len(self.axes) > 1:
            notes.append("calls of different axes follow one another")
        return tuple(notes)

    def sentences(self) -> Iterator[str]:
        """Yield the lines of `explain`."""
        yield f"{self.headline}."
        transfers = self._transfers()
        for row in records(self.by_axis()):
            if row["side"] == "trace":
                default_us = transfers[row["axis"], self.sides[0].name]
                yield _axis_text(row, default_us, bool(self.why_incomparable))
        for text in self._slow_kinds()[1:_MOST_SENTENCES]:
            yield f"{text}."
        yield from self._single_calls()
        yield from self._option_texts()
        if math.isfinite(self.late_us):
            step, even = (format_time_us(float(np.median(self.sides[0].durations[number]))) for number in (1, 2))
            yield (
                f"With its gaps, the step takes {step}, and {even} if all ranks have the same gaps: late ranks cost "
                f"{format_time_us(max(self.late_us, 0.0))}."
            )
        yield from (f"{note[:1].upper()}{note[1:]}." for note in self.notes)

    def _single_calls(self) -> Iterator[str]:
        """Yield sentences about slow calls of which most of the same kind were not slow."""
        frame = self.calls()
        kinds = self.frame()
        is_slow_kind = dict(zip(self.call_list.kinds, kinds["is_slow"].fillna(value=False), strict=True))
        of_others = np.array([not is_slow_kind[call.kind] for call in self.call_list.calls])
        slow = frame[self._is_slow & of_others]
        slow = slow.assign(lost=slow["then_us"] - slow["now_us"]).sort_values("lost", ascending=False)
        for row in records(slow.head(_MOST_SENTENCES)):
            step = f" of step {row['step']}" if isinstance(row["step"], int) else ""
            yield (
                f"Call {row['call']}{step}, {row['collective']} {format_size(row['size_bytes'])} along {row['axis']}, "
                f"took {format_time_us(row['then_us'])} in the trace and {format_time_us(row['now_us'])} in the replay."
            )
        if len(slow) > _MOST_SENTENCES:
            yield f"{len(slow) - _MOST_SENTENCES:,} more single calls were slow in the trace, see calls()."

    def _option_texts(self) -> Iterator[str]:
        """Yield a sentence about each option."""
        default, *others = records(self.options())
        has_gaps = math.isfinite(default["step_us"])
        name = "step_us" if has_gaps else "calls_us"
        for row in others:
            change = 100 * (row["ratio"] - 1)
            text = (
                f"With {row['side']}, {'the step takes' if has_gaps else 'the calls take'} "
                f"{format_time_us(row[name])} instead of {format_time_us(default[name])} "
                f"({abs(change):.0f} % {'more' if change > 0 else 'less'})"
            )
            # Transfers of several axes may run at the same time, so their sum can exceed what the option saves.
            exposed = min(self._exposed_gain(str(row["side"])), row["gain_us"])
            if not has_gaps and exposed > 0 and not self.why_incomparable:  # False if it is not a number
                text += f", of which {format_time_us(exposed)} are exposed in the trace"
            verdict = f": {row['verdict']}" if row["verdict"] else ""
            yield f"{text}{verdict}."

    def _transfers(self) -> dict[tuple[str, str], float]:
        """Return the transfer of each axis and side, in µs."""
        return {(row["axis"], row["side"]): float(row["transfer_us"]) for row in records(self.by_axis())}

    def _exposed_gain(self, side: str) -> float:
        """Return the transfer that an option saves, weighted by the exposed part of each axis in the trace."""
        transfers = self._transfers()
        exposed = {row["axis"]: row["exposed_us"] for row in records(self.by_axis()) if row["side"] == "trace"}
        gains = [
            (transfers[axis, self.sides[0].name] - transfers[axis, side]) * exposed[axis] / transfers[axis, "trace"]
            for axis in self.axes
        ]
        return float(sum(gains))

    def explain(self) -> str:
        """Describe the result, each axis, slow calls, each option, and the limits of the replay.

        Returns
        -------
        str
            Sentences, one per line.
        """
        return "\n".join(self.sentences())

    # -- display -------------------------------------------------------------------------------------------------------

    def plot(self, **options: Any) -> Axes:
        """Draw the transfer by axis in the trace and in the replay. `meshlab.plots.replay` documents the options."""
        return implementation(Replay.plot)(self, **options)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of a table of the different calls, as text."""
        rows = []
        for row in records(self.frame()):
            is_known = math.isfinite(row["then_us"])
            rows.append(
                [
                    str(row["axis"]),
                    str(row["collective"]),
                    format_size(row["size_bytes"]) if row["size_bytes"] else "",
                    f"{row['calls']:,}",
                    format_time_us(row["then_us"]) if is_known else "–",
                    format_time_us(row["now_us"]),
                    f"{row['ratio']:.2f}×" if is_known and not self.why_incomparable else "–",
                    "" if self.why_incomparable else "slow" if row["is_slow"] else "",
                ]
            )
        return ["axis", "collective", "size", "calls", "trace", "replay", "ratio", "verdict"], rows

    def __repr__(self) -> str:
        return f"<Replay on {self.where}: {self.headline}; next: .explain(), .plot()>"

    def __str__(self) -> str:
        header, rows = self.table()
        first, *others = self.sentences()
        table = markup.text_table([header, *rows], right=range(3, 7))
        return "\n".join([first, "", table, "", *others])

    def _figure_html(self) -> str:
        return implementation(Replay._figure_html)(self)

    def _repr_html_(self) -> str:
        header, rows = self.table()
        options = self.options()
        parts = [self._figure_html(), markup.table(header, rows, right=range(3, 7))]
        if len(options) > 1 or options["step_us"].notna().any():
            parts.append(markup.table(*_options_table(options), right=range(1, 5)))
        sentences = list(self.sentences())[1:]
        notes = "".join(f'<div class="ml-sub">{markup.escape(text)}</div>' for text in sentences)
        subtitle = SEPARATOR.join([f"Replay of {len(self.call_list.calls):,} calls", self.where])
        return markup.card(self.headline, subtitle, *parts, notes)


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else math.nan


def _sum(values: Any) -> float:
    numbers = np.array(list(values), dtype=np.float64)
    return float(np.nansum(numbers)) if np.isfinite(numbers).any() else math.nan


def _axis_text(row: Mapping[str, Any], default_us: float, is_incomparable: bool) -> str:
    """Return the sentence about an axis."""
    n = row["calls"]
    text = f"{row['axis']} ({row['n_ranks']} ranks, {n:,.10g} call{'s' * (n != 1)}, {format_size(row['size_bytes'])})"
    then = row["transfer_us"]
    if math.isfinite(then):
        change = "" if is_incomparable else f" ({default_us / then:.2f} times)"
        text += f": transfer {format_time_us(then)} in the trace, {format_time_us(default_us)} in the replay{change}"
    else:
        text += f": transfer {format_time_us(default_us)} in the replay"
    if math.isfinite(row["exposed_us"]) and then > 0:
        share = 100 * row["exposed_us"] / then
        text += f"; {share:.0f} % of it was exposed, and the rest ran next to computation" if share < 99.5 else ""
    if math.isfinite(row["wait_us"]) and row["wait_us"] > 0:
        text += f"; a rank waited {format_time_us(row['wait_us'])} for others"
    return f"{text}."


def _options_table(options: pd.DataFrame) -> tuple[list[str], list[list[object]]]:
    """Return the header and the rows of a table of the options."""
    rows: list[list[object]] = [
        [
            row["side"],
            format_time_us(row["calls_us"]),
            format_time_us(row["step_us"]) if math.isfinite(row["step_us"]) else "–",
            f"{row['ratio']:.2f}×",
            format_time_us(row["gain_us"]) if row["gain_us"] > 0 else "–",
            row["verdict"],
        ]
        for row in records(options)
    ]
    return ["option", "calls", "with gaps", "ratio", "saves", "verdict"], rows
