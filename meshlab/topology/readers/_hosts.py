"""Probe: the cluster of this host, or of all hosts of running engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshlab.base._errors import ParseError, TopologyError
from meshlab.base._typed_values import typed_fields
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Nic, Node, Numa
from meshlab.topology.readers._nvml import read_host


def probe(engines: Any = None) -> Cluster:
    """Return the hardware of this host, or of all hosts of running engines.

    Parameters
    ----------
    engines : Engines, optional
        Running engines. The lowest rank of each host reads its hardware. By default this process reads this host.

    Returns
    -------
    Cluster
        One node per host. Without GPUs the cluster has no devices, and its notes contain the reason.

    Raises
    ------
    TopologyError
        If a rank could not read its host.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.probe().n_nodes
    1
    """
    if engines is None:
        return cluster_from_hosts([read_host()])
    # Reversed, so that the lowest rank of a host comes last and wins.
    first_of_host = {info.host: info.rank for info in reversed(engines.ranks)}
    firsts = sorted(first_of_host.values())
    answers = engines.run(_read_host_on, arguments=(firsts,), check=False).set_index("rank")
    failed = answers["error"].dropna()
    if len(failed):
        raise TopologyError(f"rank {failed.index[0]} could not read the hardware of its host: {failed.iloc[0]}")
    return cluster_from_hosts([answers["value"][rank] for rank in firsts])


def _read_host_on(comm: Any, ranks: Sequence[int]) -> dict[str, Any] | None:
    """Return the hardware of this host on one rank per host, None on the other ranks, because a task runs on all."""
    return read_host() if comm.world_rank in ranks else None


def cluster_from_hosts(hosts: Sequence[Mapping[str, Any]]) -> Cluster:
    """Create a cluster from results of `read_host`.

    Parameters
    ----------
    hosts : sequence of mapping
        One result per host, in the order of the nodes. A second result of a host with the same name is ignored.

    Returns
    -------
    Cluster
        Hosts whose GPUs report the same NVLink fabric share an NVLink domain.

    Raises
    ------
    TopologyError
        If `hosts` is empty.
        If a result has missing or unknown fields.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.topology.cluster_from_hosts([ml.topology.read_host(), ml.topology.read_host()]).n_nodes
    1
    """
    nodes: dict[str, Node] = {}
    for host in hosts:
        node = _node(host)
        nodes.setdefault(node.name, node)
    if not nodes:
        raise TopologyError("no hosts given", hint="pass at least one result of read_host()")
    notes = tuple(f"{node.name}: {note}" for node in nodes.values() for note in node.notes)
    return Cluster.from_nodes(tuple(nodes.values()), source="the NVIDIA driver and Linux", notes=notes)


_HOST = {
    "name": str,
    "devices": tuple[Device, ...],
    "nics": tuple[Nic, ...],
    "words": tuple[tuple[str, ...], ...],
    "p2p": tuple[tuple[str, ...], ...],
    "numa": tuple[tuple[int, str, int | None], ...],
    "notes": tuple[str, ...],
    "cpu_model": str | None,
    "cpu_count": int | None,
    "sockets": int | None,
    "memory_bytes": int | None,
}
"""The fields of a result of `read_host`, which may have been stored as JSON."""


def _node(host: Mapping[str, Any]) -> Node:
    try:
        read = typed_fields(host, _HOST, "")
    except ParseError as error:
        name = str(host.get("name", "?"))[:60] if isinstance(host, Mapping) else "?"
        raise TopologyError(
            f"the description of host {name!r} is invalid ({error.message})", hint="pass a result of read_host()"
        ) from error
    return Node(**{**read, "numa": tuple(Numa(*numa) for numa in read["numa"])})
