"""See the machine at hand: join what every host says of itself into one `Cluster`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshlab.errors import TopologyError
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.model.hardware import Device, Nic, Node, Numa
from meshlab.topology.readers.nvml import read_host

__all__ = ["cluster_from_hosts", "probe"]


def probe(engines: Any = None) -> Cluster:
    """Look at this host, or at every host that engines run on.

    Parameters
    ----------
    engines : Engines, optional
        Running ranks; each host is looked at once, by its first rank.

    Returns
    -------
    Cluster
        One node per host. Without GPUs it has no devices, and its notes say why none was seen.

    Raises
    ------
    TopologyError
        If no rank could look.

    Examples
    --------
    >>> probe().n_nodes
    1
    """
    if engines is None:
        return cluster_from_hosts([read_host()])
    first_of_host = {fact.host: fact.rank for fact in reversed(engines.facts)}
    answers = engines.run(_read_host_on, arguments=(sorted(first_of_host.values()),)).set_index("rank")
    failed = answers["error"].dropna()
    if len(failed):
        raise TopologyError(f"rank {failed.index[0]} could not look at its host: {failed.iloc[0]}")
    return cluster_from_hosts([answers["value"][rank] for rank in sorted(first_of_host.values())])


def _read_host_on(comm: Any, ranks: Sequence[int]) -> dict[str, Any] | None:
    """Runs on every rank: one per host answers."""
    return read_host() if comm.world_rank in ranks else None


def cluster_from_hosts(hosts: Sequence[Mapping[str, Any]]) -> Cluster:
    """Make a cluster from the answers of `read_host`, one per host.

    Parameters
    ----------
    hosts : sequence of mapping
        In the order of the nodes. Two answers of one host (same name) count once.

    Returns
    -------
    Cluster
        Hosts whose GPUs report the same NVLink fabric share an NVLink domain.

    Raises
    ------
    TopologyError
        If there is no host, or an answer has fields that no device has.

    Examples
    --------
    >>> from meshlab.topology.readers.nvml import read_host
    >>> cluster_from_hosts([read_host(), read_host()]).n_nodes
    1
    """
    nodes: dict[str, Node] = {}
    for host in hosts:
        if host.get("name") not in nodes:
            nodes[str(host.get("name"))] = _node(host)
    if not nodes:
        raise TopologyError("no host answered, so there is no cluster")
    notes = tuple(f"{node.name}: {note}" for node in nodes.values() for note in node.notes)
    return Cluster.from_nodes(tuple(nodes.values()), source="the NVIDIA driver and Linux", notes=notes)


def _device(fields: Mapping[str, Any]) -> Device:
    """A device from its fields; an answer that came through JSON has lists where Python had tuples."""
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
            f"the answer of host {host.get('name', '?')!r} cannot be read ({error}); give what read_host returns"
        ) from error
