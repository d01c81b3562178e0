"""Ctrl-C while libraries are imported and processes start."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt at the latest at the end of a with statement, even if a library has swallowed it."""
    # A bare ``except:`` around an import discards it, and the user would have to press Ctrl-C again. Only in the main
    # thread, and only if Ctrl-C has its usual effect there.
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    is_pressed = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_pressed
        is_pressed = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if is_pressed:  # a module that was imported in part raises other errors
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if is_pressed:
        raise KeyboardInterrupt
