"""What a picture or a text of a machine shows: cells in blocks, and one number per cell to tell groups apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshlab.errors import TopologyError
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.topology.model.cluster import Cluster, Ints
from meshlab.topology.model.presets import ClusterLike, as_cluster
from meshlab.topology.placement.rank_map import devices_of_ranks

__all__ = ["View", "make_view"]


@dataclass(frozen=True, eq=False)
class View:
    """Cells in blocks.

    Parameters
    ----------
    title, subtitle : str
        What is shown, and what a cell is.
    blocks : tuple of str
        The blocks' names: hosts, or coordinates where there is no machine.
    block_of, slot_of : numpy.ndarray
        int32 of shape (cells,): the block of every cell and its place there.
    rank_of : numpy.ndarray
        int32 of shape (cells,): the rank on it, -1 for none.
    group_of : numpy.ndarray
        int32 of shape (cells,): the number that colours it, -1 for none.
    word : str
        What that number counts, such as ``tp`` or ``leaf``.
    group_names : tuple of str
        Names of the groups, at most nine: enough for a legend.
    n_groups : int
    """

    title: str
    subtitle: str
    blocks: tuple[str, ...]
    block_of: Ints
    slot_of: Ints
    rank_of: Ints
    group_of: Ints
    word: str
    group_names: tuple[str, ...]
    n_groups: int


def make_view(
    mesh: MeshLike | None,
    cluster: ClusterLike | None,
    axis: str | None = None,
    devices: Sequence[int] | Ints | None = None,
) -> View:
    """Lay out a mesh, a machine, or one on the other.

    Parameters
    ----------
    mesh, cluster
        At least one.
    axis : str, optional
        What the colour tells: an axis, several joined by a dash, a group's name, or a level of the cluster. Left out,
        it is the fastest axis, or without a mesh the outermost level that divides the machine.
    devices : sequence of int, optional
        The device of every rank.

    Raises
    ------
    TopologyError
        If neither was given, or the mesh does not fit.
    MeshError
        If nothing has the name `axis`.
    """
    cluster = None if cluster is None else as_cluster(cluster)
    if mesh is not None:
        ranks = len(devices) if devices is not None else cluster.n_devices or None if cluster is not None else None
        mesh = as_mesh(mesh, fill=ranks)
    if cluster is None:
        if mesh is None:
            raise TopologyError("give a mesh, a cluster, or both")
        return _mesh_view(mesh, axis)
    if mesh is None:
        return _cluster_view(cluster, axis)
    cluster, of_rank = devices_of_ranks(mesh, cluster, devices)
    axis = axis or _fastest(mesh)
    cells = cluster.n_devices
    rank_of = np.full(cells, -1, dtype=np.int32)
    rank_of[of_rank[::-1]] = np.arange(mesh.world_size, dtype=np.int32)[::-1]
    if axis in cluster.level_names and axis not in mesh.axis_names:
        view = _cluster_view(cluster, axis)
        group_of, names, count, size = view.group_of, view.group_names, view.n_groups, ""
    else:
        groups = mesh.group_set(axis)
        color = np.append(groups.color, -1)
        group_of, names, count = color[rank_of], tuple(groups.names[:9]), len(groups)
        size = f" of {groups.size:,}"
    return View(
        title=f"{axis} ({_count(count, 'group')}{size}) · {cluster.summary}",
        subtitle="one cell per device",
        blocks=cluster.names,
        block_of=cluster.node_of,
        slot_of=cluster.local_of,
        rank_of=rank_of,
        group_of=group_of,
        word=axis,
        group_names=names,
        n_groups=count,
    )


def _mesh_view(mesh: DeviceMesh, axis: str | None) -> View:
    axis = axis or _fastest(mesh)
    groups = mesh.group_set(axis)
    inner = next((index for index in reversed(range(len(mesh.shape))) if mesh.shape[index] > 1), 0)
    width = mesh.shape[inner]
    ranks = np.arange(mesh.world_size, dtype=np.int32)
    outer = [name for index, name in enumerate(mesh.axis_names) if index < inner]
    places = mesh.coordinate_array[::width, :inner]
    return View(
        title=f"{axis} ({_count(len(groups), 'group')} of {groups.size:,}) · {mesh}",
        subtitle="one cell per rank, no machine given",
        blocks=tuple(
            " ".join(f"{name} {value}" for name, value in zip(outer, place, strict=True)) or "all ranks"
            for place in places.tolist()
        ),
        block_of=ranks // width,
        slot_of=ranks % width,
        rank_of=ranks,
        group_of=groups.color,
        word=axis,
        group_names=tuple(groups.names[:9]),
        n_groups=len(groups),
    )


def _cluster_view(cluster: Cluster, level: str | None) -> View:
    if not cluster.n_devices:
        raise TopologyError(f"there is nothing to draw: {'; '.join(cluster.notes) or 'the cluster has no devices'}")
    counts = {name: int(domain.max()) + 1 for name, domain in zip(cluster.level_names, cluster.domains, strict=True)}
    if level is None:
        dividing = [name for name in cluster.level_names[1:] if counts[name] > 1]
        level = dividing[-1] if dividing else "nvlink"
    domain = cluster.domain(level)
    return View(
        title=f"{cluster.title or cluster.names[0]} · {cluster.summary}",
        subtitle=f"one cell per device · {_count(counts[level], f'{level} domain')}",
        blocks=cluster.names,
        block_of=cluster.node_of,
        slot_of=cluster.local_of,
        rank_of=np.full(cluster.n_devices, -1, dtype=np.int32),
        group_of=domain,
        word=level,
        group_names=tuple(f"{level} {number}" for number in range(min(counts[level], 9))),
        n_groups=counts[level],
    )


def _fastest(mesh: DeviceMesh) -> str:
    return next((axis.name for axis in reversed(mesh.axes) if axis.size > 1), mesh.axis_names[-1])


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
