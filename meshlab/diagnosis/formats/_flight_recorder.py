"""Dumps of PyTorch's flight recorder as JSON: what each rank called last, in each process group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from meshlab.base._documents import LimitError, NestingError, decode_json, mapping_or_empty
from meshlab.base._errors import ParseError
from meshlab.base._numerals import LARGEST, whole, whole_or_none
from meshlab.diagnosis._paste import Paste, check_number
from meshlab.diagnosis._seen import Seen, TextFormat

if TYPE_CHECKING:
    import pandas as pd

_MARKS = ('"entries"', '"pg_config"', '"pg_status"')
_PRINTED_MARKS = tuple(mark.replace('"', "'") for mark in _MARKS)
_PRINTED = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|\b(?:True|False|None)\b|,(?=\s*\))|[()]")
_ESCAPE = re.compile(r'\\x(?P<code>[0-9a-f]{2})|\\?(?P<special>")|\\(?:(?P<letter>[\\/bfnrtu])|(?P<other>.))')
_JSON_OF = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}
# A brace or a bracket that may begin JSON, unlike that of [rank3]: or of [2025-11-29 12:00:00].
_VALUE = r"(?:\{(?=\s*[\"}])|\[(?=\s*(?:[\[{\"\]]|-?\d[\d.eE+-]*\s*[,\]]|true|false|null|NaN|-?Infinity)))"
# A loop that prints the dumps may put the number of the rank before each.
_START = re.compile(
    rf"^(?:[^\S\n]*{_VALUE}|[^\n{{}}\[\]\"]{{1,100}}\{{(?=\s*\"(?:version|entries|pg_config|pg_status)\"))",
    re.MULTILINE,
)
_NEXT = re.compile(rf"[\s,]*{_VALUE}")  # files without a final newline are pasted directly after one another
_BETWEEN = re.compile(r"[\s,]*")
_RECORD = re.compile(r'"record_id"\s*:')
_FIELDS = {
    key: re.compile(rf'"{key}"\s*:\s*') for key in ("version", "rank", "pg_config", "pg_status")
}  # of a dump, before its entries
_ENTRIES = re.compile(r'"entries"\s*:\s*\[\s*')
_RANK_OF_FILE = re.compile(r"(?:rank[_\s:=]*|trace[_\w]*_|_)(\d+)(?:\.\w+)?\b", re.IGNORECASE)
_PEERS = re.compile(r"(?P<kind>send|recv) (?P<first>\d+)(?P<arrow>->|<-)(?P<second>\d+)")

_INSTEAD = "paste the dumps as PyTorch writes them, and nothing else"


# Not a dataclass, which takes three times as long to create: dumps have 2,000 calls each.
class FlightCall(NamedTuple):
    """One call in a dump."""

    group: str
    seq: int  # number of the collective within the group, or of the send or receive if is_p2p
    is_p2p: bool
    op: str  # collective, such as "all_reduce"
    source: int | None  # rank within the group of a send or a receive
    destination: int | None
    state: str  # "scheduled", "started" or "completed"
    sizes_in: tuple[tuple[int, ...], ...]
    sizes_out: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_retired: bool  # the watchdog no longer waits for the call. If it is not completed, it timed out
    frames: tuple[tuple[str, str, str], ...]  # name, file and line of each Python function, innermost first
    line: int


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group in a dump."""

    name: str
    desc: str
    ranks: tuple[int, ...]  # global ranks. Empty if the dump does not contain them
    last_enqueued: int | None  # number of a collective. None if the dump does not contain it
    last_completed: int | None

    def __str__(self) -> str:
        return self.desc if self.desc and self.desc != "undefined" else f"PG {self.name}"


@dataclass(frozen=True, slots=True)
class FlightDump:
    """The dump of one rank."""

    rank: int  # global rank
    is_rank_known: bool  # false if the text names no rank, so that the dumps were numbered in their order
    version: str
    groups: Mapping[str, FlightGroup]
    # In their order. The buffer is a ring, so it rarely starts at the first call.
    calls: tuple[FlightCall, ...]
    is_complete: bool  # false if the text ends within the dump
    line: int  # number of its first line in the text

    def last_seq(self, group: str) -> int:
        """Return the number of the last collective that the rank called in a group, 0 if there was none."""
        # The recorder notes a call before NCCL enqueues it, and the status is updated after it.
        status = self.groups.get(group)
        called = max((call.seq for call in self.calls if call.group == group and not call.is_p2p), default=0)
        return max(called, (status.last_enqueued or 0) if status else 0)


