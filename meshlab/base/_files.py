"""Read text from strings, bytes and files, and write files completely or not at all."""

from __future__ import annotations

import codecs
import contextlib
import errno
import gzip
import io
import os
import re
import secrets
import select
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from meshlab.base._errors import BenchError, ParseError, printable

TextSource = str | bytes | os.PathLike[str]
"""The input of a reader: text, its bytes, or the path of a file. A line that names a file is its path."""

LARGEST_TEXT = 256 << 20
"""The largest text that is read at once, in bytes after decompression."""

LARGEST_FILE = 1 << 30
"""The largest file that is read at once as it is, in bytes, such as the samples of a run."""

_PATIENCE_S = 0.5  # how long the other end of a pipe may take to open it
_LONGEST_NAME = 4096
_OWN_FILE = re.compile(r"(?:/dev/fd|/proc/self/fd)/(?P<number>\d{1,6})|/dev/(?P<name>stdin|stdout|stderr)")
_GZIP = b"\x1f\x8b"
_XML_ROOT = re.compile(r"<(?!\?|!)([A-Za-z_][\w.:-]*)")


def path_of(source: TextSource, *, hint: str = "pass one of its files") -> Path | None:
    """Return the file that a source names. None if it is the text itself: more than a line, or no existing name."""
    if isinstance(source, bytes):
        return None
    if not isinstance(source, (str, os.PathLike)):
        raise ParseError(f"a {type(source).__name__} is neither text nor a file", hint="pass a text, or a path")
    if isinstance(source, str) and (
        any(sign in source for sign in "\n\r<\0")
        or len(source) > _LONGEST_NAME
        or not source.strip()
        or not (is_folder(source) or is_file(source))
    ):
        return None
    if is_folder(source):
        raise ParseError("this is a folder", hint=hint, file=str(source))
    return Path(source)


def is_folder(name: str | os.PathLike[str]) -> bool:
    """Return True if a folder has this name. A text that cannot be a name is not an error, unlike for pathlib."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def is_file(name: str | os.PathLike[str]) -> bool:
    """Return True if a file or a pipe has this name. A text that cannot be a name is not an error."""
    try:
        return Path(name).exists() and not Path(name).is_dir()
    except (OSError, ValueError):
        return False


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, or return the content of a pipe, such as that of ``<(command)`` in a shell."""
    # A pipe without a writer is empty. A device, which may have no end, is a ParseError. A name that no file can have
    # is an OSError, unlike in Python.
    try:
        # Without O_NONBLOCK, opening a pipe without a writer does not return.
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except ValueError as error:
        raise OSError(errno.EINVAL, "not a name of a file") from error
    try:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            os.set_blocking(file.fileno(), True)
            return file
        is_terminal = stat.S_ISCHR(status.st_mode) and file.isatty()
        if not (stat.S_ISFIFO(status.st_mode) or is_terminal or status.st_rdev == Path(os.devnull).stat().st_rdev):
            raise ParseError("this is a device", hint="pass a file", file=str(path))
        with file:
            return io.BytesIO(_content_of_pipe(file, str(path)))
    except BaseException:
        file.close()
        raise


def _content_of_pipe(file: BinaryIO, name: str) -> bytes:
    ready = select.poll()
    ready.register(file.fileno(), select.POLLIN)
    ready.poll(_PATIENCE_S * 1000)
    try:
        start = os.read(file.fileno(), 1)
        if not start:
            return b""
    except BlockingIOError:  # of a command that has not written yet
        start = b""
    os.set_blocking(file.fileno(), True)
    content = start + file.read(LARGEST_TEXT)
    if len(content) > LARGEST_TEXT or file.read(1):
        raise ParseError(f"the pipe has more than {LARGEST_TEXT >> 20} MiB", hint="save it to a file", file=name)
    return content


def read_file(path: str | os.PathLike[str], *, largest: int = LARGEST_FILE) -> bytes:
    """Return the content of a file as it is. Raises a `ParseError` if it is larger than `largest` bytes."""
    with open_file(path) as file:
        # By its size, because a file of any size may occupy no space at all.
        if file.seek(0, os.SEEK_END) > largest:
            raise ParseError(f"the file is larger than {largest >> 20} MiB", hint="copy it again", file=str(path))
        file.seek(0)
        return file.read(largest + 1)


@contextmanager
def open_log(path: Path, *, hint: str = "copy it again") -> Iterator[BinaryIO]:
    """Open a file for reading in a with statement. A gzip file is decompressed, regardless of its name."""
    with open_file(path) as file, _decompressed(file, str(path), hint) as content:
        yield content


@contextmanager
def _decompressed(file: BinaryIO, name: str | None, hint: str) -> Iterator[BinaryIO]:
    is_compressed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    try:
        yield gzip.GzipFile(fileobj=file) if is_compressed else file  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ParseError(f"cannot decompress the file: {error}", hint=hint, file=name) from error


def read_bytes(source: bytes | Path, *, hint: str, largest: int = LARGEST_TEXT) -> bytes:
    """Return the content of a file or of bytes, decompressed, or raise if it is larger than `largest` bytes."""
    name = None if isinstance(source, bytes) else str(source)
    with (
        io.BytesIO(source) if isinstance(source, bytes) else open_file(source) as file,
        _decompressed(file, name, "copy it again") as content,
    ):
        is_too_large = content is file and file.seek(0, os.SEEK_END) > largest
        file.seek(0)
        # Without the limit, a small file could decompress to more than the memory.
        data = b"" if is_too_large else content.read(largest + 1)
    if is_too_large or len(data) > largest:
        raise ParseError(f"the text is larger than {largest >> 20} MiB", hint=hint, file=name)
    return data


