"""The nanny of a rank: the process of ipyparallel that relays signals to an engine and reports its end.

ipyparallel starts it as a new interpreter, which imports ipyparallel again: a quarter of the CPU time that a rank needs
to start. A fork needs no import.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from typing import Any, BinaryIO

from meshlab.engines._reaper import remove_abandoned, segments

_CLEAN_S = 2.0  # time that the other ranks of a host get to end


def fork_nanny(*, cleans_up: bool = False) -> None:
    """Start the nanny of this process, and let ipyparallel use it. To be called before there are threads."""
    # With `cleans_up`, it removes the shared memory that the rank leaves: on another host than the client, nobody else
    # does so for a rank that is killed while its library starts.
    if sys.platform != "linux":  # on macOS, a process that has loaded system libraries may not fork
        return
    from ipyparallel.engine import app

    requests, answers = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        # As a descendant of the rank, it would be killed with it.
        if cleans_up and os.fork():
            os._exit(0)
        _serve(requests[0], answers[1], cleans_up=cleans_up)
    if cleans_up:
        os.waitpid(child, 0)
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


def _serve(stdin: int, stdout: int, *, cleans_up: bool) -> None:
    """Be the nanny, with the pipes that ipyparallel gives it."""
    from ipyparallel.engine import nanny

    existing = segments()
    try:
        if cleans_up:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to all processes of the step at once
        os.setsid()  # signals to the group of the rank are not for the nanny
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # a launcher waits until its pipes to the rank are closed
        with contextlib.suppress(Exception):  # EOFError if the rank ended before it was an engine
            nanny.main()
        if cleans_up:
            remove_abandoned(existing, _CLEAN_S)
    finally:
        os._exit(0)
