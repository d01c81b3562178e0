"""Tables of the bandwidth of pairs of hosts, as people write them after running nccl-tests on each pair."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import Seen, TextFormat

_NAME = r"[A-Za-z][\w.-]*\d[\w.-]*|\d{1,3}(?:\.\d{1,3}){3}"
_PAIR = re.compile(
    rf"^[\s|*-]*(?P<a>{_NAME})\s*(?:,|<-+>|-+>|<=>|\s-\s|/|\||\s+(?:and|to|vs\.?)\s+|\s)\s*(?P<b>{_NAME})\s*[:=,|]?\s*"
    r"(?P<value>\d+(?:\.\d+)?)\s*(?:GB/s|GBps|GB/sec)?\s*(?:\||#.*|\(.*\))?\s*$"
)
_FEWEST = 3
_LONGEST_LINE = 300  # the pattern takes long for blanks
_MOST_LINES = 5_000  # such a table is short, and each line is searched


@dataclass(frozen=True, slots=True)
class HostPair:
    """The bandwidth between two hosts."""

    a: str
    b: str
    value: float
    line: int


def read_host_pairs(paste: Paste) -> tuple[HostPair, ...]:
    """Read the rows of a table of pairs. Fewer than three rows, or names of no common kind, are no table."""
    words = ("GB/s", "GBps", "busbw", "algbw", "bandwidth", "Bandwidth", "_perf")
    if len(paste) > _MOST_LINES or not other_lines(paste).numbers(*words):
        return ()
    pairs = []
    for number in range(1, len(paste) + 1):
        line = paste.line(number)
        if len(line.raw) > _LONGEST_LINE:
            continue
        match = _PAIR.match(line.raw) or _PAIR.match(line.text)
        if match and match["a"] != match["b"]:
            pairs.append(HostPair(match["a"], match["b"], float(match["value"]), number))
    kinds = {re.sub(r"\d+", "0", name) for pair in pairs for name in (pair.a, pair.b)}
    return () if len(pairs) < _FEWEST or len(kinds) > 3 else tuple(pairs)


def _find(paste: Paste) -> list[int]:
    return [pair.line for pair in paste.once(read_host_pairs)]


def _see(paste: Paste) -> Seen:
    pairs = paste.once(read_host_pairs)
    hosts = {name for pair in pairs for name in (pair.a, pair.b)}
    return Seen(facts={"pairs": f"{len(pairs)} of {len(hosts)} hosts"})


PAIR_TABLE = TextFormat("pair bandwidth table", _find, _see, "a table of the bandwidth of pairs of hosts")
