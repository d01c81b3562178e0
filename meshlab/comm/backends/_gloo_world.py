"""The rendezvous and the connections of the ranks of Gloo. Only this module and `_torch_kernels` import torch."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import time
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
from meshlab.comm._backend import Backend, Rendezvous
from meshlab.comm._communicator import Communicator

# Gloo gives up a call after this time, and closes its connections. It is longer than any deadline of the client.
TIMEOUT = timedelta(days=1)

_POLL_S = 0.002  # interval at which ranks look for others

INTERFACE = "GLOO_SOCKET_IFNAME"
_MOST_ADDRESSES = 16  # of a host, that it offers to the others

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


def find_store(rendezvous: Rendezvous) -> tuple[Any, str | None]:
    """Return the store of the ranks, and this rank's network interface, or None if all ranks are on this host."""
    if rendezvous.store_file is not None:
        return load_torch().distributed.FileStore(rendezvous.store_file, rendezvous.size), None
    if rendezvous.unique_id:
        return _store_at(rendezvous.unique_id)
    if rendezvous.beside is not None:
        return _shared_store(rendezvous.beside)
    raise CommunicatorError("the ranks of Gloo need a file or another world to find each other")


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


def _own_addresses() -> dict[str, str]:
    """Return the network interface of each IPv4 address of this host that is not a loopback address."""
    import psutil

    states = psutil.net_if_stats()
    return {
        address.address: interface
        for interface, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET
        and not ipaddress.IPv4Address(address.address).is_loopback
        and interface in states
        and states[interface].isup
    }


def _chosen_interface() -> str | None:
    """Return the network interface in GLOO_SOCKET_IFNAME, or None if it is not set."""
    interface = os.environ.get(INTERFACE, "").split(",")[0]
    if not interface:
        return None
    interfaces = _own_addresses().values()
    if interface not in interfaces:
        raise CommunicatorError(
            f"{INTERFACE}={interface}: {socket.gethostname()} has no such interface with an IPv4 address",
            hint=f"choose one of {', '.join(sorted(set(interfaces))) or 'none'}",
        )
    return interface


def _source_to(address: str) -> str | None:
    """Return the address from which this host sends to another one. None without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # a datagram socket sends nothing here
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _reachable_address(peers: Sequence[str]) -> str:
    """Return the address of the chosen interface, or else of the default route, or else of a route to the peers."""
    interfaces = _own_addresses()
    chosen = _chosen_interface()
    if chosen is not None:
        return next(address for address, interface in interfaces.items() if interface == chosen)
    # The first one is of a network for documentation, which only the default route reaches.
    for address in ("192.0.2.1", *peers):
        source = _source_to(address)
        if source in interfaces:
            return source
    raise CommunicatorError(
        f"{socket.gethostname()} has no address that the hosts of the other ranks can reach",
        hint=f"set {INTERFACE} to its network interface",
    )


def _interface_to(address: str) -> str:
    """Return the interface for the connections of this rank, if rank 0 has an address."""
    chosen = _chosen_interface()
    if chosen is not None:
        return chosen
    interfaces = _own_addresses()
    # As Gloo does by default, unless the name leads to a loopback address, as in Debian's /etc/hosts.
    with contextlib.suppress(OSError):
        if (hostname_address := socket.gethostbyname(socket.gethostname())) in interfaces:
            return interfaces[hostname_address]
    source = address if address in interfaces else _source_to(address)
    if source in interfaces:
        return interfaces[source]
    raise CommunicatorError(
        f"{socket.gethostname()} has no route to rank 0 at {address}",
        hint=f"set {INTERFACE} to the network interface of the hosts",
    )


def _shared_store(beside: Backend) -> tuple[Any, str | None]:
    """Return a store that rank 0 serves, and this rank's network interface, or None if all ranks are on this host."""
    comm = Communicator(beside, checks="off")

    def gather(numbers: Sequence[int]) -> npt.NDArray[np.int64]:
        with beside.local():
            gathered = comm.all_gather(comm.xp.asarray(numbers, dtype=np.int64))
            return comm.to_host(gathered).reshape(beside.size, -1)

    addresses = [int(ipaddress.IPv4Address(address)) for address in _own_addresses()][:_MOST_ADDRESSES]
    hosts = gather([_host_number(), *addresses, *[0] * (_MOST_ADDRESSES - len(addresses))])
    is_local = len(set(hosts[:, 0].tolist())) == 1
    number, port, store = 0, 0, None
    failure: CommunicatorError | None = None
    if beside.rank == 0:
        peer_rows = hosts[hosts[:, 0] != hosts[0, 0], 1:]
        peers = [
            str(ipaddress.IPv4Address(address)) for address in dict.fromkeys(peer_rows.ravel().tolist()) if address
        ]
        try:
            text = "127.0.0.1" if is_local else _reachable_address(peers)
            store, port = _serve_store(text)
            number = int(ipaddress.IPv4Address(text))
        except CommunicatorError as error:  # which the other ranks wait for
            failure = error
    number, port = (int(part) for part in gather([number, port])[0])
    if failure is not None:
        raise failure
    if port == 0:
        raise CommunicatorError("rank 0 has no address for the other ranks")
    address = str(ipaddress.IPv4Address(number))
    interface = None if is_local else _interface_to(address)
    if store is None:
        store = load_torch().distributed.TCPStore(address, port, is_master=False, wait_for_workers=False)
    return store, interface


