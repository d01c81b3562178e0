"""Locks of files and folders between processes, on platforms that have them."""

from __future__ import annotations

import contextlib
import errno
import os

try:
    import fcntl
except ImportError:  # Python in a browser, which runs one process
    HAS_LOCKS = False
else:
    HAS_LOCKS = True


def try_lock(file: int, *, is_shared: bool = False) -> bool:
    """Lock an open file or folder until the process exits, if the file system has locks. False if it is locked."""
    return is_locked_by_others(file, is_shared=is_shared) is not True


def is_locked_by_others(file: int, *, is_shared: bool = False) -> bool | None:
    """Try to lock an open file or folder, and return whether another process has locked it. None without locks."""
    if not HAS_LOCKS:
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return False


def lock(file: int) -> None:
    """Lock an open file, and wait for other processes that have locked it."""
    fcntl.flock(file, fcntl.LOCK_EX)


def unlock(file: int) -> None:
    """Unlock an open file."""
    if HAS_LOCKS:
        fcntl.flock(file, fcntl.LOCK_UN)


def release(file: int) -> None:
    """Unlock and close an open file or folder."""
    with contextlib.suppress(OSError):
        unlock(file)  # before closing it, because forked processes share the lock
    os.close(file)
