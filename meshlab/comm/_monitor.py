"""`Monitor`: the observer of the calls of a communicator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from meshlab.comm._backend import Comparer

MESSAGES = "messages"
"""Name of a batch that contains only messages, for a `Monitor`."""


def torch_label(group: str) -> str:
    """Return the name of torch's group with the ranks of a group, where the calls of ranks are reported."""
    return f"torch's {group}"


class Monitor(Protocol):
    """An observer of the calls of a communicator. Its methods run for every call, so they must be fast."""

    def code(self, call: str) -> int:
        """Return the number of a kind of call: a collective, ``"batch"``, ``"split"`` or `MESSAGES`."""

    def enter(self, code: int, checksum: int) -> None:
        """Record a call of the complete group that starts, and the checksum of its signature."""

    def enter_message(self, code: int, checksum: int) -> None:
        """Record a message that starts. The checksum is not used, so that both methods have the same arguments."""

    def leave(self, code: int) -> None:
        """Record that a call has returned. If calls are asynchronous, it may still be running."""

    def child(self, group: str, color: int) -> Monitor:
        """Return the monitor of a communicator that is split from this one."""

    def comparer(self, ranks: Sequence[int]) -> Comparer | None:
        """Return the object that compares the calls of the communicator between its ranks, or None."""
