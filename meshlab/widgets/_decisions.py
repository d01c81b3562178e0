"""Decisions between candidate A and the present design, B: their numbers, and one sentence with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

from meshlab.base._errors import MeshlabError
from meshlab.base._units import THIN, format_number, format_range, format_size, format_time_us
from meshlab.prediction._step_parts import range_text, seconds_text
from meshlab.prediction._step_ratio import ErrorTerm, TimeRatio, call_term, ratio_of
from meshlab.prediction._step_time import StepTime
from meshlab.topology.placement._loads import MARKS, LinkLoad, Loads
from meshlab.topology.placement._placement import Placement
from meshlab.widgets._jobs import JobStep

Choice = Literal["A", "B", "not decided"]
Call = tuple[str, int]  # a collective and its size in bytes

_USES: Mapping[str, str] = {
    "none": "sends nothing",
    "nvlink": "stays inside NVLink",
    "host": "stays inside the host",
    "rail": "stays on its rails",
    "shared": "shares NICs or changes rails",
    "taper": "is held back by an oversubscription",
}
"""How an axis uses its links, by `Loads.state`."""

_NEGLIGIBLE = 0.005  # change of a time, which no step repeats within

_ORDER = tuple(_USES)  # from good to bad


@dataclass(frozen=True, eq=False)
class CandidateSide:
    """A candidate: its placement, its step, the calls of its axes, and the loads of an axis with its call."""

    placement: Placement | None
    step: JobStep | None
    calls: Mapping[str, Call]
    loads_of: Callable[[str], Loads]

    @cached_property
    def terms(self) -> dict[str, ErrorTerm]:
        """The time of one call on every axis with several ranks, empty if there is no prediction."""
        if self.placement is None:
            return {}
        try:
            return {axis: call_term(self.placement, axis, *call) for axis, call in self.calls.items()}
        except MeshlabError:
            return {}

    @property
    def busiest(self) -> tuple[str, LinkLoad, float] | None:
        """The axis, the links and the seconds of the link that takes the longest, None if no link is timed."""
        timed = [
            (axis, link, float(link.seconds[link.busiest]))
            for axis in (self.calls if self.placement is not None else ())
            for link in self.loads_of(axis).links
            if link.busiest is not None and math.isfinite(float(link.seconds[link.busiest]))
        ]
        return max(timed, key=lambda entry: entry[2], default=None)


class Decision(NamedTuple):
    """The sentence that decides between A and B, and the rows of its table: a label, A, B, and the change to A."""

    choice: Choice
    sentence: str
    rows: tuple[tuple[str, str, str, str], ...]

    def lines(self) -> list[str]:
        """Return the decision as text."""
        rows = [f"  {label}: {a} in A, {b} in B{f' ({change})' if change else ''}" for label, a, b, change in self.rows]
        return [self.sentence, *rows]


# -- the sentence ------------------------------------------------------------------------------------------------------


def decide(a: CandidateSide, b: CandidateSide) -> Decision:
    """Decide by the steps of the job or, without one, by one call per axis that moves as many bytes in both."""
    if a.step is not None and b.step is not None:
        choice, sentence = _by_steps(a.step, b.step)
        return Decision(choice, sentence, (*_step_rows(a.step.time, b.step.time), *_link_row(a, b)))
    choice, sentence = _by_calls(a, b)
    return Decision(choice, sentence, (*_call_rows(a, b), *_link_row(a, b)))


def _undecided(reason: str) -> tuple[Choice, str]:
    return "not decided", f"Not decided, because {reason}."


def _by_steps(before: JobStep, after: JobStep) -> tuple[Choice, str]:
    a, b = before.time, after.time
    if a is None or b is None:
        name, step = ("A", before) if a is None else ("B", after)
        return _undecided(f"{name} has no step: {step.problem}")
    if (a.job.n_parameters, a.job.layers, a.job.hidden) != (b.job.n_parameters, b.job.layers, b.job.hidden):
        return _undecided(f"they train different models: {a.job.title} in A, {b.job.title} in B")
    if not a.fits and not b.fits:
        needed = f"A needs {_gib(a.memory.total)} per GPU, B {_gib(b.memory.total)}"
        return _undecided(f"neither fits into {_gib(b.memory_limit)}: {needed}")
    if not b.fits:
        return "A", f"A, because B does not fit: it needs {_memory(b)} per GPU."
    if not a.fits:
        return "B", f"B, because A does not fit: it needs {_memory(a)} per GPU."
    per_token = "" if a.job.tokens == b.job.tokens else " per token"
    ratio = b.ratio(a)
    if not ratio.is_decided:
        return _tied(ratio, "the step", per_token)
    shares = {"A": a.shares, "B": b.shares}
    scale = b.job.tokens / a.job.tokens  # seconds of A for the tokens of B
    changes = {
        name: shares["B"].get(name, 0.0) - scale * shares["A"].get(name, 0.0)
        for name in dict.fromkeys([*shares["A"], *shares["B"]])
    }
    is_faster = ratio.high < 1
    name = (min if is_faster else max)(changes, key=lambda name: changes[name])
    before_state, after_state = (axis.state if (axis := step.axis(name)) else "none" for step in (a, b))
    detail = _bubble_detail(a, b) if name == "bubble" else ""
    sizes = [axis.n_ranks if (axis := step.axis(name)) else 1 for step in (a, b)]
    if sizes[0] != sizes[1] and min(sizes) > 1:
        detail = _size_detail(*sizes)
    reason = _reason(name, changes[name], before_state, after_state, detail)
    return _decided(ratio, reason, per_token)


def _by_calls(a: CandidateSide, b: CandidateSide) -> tuple[Choice, str]:
    if not a.terms or not b.terms:
        missing = "neither" if not a.terms and not b.terms else "A" if not a.terms else "B"
        return _undecided(f"{missing} has {'a' if missing == 'neither' else 'no'} predicted time")
    only = [f"{axis} is only in {name}" for name, axes in _only(a, b) for axis in axes]
    if only:
        return _undecided(f"{' and '.join(only)}; with a job, their steps can be compared")
    ratio = ratio_of([*b.terms.values()], [*a.terms.values()])
    if not ratio.is_decided:
        return _tied(ratio, "one call per axis", "")
    changes = {axis: b.terms[axis].seconds - a.terms[axis].seconds for axis in b.terms}
    axis = (min if ratio.high < 1 else max)(changes, key=lambda axis: changes[axis])
    sizes = [side.placement.mesh[axis].size if side.placement else 1 for side in (a, b)]
    detail = _size_detail(*sizes) if sizes[0] != sizes[1] else ""
    reason = _reason(axis, changes[axis], a.loads_of(axis).state, b.loads_of(axis).state, detail)
    return _decided(ratio, reason, " for the same bytes")


def _only(a: CandidateSide, b: CandidateSide) -> list[tuple[str, list[str]]]:
    return [("A", [axis for axis in a.calls if axis not in b.calls]), ("B", [x for x in b.calls if x not in a.calls])]


def _decided(ratio: TimeRatio, reason: str, unit: str) -> tuple[Choice, str]:
    is_faster = ratio.high < 1
    near, far = (ratio.high, ratio.low) if is_faster else (ratio.low, ratio.high)
    change = f"{_percent_range(1 - near, 1 - far)} {'less' if is_faster else 'more'} time than A"
    if abs(1 - far) < _NEGLIGIBLE:
        return _undecided(f"B takes only {change}{unit}")
    words = f"{_plain_range(near, far)} times as long as A" if far > 2 else change
    return "B" if is_faster else "A", f"B takes {words}{unit}, because {reason}."


def _tied(ratio: TimeRatio, what: str, unit: str) -> tuple[Choice, str]:
    if ratio.low == ratio.high == 1:
        return _undecided(f"{what} takes the same time in both")
    spread = _plain_range(ratio.low, ratio.high)
    return _undecided(f"{what} takes {spread} times as long in B{unit}, depending mostly on {ratio.cause}")


def _reason(name: str, change: float, before: str, after: str, detail: str = "") -> str:
    if name in ("compute", "bubble"):
        label = "computation" if name == "compute" else "the bubble"
        return f"{label} takes {_more(change)}{detail}"
    is_worse = _ORDER.index(after) > _ORDER.index(before)
    if before in ("nvlink", "host") and after == "rail" and change > 0:
        return f"{name} leaves {'NVLink' if before == 'nvlink' else 'the host'}"
    if before not in ("none", after) and is_worse == (change > 0):
        return f"{name} {_USES[after]}" + ("" if after == "none" else f" ({_uses_in_a(before)})")
    return f"{name} takes {_more(change)}{detail}"


def _size_detail(before: int, after: int) -> str:
    return f" ({after:,} ranks instead of {before:,})"


def _uses_in_a(state: str) -> str:
    return f"in A it {_USES[state]}"


def _bubble_detail(a: StepTime, b: StepTime) -> str:
    stages = [int(step.layout.degrees.pp[0]) for step in (a, b)]
    return f" (pp={stages[1]} instead of {stages[0]})" if stages[0] != stages[1] else ""


def _more(change: float) -> str:
    return f"{seconds_text(abs(change))} {'more' if change > 0 else 'less'}"


def _memory(step: StepTime) -> str:
    return f"{step.memory.total / 2**30:.0f} of {_gib(step.memory_limit)}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.0f}{THIN}GiB"


def _percent_range(near: float, far: float) -> str:
    low, high = sorted((100 * abs(near), 100 * abs(far)))
    digits = 0 if high >= 2 and low >= 0.95 else 1 if high >= 0.2 else 2
    texts = [f"{number:.{digits}f}" for number in (low, high)]
    if float(texts[0]) == 0:
        return f"up to {texts[1]}{THIN}%" if float(texts[1]) else f"less than 0.01{THIN}%"
    return f"{texts[0]}{THIN}%" if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}{THIN}%"


def _plain_range(low: float, high: float) -> str:
    return format_range(f"{low:.2f}", f"{high:.2f}")


# -- the table ---------------------------------------------------------------------------------------------------------


def _ratio_text(ratio: TimeRatio) -> str:
    return f"× {_plain_range(ratio.low, ratio.high)}"


def _step_rows(a: StepTime | None, b: StepTime | None) -> list[tuple[str, str, str, str]]:
    steps = (a, b)

    def row(label: str, text: Callable[[StepTime], str], change: str = "") -> tuple[str, str, str, str]:
        before, after = ("–" if step is None else text(step) for step in steps)
        return label, before, after, change

    times = "" if a is None or b is None else _ratio_text(b.ratio(a))
    memory = "" if a is None or b is None else _change(a.memory.total, b.memory.total)
    names = dict.fromkeys(axis.name for step in steps if step is not None for axis in step.axes)
    rows = [
        row("Step time", lambda step: range_text(step.low_s, step.high_s), times),
        row("Memory per GPU", lambda step: _memory(step) + ("" if step.fits else ", does not fit"), memory),
        row("Computation", lambda step: seconds_text(step.compute_s)),
    ]
    if any(step is not None and step.bubble_s > 0 for step in steps):
        rows.append(row("Bubble", lambda step: seconds_text(step.bubble_s)))
    return rows + [row(f"{name}, exposed", partial(_exposed, name=name)) for name in names]


def _exposed(step: StepTime, name: str) -> str:
    axis = step.axis(name)
    return "–" if axis is None else f"{MARKS[axis.state][0]} {range_text(axis.low_s, axis.high_s)}"


def _call_rows(a: CandidateSide, b: CandidateSide) -> list[tuple[str, str, str, str]]:
    rows = []
    shared = [axis for axis in a.terms if axis in b.terms]
    if shared and a.terms.keys() == b.terms.keys():
        totals = [sum(side.terms[axis].seconds for axis in shared) for side in (a, b)]
        ratio = ratio_of([*b.terms.values()], [*a.terms.values()])
        before, after = (format_time_us(total * 1e6) for total in totals)
        rows.append(("One call per axis", before, after, _ratio_text(ratio)))
    for axis in dict.fromkeys([*a.calls, *b.calls]):
        texts = [_call_text(side, axis) for side in (a, b)]
        change = _change(a.terms[axis].seconds, b.terms[axis].seconds) if axis in shared else ""
        rows.append((axis, texts[0], texts[1], change))
    return rows


def _call_text(side: CandidateSide, axis: str) -> str:
    if axis not in side.terms:
        return "–"
    collective, size = side.calls[axis]
    mark = MARKS[side.loads_of(axis).state][0]
    return f"{mark} {format_time_us(side.terms[axis].seconds * 1e6)}, {collective} of {format_size(size)}"


def _link_row(a: CandidateSide, b: CandidateSide) -> list[tuple[str, str, str, str]]:
    links = a.busiest, b.busiest
    if links == (None, None):
        return []
    change = "" if links[0] is None or links[1] is None else _change(links[0][2], links[1][2])
    return [("Busiest link", _link_text(links[0]), _link_text(links[1]), change)]


def _link_text(busiest: tuple[str, LinkLoad, float] | None) -> str:
    if busiest is None:
        return "–"
    axis, link, seconds = busiest
    count = int(link.groups[link.busiest or 0])
    groups = f"{count:,} groups on it" if count != 1 else "one group"
    return f"{link.label}: {axis}, {groups}, {format_time_us(seconds * 1e6)} per call"


def _change(before: float, after: float) -> str:
    """Return the change of a number in percent."""
    if not before or not math.isfinite(before + after):
        return ""
    ratio = after / before
    if ratio > 3:
        return f"× {format_number(ratio)}"
    percent = 100 * (ratio - 1)
    sign = "±" if abs(percent) < 0.5 else "+" if percent > 0 else "−"
    return f"{sign}{abs(percent):,.0f}{THIN}%"


def pack_decision(decision: Decision) -> dict[str, Any]:
    """Return the decision for the front end."""
    return {"choice": decision.choice, "sentence": decision.sentence, "rows": [list(row) for row in decision.rows]}
