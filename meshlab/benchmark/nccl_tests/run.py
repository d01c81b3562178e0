"""One run of a test while its lines are being read."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Any

from meshlab.benchmark.nccl_tests.devices import DeviceLines
from meshlab.nccl_tests.info import FactCollector, merge_facts
from meshlab.nccl_tests.log import Footer, Note, Preamble, Section
from meshlab.nccl_tests.rows import RowBuffer
from meshlab.benchmark.nccl_tests.section import make_section

__all__ = ["Run", "Stage"]


class Stage(IntEnum):
    """How far a run has come."""

    NAMED = 0
    SET = 1
    LISTED = 2
    TABLE = 3
    CLOSED = 4


class Run:
    """One run while it is being read."""

    def __init__(self, line: int, command: str | None, stage: int) -> None:
        self.line = line
        self.command = command
        self.stage = stage
        self.settings: dict[str, Any] = {}
        self.devices: dict[int, str] = {}
        self.groups: Counter[str | None] = Counter()
        self.device_lost = False
        self.rows = RowBuffer()
        self.has_header = False
        self.began_table = False
        self.fragment: tuple[int, tuple[str, ...]] | None = None
        self.broken: list[int] = []
        self.bounds: tuple[int | None, bool | None] = (None, None)
        self.average: tuple[float | None, bool | None] = (None, None)
        self.failures: list[Note] = []
        self.failure_lines = 0
        self.notes: list[Note] = []
        self.facts = FactCollector()

    def give_up_fragment(self) -> None:
        """What was begun and not completed is a broken row."""
        if self.fragment is not None:
            self.broken.append(self.fragment[0])
            self.fragment = None

    def _listed_ranks(self) -> int | None:
        """How many ranks the device list has; None when it was cut, as far as that can be seen."""
        # A list with nothing behind it may go on.
        ends_text = self.stage == Stage.LISTED and not self.failure_lines
        if not self.devices or self.device_lost or ends_text:
            return None
        if len(self.groups) > 1:
            return next(iter(self.groups.values()))
        n_ranks = max(self.devices) + 1
        per_process = self.settings.get("threads", 1) * self.settings.get("gpus", 1)
        return n_ranks if per_process and n_ranks % per_process == 0 else None

    def section(self, number: int, prelude: FactCollector | None) -> Section:
        """What was read so far, settled."""
        self.give_up_fragment()
        table, cut = self.rows.table()
        facts = self.facts.facts()
        if prelude is not None:
            facts = merge_facts([facts, prelude.facts()])
        return make_section(
            number=number,
            line=self.line,
            preamble=Preamble(**self.settings),
            command=self.command,
            devices=DeviceLines(list(self.devices.values())),
            listed_ranks=self._listed_ranks(),
            began_table=self.began_table,
            table=table,
            broken=sorted(self.broken + cut),
            footer=Footer(*self.bounds, *self.average),
            failures=self.failures,
            failure_lines=self.failure_lines,
            notes=self.notes,
            nccl=facts,
        )
