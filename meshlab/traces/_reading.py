"""Files and folders with traces: which format each file has, and the calls of all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from meshlab.base._documents import mapping_or_empty, parse_large_json
from meshlab.base._errors import ParseError
from meshlab.base._files import open_file, read_bytes
from meshlab.base._garbage import collector_paused
from meshlab.traces._flight_recorder import is_dump, read_dump
from meshlab.traces._gloo_groups import with_groups
from meshlab.traces._inspector import is_inspected, read_calls
from meshlab.traces._kineto import is_trace, read_trace
from meshlab.traces._rank_trace import RankTrace

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_LARGEST = 1 << 31  # bytes of a trace, after decompression
_START = 1 << 16  # bytes in which a file shows its format
_MARKS = (b'"traceEvents"', b'"deviceProperties"', b'"distributedInfo"', b'"coll_perf"', b'"p2p_perf"')
_EVENT = re.compile(rb'^\s*\[\s*\{[^{}]{0,2000}"ph"\s*:')
_DUMP = (b'"entries"', b'"pg_config"', b'"pg_status"')
_SUFFIXES = (".json", ".json.gz", ".log", ".log.gz", ".jsonl", ".jsonl.gz", ".pt.trace.json", ".gz")
_HINT = "pass traces of PyTorch's profiler, logs of NCCL Inspector or dumps of the flight recorder as JSON"


def is_trace_file(path: Path) -> bool:
    """Return whether a file begins like a trace, a log of Inspector or a dump of the flight recorder."""
    try:
        with open_file(path) as file:
            if not file.seekable():
                return False
            start = file.read(_START)
        if start[:2] == b"\x1f\x8b":
            start = _decompressed_start(start)
    except (OSError, ParseError):
        return False
    return _looks_like_trace(start)


def _decompressed_start(content: bytes) -> bytes:
    import zlib

    try:
        return zlib.decompressobj(wbits=31).decompress(content, _START)
    except zlib.error:
        return b""


def _looks_like_trace(start: bytes) -> bool:
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
        return False
    is_recorder = sum(mark in start for mark in _DUMP) > 1
    return is_recorder or any(mark in start for mark in _MARKS) or _EVENT.match(start) is not None


def trace_files(folder: Path) -> list[Path]:
    """Return the files of a folder that contain calls, sorted by their numbers."""
    files = (path for path in folder.iterdir() if path.is_file() and path.name.lower().endswith(_SUFFIXES))
    return sorted(filter(is_trace_file, files), key=_by_numbers)


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", path.name)]


def read_ranks(paths: Paths) -> list[RankTrace]:
    """Return the calls of all ranks in files or folders."""
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    for path in listed:
        if not isinstance(path, (str, os.PathLike)):
            raise ParseError(f"a {type(path).__name__} is not the path of a trace", hint=_HINT)
    if not listed:
        raise ParseError("no file was passed", hint=_HINT)
    files = [file for item in listed for file in _files_of(Path(item))]
    with collector_paused():
        traces = [trace for file in files for trace in _read_file(file)]
    if not any(trace.n_calls for trace in traces):
        _raise_without_calls(traces, str(files[0]) if len(files) == 1 else None)
    return with_groups([trace for trace in traces if trace.n_calls] if len(traces) > 1 else traces)


def _raise_without_calls(traces: Sequence[RankTrace], file: str | None) -> None:
    kinds = " and ".join(dict.fromkeys(trace.kind for trace in traces))
    others = [other for trace in traces for other in trace.others]
    if others:
        names = ", ".join(dict.fromkeys(other.library for other in others))
        raise ParseError(
            f"the {kinds} contains {sum(other.n for other in others):,} kernels of {names}, but no call of a process "
            "group",
            hint="record collectives of NCCL: a trace contains neither the size nor the group of these kernels",
            file=file,
        )
    raise ParseError(
        f"the {kinds} contains no collective", hint="record a step in which the ranks communicate", file=file
    )


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = trace_files(path)
    if not files:
        raise ParseError("this folder has no trace", hint=_HINT, file=str(path))
    return files


def _read_file(path: Path) -> Iterator[RankTrace]:
    content = read_bytes(path, hint="record fewer steps", largest=_LARGEST)
    start = content[:_START]
    if b'"coll_perf"' in start or b'"p2p_perf"' in start:
        yield from read_calls(_lines(content), path.name)
        return
    if content[:1] in (b"\x80",):
        raise ParseError(
            "a pickle, which is not opened because it can run code",
            hint="convert your own dump to JSON",
            file=str(path),
        )
    try:
        document = parse_large_json(content, file=str(path), hint="record it again, or copy the complete file")
    except ParseError as error:
        if not _looks_like_trace(start):
            raise ParseError("this file is not a trace", hint=_HINT, file=str(path)) from error
        raise ParseError(
            "the trace is cut or damaged: it is not valid JSON", hint="copy the complete file", file=str(path)
        ) from error
    del content
    yield from _read_document(document, path)


def _read_document(document: Any, path: Path) -> Iterator[RankTrace]:
    if is_dump(document):
        yield read_dump(document, path.name)
    elif is_trace(document):
        yield read_trace(document, path.name)
    elif is_inspected(document):
        yield from read_calls([document], path.name)
    else:
        keys = ", ".join(map(repr, list(mapping_or_empty(document))[:4]))
        raise ParseError(
            f"this file is not a trace: its keys are {keys}" if keys else "this file is not a trace",
            hint=_HINT,
            file=str(path),
        )


def _lines(content: bytes) -> Iterator[Any]:
    """Yield the objects of the lines of a log. Lines that are cut, such as the last one, are skipped."""
    for line in content.splitlines():
        if line.lstrip()[:1] == b"{":
            try:
                yield parse_large_json(line, file=None, hint="")
            except ParseError:
                continue