def refuse_pickle(text: str, name: str | None = None) -> None:
    """Raise an error for a dump in the format of pickle, which can contain code."""
    # A pickle of protocol 2 to 5 starts with 0x80 and the number. As text, 0x80 is U+FFFD or, in Latin-1, U+0080.
    if len(text) > 1 and text[0] in "\x80\ufffd" and text[1] in "\x02\x03\x04\x05":
        file = name or "nccl_trace_rank_0"
        raise ParseError(
            "a flight recorder dump in pickle format, which is not opened because a pickle can run code",
            hint='on the machine that wrote it, convert your own dump to JSON: python -c "import json, pickle; '
            f"print(json.dumps(pickle.load(open('{file}', 'rb')), default=str))\" > {file}.json; "
            "or paste the output of `torchfrtrace FOLDER`; a running process returns JSON itself: "
            "torch._C._distributed_c10d._dump_nccl_trace_json()",
            file=name,
        )


def read_flight_dumps(paste: Paste) -> tuple[FlightDump, ...]:
    """Read all dumps in a text: one after the other, in a list, or in an object by rank."""
    if any(mark in paste.text for mark in _PRINTED_MARKS):
        paste = Paste(_as_json(paste), paste.name)  # with the same lines
    if not any(mark in paste.text for mark in _MARKS):
        return ()
    dumps: list[_RawDump] = []
    n_calls = 0
    for dump in _dumps(paste):
        if dump[1].get("entries") is None and "pg_config" not in dump[1]:
            continue
        dumps.append(dump)
        n_calls += len(_entries(dump[1]))
        check_number(paste, len(dumps), "dumps of the flight recorder", most=1_000, length=1_000, hint=_INSTEAD)
        check_number(paste, n_calls, "calls in dumps of the flight recorder", most=10_000, length=100, hint=_INSTEAD)
    return tuple(_numbered(paste, dumps))


def _as_json(paste: Paste) -> str:
    """Return a text with JSON in the place of what Python prints for dictionaries, without evaluating anything."""
    check_number(paste, paste.text.count("'"), "quotation marks", most=200_000, length=8, hint=_INSTEAD)
    return _PRINTED.sub(_json_token, paste.text)


def _json_token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] not in "'\"":
        return "" if token == "," else _JSON_OF.get(token, token)
    return f'"{_ESCAPE.sub(_json_escape, token[1:-1])}"'


def _json_escape(match: re.Match[str]) -> str:
    """Return a quotation mark or an escape of Python as JSON escapes it. JSON needs no escape for the others."""
    if match["code"] is not None:
        return f"\\u00{match['code']}"
    special = match["special"] or match["letter"]
    return match["other"] if special is None else f"\\{special}"


_RawDump = tuple[int | None, Mapping[str, Any], int, int, bool]
"""Rank, content, start and end in the text, and whether the text holds all of it."""


def _dumps(paste: Paste) -> Iterator[_RawDump]:
    text, position = paste.text, 0
    after_dump = False
    n_values = 0
    while start := (after_dump and _NEXT.match(text, position)) or _START.search(text, position):
        begin, after_dump = start.end() - 1, False
        n_values += 1
        check_number(paste, n_values, "values of JSON", most=10_000, length=50, hint=_INSTEAD)
        try:
            value, end = decode_json(text, begin)
        except LimitError:
            raise
        except NestingError:  # not a dump
            return
        except ParseError:
            end = text.find("\n", begin) + 1 or len(text)
            upcoming = text[begin : begin + 4000]
            if any(mark in upcoming for mark in _MARKS) and text[begin] == "{":
                cut, end = _cut_dump(text, begin)
                yield _rank_of(paste, begin, cut), cut, begin, end, False
        else:
            after_dump = True
            for rank, dump in _dumps_in(value):
                rank_of_dump = rank if rank is not None else _rank_of(paste, begin, dump)
                yield rank_of_dump, dump, begin, end, True
        position = max(end, start.end())


def _dumps_in(value: object, rank: int | None = None) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """Yield the dumps in a JSON value, with the rank that keys around them name."""
    if isinstance(value, list):
        for element in value:
            if isinstance(element, dict):
                yield from _dumps_in(element)
    elif isinstance(value, dict):
        own_rank = value.get("rank", value.get("global_rank", rank))
        own_rank = whole(str(own_rank)) if isinstance(own_rank, (int, str)) and str(own_rank).isdecimal() else rank
        if isinstance(value.get("entries"), list) or isinstance(value.get("pg_config"), dict):
            yield own_rank, value
            return
        for key, element in value.items():
            if isinstance(element, dict):
                named = re.search(r"(\d+)\D*$", str(key))
                yield from _dumps_in(element, whole(named[1]) if named else own_rank)
            elif isinstance(element, list) and key in ("dumps", "ranks", "traces"):
                yield from _dumps_in(element)


