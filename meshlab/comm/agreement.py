"""What all ranks of a group must agree on in one call, and how they are told when they do not."""

from __future__ import annotations

from collections.abc import Sequence

from meshlab.comm.backend import Call
from meshlab.errors import CommunicatorError

__all__ = ["disagreement", "signature"]


def signature(calls: Sequence[Call]) -> str:
    """What must be the same on every rank, as text: collective, count, dtype, operation and root.

    Sends and receives are between two ranks and leave no trace. The scalar of ``pre_mul_sum`` is each rank's own.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm.catalog import CATALOG
    >>> signature([Call(CATALOG["all_reduce"], None, None, 8, np.dtype("float32"), "sum", None, False)])
    'all_reduce count=8 dtype=float32 op=sum'
    """
    return ", ".join([_signature(call) for call in calls if not call.collective.peers])


def _signature(call: Call) -> str:
    text = call.collective.name
    if call.dtype is not None:
        text += f" dtype={call.dtype}" if call.collective.counted else f" count={call.count} dtype={call.dtype}"
    if call.op is not None:
        text += f" op={call.op}"
    if call.root is not None:
        text += f" root={call.root}"
    return text


def disagreement(rank: int, calls: str, other: int, other_calls: str) -> CommunicatorError:
    """The error for ranks of a group that do not make the same call."""
    if rank > other:
        rank, calls, other, other_calls = other, other_calls, rank, calls
    return CommunicatorError(
        f"ranks disagree: rank {rank} of the group calls {calls}, rank {other} calls {other_calls}; "
        "every rank must make the same call"
    )
