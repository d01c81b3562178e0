"""The hosts of a run on several of them, as tables: their differences, and the verdicts of an acceptance on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshlab.analysis._nodes import NodeComparison
from meshlab.base._outcome import Outcome
from meshlab.base._units import format_time_us
from meshlab.report._tables import MOST_ROWS, Cell, ReportTable
from meshlab.report._words import count, listed
from meshlab.runs._rundata import HOST_SECTION

_RANKS = "ranks"  # the fact in which all hosts differ
_MOST_COLUMNS = 5
_MOST_NAMES = 3

_SIGNS: Mapping[Outcome, str] = {"passed": "✓", "failed": "✕", "not decided": "–"}

Sections = Mapping[str, Mapping[str, str]]


def host_facts(environment: Sections) -> dict[str, dict[str, str]]:
    """Return the facts of each host of a run on several hosts. Empty for one host, and for runs of earlier versions."""
    return {
        name.removeprefix(HOST_SECTION): {str(fact): str(text) for fact, text in facts.items()}
        for name, facts in environment.items()
        if name.startswith(HOST_SECTION)
    }


def differing_facts(hosts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the names of the facts in which hosts differ, apart from their ranks."""
    names = dict.fromkeys(name for facts in hosts.values() for name in facts if name != _RANKS)
    return [name for name in names if len({facts.get(name) for facts in hosts.values()}) > 1]


def host_caveat(environment: Sections) -> str:
    """Return the sentence about the facts in which the hosts differ. Empty if they do not."""
    names = differing_facts(host_facts(environment))
    return f"The hosts differ in {listed(names)}: the table of hosts is under “Environment”." if names else ""


def host_table(environment: Sections) -> ReportTable | None:
    """Return the facts of the hosts, with a column per kind of host, the most frequent one first. None for one host."""
    hosts = host_facts(environment)
    if not hosts:
        return None
    kinds: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for host, facts in hosts.items():
        kinds.setdefault(tuple(item for item in facts.items() if item[0] != _RANKS), []).append(host)
    columns = sorted(kinds.values(), key=len, reverse=True)
    usual = hosts[columns[0][0]]
    differing = set(differing_facts(hosts))
    names = list(dict.fromkeys(name for facts in hosts.values() for name in facts))
    rows = []
    for name in names:
        cells = [Cell(name)]
        for column in columns[:_MOST_COLUMNS]:
            text = _ranks(column, hosts) if name == _RANKS else hosts[column[0]].get(name, "–")
            differs = name in differing and text != usual.get(name, "–")
            cells.append(Cell(f"≠ {text}" if differs else text, is_bad=differs))
        rows.append(tuple(cells))
    header = ("", *(_names(column) for column in columns[:_MOST_COLUMNS]))
    hidden = sum(map(len, columns[_MOST_COLUMNS:]))
    others = f", and {count(hidden, 'host')} of other kinds, which are not shown" if hidden else ""
    difference = (
        f", which differ in {listed(name for name in names if name in differing)}" if differing else ", identical"
    )
    return ReportTable(
        f"{count(len(hosts), 'host')}{difference}{others}", header, tuple(rows), texts=tuple(range(len(header)))
    )


def node_table(comparison: NodeComparison) -> ReportTable:
    """Return one row per host of an acceptance with its verdict, those that failed first."""
    verdicts = sorted(comparison.verdicts, key=lambda verdict: verdict.outcome != "failed")
    rows = [
        (
            Cell(verdict.host),
            Cell(f"{_SIGNS[verdict.outcome]} {verdict.outcome}", is_bad=verdict.outcome == "failed"),
            Cell(ranks_text(verdict.ranks)),
            *(
                Cell(
                    "–" if math.isnan(time_us) else format_time_us(time_us),
                    value=None if math.isnan(time_us) else time_us,
                )
                for time_us in (verdict.alone_us, verdict.latency_us, verdict.transfer_us)
            ),
            Cell("; ".join(verdict.findings) or "–"),
        )
        for verdict in verdicts
    ]
    header = ("host", "verdict", "ranks", "alone", "small message", "large message", "finding")
    more = max(0, len(rows) - MOST_ROWS)
    return ReportTable("Hosts", header, tuple(rows[:MOST_ROWS]), more, texts=(0, 1, 2, 6))


def ranks_text(ranks: Sequence[int]) -> str:
    """Write the ranks of a host, as a range if they are neighbours."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _names(hosts: Sequence[str]) -> str:
    """Name hosts of one kind, or count them if there are many."""
    if len(hosts) <= _MOST_NAMES:
        return ", ".join(hosts)
    return f"{', '.join(hosts[: _MOST_NAMES - 1])} … {hosts[-1]} ({len(hosts):,} hosts)"


def _ranks(column: Sequence[str], hosts: Mapping[str, Mapping[str, str]]) -> str:
    """List the ranks of hosts of one kind."""
    texts = [f"{host}: {hosts[host][_RANKS]}" for host in column if _RANKS in hosts[host]]
    if len(column) == 1:
        return hosts[column[0]].get(_RANKS, "–")
    return "; ".join(texts[:_MOST_NAMES]) + ("; …" if len(texts) > _MOST_NAMES else "")
