"""Layout of topology figures: cells in blocks, and the group of every cell, for the figure and for its text form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshlab.errors import ParseError, TopologyError
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.topology.model.cluster import Cluster, Ints
from meshlab.topology.model.presets import PRESETS, ClusterLike, as_cluster
from meshlab.topology.placement.placement import Placement, as_placement
from meshlab.topology.placement.rank_map import devices_of_ranks

__all__ = ["View", "fastest_axis", "make_view"]

_MOST_NAMES = 9  # enough for a legend


@dataclass(frozen=True, eq=False)
class View:
    """Cells in blocks.

    Parameters
    ----------
    title, subtitle : str
        Content of the figure, and the meaning of a cell.
    blocks : tuple of str
        Names of the blocks: hosts, or coordinates if there is no cluster.
    block_of, slot_of : numpy.ndarray
        int32 of shape (cells,): the block of every cell, and its position in the block.
    rank_of : numpy.ndarray
        int32 of shape (cells,): the rank of every cell, -1 for none.
    group_of : numpy.ndarray
        int32 of shape (cells,): the group that determines the colour, -1 for none.
    word : str
        Name of the axis or level that the groups belong to, such as ``tp`` or ``leaf``.
    group_names : tuple of str
        Names of the first nine groups.
    n_groups : int
        Number of groups.
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
    mesh: MeshLike | Placement | ClusterLike | None,
    cluster: ClusterLike | None = None,
    axis: str | Sequence[str] | None = None,
    devices: Sequence[int] | Ints | None = None,
) -> View:
    """Lay out a mesh, a cluster, or a mesh on a cluster.

    Parameters
    ----------
    mesh : DeviceMesh, str, Placement or Cluster, optional
        A mesh, text such as ``"dp=2, tp=4"``, or a placement. If `cluster` is omitted, also a cluster or the name of a
        preset.
    cluster : Cluster or str, optional
        A cluster, or the name of a preset.
    axis : str or sequence of str, optional
        An axis, several axes, the name of a group, or a level of the cluster. By default the fastest axis or, without
        a mesh, the outermost level with several domains.
    devices : sequence of int, optional
        The device of every rank. By default rank r uses device r.

    Raises
    ------
    TopologyError
        If neither a mesh nor a cluster is given.
        If the mesh has more ranks than the cluster has devices.
    MeshError
        If the axis or group is unknown.
    """
    shape, machine, devices = _sort_arguments(mesh, cluster, devices)
    if machine is None:
        if shape is None:
            raise TopologyError("no mesh and no cluster given", hint="pass a mesh, a cluster, or both")
        return _mesh_view(shape, axis)
    if shape is None:
        return _cluster_view(machine, axis)
    return _placement_view(shape, machine, axis, devices)


def _sort_arguments(
    mesh: MeshLike | Placement | ClusterLike | None,
    cluster: ClusterLike | None,
    devices: Sequence[int] | Ints | None,
) -> tuple[DeviceMesh | None, Cluster | None, Sequence[int] | Ints | None]:
    """Return the mesh, the cluster and the devices from any combination of arguments that `make_view` accepts."""
    if isinstance(mesh, Placement):
        placement = as_placement(mesh, cluster, devices)
        return placement.mesh, placement.cluster, placement.devices
    if isinstance(mesh, Cluster) and cluster is not None:
        raise TopologyError("the first argument is a Cluster, but a mesh is expected", hint="pass the mesh first")
    if cluster is None and _is_cluster(mesh):
        mesh, cluster = None, mesh
    machine = None if cluster is None else as_cluster(cluster)
    if devices is not None and (mesh is None or machine is None):
        raise TopologyError("devices= needs a mesh and a cluster", hint="pass both, or omit devices=")
    if mesh is None:
        return None, machine, None
    fill = len(devices) if devices is not None else machine.n_devices or None if machine is not None else None
    try:
        return as_mesh(mesh, fill=fill), machine, devices  # type: ignore[arg-type]
    except ParseError:
        if cluster is None and isinstance(mesh, str) and "=" not in mesh:
            raise TopologyError(
                f"{mesh[:60]!r} is neither a mesh nor the name of a preset",
                hint=f"write a mesh such as 'dp=2, tp=4', or choose one of {', '.join(PRESETS)}",
            ) from None
        raise


