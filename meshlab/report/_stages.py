"""The stages of an acceptance: what each of them found, and the verdict of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshlab.report._answers import Answer, State
from meshlab.report._words import listed

Outcome = Literal["passed", "failed", "skipped"]

_STATES: dict[Outcome, State] = {"passed": "good", "failed": "bad", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class StageResult:
    """One stage of an acceptance."""

    name: str
    outcome: Outcome  # skipped: could not run, or had nothing to compare with
    sentences: tuple[str, ...]  # the findings, or why it was skipped
    elapsed_s: float = 0.0

    @property
    def answer(self) -> Answer:
        """The stage as an answer of a report."""
        first = f"Skipped: {self.sentences[0]}" if self.outcome == "skipped" else self.sentences[0]
        return Answer(self.name, _STATES[self.outcome], (first, *self.sentences[1:]))

    def __str__(self) -> str:
        return f"{self.outcome:<8} {self.name:<13} {' '.join(self.sentences)}"


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of an acceptance, and the command that repeats it."""

    items: tuple[StageResult, ...]
    essential: str  # the stage without which nothing was accepted
    judging: tuple[str, ...] = ()  # the stages that judge the speed
    interruption: str = ""  # why the acceptance ended early
    repeat: str = ""  # the command that repeats the acceptance

    @property
    def outcome(self) -> Literal["passed", "failed", "not carried out"]:
        """``"failed"`` if a stage failed. ``"not carried out"`` if the essential stage did not pass."""
        if any(stage.outcome == "failed" for stage in self.items):
            return "failed"
        has_passed = any(stage.outcome == "passed" and stage.name == self.essential for stage in self.items)
        return "passed" if has_passed and not self.interruption else "not carried out"

    @property
    def headline(self) -> Answer:
        """The verdict, as one sentence or two."""
        failed, passed, skipped = (self._named(name) for name in ("failed", "passed", "skipped"))
        if failed:
            first = next(stage for stage in self.items if stage.outcome == "failed")
            return Answer("", "bad", (f"FAILED: {listed(failed)}. {first.sentences[0]}",))
        if self.interruption:
            return Answer("", "note", (f"Not accepted: {self.interruption}.",))
        if self.outcome == "not carried out":
            reason = next((stage.sentences[0] for stage in self.items if stage.name == self.essential), "")
            return Answer("", "note", (f"Not accepted, because nothing was measured: {reason}",))
        stages = "1 stage" if len(passed) == 1 else f"{len(passed)} stages"
        if not skipped:
            return Answer("", "good", (f"Accepted: all {stages} passed.",))
        counts = f"{stages} passed, and {listed(skipped)} {'was' if len(skipped) == 1 else 'were'} skipped."
        if self.judging and set(self.judging) <= set(skipped):
            return Answer("", "note", (f"Nothing failed, but the speed was not judged: {counts}",))
        return Answer("", "good", (f"Nothing failed: {counts}",))

    def _named(self, outcome: Outcome) -> list[str]:
        return [stage.name for stage in self.items if stage.outcome == outcome]