def _cut_dump(text: str, begin: int) -> tuple[dict[str, Any], int]:
    """Read what there is of a dump whose end is missing."""
    dump: dict[str, Any] = {"entries": []}
    following = text.find("\n{", begin)  # the next dump
    end = len(text) if following < 0 else following + 1
    for key, pattern in _FIELDS.items():
        if where := pattern.search(text, begin, end):
            with suppress(ParseError):  # the value itself is cut
                dump[key], _ = decode_json(text, where.end())
    where = _ENTRIES.search(text, begin, end)
    position = where.end() if where else end
    while position < end:
        try:
            entry, position = decode_json(text, position)
        except ParseError:
            break
        if isinstance(entry, dict):
            dump["entries"].append(entry)
        if between := _BETWEEN.match(text, position):
            position = between.end()
    return dump, end


def _rank_of(paste: Paste, begin: int, dump: Mapping[str, Any]) -> int | None:
    """Return the rank that the dump, or the line before it, names."""
    rank = dump.get("rank")
    if isinstance(rank, int):
        return whole_or_none(rank)
    before = paste.text[max(0, begin - 300) : begin].rstrip()
    line = before.rsplit("\n", 1)[-1] if before else ""
    named = _RANK_OF_FILE.findall(line) if "{" not in line and "}" not in line and len(line) < 200 else []
    if not named and paste.name is not None and paste.text[:begin].strip() == "":
        named = _RANK_OF_FILE.findall(paste.name.rsplit("/", 1)[-1])
    if named:
        return whole(named[-1])
    for entry in _entries(dump):  # a send names its own rank first, and so does a receive
        if peers := _PEERS.search(str(entry.get("profiling_name", ""))):
            members = _numbers(_configs(dump).get(_group_of(entry)[0], {}).get("ranks"))
            own_rank = whole(peers["first"])
            return members[own_rank] if own_rank < len(members) else None
    return None


def _numbered(paste: Paste, dumps: list[_RawDump]) -> Iterator[FlightDump]:
    """Give dumps without a rank the first free ones, because files are usually pasted in their order."""
    taken = {rank for rank, *_ in dumps if rank is not None}
    free = (number for number in range(len(dumps) + len(taken)) if number not in taken)
    for rank, dump, begin, end, is_complete in dumps:
        yield _dump(paste, next(free) if rank is None else rank, rank is not None, dump, begin, end, is_complete)


def _entries(dump: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = dump.get("entries")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and description of the group of an entry."""
    group = entry.get("process_group")
    if isinstance(group, list) and group:
        return str(group[0]), str(group[-1]) if len(group) > 1 else ""
    return str(entry.get("pg_id", "") if group is None else group), ""


def _configs(dump: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return what the dump contains about each group, by its key, and by its name if no key is equal to it."""
    config = mapping_or_empty(dump.get("pg_config"))
    by_name: dict[str, Mapping[str, Any]] = {}
    for group in config.values():
        if isinstance(group, dict) and isinstance(name := group.get("name"), str):
            by_name.setdefault(name, group)
    return by_name | {key: mapping_or_empty(group) for key, group in config.items() if group is not None}


def _numbers(value: object) -> tuple[int, ...]:
    """Read a list of numbers, which can be a string in the dump."""
    if isinstance(value, str):
        return tuple(whole(digits) for digits in re.findall(r"\d+", value))
    numbers = map(whole_or_none, value) if isinstance(value, list) else ()
    return tuple(number for number in numbers if number is not None)


def _dump(
    paste: Paste, rank: int, is_rank_known: bool, dump: Mapping[str, Any], begin: int, end: int, is_complete: bool
) -> FlightDump:
    entries = _entries(dump)
    first = paste.number_at(begin)
    lines = [paste.number_at(match.start()) for match in _RECORD.finditer(paste.text, begin, end)]
    if len(lines) < len(entries):
        lines = [first] * len(entries)
    calls = tuple(map(_call, entries, lines))
    config = dump.get("pg_config")
    status = dump.get("pg_status")
    groups: dict[str, FlightGroup] = {}
    names = dict(_group_of(entry) for entry in entries)
    ids = {_group_of(entry)[0]: str(entry.get("pg_id")) for entry in entries}
    for key, group in config.items() if isinstance(config, dict) else ():
        names.setdefault(str(group.get("name", key)) if isinstance(group, dict) else str(key), "")
    configs = _configs(dump)
    for name, desc in names.items():
        group_config = configs.get(name, {})
        # pg_status is keyed by the number of the group in the process, which the entries contain.
        of_group = status.get(ids.get(name, name), status.get(name)) if isinstance(status, dict) else None
        of_group = of_group if isinstance(of_group, dict) else {}
        groups[name] = FlightGroup(
            name,
            str(group_config.get("desc", desc)),
            _numbers(group_config.get("ranks")),
            whole_or_none(of_group.get("last_enqueued_collective")),
            whole_or_none(of_group.get("last_completed_collective")),
        )
    return FlightDump(rank, is_rank_known, str(dump.get("version", "")), groups, calls, is_complete, first)


def _shapes(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list):
        return ()
    return tuple(_numbers(shape) for shape in value if isinstance(shape, list))


def _call(entry: Mapping[str, Any], line: int) -> FlightCall:
    name = str(entry.get("profiling_name", ""))
    op = name.partition(":")[2] or name
    peers = _PEERS.search(op)
    source = destination = None
    if peers:
        ends = whole(peers["first"]), whole(peers["second"])
        source, destination = ends if peers["arrow"] == "->" else ends[::-1]
    is_p2p = bool(entry.get("is_p2p", peers is not None))
    frames = entry.get("frames")
    dtypes = entry.get("input_dtypes")
    return FlightCall(
        group=_group_of(entry)[0],
        seq=whole_or_none(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))) or 0,
        is_p2p=is_p2p,
        op=op.split(" ")[0],
        source=source,
        destination=destination,
        state=str(entry.get("state", "")),
        sizes_in=_shapes(entry.get("input_sizes")),
        sizes_out=_shapes(entry.get("output_sizes")),
        dtypes=tuple(str(dtype) for dtype in dtypes) if isinstance(dtypes, list) else (),
        is_retired=bool(entry.get("retired", False)),
        frames=tuple(
            (str(frame.get("name", "")), str(frame.get("filename", "")), str(frame.get("line", "")))
            for frame in (frames if isinstance(frames, list) else ())
            if isinstance(frame, dict)
        ),
        line=line,
    )


