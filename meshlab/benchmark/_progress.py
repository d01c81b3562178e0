"""The progress of a measurement: a bar on a terminal or in a notebook, or lines, which the command line asks for."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from meshlab.base._units import format_seconds

LINE_EVERY_S = 60.0

_write_line: ContextVar[Callable[[str], object] | None] = ContextVar("_write_line", default=None)


@contextlib.contextmanager
def progress_lines(write: Callable[[str], object]) -> Iterator[None]:
    """Write a line a minute while a measurement has no bar, within a ``with`` block."""
    token = _write_line.set(write)
    try:
        yield
    finally:
        _write_line.reset(token)


class _Lines:
    """The methods of a bar of tqdm, for lines."""

    def __init__(self, write: Callable[[str], object], unit: str, total: int | None) -> None:
        self.n, self.total, self._unit = 0, total, unit
        self._write, self._text = write, ""
        self._began = self._written = time.monotonic()

    def set_description(self, text: str, *, refresh: bool) -> None:
        self._text = text

    set_postfix_str = set_description

    def update(self, n: int) -> None:
        self.n += n

    def refresh(self) -> None:
        time_s = time.monotonic()
        if time_s - self._written < LINE_EVERY_S:
            return
        self._written = time_s
        total = "" if self.total is None else f" of {self.total}"
        count = f"{self.n}{total} {self._unit}s after {format_seconds(time_s - self._began)}"
        self._write(f"{count}, {self._text}" if self._text else count)


def has_lines() -> bool:
    """Return whether progress is written as lines where no bar is drawn."""
    return _write_line.get() is not None and os.environ.get("MESHLAB_PROGRESS") != "0"


def shows_progress(choice: bool | None, *, is_notebook: bool = False) -> bool:
    """Return whether to draw a progress bar: the caller's choice, or else whether a person can see one."""
    if choice is not None:
        return choice
    return (is_notebook or sys.stderr.isatty()) and os.environ.get("MESHLAB_PROGRESS") != "0"


@contextlib.contextmanager
def progress_bar(progress: bool | None, *, unit: str, total: int | None = None, **options: Any) -> Iterator[Any]:
    """Draw a progress bar on a terminal or in a notebook, see `shows_progress`, within a ``with`` block."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    is_notebook = getattr(shell, "kernel", None) is not None
    is_shown = shows_progress(progress, is_notebook=is_notebook)
    write = _write_line.get()
    if not is_shown and progress is None and write is not None and has_lines():
        yield _Lines(write, unit, total)
        return
    make: Any
    if is_notebook:
        from tqdm.notebook import tqdm as make
    else:
        from tqdm import tqdm as make
    with make(total=total, unit=unit, disable=not is_shown, leave=False, dynamic_ncols=True, **options) as bar:
        yield bar


def move_bar(bar: Any, done: int, text: str) -> None:
    """Draw a progress bar with this position and description now."""
    bar.set_description(text, refresh=False)
    bar.update(done - bar.n)  # draws only now and then
    bar.refresh()
