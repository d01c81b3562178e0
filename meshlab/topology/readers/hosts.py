"""Probe: the cluster of this host, or of all hosts of running engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshlab.errors import TopologyError
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.model.hardware import Device, Nic, Node, Numa
from meshlab.topology.readers.nvml import read_host

__all__ = ["cluster_from_hosts", "probe"]


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
        if host.get("name") not in nodes:
            nodes[str(host.get("name"))] = _node(host)
    if not nodes:
        raise TopologyError("no hosts given", hint="pass at least one result of read_host()")
    notes = tuple(f"{node.name}: {note}" for node in nodes.values() for note in node.notes)
    return Cluster.from_nodes(tuple(nodes.values()), source="the NVIDIA driver and Linux", notes=notes)


def _device(fields: Mapping[str, Any]) -> Device:
    """Return a device. A result that was stored as JSON has lists instead of tuples."""
    capability, remotes = fields.get("compute_capability"), fields.get("nvlink_remotes", ())
    tuples = {
        "compute_capability": None if capability is None else tuple(capability),
        "nvlink_remotes": tuple(tuple(remote) for remote in remotes),
    }
    return Device(**{**fields, **tuples})


def _node(host: Mapping[str, Any]) -> Node:
    try:
        devices = tuple(_device(fields) for fields in host["devices"])
        nics = tuple(Nic(**fields) for fields in host["nics"])
        facts = {name: host[name] for name in ("cpu_model", "cpu_count", "sockets", "memory_bytes")}
        return Node(
            str(host["name"]),
            devices,
            nics,
            words=tuple(tuple(row) for row in host["words"]),
            p2p=tuple(tuple(row) for row in host["p2p"]),
            numa=tuple(Numa(*numa) for numa in host["numa"]),
            notes=tuple(host["notes"]),
            **facts,
        )
    except (KeyError, TypeError) as error:
        raise TopologyError(
            f"the description of host {host.get('name', '?')!r} is invalid ({error})",
            hint="pass a result of read_host()",
        ) from error