_served: dict[bytes, Any] = {}
"""The stores that this process serves, by their ids, until it opens its world."""


def serve_store(peers: Sequence[str]) -> bytes:
    """Serve a store for ranks on this host, and on hosts with the addresses `peers`. Return its address as an id."""
    address = _reachable_address(peers) if peers else "127.0.0.1"
    store, port = _serve_store(address)
    unique_id = f"{address}:{port}".encode()
    _served[unique_id] = store
    return unique_id


def _store_at(unique_id: bytes) -> tuple[Any, str | None]:
    """Return the store that has an id, and this rank's network interface, or None if all ranks are on one host."""
    address, _, port = unique_id.decode().rpartition(":")
    store = _served.pop(unique_id, None)
    if store is None:
        store = load_torch().distributed.TCPStore(address, int(port), is_master=False, wait_for_workers=False)
    return store, None if ipaddress.IPv4Address(address).is_loopback else _interface_to(address)


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
    # None if all ranks are on this host. Gloo then uses only the loopback device.
    interface: str | None
    while_waiting: Callable[[], object]
    # Whether a rank that waits for others to open a group can be interrupted, which torch itself does not allow.
    is_interruptible: bool = False

    def connect(self, prefix: str, rank: int, size: int) -> Any:
        """Return a new process group. All its ranks must call this with the same prefix."""
        _, distributed, c10d = load_torch()
        groups = c10d.ProcessGroupGloo
        options = groups._Options()
        options._timeout = TIMEOUT
        try:
            if self.interface is None:
                device = groups.create_device(hostname="127.0.0.1")
            else:
                device = groups.create_device(interface=self.interface)
            options._devices = [device]
            store = distributed.PrefixStore(prefix, self.store)
            if self.is_interruptible:
                self._meet(store, rank, size)
            return groups(store, rank, size, options)
        except RuntimeError as error:
            way = "" if self.interface is None else f" over {self.interface}"
            raise CommunicatorError(
                f"Gloo cannot connect the {size} ranks{way}: {first_line(error)}",
                hint="" if self.interface is None else f"set {INTERFACE} to the network interface of the hosts",
            ) from error

    def _meet(self, store: Any, rank: int, size: int) -> None:
        """Wait until all ranks of a group are about to open it."""
        store.set(f"here {rank}", "")
        ranks = [f"here {other}" for other in range(size)]
        while not store.check(ranks):
            self.while_waiting()
            time.sleep(_POLL_S)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