def text_encoding(start: bytes) -> str:
    """Return the encoding of a text by its first bytes. Windows shells write UTF-16 with a byte order mark."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def text_of(source: TextSource, *, hint: str) -> tuple[str, str | None]:
    """Return the text of a source, and the name of its file if it has one. `hint` is for a text that is too large."""
    path = path_of(source)
    if path is None and isinstance(source, str):
        return printable(source), None
    content = read_bytes(source if isinstance(source, bytes) else Path(source), hint=hint)
    return decode_text(content), None if path is None else str(path)


def decode_text(content: bytes) -> str:
    """Return bytes as text. Bytes that are not valid in their encoding become replacement characters."""
    return printable(content.decode(text_encoding(content), errors="replace"))


# A word with a suffix, a folder or a number, or a few words with a suffix: "my run 1.txt", but no line of a log.
_PART = r"[^\s:=,;\"'<>|(){}\[\]]"
_LIKE_JSON = re.compile(r"\{\s*(?:[\"}]|$)|\[\s*(?:[\"\[{]|$)|\[(?:[\s\d.,eE+\]-]|true|false|null)*$")
_LIKE_NAME = re.compile(
    rf"(?:[A-Za-z]:)?{_PART}*(?:[./\\]{_PART}+|_\d+)|(?:{_PART}{{1,40}} (?!-)){{1,3}}{_PART}{{0,40}}\.[a-z]\w{{0,7}}"
)


def describe_text(text: str, *, may_be_name: bool = False) -> str:
    """Describe an unrecognised text for an error message. With `may_be_name`, one line may be a mistyped file name."""
    start = text[:1_000_000].lstrip()
    if not start:
        return "the text is empty"
    first = start.splitlines()[0].rstrip()
    if "\0" in text[:4096] or text[:4096].count("\N{REPLACEMENT CHARACTER}") > len(text[:4096]) // 10:
        return "the file is binary"
    root = _XML_ROOT.search(text[:100_000]) if first.startswith("<") else None
    if root is not None:
        return f"the text is XML that begins with <{root[1]}>"
    if _LIKE_JSON.match(first):
        return "the text looks like JSON"
    described = f"the text begins with {first[:60]!r}"
    if may_be_name and is_like_name(text):
        return f"no file {first if len(first) <= 60 else f'{first[:60]}…'!r} exists"
    return described


def is_like_name(text: str) -> bool:
    """Return True if a text is one line that looks like the name of a file."""
    name = text.strip()
    return len(name) <= _LONGEST_NAME and len(name.splitlines()) == 1 and _LIKE_NAME.fullmatch(name) is not None


def write_file(path: str | Path, data: str | bytes) -> Path:
    """Write a file atomically, under a random name in the same folder that is then renamed. Return its path."""
    # A symbolic link with the name of the file is replaced, and its target is left unchanged. A device or a pipe, such
    # as /dev/stdout, is written to directly. The mode follows the umask. An error leaves an existing file unchanged.
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    try:
        if _is_device(path):  # a rename would replace it
            with _open_device(path) as file:
                file.write(content)
            return path
        descriptor, temporary = _create_temporary(path.parent)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123
                file.write(content)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise BenchError(
            f"cannot write {str(path)!r}: {error.strerror or error}", hint="choose a different path"
        ) from error
    except ValueError as error:  # a null character, or half of a surrogate pair, which no name has
        raise BenchError(f"no file can be named {str(path)!r}", hint="choose a different path") from error
    return path


def _is_device(path: Path) -> bool:
    """Return whether a path is a character device, a pipe or an open file of this process, but not a link to one."""
    if _OWN_FILE.fullmatch(str(path)):
        return True
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _open_device(path: Path) -> BinaryIO:
    """Open a device or a pipe for writing. A pipe without a reader is an error: open() would wait forever."""
    match = _OWN_FILE.fullmatch(str(path))
    if match is not None:  # at its position, which a file that was opened again would not have
        number = match["number"] or ("stdin", "stdout", "stderr").index(match["name"])
        return open(os.dup(int(number)), "wb")  # noqa: PTH123
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            os.set_blocking(descriptor, True)
            return open(descriptor, "wb")  # noqa: PTH123


def _create_temporary(folder: Path) -> tuple[int, Path]:
    """Create an empty file with a random name, and return its descriptor and its path."""
    # The name cannot be predicted, and O_EXCL fails on everything that exists, even on a link. So no other user of the
    # folder can redirect the content to a different file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    # Without the name of the file, to which it would add beyond the longest name that a file system allows.
    path = folder / f".meshlab-{secrets.token_hex(8)}.partial"
    return os.open(path, flags, 0o666), path


def packaged_folder(name: str) -> Path:
    """Return a folder that a wheel contains, such as "docs", and that a checkout has next to the package."""
    package = Path(__file__).parents[1]
    return next(folder for folder in (package / name, package.parent / name) if folder.is_dir())
