"""The hosts of ranks: the index of each rank on its host, its device, and the network that joins the hosts."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.base._backends import BACKENDS, PROCESS_BACKENDS
from meshlab.base._units import SEPARATOR

if TYPE_CHECKING:
    from meshlab.engines._rounds import RankInfo

_RDMA = Path("/sys/class/infiniband")
_LARGEST_OFFSET_S = 1.0

CLOCK_FIX = "synchronise the clocks, for instance with chrony"


def network_interfaces() -> tuple[tuple[str, str], ...]:
    """Return the networks of this host as pairs of an interface and its address, which RDMA devices do not have."""
    import psutil

    states = psutil.net_if_stats()
    addresses = [
        (name, f"{address.address}/{address.netmask}")
        for name, of_interface in psutil.net_if_addrs().items()
        for address in of_interface
        if address.family.name == "AF_INET" and address.netmask and not address.address.startswith("127.")
        if name in states and states[name].isup
    ]
    return (*addresses, *((name, "") for name in _rdma_devices()))


def _interface_names() -> list[str]:
    """Return the names of all interfaces and RDMA devices, also of those that are no network to another host."""
    import psutil

    return [*psutil.net_if_addrs(), *_rdma_devices()]


def _rdma_devices() -> list[str]:
    return sorted(path.name for path in _RDMA.iterdir()) if _RDMA.is_dir() else []


def network_choice(backend: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the network that a variable of the backend's library chooses on this host, or an empty string."""
    return next((environ[name] for name in BACKENDS[backend].network_variables if environ.get(name)), "")


def network_settings() -> dict[str, str]:
    """Return the variables of this process that choose networks, of all backends."""
    names = [name for backend in PROCESS_BACKENDS for name in _network_variables(backend)]
    return {name: os.environ[name] for name in names if name in os.environ}


def _network_variables(backend: str) -> tuple[str, ...]:
    return (*BACKENDS[backend].network_variables, *BACKENDS[backend].interface_prefixes)


def missing_interface(backend: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return which network interface a variable of the backend's library names that this host does not have, or ""."""
    names = _interface_names()
    for variable in _network_variables(backend):
        value = environ.get(variable, "")
        # NCCL takes beginnings of names unless they follow "=", and "^" excludes them. UCX's have a port.
        chosen = [text.strip().removeprefix("=").partition(":")[0] for text in value.split(",")]
        is_list = value and not value.startswith("^") and "all" not in chosen and "/" not in value
        begins = variable in BACKENDS[backend].interface_prefixes and not value.startswith("=")
        if is_list and not any(name.startswith(text) if begins else name == text for text in chosen for name in names):
            return f"{socket.gethostname()} has no network interface {value}, which {variable} names"
    return ""


def clock_problem(host: str, offset_s: float, uncertainty_s: float) -> str:
    """Return that the clock of a host differs from that of this one, or an empty string."""
    if abs(offset_s) - uncertainty_s <= _LARGEST_OFFSET_S:
        return ""
    way = "ahead of" if offset_s > 0 else "behind"
    return f"the clock of {host} is {abs(offset_s):,.1f} s {way} that of this host"


def n_hosts(ranks: Sequence[RankInfo]) -> int:
    """Return the number of hosts of the ranks."""
    return len({info.host for info in ranks})


def rank_rows(ranks: Sequence[RankInfo]) -> list[dict[str, Any]]:
    """Return the rows of the ranks frame of a run, without the columns that all rows share."""
    n_before: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for info in ranks:
        device = info.capabilities.facts.get("device number", "")
        rows.append(
            {
                "rank": info.rank,
                "host": info.host,
                "local_rank": n_before[info.host],
                "device": int(device) if device.isdecimal() else None,
            }
        )
        n_before[info.host] += 1
    return rows


def ranks_label(ranks: Sequence[RankInfo]) -> str:
    """Return the label of the system that the ranks use, such as "4 ranks on 2 × H200 · NCCL 2.32.3"."""
    n, capabilities, hosts = len(ranks), ranks[0].capabilities, _hosts_text(ranks)
    if not BACKENDS[capabilities.backend].on_gpus:
        label = f"{n} rank{'s' * (n != 1)}{hosts}"
        return f"{label}{SEPARATOR}{place_label(ranks, capabilities.backend, capabilities.where)}"
    gpus, _, library = capabilities.where.partition(SEPARATOR)
    n_gpus = number_of_gpus(ranks)
    label = f"{n} × {gpus}" if n_gpus == n else f"{n} ranks on {n_gpus} × {gpus}"
    return SEPARATOR.join(part for part in (f"{label}{hosts}", library) if part)


def place_label(ranks: Sequence[RankInfo], backend: str, where: str) -> str:
    """Return `where` of a backend's capabilities, or the network of the ranks in its place if it is not one host."""
    facts = BACKENDS[backend]
    return facts.across.format(network=_network(ranks)) if facts.across and n_hosts(ranks) > 1 else where


def _hosts_text(ranks: Sequence[RankInfo]) -> str:
    return f" on {n_hosts(ranks)} hosts" if n_hosts(ranks) > 1 else ""


def number_of_gpus(ranks: Sequence[RankInfo]) -> int:
    """Return the number of different GPUs that the ranks of NCCL use."""
    # If each process sees a GPU of its own, all of them have the same number.
    gpus = {
        (info.host, facts.get("PCI address", facts.get("device number")))
        for info in ranks
        for facts in [info.capabilities.facts]
    }
    return len(gpus)


def _network(ranks: Sequence[RankInfo]) -> str:
    """Return the interface through which the ranks reach each other, or "the network" if that is not certain."""
    if chosen := {info.network for info in ranks} - {""}:
        return chosen.pop() if len(chosen) == 1 else "the network"
    firsts = {info.host: info for info in reversed(ranks)}.values()
    has_rdma = any(not address for info in firsts for _, address in info.interfaces)
    names = {name for shared in _shared_networks([info.interfaces for info in firsts]) for name in shared}
    return names.pop() if len(names) == 1 and not has_rdma else "the network"


def _shared_networks(hosts: Sequence[Sequence[tuple[str, str]]]) -> Iterator[set[str]]:
    """Yield the interfaces of each IP network in which every host has an address of its own."""
    # Bridges of containers have the same address on every host, and join none of them.
    networks: dict[str, dict[str, list[str]]] = {}
    for interfaces in hosts:
        for name, text in interfaces:
            if text:
                address = ipaddress.ip_interface(text)
                networks.setdefault(str(address.network), {}).setdefault(str(address.ip), []).append(name)
    for by_address in networks.values():
        if len(by_address) == len(hosts):
            yield {name for names in by_address.values() for name in names}
