"""Files of a folder that grow: their new lines, also if the files are rotated, truncated, or end within a line."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"\.(?:log|jsonl?)(?:[.-][\w.-]*?)?(?:\.gz)?$", re.IGNORECASE)
"""The names of logs, with the numbers or dates and the suffix that rotation adds to them."""

_CHUNK = 1 << 22  # bytes that are read at a time
_LARGEST = 1 << 30  # bytes of a compressed file
_LONGEST_LINE = 1 << 24
_HEAD = 512  # bytes by which a file is recognised: a line, with its time


class _Tail:
    """What has been read of a file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.head = b""
        self.offset = 0
        self.changed_ns = -1  # when the file had been modified at the last look
        self.rest = b""  # the beginning of a line that is not complete


class NewLines:
    """Complete new lines of a file."""

    __slots__ = ("is_copy", "lines", "name")

    def __init__(self, name: str, lines: list[bytes], *, is_copy: bool) -> None:
        self.name = name
        self.lines = lines
        self.is_copy = is_copy  # whether the file may repeat what another one contained


class Tails:
    """The logs of a folder, each read up to some position. `new_lines` never reads a byte of a file twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tails: dict[tuple[int, int], _Tail] = {}
        self._has_listed = False

    def new_lines(self) -> Iterator[NewLines]:
        """Yield the lines that were completed since the last call, oldest file first. Raise OSError without a folder.

        A file is recognised by its inode, so its new name after a rotation does not matter. A file that got shorter
        begins again.
        """
        with os.scandir(self.folder) as listing:
            names = [entry.name for entry in listing if _NAME.search(entry.name) is not None]
        entries = [(status, name) for name in names if (status := _status(self.folder / name)) is not None]
        entries.sort(key=lambda item: (item[0].st_mtime_ns, item[1]))
        is_first, self._has_listed = not self._has_listed, True
        followed = {tail.name for tail in self._tails.values()}
        for status, name in entries:
            key = status.st_dev, status.st_ino
            is_copy = False
            tail = self._tails.get(key)
            if tail is None or (tail.name != name and not self._begins_with(name, tail.head)):
                tail = self._tails[key] = _Tail(name)
                is_copy = not is_first and any(name.startswith(other) for other in followed)
            tail.name = name
            if (status.st_size, status.st_mtime_ns) != (tail.offset, tail.changed_ns):
                try:
                    yield from self._read(tail, status, is_copy=is_copy)
                except OSError:  # removed by a rotation
                    continue

    def _begins_with(self, name: str, head: bytes) -> bool:
        """Return whether a file has the content of another one, whose inode it has."""
        try:
            with (self.folder / name).open("rb") as file:
                return file.read(len(head)) == head
        except OSError:
            return False

    def _read(self, tail: _Tail, status: os.stat_result, *, is_copy: bool) -> Iterator[NewLines]:
        with (self.folder / tail.name).open("rb") as file:
            # A file that was truncated may have grown to its old size.
            if status.st_size < tail.offset or file.read(len(tail.head)) != tail.head:
                tail.offset, tail.rest, tail.head = 0, b"", b""
            tail.changed_ns = status.st_mtime_ns
            file.seek(tail.offset)
            if tail.offset == 0 and file.peek(2)[:2] == b"\x1f\x8b":
                if (content := _decompressed(file.read(_LARGEST))) is not None:
                    tail.offset = status.st_size
                    yield from _split(tail, content, is_copy=is_copy)
                return
            while chunk := file.read(_CHUNK):
                tail.head += chunk[: max(0, _HEAD - tail.offset)]
                tail.offset += len(chunk)
                yield from _split(tail, chunk, is_copy=is_copy)


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file, None for other entries, or if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _decompressed(content: bytes) -> bytes | None:
    """Return the content of a file that a rotation compressed, or None while it is not complete."""
    decompressor = zlib.decompressobj(wbits=31)
    try:
        content = decompressor.decompress(content, _LARGEST)
    except zlib.error:
        return None
    return content if decompressor.eof else None


def _split(tail: _Tail, chunk: bytes, *, is_copy: bool) -> Iterator[NewLines]:
    *lines, rest = (tail.rest + chunk).split(b"\n")
    tail.rest = rest if len(rest) <= _LONGEST_LINE else b""
    if lines:
        yield NewLines(tail.name, lines, is_copy=is_copy)
