"""Reads the output of nccl-tests and rccl-tests, whole or broken, as text or JSON."""

from __future__ import annotations

import codecs
import gc
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshlab.nccl_tests.info import NO_FACTS
from meshlab.nccl_tests.json_reader import MOST_JSON, looks_like_json, read_json_sections
from meshlab.nccl_tests.log import NcclTestsLog
from meshlab.nccl_tests.reader import LogReader
from meshlab.errors import ParseError

__all__ = ["read_nccl_tests"]

_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 16
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OVERWRITTEN = re.compile(r"(?m)^[^\n]*\r")


def read_nccl_tests(source: str | os.PathLike[str]) -> NcclTestsLog:
    """Read a log of nccl-tests or rccl-tests: text of every layout since 2.0, or JSON.

    Rows that were cut or mixed with other output are left out and counted; what the text does not say is None or
    missing, never guessed. A check that was off leaves ``n_wrong`` missing, not 0.

    Parameters
    ----------
    source : str or path
        A file, or the text itself (a str with a line break in it).

    Returns
    -------
    NcclTestsLog
        Its `sections` hold the runs in the file's order, its `results` all rows in the schema of results.

    Raises
    ------
    ParseError
        If there is neither a run nor a message of NCCL in it; the error says what was seen.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> log = read_nccl_tests('''
    ...   size         count      type   redop    root     time   algbw   busbw #wrong
    ...  1073741824     268435456     float     sum      -1   4253.0  252.47  441.81      0
    ... # Out of bounds values : 0 OK
    ... # Avg bus bandwidth    : 441.81
    ... ''')
    >>> log.status, log.sections[0].collective, log.sections[0].n_ranks
    ('complete', 'all_reduce', 8)
    >>> log.results[["collective", "in_place", "time_us", "busbw_gbs"]].round(1)
       collective  in_place  time_us  busbw_gbs
    0  all_reduce     False   4253.0      441.8
    """
    if isinstance(source, str) and ("\n" in source or looks_like_json(source[:_LONGEST_LINE])):
        name = f"text-{hashlib.sha256(source[:_BLOCK].encode(errors='replace')).hexdigest()[:8]}"
        if looks_like_json(source[:_LONGEST_LINE]):
            return NcclTestsLog(name, tuple(read_json_sections(source)))
        blocks = (source[start : start + _BLOCK] for start in range(0, len(source), _BLOCK))
        return _read_text(name, blocks)
    path = Path(source) if len(str(source)) < 4096 else None
    if path is None or (isinstance(source, str) and not path.is_file()):
        shown = str(source)[:80]
        raise ParseError(
            f"no nccl-tests output found: {shown!r} is neither a file nor text with a line break in it", text=shown
        )
    with path.open("rb") as file:
        start = file.read(_LONGEST_LINE)
        encoding = _encoding(start)
        file.seek(0)
        if looks_like_json(start.decode(encoding, errors="replace")) and path.stat().st_size <= MOST_JSON:
            text = file.read().decode(encoding, errors="replace")
            return NcclTestsLog(path.name, tuple(read_json_sections(text, file=path.name)))
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        return _read_text(path.name, (decoder.decode(block) for block in iter(lambda: file.read(_BLOCK), b"")))


def _encoding(start: bytes) -> str:
    """Windows shells write UTF-16 with a byte order mark."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def _read_text(name: str, blocks: Iterator[str]) -> NcclTestsLog:
    reader = LogReader()
    start = ""
    with _collector_paused():
        for lines in _lines(blocks):
            start = start or next((line.strip()[:200] for line in lines if line.strip()), "")
            reader.take(lines)
        sections = reader.finish()
    prelude = reader.prelude.facts()
    if not sections and prelude == NO_FACTS:
        raise ParseError(
            f"no nccl-tests output found: {_what_it_is(start, reader.line)}; a log has lines such as "
            "'# nThread 1 nGpus 8 minBytes …' and a table of size, count, type, time, algbw and busbw",
            text=start,
            file=name,
        )
    return NcclTestsLog(name, sections, prelude)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A long log makes many values and no cycles; the collector would walk them over and over, a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _what_it_is(start: str, lines: int) -> str:
    """What a text looks like, for someone who gave the wrong file."""
    if not start:
        return "the text is empty"
    if "\0" in start or "\N{REPLACEMENT CHARACTER}" in start:
        return "it holds binary data"
    if start.lower().startswith(("<!doctype html", "<html")):
        return "it looks like HTML"
    return f"{lines:,} {'line' if lines == 1 else 'lines'}, the first is {start[:80]!r}"


def _lines(blocks: Iterator[str]) -> Iterator[list[str]]:
    """Lines of bounded length, by blocks: of a longer one only the start is kept, so that memory stays bounded too."""
    tail, skipping = "", False
    for block in blocks:
        if skipping:
            _, found, block = block.partition("\n")
            if not found:
                continue
            yield [_clean(tail)]
            tail, skipping = "", False
        text = tail + block
        end = text.rfind("\n") + 1
        if end:
            yield _clean(text[: end - 1]).split("\n")
        tail = text[end:]
        if len(tail) > _LONGEST_LINE:
            tail, skipping = tail[:_LONGEST_LINE], True
    if tail:
        yield [_clean(tail)]


def _clean(text: str) -> str:
    """What a terminal shows: no control sequences, and of each line what follows its last carriage return."""
    if "\x1b" in text:
        text = _CONTROL.sub("", text)
    if "\r" in text:
        text = _OVERWRITTEN.sub("", text.replace("\r\n", "\n").rstrip("\r"))
    return text