def _find(paste: Paste) -> list[int]:
    dumps = paste.once(read_flight_dumps)
    return sorted({line for dump in dumps for line in (dump.line, *(call.line for call in dump.calls))})


def _see(paste: Paste) -> Seen:
    dumps = paste.once(read_flight_dumps)
    groups = {name: group for dump in dumps for name, group in dump.groups.items()}
    versions = sorted({dump.version for dump in dumps if dump.version})
    facts = {
        "flight recorder": f"version {', '.join(versions) or 'unknown'}",
        "dumps": f"{len(dumps)} of ranks {', '.join(str(dump.rank) for dump in dumps)}"
        + ("" if all(dump.is_rank_known for dump in dumps) else " (numbered in their order)"),
        "process groups": ", ".join(f"{group} ({len(group.ranks)} ranks)" for group in groups.values()),
    }
    frames: dict[str, Callable[[], pd.DataFrame]] = {"calls": lambda: _calls(dumps)}
    return Seen(facts=facts, frames=frames)


def _calls(dumps: tuple[FlightDump, ...]) -> pd.DataFrame:
    """Return the calls that are not completed, and the last completed one of each rank and group without such."""
    import pandas as pd

    rows = []
    for dump in dumps:
        last: dict[str, FlightCall] = {}
        for call in dump.calls:
            last[call.group] = call
        waiting = {call.group for call in dump.calls if call.state != "completed"}
        for call in dump.calls:
            if call.state == "completed" and (call.group in waiting or last[call.group] is not call):
                continue
            rows.append(
                {
                    "rank": dump.rank,
                    "group": str(dump.groups.get(call.group, call.group)),
                    "sequence": call.seq,
                    "collective": call.op,
                    "elements_in": n_elements(call.sizes_in),
                    "elements_out": n_elements(call.sizes_out),
                    "state": "timed out" if call.is_retired and call.state != "completed" else call.state,
                    "line": call.line,
                }
            )
    names = ["rank", "group", "sequence", "collective", "elements_in", "elements_out", "state", "line"]
    return pd.DataFrame(rows, columns=names)


def n_elements(shapes: tuple[tuple[int, ...], ...]) -> int:
    """Return the number of elements of tensors with some shapes, at most the largest integer of 64 bits."""
    total = 0
    for shape in shapes:
        size = 1
        for extent in shape:
            size = max(-LARGEST, min(size * extent, LARGEST))
        total += size
    return min(total, LARGEST)


FLIGHT_RECORDER = TextFormat(
    "flight recorder dump", _find, _see, "JSON of PyTorch's flight recorder (one dump per rank, one after the other)"
)
