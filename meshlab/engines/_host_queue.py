"""A line about a long wait, such as in a queue: on a terminal, or in a notebook, where an interrupt cancels it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from meshlab.base._units import format_seconds

_EVERY_S = 1.0  # time between two lines


@contextmanager
def waiting_line(after_s: float = 0.0) -> Iterator[Callable[[str], None]]:
    """Return a function that shows a text, with the time since the first one. The line is gone at the end.

    A wait that is shorter than `after_s` has no line.
    """
    line = _notebook_line() or _terminal_line()
    began = printed = 0.0

    def show(text: str) -> None:
        nonlocal began, printed
        time_s = time.monotonic()
        began = began or time_s
        if time_s - began >= after_s and time_s - printed >= _EVERY_S:
            printed = time_s
            line(f"{text} for {format_seconds(time_s - began)}; an interrupt cancels it")

    try:
        yield show
    finally:
        if printed:
            line("")


def _notebook_line() -> Callable[[str], None] | None:
    """Return a function that replaces the text below a cell. None without a notebook."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython import display

    handle: Any = display.DisplayHandle()  # type: ignore[no-untyped-call]
    is_open = False

    def write(text: str) -> None:
        nonlocal is_open
        data = {"text/plain": text}
        handle.update(data, raw=True) if is_open else handle.display(data, raw=True)
        is_open = True

    return write


def _terminal_line() -> Callable[[str], None]:
    """Return a function that replaces the last line of a terminal, and does nothing elsewhere."""

    def write(text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()

    return write
