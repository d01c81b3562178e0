"""Write files and folders completely or not at all."""

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
    """Write a file atomically: under a temporary name in the same folder, then renamed.

    Parameters
    ----------
    path : path
        The file to write. Its folder must exist.
    data : str or bytes
        The content. A string is encoded as UTF-8.

    Returns
    -------
    pathlib.Path
        `path`.

    Raises
    ------
    BenchError
        If the file cannot be written. An existing file is left unchanged.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise BenchError(
            f"cannot write {str(path)!r}: {error.strerror or error}", hint="choose a different path"
        ) from error
    return path


@contextmanager
def staged_folder(target: str | Path, *, replaces: Sequence[str] = ()) -> Iterator[Path]:
    """Write several files into a folder, all of them or none.

    The block writes into a temporary folder. If the block succeeds, its files are moved to `target`, where they replace
    files of the same name. Other files in `target` are kept. If the block raises, `target` is left unchanged.

    Parameters
    ----------
    target : path
        The folder. It is created with its parents if it does not exist.
    replaces : sequence of str, default ()
        Glob patterns of files in `target` that are removed before the new files are moved there.

    Yields
    ------
    pathlib.Path
        The temporary folder.

    Raises
    ------
    BenchError
        If the folder cannot be written. This is checked before the block runs.
    """
    target = Path(target)
    made: list[Path] = []
    try:
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(0, "a file with that name exists")
        missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            made.append(folder)
        if target.exists() and not os.access(target, os.W_OK | os.X_OK):
            raise PermissionError(0, "Permission denied")
        # In the parent folder, because a rename is atomic only within one file system.
        stage = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        stage.chmod(0o777 & ~_umask())  # mkdtemp makes it private, but it may become `target` itself
    except OSError as error:
        _remove_empty(made)
        raise _cannot_write(target, error) from error
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
        raise _cannot_write(target, error) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        _remove_empty(made)


def _cannot_write(target: Path, error: OSError) -> BenchError:
    return BenchError(
        f"cannot write the folder {str(target)!r}: {error.strerror or error}", hint="choose a different folder"
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()
