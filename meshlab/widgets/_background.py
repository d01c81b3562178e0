"""Work that takes longer than an edit."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_background(work: Callable[[], None], name: str) -> None:
    """Run `work` on a thread, or immediately if Python cannot start one, as in a browser."""
    try:
        threading.Thread(target=work, name=f"meshlab workbench {name}", daemon=True).start()
    except RuntimeError:
        work()
