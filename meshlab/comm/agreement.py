"""What all ranks of a group must agree on in one call, and how they are told when they do not."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from meshlab.comm.backend import Call
from meshlab.errors import CommunicatorError

__all__ = ["disagreement", "fingerprint", "signature"]


def signature(calls: Sequence[Call]) -> str:
    """What must be the same on every rank, as text: collective, count, dtype, operation and root; or ``"split"``.

    Sends and receives are between two ranks and leave no trace. The scalar of ``pre_mul_sum`` is each rank's own.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm.catalog import CATALOG
    >>> signature([Call(CATALOG["all_reduce"], None, None, 8, np.dtype("float32"), "sum", None, False)])
    'all_reduce count=8 dtype=float32 op=sum'
    """
    if not calls:
        return "split"
    return ", ".join([_text(*_facts(call)) for call in calls if not call.collective.peers])


def fingerprint(calls: Sequence[Call]) -> int:
    """The signature as a number, quickly: the same for the same, and different for what differs, but one in 2**32."""
    if len(calls) == 1:
        return _number(*_facts(calls[0]))
    return zlib.crc32(signature(calls).encode())


def _facts(call: Call) -> tuple[Any, ...]:
    row, dtype = call.collective, call.dtype
    return row.name, None if dtype is None or row.counted else call.count, dtype, call.op, call.root


def _text(name: str, count: int | None, dtype: Any, op: str | None, root: int | None) -> str:
    told = {"count": count, "dtype": dtype, "op": op, "root": root}
    return " ".join([name, *(f"{what}={value}" for what, value in told.items() if value is not None)])


@lru_cache(maxsize=1024)
def _number(*facts: Any) -> int:
    return zlib.crc32(_text(*facts).encode())


def disagreement(rank: int, calls: str, other: int, other_calls: str) -> CommunicatorError:
    """The error for ranks of a group that do not make the same call."""
    if rank > other:
        rank, calls, other, other_calls = other, other_calls, rank, calls
    return CommunicatorError(
        f"ranks disagree: rank {rank} of the group calls {calls}, rank {other} calls {other_calls}; "
        "every rank must make the same call"
    )
