"""Write several files of a folder as one change, also if the process is killed.

A file system renames one file atomically, but not several. So one file of the folder, the pointer, determines which
version is valid, and one rename replaces it. The other files agree with it at every moment:

- *Recorded* files have their digests in the pointer. The new ones are complete in a hidden subfolder before the pointer
  is renamed, and are moved to their names afterwards. A reader takes the file with the recorded digest from either
  place.
- *Other* files are removed before the pointer is renamed, and the new ones appear afterwards.

After an exchange of whole folders (``renameat2``), shells and kernels inside the folder would be in a removed one.
Archives and some file systems would lose a symbolic link to the current version.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from meshlab.base._errors import BenchError, ParseError
from meshlab.base._files import read_file
from meshlab.base._locks import is_locked_by_others, release, try_lock

_STAGES = ".meshlab-*.partial"
_RETIRED = "retired"
_PATIENCE_S = 10.0  # a writer holds the lock for milliseconds
_ABANDONED_S = 86400.0  # age at which a hidden subfolder is abandoned, on file systems without locks


@contextmanager
def staged_folder(
    target: str | Path, *, pointer: str, recorded: Sequence[str] = (), replaces: Sequence[str] = ()
) -> Iterator[Path]:
    """Write several files into a folder, all of them or none. The block writes into a hidden subfolder."""
    # If the block succeeds, its files replace those of the same name in `target`, and `pointer`, which it has to write,
    # determines which version is valid. Earlier files that match `recorded` are removed afterwards (`read_recorded`),
    # and those that match `replaces` before. If two processes write to one folder, the last one wins.
    name, target = target, Path(os.path.realpath(target))
    new_folders: list[Path] = []
    try:
        new_folders = _make_folders(target)
        with _locked(target):  # otherwise another writer could remove the subfolder before it has its own lock
            stage = _new_stage(target)
            held = _open_folder(stage)
            try_lock(held)
    except OSError as error:
        _remove_empty(new_folders)
        raise _cannot_write(name, error) from error
    is_complete = False
    try:
        yield stage
        for file in stage.iterdir():
            _sync(file)
        is_complete = (stage / pointer).exists()
        with _locked(target):
            _switch(stage, target, pointer, recorded, replaces)
            _settle(stage, target, recorded)
    except OSError as error:
        raise _cannot_write(name, error) from error
    finally:
        # If the pointer has been moved, the subfolder may hold recorded files, and the next writer removes it.
        if not is_complete or (stage / pointer).exists():
            shutil.rmtree(stage, ignore_errors=True)
            _remove_empty(new_folders)
        release(held)


def _switch(stage: Path, target: Path, pointer: str, recorded: Sequence[str], replaces: Sequence[str]) -> None:
    """Replace the pointer. Until then, an error changes nothing."""
    new = {file.name for file in stage.iterdir()}
    recorded_names = _matching(stage, recorded) | _matching(target, recorded)
    for name in new:
        if (target / name).is_dir():
            raise IsADirectoryError(0, f"{name} is a folder")
    retired = stage / _RETIRED
    retired.mkdir()
    others = (new | _matching(target, replaces)) - recorded_names - {pointer}
    names = [name for name in others if (target / name).exists()]
    try:
        for name in names:
            (target / name).rename(retired / name)
        _sync(stage)
        (stage / pointer).replace(target / pointer)
    except BaseException:
        if (stage / pointer).exists():
            for file in retired.iterdir():
                with contextlib.suppress(OSError):
                    file.rename(target / file.name)
        raise
    _sync(target)


def _settle(stage: Path, target: Path, recorded: Sequence[str]) -> None:
    """Move the files behind the pointer to their names, and remove the remains of earlier writers."""
    new = [file for file in stage.iterdir() if file.name != _RETIRED]
    for name in _matching(target, recorded) - {file.name for file in new}:
        (target / name).unlink(missing_ok=True)
    for file in new:
        file.replace(target / file.name)
    shutil.rmtree(stage, ignore_errors=True)
    for other in _stages(target):
        if _is_abandoned(other):
            shutil.rmtree(other, ignore_errors=True)
    for file in target.glob(_STAGES):  # of `write_file`, which holds no lock
        if file.is_file() and not file.is_symlink() and time.time() - file.stat().st_mtime > _ABANDONED_S:
            file.unlink(missing_ok=True)


def read_recorded(folder: Path, name: str, digest: str) -> bytes:
    """Return the content of a file that its pointer records with a digest, wherever an interrupted writer left it."""
    problem: Exception = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / name))
    # The first place again at the end, because a writer may move the file there in the meantime.
    for path in (folder / name, *(stage / name for stage in _stages(folder)), folder / name):
        try:
            content = read_file(path)
        except FileNotFoundError:
            continue
        except (OSError, ParseError) as error:
            problem = error
            continue
        if digest_of(content) == digest:
            return content
        problem = ParseError("the file is not the one that was saved; copy it again", file=str(path))
    raise problem


def locate(folder: Path, name: str) -> Path:
    """Return the path of a file with a unique name that its pointer records, wherever an interrupted writer left it."""
    places = (folder / name, *(stage / name for stage in _stages(folder)))
    return next((path for path in places if path.exists()), folder / name)


def digest_of(content: bytes) -> str:
    """Return the digest of a recorded file: BLAKE2b, 128 bits, in hexadecimal."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def check_writable(target: str | Path) -> None:
    """Raise a `BenchError` if a folder cannot be written or created, as far as its permissions show."""
    real = Path(os.path.realpath(target))
    nearest = next((path for path in (real, *real.parents) if path.exists()), real)
    try:
        if not nearest.is_dir():
            raise NotADirectoryError(0, "a file with that name exists")
        if os.statvfs(nearest).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(0, "Permission denied")
    except OSError as error:
        raise _cannot_write(target, error) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one writer at a time change a folder."""
    file = _open_folder(folder)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not try_lock(file):
            if time.monotonic() > deadline:
                raise TimeoutError(0, "another process is still writing to it")
            time.sleep(0.005)
        yield
    finally:
        release(file)


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def _new_stage(target: Path) -> Path:
    # A random name cannot be planted, and mkdir fails on any existing one. Its mode follows the umask, because readers
    # may need it.
    stage = target / _STAGES.replace("*", secrets.token_hex(8))
    stage.mkdir()
    return stage


def _stages(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(_STAGES) if path.is_dir() and not path.is_symlink())


def _is_abandoned(stage: Path) -> bool:
    """Return whether the writer of a hidden subfolder no longer exists."""
    try:
        file = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        is_locked = is_locked_by_others(file)
        if is_locked is None:
            return time.time() - stage.stat().st_mtime > _ABANDONED_S
        return not is_locked
    finally:
        release(file)


def _matching(folder: Path, patterns: Sequence[str]) -> set[str]:
    return {path.name for pattern in patterns for path in folder.glob(pattern) if not path.is_dir()}


def _make_folders(target: Path) -> list[Path]:
    """Create a folder and its parents. Return the new ones."""
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(0, "a file with that name exists")
    new_folders: list[Path] = []
    try:
        for folder in reversed([path for path in (target, *target.parents) if not path.exists()]):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                new_folders.append(folder)
    except OSError:
        _remove_empty(new_folders)
        raise
    return new_folders


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _sync(path: Path) -> None:
    """Write a file or folder to the disk, so that a power failure cannot undo this step after the next one."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot do that for folders
            raise
    finally:
        os.close(file)


def _cannot_write(target: str | Path, error: OSError) -> BenchError:
    return BenchError(
        f"cannot write the folder {str(target)!r}: {error.strerror or error}", hint="choose a different folder"
    )
