"""Redaction of an explanation: what its readers and rules have extracted is replaced everywhere, also in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import Seen
from meshlab.diagnosis.formats._pair_table import HostPair
from meshlab.runs._redact import Redactor, redactor_of

if TYPE_CHECKING:
    import pandas as pd

_NAME = r"[A-Za-z0-9](?:[\w.-]{0,250}[A-Za-z0-9])?"
_MORE = rf"(?:(?:, | and | or ){_NAME}(?![\w ]))*"
_SUBJECTS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?:^|, |: )(?P<hosts>{_NAME})(?= (?:ranks?|GPUs?) \d|, (?:rank|pid|interface|channels|plugin|mlx|NET)\b)",
        rf"\b(?:on|waiting for) (?:node |host )?(?P<hosts>{_NAME}{_MORE})",
        rf"\((?P<hosts>{_NAME}), GPU \d",
        rf"^(?P<hosts>(?![a-zA-Z]+_[a-zA-Z_]+$){_NAME}(?: (?:and|or) {_NAME})?)$",
    )
)
"""Where the subjects of rules name hosts: "nodeA ranks 0-3, nodeB rank 8", "a process (pid 7) on nodeA"."""


def redactor_for(paste: Paste, findings: Iterable[TextFinding], seen: Sequence[Seen]) -> Redactor:
    """Return a redactor with the names that the readers and the rules have extracted, and those that the text shows."""
    clusters = [part.cluster for part in seen if part.cluster is not None]
    mesh = next((part.mesh for part in seen if part.mesh is not None), None)
    redactor = redactor_of(None, hosts=[name for cluster in clusters for name in cluster.names], mesh=mesh)
    readings = paste.readings()
    redactor.learn(paste.text, [part.facts for part in seen]).learn_facts(*readings, *clusters)
    redactor.learn_hosts(_pairs(readings))
    return redactor.learn_hosts(name for finding in findings for name in _hosts_of(finding.subject))


def redact_finding(finding: TextFinding, redactor: Redactor) -> TextFinding:
    """Return a finding with hashes. Its code and its title are those of the rule."""
    subject, why, do = redactor.text(finding.subject), redactor.text(finding.why), redactor.text(finding.do)
    return replace(finding, subject=subject, why=why, do=do)


def redact_seen(seen: Seen, redactor: Redactor) -> Seen:
    """Return what a format shows with hashes. Its tables are still built when they are asked for."""

    def table(make: Callable[[], pd.DataFrame]) -> Callable[[], pd.DataFrame]:
        return lambda: redactor.frame(make())

    facts, cluster, mesh = (redactor.anything(part) for part in (seen.facts, seen.cluster, seen.mesh))
    return Seen(facts, {name: table(make) for name, make in seen.frames.items()}, cluster, mesh)


def _pairs(readings: Iterable[object]) -> Iterator[str]:
    for reading in readings:
        if isinstance(reading, tuple):
            for pair in reading:
                if not isinstance(pair, HostPair):
                    break
                yield from (pair.a, pair.b)


def _hosts_of(subject: str) -> Iterator[str]:
    for pattern in _SUBJECTS:
        for match in pattern.finditer(subject):
            yield from re.split(r", | and | or ", match["hosts"])
