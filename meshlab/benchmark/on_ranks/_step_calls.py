"""The calls of one step on one rank: prepared, and checked. Runs on the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.benchmark.on_ranks._buffers import StepBuffers, allocate
from meshlab.benchmark.on_ranks._checking import count_wrong_elements
from meshlab.comm._catalog import CATALOG
from meshlab.plans._options import CONFIGURED

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.comm._prepared_call import PreparedCall
    from meshlab.plans._steps import Step


def set_up_step(
    comm: Communicator, step: Step, check: bool, buffers: Sequence[StepBuffers] = ()
) -> tuple[PreparedCall, int | None]:
    """Prepare and check the calls of a step, with one item of `buffers` per call, which contain zeros afterwards."""
    if not CATALOG[step.collective].has_size:
        return comm.prepare(step.collective), None
    # The check comes before the timed part. It is also the first call, in which the library connects the peers.
    buffers = buffers or allocate(aggregated(comm, step))
    call = issued_together([prepare_step(comm, step, pair) for pair in buffers])
    n_wrong = sum(count_wrong_elements(comm, step, call, pair) for pair in buffers) if check else None
    # Time with zeros: an in-place reduction adds its own output again in every call, and other values would grow to
    # infinity or to NaN within a thousand calls. Zeros remain zeros, and libraries move them no faster.
    for pair in buffers:
        pair.send[...] = 0
        pair.out[...] = 0
    return call, n_wrong


def aggregated(comm: Communicator, step: Step) -> list[tuple[Communicator, Step]]:
    """Return one item per call of a step. Calls that are issued together have separate buffers."""
    return [(comm, step)] * (step.n_aggregated or 1)


def issued_together(calls: Sequence[PreparedCall]) -> PreparedCall:
    """Return calls of one communicator as one call that issues them together."""
    if len(calls) == 1:
        return calls[0]
    return calls[0]._communicator._prepare_batch([call.calls[0] for call in calls])


def prepare_step(comm: Communicator, step: Step, buffers: StepBuffers) -> PreparedCall:
    """Prepare the call of a step on its buffers, with the configuration of the step."""
    config = {name: getattr(step, name) for name in CONFIGURED}
    if any(value is not None for value in config.values()):
        comm = comm.configured(**config)
    row, n = CATALOG[step.collective], comm.size
    arguments: dict[str, Any] = {"op": step.op, "root": step.root, "dtype": step.dtype}
    if row.peers:
        # A ring, as in sendrecv_perf of nccl-tests: every rank sends to the next one and receives from the previous
        # one, which loads all ranks in the same way.
        arguments |= {"dest": (comm.rank + 1) % n, "source": (comm.rank - 1) % n}
    if row.counted:
        # By default equal chunks: the sizes of all_to_all_v are then comparable with those of all_to_all.
        counts = np.full((n, n), step.count) if step.chunk_counts is None else step.chunk_counts
        counts = np.full((n, n), step.count) if step.chunk_counts is None else step.chunk_counts
        arguments |= {"send_counts": counts[comm.rank].tolist(), "recv_counts": counts[:, comm.rank].tolist()}
    return comm.prepare(step.collective, *buffers, **arguments)
