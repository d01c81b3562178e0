"""Findings: what looks wrong, how much it matters, and what to do; a value that prints, tabulates and shows itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshlab import markup

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SEVERITIES", "Finding", "Findings", "Report"]

SEVERITIES = ("error", "warning", "note")
"""From the worst to the mildest."""

Report = Iterator[tuple[str, str, str, str]]
"""What a rule yields: severity, code, message and cure."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that looks wrong.

    Parameters
    ----------
    severity : {"error", "warning", "note"}
        error: jobs will be slow or fail; warning: probably not meant; note: good to know.
    code : str
        A short name that stays the same between versions.
    nodes : tuple of str
        The hosts it is true for.
    message : str
        What was seen.
    cure : str
        What to do.
    """

    severity: str
    code: str
    nodes: tuple[str, ...]
    message: str
    cure: str

    @property
    def where(self) -> str:
        """The hosts, in short.

        Examples
        --------
        >>> Finding("note", "mig", ("a", "b", "c", "d"), "", "").where
        'a, b and 2 more'
        """
        shown = ", ".join(self.nodes[:2])
        return shown if len(self.nodes) <= 2 else f"{shown} and {len(self.nodes) - 2:,} more"

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.message}; {self.cure}"


@dataclass(frozen=True, repr=False)
class Findings(Sequence[Finding]):
    """All findings of a cluster, the worst first."""

    items: tuple[Finding, ...]
    nodes: int
    devices: int

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Finding:  # type: ignore[override]
        return self.items[index]

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes, worst first."""
        return tuple(item.code for item in self.items)

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        seen = f"{self.devices:,} device{'s' * (self.devices != 1)} in {self.nodes:,} node{'s' * (self.nodes != 1)}"
        if not self.items:
            return f"nothing looks wrong with {seen}"
        counts = [(name, sum(item.severity == name for item in self.items)) for name in SEVERITIES]
        parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts if count]
        return f"{', '.join(parts)} for {seen}"

    def frame(self) -> pd.DataFrame:
        """One row per finding."""
        import pandas as pd

        rows = [(f.severity, f.code, len(f.nodes), f.where, f.message, f.cure) for f in self.items]
        return pd.DataFrame(rows, columns=["severity", "code", "n_nodes", "where", "message", "cure"])

    def __str__(self) -> str:
        return "\n".join([self.summary, *map(str, self.items)])

    def __repr__(self) -> str:
        return f"<Findings: {self.summary}>"

    def _repr_html_(self) -> str:
        rows = [[item.severity, item.where, item.message, item.cure] for item in self.items]
        table = markup.table(["severity", "where", "what", "what to do"], rows) if rows else ""
        return markup.card("Health", self.summary, table)
