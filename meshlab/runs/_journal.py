"""The journal of a run: the rows that were measured since the run was last saved, one line per step.

A line has a checksum and a record in JSON. So a line that a killed process has not completed, or that was damaged
later, is recognised, and all other lines remain valid.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meshlab.base._documents import parse_json
from meshlab.base._files import read_file
from meshlab.base._locks import release, try_lock
from meshlab.frames._rows import Columns, Row

_KINDS: dict[str, Any] = {"int64": np.int64, "bool": np.bool_, "object": object}

GROWING = ("log", "conditions")
"""The parts of a description of which a record only has what is new."""

_MOST_VALUES = 100_000_000
"""The longest column. A damaged length must not take all memory."""


class Journal:
    """A journal that is open for writing. It is locked as long as this process exists."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        # A file descriptor without a buffer: after a crash of the process, every complete record is in the file.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        self._size = self._n_records = 0
        try_lock(self._file)

    def append(self, rows: Sequence[Row], samples: Sequence[Columns], facts: Mapping[str, Any]) -> None:
        """Append a record: rows, samples, and the changes in the description of the run."""
        record = {
            "number": self._n_records,
            "facts": facts,
            "rows": rows,
            "samples": [{name: _packed(column) for name, column in part.items()} for part in samples],
        }
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=False, default=_plain).encode()
        line = memoryview(b"%08x %s\n" % (zlib.crc32(text), text))
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            # The disk may be full. Later records must not follow a part of this one, which would damage both.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += written
        self._n_records += 1

    def close(self) -> None:
        """Close the file, which ends the lock."""
        release(self._file)


@dataclass(slots=True)
class JournalContent:
    """The content of a journal, in the order in which it was measured."""

    rows: list[Row] = field(default_factory=list)
    samples: list[Columns] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=lambda: {"log": []})
    """The latest description of the run, as far as the journal has it, and all lines of the parts in `GROWING`."""
    n_cut_off: int = 0
    """1 if the last record is incomplete, or else 0."""
    n_damaged: int = 0
    """The number of other records that are damaged or missing."""


def read_journal(path: Path) -> JournalContent:
    """Read a journal, also while it is written. A ValueError, KeyError or TypeError means that it is another file."""
    content = JournalContent()
    *lines, last = read_file(path).split(b"\n")
    content.n_cut_off = int(last != b"")
    # Records are numbered, so a gap reveals how many are damaged, whatever the damage did to the line breaks.
    n_expected = n_bad = 0
    for line in lines:
        checksum, _, text = line.partition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            n_bad += 1
            continue
        record = parse_json(text.decode(), file=str(path))
        content.n_damaged += record["number"] - n_expected
        n_expected, n_bad = record["number"] + 1, 0
        content.rows += record["rows"]
        content.samples += [{name: _unpacked(column) for name, column in part.items()} for part in record["samples"]]
        facts = record["facts"]
        for name in GROWING:
            if name in facts:
                content.facts.setdefault(name, []).extend(facts.pop(name))
        content.facts |= facts
    content.n_damaged += n_bad  # at the end, no later number reveals how many there were
    return content


def is_journal_open(path: Path) -> bool:
    """Return whether the process that writes a journal still exists, in this process or another one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):  # a damaged run.json may name it with a null character
        return False
    try:
        return not try_lock(file, is_shared=True)  # shared, so that two readers do not take each other for the writer
    finally:
        release(file)


def _packed(column: Any) -> dict[str, Any]:
    """Return a column as plain data. Floats are kept exactly, and most other columns have only one value."""
    values = np.asarray(column)
    if values.dtype.kind == "f":
        return {"float64": base64.b64encode(values.astype("<f8").tobytes()).decode()}
    kind = {"i": "int64", "u": "int64", "b": "bool"}.get(values.dtype.kind, "object")
    plain = values.tolist()
    if plain and plain.count(plain[0]) == len(plain):
        return {"kind": kind, "n": len(plain), "value": plain[0]}
    return {"kind": kind, "values": plain}


def _unpacked(packed: Mapping[str, Any]) -> Any:
    if "float64" in packed:
        return np.frombuffer(base64.b64decode(packed["float64"]), "<f8").astype(np.float64)
    values = packed["values"] if "values" in packed else [packed["value"]] * min(packed["n"], _MOST_VALUES)
    column = np.empty(len(values), _KINDS[packed["kind"]])
    column[:] = values
    return column


def _plain(value: Any) -> Any:
    """Return a NumPy scalar, which json does not support, as a Python number."""
    return value.item()
