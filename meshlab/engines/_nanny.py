"""The nanny of a rank: the process of ipyparallel that relays signals to an engine and reports its end.

ipyparallel starts it as a new interpreter, which imports ipyparallel again: a quarter of the CPU time that a rank needs
to start. A fork needs no import.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from typing import Any, BinaryIO


def fork_nanny() -> None:
    """Start the nanny of this process, and let ipyparallel use it. To be called before there are threads."""
    if sys.platform != "linux":  # on macOS, a process that has loaded system libraries may not fork
        return
    from ipyparallel.engine import app

    requests, answers = os.pipe(), os.pipe()
    if os.fork() == 0:
        _serve(requests[0], answers[1])
    os.close(requests[0])
    os.close(answers[1])
    sender, receiver = os.fdopen(requests[1], "wb"), os.fdopen(answers[0], "rb")

    def start_nanny(**arguments: Any) -> tuple[str, BinaryIO]:
        """Pass the arguments to the nanny. Return its URL, and the pipe whose end is the end of this process to it."""
        with sender:
            pickle.dump(arguments | {"pid": os.getpid()}, sender)
        url = receiver.readline().decode().strip()
        if not url:
            raise RuntimeError("nanny failed")
        return url, receiver

    app.start_nanny = start_nanny


def _serve(stdin: int, stdout: int) -> None:
    """Be the nanny, with the pipes that ipyparallel gives it."""
    from ipyparallel.engine import nanny

    try:
        os.setsid()  # signals to the group of the rank are not for the nanny
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # a launcher waits until its pipes to the rank are closed
        with contextlib.suppress(EOFError):  # the rank ended before it was an engine
            nanny.main()
    finally:
        os._exit(0)
