"""Symmetric memory: windows that all ranks of a group register together.

If one rank cannot enter the library, for example because its GPU has no memory left, the others would wait in it
forever. So the ranks agree before each step, and either all of them go on or all of them raise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import CommunicatorError
from meshlab.comm._agreement import WINDOW, checksum
from meshlab.comm._backend import Capabilities

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator

SYMMETRIC = "symmetric memory"
"""The fact in `Capabilities.facts` that is ``"yes"``, ``"unknown"``, or ``"no: "`` followed by the reason."""


def why_not_symmetric(capabilities: Capabilities) -> str:
    """Return the reason why a backend cannot register windows, or an empty string if it can, or may be able to."""
    fact = capabilities.facts.get(SYMMETRIC, "no: only NCCL has it, on GPUs")
    return fact.removeprefix("no: ") if fact.startswith("no") else ""


def empty_symmetric(comm: Communicator, shape: int | tuple[int, ...], dtype: Any) -> Any:
    """Return an uninitialised array in a new window. Collective. See `Communicator.empty`."""
    n_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    comm = comm._root  # a window belongs to the communicator of the library, not to a view
    with _entered(comm):
        backend = _agree(comm, n_bytes)
        if n_bytes == 0:
            return backend.empty(shape, dtype)
        array, failure = None, None
        try:
            array = backend.empty(shape, dtype)
        except CommunicatorError as error:
            failure = error
        _raise_together(comm, failure, f"could not allocate {n_bytes:,} bytes for a symmetric array of {comm.name}")
        backend.register_window(array, until_deleted=True)
    return array


@contextmanager
def registered_symmetric(comm: Communicator, array: Any) -> Iterator[None]:
    """Register an array as a window within a ``with`` block. Collective. See `Communicator.registered`."""
    comm = comm._root
    with _entered(comm):
        failure = None
        if not isinstance(array, comm.xp.ndarray):
            needed = f"a {comm.xp.__name__} array, not {type(array).__name__}"
            failure = CommunicatorError(f"registered() on {comm.name} needs {needed}", group=comm.name)
        # A rank without a size takes part in the comparison too, so that all ranks raise.
        backend = _agree(comm, 0 if failure is not None else int(array.nbytes), failure)
        if array.nbytes == 0:
            failure = CommunicatorError(
                f"an empty array cannot be registered on {comm.name}; pass an array with elements", group=comm.name
            )
        elif reason := backend.why_not_window(array):
            failure = CommunicatorError(f"the array cannot be a symmetric window of {comm.name}: {reason}")
        _raise_together(comm, failure, f"passed an array that cannot be a symmetric window of {comm.name}")
        registration = backend.register_window(array, until_deleted=False)
    try:
        yield
    finally:
        if registration.is_open:  # not after an abort, or if the communicator was closed within the block
            backend.wait_idle()
            registration.end()


@contextmanager
def _entered(comm: Communicator) -> Iterator[None]:
    """Record the registration of a window as a call of the group, and compare it like a split."""
    comm._check_open()
    code = 0 if comm._monitor is None else comm._monitor.code(WINDOW.collective.name)
    comm._enter(code, checksum((WINDOW,)))
    try:
        if comm._agreement is not None:
            comm._agreement.compare((WINDOW,), True)
        yield
    finally:
        if comm._monitor is not None:
            comm._monitor.leave(code)


def _agree(comm: Communicator, n_bytes: int, failure: CommunicatorError | None = None) -> Any:
    """Raise on all ranks unless all want a window of the same size and the backend has windows. Return the backend."""
    sizes = comm._exchange(-1 if failure is not None else n_bytes)
    if failure is not None:
        raise failure
    other = next((rank for rank, size in enumerate(sizes) if size < 0), None)
    if other is not None:
        raise _elsewhere(comm, other, f"passed something that is not an array of {comm.xp.__name__}")
    rank = next((rank for rank, size in enumerate(sizes) if size != sizes[0]), None)
    if rank is not None:
        raise CommunicatorError(
            f"a symmetric window must have the same size on all ranks of {comm.name}, but rank 0 of the group has "
            f"{sizes[0]:,} bytes and rank {rank} has {sizes[rank]:,}",
            hint="allocate the largest size on every rank, and use a part of it",
            group=comm.name,
        )
    capabilities = comm.capabilities()
    reason = why_not_symmetric(capabilities)
    if not reason and not hasattr(comm.backend, "register_window"):
        reason = "only NCCL has it, on GPUs"
    if reason:
        raise CommunicatorError(
            f"{capabilities.backend} cannot register symmetric memory: {reason}",
            hint="omit symmetric=True",
            group=comm.name,
        )
    return comm.backend


def _raise_together(comm: Communicator, failure: CommunicatorError | None, what: str) -> None:
    """Raise the failure of this rank, or an error that names the first rank that has one."""
    failed = comm._exchange(int(failure is not None))
    if failure is not None:
        raise failure
    if any(failed):
        raise _elsewhere(comm, failed.index(1), what)


def _elsewhere(comm: Communicator, rank: int, what: str) -> CommunicatorError:
    return CommunicatorError(f"rank {comm.ranks[rank]} {what}; see its own error", group=comm.name)
