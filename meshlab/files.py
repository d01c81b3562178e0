"""Writing files so that nothing half-written stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from meshlab.errors import BenchError

__all__ = ["staged_folder", "write_file"]


def write_file(path: str | Path, data: str | bytes) -> Path:
    """Write a file under a temporary name beside it, and rename it.

    Parameters
    ----------
    path : path
        Where it should lie; its folder must exist.
    data : str or bytes
        Text is written as UTF-8.

    Returns
    -------
    pathlib.Path
        The path.

    Raises
    ------
    BenchError
        If the file cannot be written; what lay there before is untouched.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise BenchError(f"{path} cannot be written: {error.strerror or error}; choose another place") from error
    return path


@contextmanager
def staged_folder(target: str | Path, *, replaces: Sequence[str] = ()) -> Iterator[Path]:
    """Fill a folder in one go: what is written into the folder given appears in `target` at the end, or not at all.

    Files of the same name in `target` are replaced, others stay.

    Parameters
    ----------
    target : path
        Made, with its parents, if it is not there.
    replaces : sequence of str, default ()
        Patterns of older files in `target` that go when the new ones come, whether or not they are called alike.

    Raises
    ------
    BenchError
        At once, if the folder cannot be written.
    """
    target = Path(target)
    made: list[Path] = []
    try:
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(0, "a file of that name is in the way")
        missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            made.append(folder)
        if target.exists() and not os.access(target, os.W_OK | os.X_OK):
            raise PermissionError(0, "Permission denied")
        stage = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        stage.chmod(0o777 & ~_umask())
    except OSError as error:
        _remove_empty(made)
        raise BenchError(f"the folder {target} cannot be written: {error.strerror or error}; choose another") from error
    try:
        yield stage
        if target.exists():
            for file in {file for pattern in replaces for file in target.glob(pattern)}:
                file.unlink()
            for file in stage.iterdir():
                file.replace(target / file.name)
        else:
            stage.rename(target)
            made = []
    except OSError as error:
        raise BenchError(f"the folder {target} cannot be written: {error.strerror or error}; choose another") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        _remove_empty(made)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()
