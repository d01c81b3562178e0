"""Logs of NCCL Inspector, a profiler plugin: one JSON object for each collective."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from meshlab.base._collectives import NCCL_FUNCTIONS
from meshlab.base._documents import mapping_or_empty
from meshlab.base._numerals import whole_or_none
from meshlab.base._units import format_size
from meshlab.diagnosis._paste import Paste, check_number
from meshlab.diagnosis._seen import Seen, TextFormat, frame_of
from meshlab.diagnosis.formats._json_objects import json_objects

if TYPE_CHECKING:
    import pandas as pd

_START = re.compile(r'\{\s*"header"\s*:\s*\{')
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NAMES = {function.name: name for name, function in NCCL_FUNCTIONS.items()}


@dataclass(frozen=True, slots=True)
class InspectedCall:
    """A collective that a rank completed. Times are in microseconds, and bandwidths in GB/s."""

    lines: tuple[int, int]
    host: str
    rank: int | None
    n_ranks: int | None
    collective: str
    number: int | None
    size_bytes: int | None
    time_us: float | None
    algbw_gbs: float | None
    busbw_gbs: float | None


def read_inspected_calls(paste: Paste) -> tuple[InspectedCall, ...]:
    """Read all complete objects of a log."""
    if not paste.may_contain('"coll_perf"'):
        return ()
    check_number(paste, len(paste.numbers('"coll_perf"')), "calls of NCCL Inspector", most=200_000)
    calls = []
    for lines, root in json_objects(paste, _START):
        call, header = mapping_or_empty(root.get("coll_perf")), mapping_or_empty(root.get("header"))
        if call:
            calls.append(_call(lines, call, header, mapping_or_empty(root.get("metadata"))))
    return tuple(calls)


def _call(
    lines: tuple[int, int], call: Mapping[str, Any], header: Mapping[str, Any], metadata: Mapping[str, Any]
) -> InspectedCall:
    name = str(call.get("coll", ""))
    return InspectedCall(
        lines,
        str(metadata.get("hostname", "")),
        whole_or_none(header.get("rank")),
        whole_or_none(header.get("n_ranks")),
        _NAMES.get(name) or _WORD.sub("_", name).lower(),
        whole_or_none(call.get("coll_sn")),
        whole_or_none(call.get("coll_msg_size_bytes")),
        *(_real(call.get(key)) for key in ("coll_exec_time_us", "coll_algobw_gbs", "coll_busbw_gbs")),
    )


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else None


def call_frame(calls: tuple[InspectedCall, ...]) -> pd.DataFrame:
    """Return the calls as a table."""
    names = ("host", "rank", "n_ranks", "collective", "number", "size_bytes", "time_us", "algbw_gbs", "busbw_gbs")
    return frame_of(calls, *names)


def _see(paste: Paste) -> Seen:
    calls = paste.once(read_inspected_calls)
    facts = {}
    for name in list(dict.fromkeys(call.collective for call in calls))[:8]:
        group = [call for call in calls if call.collective == name]
        sizes = [call.size_bytes for call in group if call.size_bytes is not None]
        rates = [call.busbw_gbs for call in group if call.busbw_gbs is not None]
        text = f"{len(group):,} call{'s' * (len(group) != 1)}"
        text += f" of {format_size(min(sizes))} to {format_size(max(sizes))}" if sizes else ""
        facts[name] = text + (f", peak busbw {max(rates):.1f} GB/s" if rates else "")
    return Seen(MappingProxyType(facts), MappingProxyType({"inspector": lambda: call_frame(calls)}))


INSPECTOR = TextFormat(
    "NCCL Inspector log",
    lambda paste: [k for call in paste.once(read_inspected_calls) for k in range(call.lines[0], call.lines[1] + 1)],
    _see,
    "a log of NCCL Inspector",
)
