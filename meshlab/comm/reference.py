"""Every collective in plain numpy, on the buffers of all ranks at once: what the `threads` backend does.

It is written to be read beside the catalog. Each function takes one call per rank, in the order of the ranks. Inputs
are read before any output is written, so that calls in place need no care.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshlab.comm.backend import Call
from meshlab.comm.dtypes import Array, flat_elements
from meshlab.comm.elements import OPS, divide

__all__ = ["carry_out", "copy_message", "unequal_parts"]


def carry_out(calls: Sequence[Call]) -> None:
    """Do one collective for all ranks; they agree on it.

    Examples
    --------
    >>> from meshlab.comm.catalog import CATALOG
    >>> inputs, outputs = [np.array([1.0, 2.0]), np.array([3.0, 4.0])], [np.empty(2), np.empty(2)]
    >>> carry_out(
    ...     [
    ...         Call(CATALOG["all_reduce"], send, recv, 2, send.dtype, "max", None, False)
    ...         for send, recv in zip(inputs, outputs)
    ...     ]
    ... )
    >>> outputs
    [array([3., 4.]), array([3., 4.])]
    """
    name = calls[0].collective.name
    if name == "barrier":
        return
    with np.errstate(all="ignore"):
        for call, result in zip(calls, _RESULTS[name](calls), strict=True):
            if call.recv is not None:
                flat_elements(call.recv, call.dtype)[...] = result


def copy_message(sender: Call, receiver: Call) -> None:
    """Give one rank what another one sends."""
    flat_elements(receiver.recv, receiver.dtype)[...] = flat_elements(sender.send, sender.dtype)


def unequal_parts(calls: Sequence[Call]) -> str:
    """Say which two ranks of an all_to_all_v expect different sizes; empty when none do."""
    for rank, call in enumerate(calls):
        for other, count in enumerate(call.send_counts or ()):
            expected = (calls[other].recv_counts or ())[rank]
            if count != expected:
                return f"rank {rank} of the group sends {count} elements to rank {other}, which expects {expected}"
    return ""


def _inputs(calls: Sequence[Call]) -> list[Array]:
    return [flat_elements(call.send, call.dtype) for call in calls]


def _reduced(calls: Sequence[Call]) -> Array:
    total, combine = np.empty(0), OPS[calls[0].op or "sum"].combine
    for rank, (call, data) in enumerate(zip(calls, _inputs(calls), strict=True)):
        term = data if call.scalar is None else data * call.scalar
        total = combine(total, term) if rank else term.copy()
    if calls[0].op == "avg":
        divide(total, len(calls))
    return total


def _all_reduce(calls: Sequence[Call]) -> list[Array]:
    return [_reduced(calls)] * len(calls)


def _all_gather(calls: Sequence[Call]) -> list[Array]:
    return [np.concatenate(_inputs(calls))] * len(calls)


def _reduce_scatter(calls: Sequence[Call]) -> list[Array]:
    return _parts(_reduced(calls), [call.count for call in calls])


def _all_to_all(calls: Sequence[Call]) -> list[Array]:
    return _exchange(calls, [[call.count] * len(calls) for call in calls])


def _all_to_all_v(calls: Sequence[Call]) -> list[Array]:
    return _exchange(calls, [call.send_counts or () for call in calls])


def _broadcast(calls: Sequence[Call]) -> list[Array]:
    return [_inputs(calls)[calls[0].root or 0].copy()] * len(calls)


def _scatter(calls: Sequence[Call]) -> list[Array]:
    root = calls[calls[0].root or 0]
    return _parts(flat_elements(root.send, root.dtype).copy(), [call.count for call in calls])


def _exchange(calls: Sequence[Call], counts: Sequence[Sequence[int]]) -> list[Array]:
    parts = [_parts(data, cuts) for data, cuts in zip(_inputs(calls), counts, strict=True)]
    return [np.concatenate([mine[rank] for mine in parts]) for rank in range(len(calls))]


def _parts(data: Array, counts: Sequence[int]) -> list[Array]:
    return np.split(data, np.cumsum(counts)[:-1])


_RESULTS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all_v,
    "broadcast": _broadcast,
    "reduce": _all_reduce,  # the ranks without an output get nothing
    "gather": _all_gather,
    "scatter": _scatter,
}
