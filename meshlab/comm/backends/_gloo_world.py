"""The rendezvous and the connections of the ranks of Gloo. Only this module and `_torch_kernels` import torch."""

from __future__ import annotations

import ipaddress
import os
import socket
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import Backend
from meshlab.comm._communicator import Communicator

# Gloo gives up a call after this time, and closes its connections. It is longer than any deadline of the client.
_TIMEOUT = timedelta(days=1)

INSTALL = "run pip install '.[gloo]' in meshlab's folder (the CPU build of torch is enough), or use another backend"


class Torch(NamedTuple):
    """The modules of torch."""

    torch: Any
    distributed: Any
    c10d: Any


@cache
def load_torch() -> Torch:
    """Import torch. Raise a `CommunicatorError` if that fails, or if it has no Gloo."""
    try:
        import torch
        from torch import distributed
    except Exception as error:
        raise CommunicatorError(f"cannot import torch for Gloo: {error}", hint=INSTALL) from error
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise CommunicatorError(f"torch {torch.__version__} was built without Gloo", hint=INSTALL)
    from torch.distributed import distributed_c10d

    return Torch(torch, distributed, distributed_c10d)


def _serve_store(address: str) -> tuple[Any, int]:
    """Serve a store on an IPv4 address of this host, and return it and its port."""
    # torch's own server listens on all addresses.
    with socket.socket() as listener:
        listener.bind((address, 0))
        listener.listen()
        port = int(listener.getsockname()[1])
        file = listener.detach()
    store = load_torch().distributed.TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=file
    )
    return store, port


def _reachable_address() -> str:
    """Return the IPv4 address of the interface in GLOO_SOCKET_IFNAME, or else of the route to other networks."""
    import psutil

    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    for address in psutil.net_if_addrs().get(chosen, ()):
        if address.family == socket.AF_INET:
            return str(address.address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of a network for documentation; a datagram socket sends nothing here
            return str(probe.getsockname()[0])
        except OSError as error:
            raise CommunicatorError(
                f"this host has no address that other hosts can reach: {error}",
                hint="set GLOO_SOCKET_IFNAME to its network interface",
            ) from error


def shared_store(beside: Backend) -> tuple[Any, bool]:
    """Return a store that rank 0 serves, and whether all ranks are on this host. They exchange its address."""
    comm = Communicator(beside, checks="off")

    def gather(numbers: Sequence[int]) -> npt.NDArray[np.int64]:
        with beside.local():
            gathered = comm.all_gather(comm.xp.asarray(numbers, dtype=np.int64))
            return comm.to_host(gathered).reshape(beside.size, -1)

    is_local = len(set(gather([_host_number()]).ravel().tolist())) == 1
    address, port, store = 0, 0, None
    if beside.rank == 0:
        text = "127.0.0.1" if is_local else _reachable_address()
        store, port = _serve_store(text)
        address = int(ipaddress.IPv4Address(text))
    first = gather([address, port])[0]
    if store is None:
        store = load_torch().distributed.TCPStore(
            str(ipaddress.IPv4Address(int(first[0]))), int(first[1]), is_master=False, wait_for_workers=False
        )
    return store, is_local


def _host_number() -> int:
    """Return a number that differs between hosts. Containers of different hosts may have the same name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return zlib.crc32(f"{socket.gethostname()} {boot}".encode())


@dataclass(frozen=True)
class GlooWorld:
    """The store and the network that all communicators of a rank share."""

    store: Any
    # True if all ranks are on this host. Gloo then uses only the loopback device, and otherwise the network interface
    # in the environment variable GLOO_SOCKET_IFNAME, or else that of the host name.
    is_local: bool
    while_waiting: Callable[[], object]

    def connect(self, prefix: str, rank: int, size: int) -> Any:
        """Return a new process group. All its ranks must call this with the same prefix."""
        _, distributed, c10d = load_torch()
        groups = c10d.ProcessGroupGloo
        options = groups._Options()
        options._timeout = _TIMEOUT
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
        try:
            if self.is_local:
                device = groups.create_device(hostname="127.0.0.1")
            elif interface:
                device = groups.create_device(interface=interface)
            else:
                device = groups.create_default_device()
            options._devices = [device]
            return groups(distributed.PrefixStore(prefix, self.store), rank, size, options)
        except RuntimeError as error:
            raise CommunicatorError(
                f"Gloo cannot connect the {size} ranks: {first_line(error)}",
                hint="" if self.is_local else "set GLOO_SOCKET_IFNAME to the network interface of the hosts",
            ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
