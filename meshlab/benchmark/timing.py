"""The part of a benchmark that runs on the engines: one step, timed and checked on one rank."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.statistics import FEWEST_FOR_INTERVAL, is_precise
from meshlab.comm.answers import Case, count_mistakes, encode
from meshlab.comm.catalog import CATALOG, find_op
from meshlab.comm.dtypes import carrier, find_dtype

if TYPE_CHECKING:
    from meshlab.benchmark.plan import Sampling, Step
    from meshlab.comm import Communicator, PreparedCall

__all__ = ["Measured", "buffers", "count_wrong", "measure_step", "prepare_step"]

_CHUNK = 1 << 18  # elements checked at once, to bound the memory of the right answer


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What one rank measured in one step.

    Parameters
    ----------
    group : str
        The group it is in.
    calls : int
        Calls per batch.
    time_us, host_us : numpy.ndarray
        Per call, one value per batch, in µs.
    start_us : numpy.ndarray or None
        When each batch began on the host's clock; None unless starts were aligned.
    is_warmup : numpy.ndarray
        True for batches to leave out.
    n_wrong : int or None
        Wrong elements on this rank; None when unchecked.
    stop_reason : str
        Why sampling stopped.
    """

    group: str
    calls: int
    time_us: npt.NDArray[np.float64]
    host_us: npt.NDArray[np.float64]
    start_us: npt.NDArray[np.float64] | None
    is_warmup: npt.NDArray[np.bool_]
    n_wrong: int | None
    stop_reason: str


def measure_step(comm: Communicator, step: Step, sampling: Sampling, check: bool) -> Measured:
    """Time one step on this rank. Every rank of the group calls it.

    The result is checked first, which also lets the library connect; then a few calls say how long a batch should be;
    then batches follow until the times are precise enough. Whatever the ranks must agree on, such as when to stop, they
    work out from the slowest rank's times, which all of them share.

    Parameters
    ----------
    comm : Communicator
        The group.
    step : Step
        What to call.
    sampling : Sampling
        How much.
    check : bool
        Whether to compare the result with the right answer.

    Returns
    -------
    Measured
    """
    began = time.perf_counter()
    send, out = buffers(comm, step)
    call = prepare_step(comm, step, send, out)
    n_wrong = count_wrong(comm, step, call, send, out) if check else None
    send[...] = 0  # zeros stay zeros, however often a reduction in place is repeated
    out[...] = 0

    first = call.measure(step.mode, 1, 3)
    slowest = _slowest(comm, [float(np.median(first.time_us))])
    calls = 1
    if step.mode != "isolated":
        calls = int(min(max(1.0, sampling.batch_us / max(slowest[0], 1e-3)), sampling.max_calls))
    parts = [call.measure(step.mode, calls, sampling.warmup_batches)] if sampling.warmup_batches else []
    n_warmup = sampling.warmup_batches
    times: npt.NDArray[np.float64] = np.empty(0)
    reason = ""
    while not reason:
        chunk = min(max(FEWEST_FOR_INTERVAL, sampling.min_batches // 2), sampling.max_batches - len(times))
        part = call.measure(step.mode, calls, chunk)
        parts.append(part)
        shared = _slowest(comm, [*part.time_us, time.perf_counter() - began])
        times = np.concatenate([times, shared[:-1]])
        reason = _why_stop(times, float(shared[-1]), sampling)
    starts = [part.start_us for part in parts if part.start_us is not None]
    n = sum(len(part.time_us) for part in parts)
    return Measured(
        group=comm.name,
        calls=calls,
        time_us=np.concatenate([part.time_us for part in parts]),
        host_us=np.concatenate([part.host_us for part in parts]),
        start_us=np.concatenate(starts) if starts else None,
        is_warmup=np.arange(n) < n_warmup,
        n_wrong=n_wrong,
        stop_reason=reason,
    )


def _why_stop(times: npt.NDArray[np.float64], elapsed_s: float, sampling: Sampling) -> str:
    if len(times) >= sampling.min_batches and is_precise(times, sampling.precision):
        return "precise"
    if elapsed_s >= sampling.max_s and len(times) >= FEWEST_FOR_INTERVAL:
        return "time"
    return "batches" if len(times) >= sampling.max_batches else ""


def _slowest(comm: Communicator, values: list[Any]) -> npt.NDArray[np.float64]:
    shared = comm.all_reduce(comm.xp.asarray(values, dtype="float64"), op="max")
    return np.asarray(shared.get() if hasattr(shared, "get") else shared, dtype=np.float64)


def buffers(comm: Communicator, step: Step) -> tuple[Any, Any]:
    """The input and the output of a step, uninitialised.

    In place, the smaller one is this rank's part of the larger one, where NCCL wants it.
    """
    row, dtype = CATALOG[step.collective], carrier(find_dtype(step.dtype))
    n_send = row.elements("sends", step.count, comm.size)
    n_out = row.elements("receives", step.count, comm.size)
    if not step.in_place:
        return comm.empty(n_send, dtype), comm.empty(n_out, dtype)
    whole = comm.empty(max(n_send, n_out), dtype)
    own = whole[comm.rank * step.count :][: step.count]
    return (own if n_send < n_out else whole), (own if n_out < n_send else whole)


def prepare_step(comm: Communicator, step: Step, send: Any, out: Any) -> PreparedCall:
    """The call of a step: messages go round in a ring, as in nccl-tests, and parts of unequal size are equal."""
    row, n = CATALOG[step.collective], comm.size
    arguments: dict[str, Any] = {"op": step.op, "root": step.root, "dtype": step.dtype}
    if row.peers:
        arguments |= {"dest": (comm.rank + 1) % n, "source": (comm.rank - 1) % n}
    if row.counted:
        arguments |= {"send_counts": [step.count] * n, "recv_counts": [step.count] * n}
    return comm.prepare(step.collective, send, out, **arguments)


def count_wrong(comm: Communicator, step: Step, call: PreparedCall, send: Any, out: Any) -> int:
    """Make the call once on rank-coded data and count the elements of this rank's output that are not right."""
    row, dtype, op = CATALOG[step.collective], find_dtype(step.dtype), find_op(step.op) if step.op else None

    def value(member: int, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return encode(comm.ranks[member], index, dtype, op)

    if not step.in_place:
        out[...] = 125  # no rank-coded value and no sum of few of them
    for first in range(0, send.size, _CHUNK):
        index = np.arange(first, min(first + _CHUNK, send.size))
        send[first : first + len(index)] = comm.xp.asarray(value(comm.rank, index).view(send.dtype))
    call()
    if row.answer is None or not row.has("receives", step.root in (None, comm.rank)):
        return 0
    case = Case(
        value=value,
        n=comm.size,
        member=comm.rank,
        count=step.count,
        dtype=dtype,
        op=op,
        root=step.root or 0,
        source=(comm.rank - 1) % comm.size,
    )
    wrong = 0
    for first in range(0, out.size, _CHUNK):
        index = np.arange(first, min(first + _CHUNK, out.size))
        part = out[first : first + len(index)]
        got = np.asarray(part.get() if hasattr(part, "get") else part).view(dtype)
        wrong += count_mistakes(got, row.answer(case, index))
    return wrong
