"""The stages of an acceptance: what each of them found, and the verdict of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshlab.analysis._nodes import NodeComparison
from meshlab.base._outcome import Outcome, overall
from meshlab.report._answers import STATES, Answer
from meshlab.report._words import listed

StageOutcome = Outcome | Literal["skipped"]


@dataclass(frozen=True, slots=True)
class StageResult:
    """One stage of an acceptance."""

    name: str
    outcome: StageOutcome  # skipped: could not run, or had nothing to compare with
    sentences: tuple[str, ...]  # the findings, or why it was skipped
    elapsed_s: float = 0.0

    @property
    def answer(self) -> Answer:
        """The stage as an answer of a report."""
        first = f"Skipped: {self.sentences[0]}" if self.outcome == "skipped" else self.sentences[0]
        return Answer(self.name, STATES[self.outcome], (first, *self.sentences[1:]))

    def __str__(self) -> str:
        return f"{self.outcome:<11} {self.name:<13} {' '.join(self.sentences)}"


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of an acceptance, and the command that repeats it."""

    items: tuple[StageResult, ...]
    essential: str  # the stage without which nothing was accepted
    judging: tuple[str, ...] = ()  # the stages that judge the speed
    interruption: str = ""  # why the acceptance ended early
    repeat: str = ""  # the command that repeats the acceptance
    nodes: NodeComparison | None = None  # if there are several hosts

    @property
    def outcome(self) -> Outcome:
        """``"failed"`` if a stage failed. ``"not decided"`` if it was interrupted, or too little was judged."""
        outcomes = [stage.outcome for stage in self.items if stage.outcome != "skipped"]
        if self.interruption or not self._is_measured or self._is_speed_open:
            outcomes.append("not decided")
        return overall(outcomes)

    @property
    def _is_measured(self) -> bool:
        return any(stage.outcome == "passed" and stage.name == self.essential for stage in self.items)

    @property
    def _is_speed_open(self) -> bool:
        return bool(self.judging) and set(self.judging) <= set(self._named("skipped"))

    @property
    def headline(self) -> Answer:
        """The verdict, as one sentence or two."""
        failed, passed, skipped = (self._named(name) for name in ("failed", "passed", "skipped"))
        if failed:
            first = next(stage for stage in self.items if stage.outcome == "failed")
            return Answer("", "bad", (f"FAILED: {listed(failed)}. {first.sentences[0]}",))
        if self.interruption:
            return Answer("", "note", (f"Not accepted: {self.interruption}.",))
        if not self._is_measured:
            reason = next((stage.sentences[0] for stage in self.items if stage.name == self.essential), "")
            return Answer("", "note", (f"Not accepted, because nothing was measured: {reason}",))
        if unclear := self._named("not decided"):
            first = next(stage for stage in self.items if stage.outcome == "not decided")
            return Answer("", "note", (f"Not decided: {listed(unclear)}. {first.sentences[0]}",))
        stages = "1 stage" if len(passed) == 1 else f"{len(passed)} stages"
        if not skipped:
            return Answer("", "good", (f"Accepted: all {stages} passed.",))
        counts = f"{stages} passed, and {listed(skipped)} {'was' if len(skipped) == 1 else 'were'} skipped."
        if self._is_speed_open:
            return Answer("", "note", (f"Not decided: nothing failed, but the speed was not judged. {counts}",))
        return Answer("", "good", (f"Nothing failed: {counts}",))

    def _named(self, outcome: StageOutcome) -> list[str]:
        return [stage.name for stage in self.items if stage.outcome == outcome]
