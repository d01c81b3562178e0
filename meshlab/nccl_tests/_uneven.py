"""The traffic of ``alltoallv_perf``: its environment, and the summaries that it prints with PRINT_SUMMARY."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import COLLECTIVES
from meshlab.base._numerals import whole
from meshlab.frames._schema import rank_bytes_frame
from meshlab.mesh._traffic import Traffic

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.nccl_tests._log import Section

_PREFIX = "NCCL_TESTS_ALLTOALLV"
SUMMARY = "# NCCL_TESTS_"  # begins the text of a summary, which interrupts the row of the table
_SUMMARY = re.compile(r"mode=(\w{1,20})(?: .{0,100}?spread=([\d.]{1,20}))?")
_RANK = re.compile(r"#\s*rank=(\d{1,9}) send_bytes=(\d{1,20}) recv_bytes=(\d{1,20})\b")
_MOST_RANKS = 1 << 20  # of all summaries of a section


@dataclass(slots=True)
class TrafficSummary:
    """The bytes of every rank in the calls of a row."""

    mode: str
    spread: float | None
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)  # bytes sent and received

    @property
    def size_bytes(self) -> int:
        """The largest sum of a rank."""
        return max((max(pair) for pair in self.ranks.values()), default=0)


class TrafficCollector:
    """Collects the summaries of a section."""

    def __init__(self) -> None:
        self.summaries: list[TrafficSummary] = []
        self._n_ranks = 0

    def begin(self, text: str) -> None:
        """Read the line that begins a summary."""
        if match := _SUMMARY.search(text):
            self.summaries.append(TrafficSummary(match[1], _number(match[2])))

    def add(self, text: str) -> bool:
        """Read the line of a rank. Return False if it is a different line."""
        match = _RANK.match(text)
        if match is None:
            return False
        if self.summaries and self._n_ranks < _MOST_RANKS:
            self._n_ranks += 1
            self.summaries[-1].ranks[whole(match[1])] = whole(match[2]), whole(match[3])
        return True


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def traffic_columns(section: Section) -> dict[str, npt.NDArray[Any]]:
    """Return the names and the imbalances of the traffics of a section, one per row of its table."""
    n = len(section.table)
    names, imbalances = np.full(n, None, dtype=object), np.full(n, np.nan)
    facts = COLLECTIVES.get(section.collective or "")
    if facts is not None and facts.counted:
        by_size = _by_size(section)
        names[:] = [_name(section, count) for count in section.table.count.tolist()]
        # The ranks of a generated pattern send and receive the same number of bytes, and only a matrix has no count.
        imbalances[section.table.count > 0] = 1.0
        for row, size in enumerate(section.table.size_bytes.tolist()):
            if size in by_size:
                imbalances[row] = _imbalance(by_size[size])
    return {"traffic": names, "imbalance": imbalances}


def rank_bytes(name: str, sections: Sequence[Section]) -> pd.DataFrame:
    """Return the bytes of every rank in the summaries of sections."""
    rows = []
    for section in sections:
        counts = dict(zip(section.table.size_bytes.tolist(), section.table.count.tolist(), strict=True))
        for size, summary in _by_size(section).items():
            fixed = {
                "run_id": f"{name}#{section.number}",
                "traffic": _name(section, counts[size]),
                "size_bytes": size,
                "imbalance": _imbalance(summary),
            }
            rows += [
                {**fixed, "rank": rank, "sent_bytes": sent, "received_bytes": received}
                for rank, (sent, received) in sorted(summary.ranks.items())
            ]
    return rank_bytes_frame(rows)


def _by_size(section: Section) -> Mapping[int, TrafficSummary]:
    """Return the complete summaries by the size of their rows. That of the second placement repeats the first one."""
    sizes = set(section.table.size_bytes.tolist())
    return {
        summary.size_bytes: summary
        for summary in section.summaries
        if summary.size_bytes in sizes and section.n_ranks in (None, len(summary.ranks))
    }


def _imbalance(summary: TrafficSummary) -> float:
    total = sum(sent for sent, _ in summary.ranks.values())
    return summary.size_bytes * len(summary.ranks) / total if total else 1.0


def _name(section: Section, count: int) -> str | None:
    """Return the name of the traffic of a row, or None if the log does not contain it."""
    environment = section.nccl.environment
    if count == 0:
        return PurePosixPath(environment.get(f"{_PREFIX}_MATRIX_FILE", "")).stem or "matrix"
    spread = next((summary.spread for summary in section.summaries), None)
    if spread is None:
        spread = _number(environment.get(f"{_PREFIX}_SPREAD"))
    if spread is None and section.has_environment and f"{_PREFIX}_SPREAD" not in environment:
        spread = 1.0  # the default of the tool
    return None if spread is None else Traffic.spread(min(max(spread, 0.0), 1.0)).name
