"""The modules of the backends by name, through which ranks open their worlds. None is imported before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import BesideModule, ProcessModule

if TYPE_CHECKING:
    from meshlab.comm._backend import Backend, Rendezvous
    from meshlab.comm.backends._threads import ThreadWorld
    from meshlab.comm.backends._torch_world import TorchWorld


def process_module(backend: str) -> ProcessModule:
    """Return the module of a backend whose ranks are processes."""
    if backend == "nccl":
        from meshlab.comm.backends import _nccl as nccl

        return nccl
    if backend == "mpi":
        from meshlab.comm.backends import _mpi as mpi

        return mpi
    return beside_module(backend)


def beside_module(backend: str) -> BesideModule:
    """Return the module of a backend that ranks can open in addition to another one."""
    if backend == "gloo":
        from meshlab.comm.backends import _gloo as gloo

        return gloo
    raise CommunicatorError(f"backend {backend!r} has no module for ranks in processes")


def thread_world(backend: str, size: int) -> ThreadWorld:
    """Return the world of a backend whose ranks are threads of this process."""
    if backend == "threads":
        from meshlab.comm.backends._threads import ThreadWorld

        return ThreadWorld(size)
    raise CommunicatorError(f"backend {backend!r} has no module for ranks in threads")


def check_torch() -> None:
    """Raise a `CommunicatorError` unless torch is installed, for its own process groups. Does not import it."""
    from meshlab.comm.backends._torch_world import check_installed

    check_installed()


def load_torch(on_gpu: bool) -> str:
    """Import torch on a rank, and return its version. Raise a `CommunicatorError` if it cannot open process groups."""
    from meshlab.comm.backends._torch_world import load

    return load(on_gpu)


def torch_world(rendezvous: Rendezvous, backend: Backend) -> TorchWorld:
    """Return the part of torch of a rank, next to the world of a backend. Collective."""
    from meshlab.comm.backends._torch_world import TorchWorld

    return TorchWorld(rendezvous, backend)
