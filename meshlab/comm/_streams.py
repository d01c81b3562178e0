"""Events of the work that a communicator has been given, and the stream of backends whose calls block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Event:
    """A point in the work of a stream, from `Communicator.record`.

    If calls block, all work is done when the event is created.

    Parameters
    ----------
    native : object, optional
        The event of the library. Without one, the event is done.
    wait : callable, optional
        A function that waits for the native event.

    Examples
    --------
    >>> event = Event()
    >>> event.wait()
    >>> event
    Event(done)
    """

    __slots__ = ("_wait", "native")

    def __init__(self, native: Any = None, wait: Callable[[Any], object] | None = None) -> None:
        self.native = native
        self._wait = wait

    @property
    def done(self) -> bool:
        """True if all work before the event is done."""
        return self.native is None or bool(self.native.done)

    def wait(self) -> None:
        """Block the host until all work before the event is done.

        Raises
        ------
        CommunicatorError
            If another rank failed or stopped responding, so that the event would never be done.
        """
        if self.native is not None and self._wait is not None:
            self._wait(self.native)

    def __repr__(self) -> str:
        return f"Event({'done' if self.done else 'pending'})"


class HostStream:
    """The stream of a backend whose calls block, so that the same code runs with and without GPUs."""

    __slots__ = ()
    done = True

    def synchronize(self) -> None:
        """Do nothing: all work is done."""

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __repr__(self) -> str:
        return "HostStream()"


HOST_STREAM = HostStream()
"""The only host stream."""