def _is_cluster(value: object) -> bool:
    return (
        isinstance(value, Cluster) or (isinstance(value, str) and value in PRESETS) or hasattr(value, "why_no_cluster")
    )


def _placement_view(
    mesh: DeviceMesh, cluster: Cluster, axis: str | Sequence[str] | None, devices: Sequence[int] | Ints | None
) -> View:
    cluster, of_rank = devices_of_ranks(mesh, cluster, devices)
    axis = axis or fastest_axis(mesh)
    rank_of = np.full(cluster.n_devices, -1, dtype=np.int32)
    # In reverse order: if ranks share a device, the assignment of the lowest rank comes last and wins.
    rank_of[of_rank[::-1]] = np.arange(mesh.world_size, dtype=np.int32)[::-1]
    if isinstance(axis, str) and axis in cluster.level_names and axis not in mesh.axis_names:
        view = _cluster_view(cluster, axis)
        group_of, word, names, count, size = view.group_of, axis, view.group_names, view.n_groups, ""
    else:
        groups = mesh[axis]
        color = np.append(groups.color, -1)  # devices without a rank have the rank -1, which selects this last entry
        group_of, word, names, count = color[rank_of], groups.name, tuple(groups.names[:_MOST_NAMES]), len(groups)
        size = f" of {groups.size:,}"
    return View(
        title=f"{word} ({_count(count, 'group')}{size}) · {cluster.summary}",
        subtitle="one cell per device",
        blocks=cluster.names,
        block_of=cluster.node_of,
        slot_of=cluster.local_of,
        rank_of=rank_of,
        group_of=group_of,
        word=word,
        group_names=names,
        n_groups=count,
    )


def _mesh_view(mesh: DeviceMesh, axis: str | Sequence[str] | None) -> View:
    groups = mesh[axis or fastest_axis(mesh)]
    inner = next((index for index in reversed(range(len(mesh.shape))) if mesh.shape[index] > 1), 0)
    width = mesh.shape[inner]
    ranks = np.arange(mesh.world_size, dtype=np.int32)
    outer = [name for index, name in enumerate(mesh.axis_names) if index < inner]
    coordinates = mesh.coordinate_array[::width, :inner]
    return View(
        title=f"{groups.name} ({_count(len(groups), 'group')} of {groups.size:,}) · {mesh}",
        subtitle="one cell per rank, without a cluster",
        blocks=tuple(
            " ".join(f"{name} {value}" for name, value in zip(outer, values, strict=True)) or "all ranks"
            for values in coordinates.tolist()
        ),
        block_of=ranks // width,
        slot_of=ranks % width,
        rank_of=ranks,
        group_of=groups.color,
        word=groups.name,
        group_names=tuple(groups.names[:_MOST_NAMES]),
        n_groups=len(groups),
    )


def _cluster_view(cluster: Cluster, level: str | Sequence[str] | None) -> View:
    if not cluster.n_devices:
        reason = "; ".join(cluster.notes) or "the cluster has no devices"
        raise TopologyError(f"nothing to draw: {reason}", hint="choose a preset, or read a topology with GPUs")
    counts = {name: int(domain.max()) + 1 for name, domain in zip(cluster.level_names, cluster.domains, strict=True)}
    if level is None:
        dividing = [name for name in cluster.level_names[1:] if counts[name] > 1]
        level = dividing[-1] if dividing else "nvlink"
    name = level if isinstance(level, str) else "-".join(level)
    return View(
        title=f"{cluster.title or cluster.names[0]} · {cluster.summary}",
        subtitle=f"one cell per device · {_count(counts.get(name, 0), f'{name} domain')}",
        blocks=cluster.names,
        block_of=cluster.node_of,
        slot_of=cluster.local_of,
        rank_of=np.full(cluster.n_devices, -1, dtype=np.int32),
        group_of=cluster.domain(name),
        word=name,
        group_names=tuple(f"{name} {number}" for number in range(min(counts[name], _MOST_NAMES))),
        n_groups=counts[name],
    )


def fastest_axis(mesh: DeviceMesh) -> str:
    """Return the fastest axis with more than one rank, or the last axis if all have size 1."""
    return next((axis.name for axis in reversed(mesh.axes) if axis.size > 1), mesh.axis_names[-1])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
