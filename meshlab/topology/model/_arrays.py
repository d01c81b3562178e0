"""The integer arrays of a cluster: the kinds of its hosts, the domains of its devices, and its links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import Ints
from meshlab.topology.model._rails import rails_of

if TYPE_CHECKING:
    from meshlab.topology.model._cluster import Cluster

_LARGEST_MATRIX = 2048  # devices


def kinds_of(nodes: Sequence[Node]) -> tuple[tuple[Node, ...], Ints, Ints | None]:
    """Return the different hosts as templates, the template of every host, and its NVLink domain if hosts share one."""
    numbers: dict[Node, int] = {}
    # By identity: readers return the same object for thousands of identical hosts, and hashing a Node is slow.
    number_of_id: dict[int, int] = {}
    templates: list[Node] = []
    kinds = np.empty(len(nodes), dtype=np.int32)
    fabrics: dict[str, int] = {}
    domains = np.empty(len(nodes), dtype=np.int32)
    for index, node in enumerate(nodes):
        if id(node) not in number_of_id:
            devices = tuple(d if d.node is None else replace(d, node=None) for d in node.devices)
            key = replace(node, name="", devices=devices)
            if key not in numbers:
                numbers[key] = len(templates)
                templates.append(replace(key, name=node.name))
            number_of_id[id(node)] = numbers[key]
        kinds[index] = number_of_id[id(node)]
        # A host without a fabric gets a key that no other host has, because its NVLink domain ends at the host.
        fabric = next((device.fabric for device in node.devices if device.fabric), f"\0{index}")
        domains[index] = fabrics.setdefault(fabric, len(fabrics))
    return tuple(templates), kinds, domains if len(fabrics) < len(nodes) else None


def per_device(cluster: Cluster, of_template: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Expand one array per template, with an entry per device, to all devices of the cluster."""
    if not cluster.n_devices:
        return np.zeros(0, dtype=np.int32)
    starts = np.cumsum([0, *(len(values) for values in of_template[:-1])])
    expanded: npt.NDArray[Any] = np.concatenate(of_template)[starts[cluster.kinds[cluster.node_of]] + cluster.local_of]
    return expanded


def device_domains(cluster: Cluster) -> Ints:
    """Return the domain of every device at every level; int32 of shape (levels, devices)."""
    node = cluster.node_of
    domains = np.empty((len(cluster.level_names), cluster.n_devices), dtype=np.int32)
    domains[0], domains[1], domains[2] = np.arange(cluster.n_devices), _nvlink_domains(cluster), node
    for row, level in zip(domains[3:], cluster.levels, strict=True):
        row[:] = level.of_node[node]
        if level.rails > 1:
            row *= level.rails
            row += per_device(cluster, [rails_of(template, level.rails).first for template in cluster.templates])
    return domains


def _nvlink_domains(cluster: Cluster) -> Ints:
    """Return the NVLink domain of every device, numbered without gaps."""
    templates, kinds = cluster.templates, cluster.kinds
    inside = per_device(cluster, [template.nvlink_groups for template in templates])
    sizes = np.array([int(t.nvlink_groups.max(initial=-1)) + 1 for t in templates], dtype=np.int64)[kinds]
    numbers = (np.cumsum(sizes) - sizes)[cluster.node_of] + inside
    if cluster.nvlink_of_node is not None:
        # The largest set of a host is on the shared fabric. A device that lost its NVLinks keeps its own domain, with a
        # number above those of all fabrics.
        largest = [int(np.bincount(t.nvlink_groups).argmax()) if t.devices else 0 for t in templates]
        on_fabric = inside == np.array(largest, dtype=np.int32)[kinds][cluster.node_of]
        above = int(cluster.nvlink_of_node.max()) + 1
        numbers = np.where(on_fabric, cluster.nvlink_of_node[cluster.node_of], numbers + above)
    return _without_gaps(numbers)


def _without_gaps(numbers: npt.NDArray[Any]) -> Ints:
    """Return numbers from 0 without gaps, in the order of the given ones, which are mostly sorted."""
    steps = np.diff(numbers)
    if numbers.size and (steps >= 0).all():
        return np.concatenate([[0], np.cumsum(steps > 0)]).astype(np.int32)
    return np.unique(numbers, return_inverse=True)[1].astype(np.int32).reshape(-1)


def link_codes(cluster: Cluster, node: int | str | None = None) -> tuple[list[str], npt.NDArray[np.int16]]:
    """Return the distinct words of `Cluster.link_words`, and the matrix as indices into them."""
    numbers: dict[str, int] = {}
    if node is not None or cluster.n_nodes == 1:
        kind = int(cluster.kinds[cluster.node_index(0 if node is None else node)])
        codes = _template_codes(cluster.templates[kind], numbers)
        return list(numbers), codes
    if cluster.n_devices > _LARGEST_MATRIX:
        raise TopologyError(
            f"the link matrix of {cluster.n_devices:,} devices is too large: at most {_LARGEST_MATRIX:,} are supported",
            hint=f"pass a node, such as {cluster.names[0]!r}",
        )
    # From the outside in: an inner level that joins two devices overwrites the outer levels that join them too.
    names = [*reversed(cluster.level_names[3:]), "nvlink"]
    rows = [*reversed(cluster.domains[3:]), cluster.domains[1]]
    codes = np.zeros((cluster.n_devices, cluster.n_devices), dtype=np.int16)
    for number, domain in enumerate(rows):
        np.copyto(codes, number, where=domain[:, None] == domain)
    numbers = {name: number for number, name in enumerate(names)}
    inside = [_template_codes(template, numbers) for template in cluster.templates]
    for index in range(cluster.n_nodes):
        start, stop = cluster.first_device[index : index + 2]
        codes[start:stop, start:stop] = inside[cluster.kinds[index]]
    return list(numbers), codes


def _template_codes(template: Node, numbers: dict[str, int]) -> npt.NDArray[np.int16]:
    size = len(template.devices)
    rows = [[numbers.setdefault(word, len(numbers)) for word in row[:size]] for row in template.words[:size]]
    return np.array(rows, dtype=np.int16).reshape(size, size)
