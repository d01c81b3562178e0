"""View: the scene of a machine with a mesh on it, and the group of every device, for the figure and its text form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshlab.base._errors import MeshError, ParseError, TopologyError
from meshlab.mesh._describe import fastest_axis
from meshlab.mesh._groups import Groups
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._levels import Ints
from meshlab.topology.model._presets import PRESETS, ClusterLike, as_cluster
from meshlab.topology.placement._placement import Placement, as_placement, place
from meshlab.topology.placement._scene import Scene, scene_of, scene_of_ranks


@dataclass(frozen=True, eq=False)
class View:
    """Devices in blocks."""

    title: str  # content of the figure
    scene: Scene  # the machine, or blocks of ranks
    blocks: tuple[str, ...]  # names of the blocks: hosts, or coordinates if there is no cluster
    # int32 of shape (devices,): the block of every device, and its position in the block.
    block_of: Ints
    slot_of: Ints
    rank_of: Ints  # int32 of shape (devices,): the rank of every device, -1 for none
    group_of: Ints  # int32 of shape (devices,): the group that determines the colour, -1 for none
    # Name of the axis or level that the groups belong to, such as ``tp`` or ``leaf``. Empty if there are no groups.
    word: str
    n_groups: int
    groups: Groups | None = None  # the groups, if they are those of a mesh
    placement: Placement | None = None  # the mesh on the cluster, if there are both
    cluster: Cluster | None = None
    notes: tuple[str, ...] = ()  # parts of the arguments that are not shown, and why

    def name_of(self, group: int) -> str:
        """Return the name of a group, such as ``dp_3``, or of a domain, such as ``leaf 3``."""
        # A rank has the coordinate "dp 3", but its group dp_3 is one along dp: the two numbers differ.
        return f"{self.word} {group:,}" if self.groups is None else self.groups[group].name


def make_view(
    mesh: MeshLike | Placement | ClusterLike | None,
    cluster: ClusterLike | None = None,
    axis: str | Sequence[str] | None = None,
    devices: Sequence[int] | Ints | None = None,
    before: View | None = None,
) -> View:
    """Return the view of a mesh, a cluster, or a mesh on a cluster, from the arguments of `meshlab.topology.text`."""
    # A mesh that does not fit the cluster, or an unknown axis, does not hide the machine: a note reports it.
    shape, machine, devices = _sort_arguments(mesh, cluster, devices)
    if machine is None:
        if shape is None:
            raise TopologyError("no mesh and no cluster given", hint="pass a mesh, a cluster, or both")
        return _mesh_view(shape, axis)
    if shape is None:
        return _cluster_view(machine, axis)
    return _placement_view(shape, machine, axis, devices, before)


def _sort_arguments(
    mesh: MeshLike | Placement | ClusterLike | None, cluster: ClusterLike | None, devices: Sequence[int] | Ints | None
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
    mesh: DeviceMesh,
    cluster: Cluster,
    axis: str | Sequence[str] | None,
    devices: Sequence[int] | Ints | None,
    before: View | None,
) -> View:
    """Return the view of a mesh on a cluster."""
    if devices is None and 0 < cluster.n_devices < mesh.world_size:
        view = _cluster_view(cluster, None)
        note = (
            f"{mesh} has {mesh.world_size:,} ranks, but the cluster has {cluster.n_devices:,} devices: it is not placed"
        )
        return replace(view, notes=(note,))
    # As long as the ranks are on the same devices, the scene and the positions of the ranks do not change.
    previous = before.placement if before is not None and before.cluster is cluster and devices is None else None
    if previous is not None and previous.mesh.world_size == mesh.world_size:
        placement = replace(previous, mesh=mesh, cache=previous.cache if mesh == previous.mesh else {})
    else:
        placement = place(mesh, cluster, devices)
    cluster, of_rank = placement.cluster, placement.devices
    rank_of = np.full(cluster.n_devices, -1, dtype=np.int32)
    # In reverse order: if ranks share a device, the assignment of the lowest rank comes last and wins.
    rank_of[of_rank[::-1]] = np.arange(mesh.world_size, dtype=np.int32)[::-1]
    if isinstance(axis, str) and axis in cluster.level_names and axis not in mesh.axis_names:
        view = _cluster_view(cluster, axis)
        title = f"{axis} ({_count(view.n_groups, 'group')}) · {cluster.summary}"
        return replace(view, title=title, rank_of=rank_of, placement=placement)
    groups, notes = _groups(mesh, axis)
    color = np.append(groups.color, -1)  # devices without a rank have the rank -1, which selects this last entry
    return View(
        title=f"{groups.name} ({_count(len(groups), 'group')} of {groups.size:,}) · {cluster.summary}",
        scene=before.scene if previous is not None and before is not None else scene_of(cluster),
        blocks=cluster.names,
        block_of=cluster.node_of,
        slot_of=cluster.local_of,
        rank_of=rank_of,
        group_of=color[rank_of],
        word=groups.name,
        n_groups=len(groups),
        groups=groups,
        placement=placement,
        cluster=cluster,
        notes=notes,
    )


def _groups(mesh: DeviceMesh, axis: str | Sequence[str] | None) -> tuple[Groups, tuple[str, ...]]:
    """Return the groups of an axis. If the mesh does not have it, return those of the fastest axis, and a note."""
    fastest = fastest_axis(mesh)
    try:
        return mesh[axis or fastest], ()
    except MeshError:
        name = axis if isinstance(axis, str) else "-".join(axis or ())
        return mesh[fastest], (f"{mesh} has no axis or group {name!r}: the groups of {fastest} are shown",)


def _mesh_view(mesh: DeviceMesh, axis: str | Sequence[str] | None) -> View:
    """Return the view of a mesh without a machine. The ranks of its innermost axis are a block."""
    groups, notes = _groups(mesh, axis)
    inner = next((index for index in reversed(range(len(mesh.shape))) if mesh.shape[index] > 1), 0)
    width = mesh.shape[inner]
    ranks = np.arange(mesh.world_size, dtype=np.int32)
    outer = [name for index, name in enumerate(mesh.axis_names) if index < inner]
    coordinates = mesh.coordinate_array[::width, :inner]
    names = tuple(
        " ".join(f"{name} {value}" for name, value in zip(outer, values, strict=True)) or "all ranks"
        for values in coordinates.tolist()
    )
    return View(
        title=f"{groups.name} ({_count(len(groups), 'group')} of {groups.size:,}) · {mesh}",
        scene=scene_of_ranks(str(mesh), names, width),
        blocks=names,
        block_of=ranks // width,
        slot_of=ranks % width,
        rank_of=ranks,
        group_of=groups.color,
        word=groups.name,
        n_groups=len(groups),
        groups=groups,
        notes=notes,
    )


def _cluster_view(cluster: Cluster, level: str | Sequence[str] | None) -> View:
    """Return the view of a cluster, coloured by the domains of a level."""
    counts = {
        name: int(domain.max(initial=-1)) + 1 for name, domain in zip(cluster.level_names, cluster.domains, strict=True)
    }
    dividing = [name for name in cluster.level_names[1:] if counts[name] > 1]
    usual = dividing[-1] if dividing else "nvlink"
    name = usual if level is None else level if isinstance(level, str) else "-".join(level)
    notes = [] if cluster.n_devices else ["the source lists no devices"]
    if name not in counts:
        notes.append(f"the cluster has no level {name!r}: the domains of {usual} are shown")
        name = usual
    return View(
        title=f"{cluster.title or cluster.names[0]} · {cluster.summary}",
        scene=scene_of(cluster),
        blocks=cluster.names,
        block_of=cluster.node_of,
        slot_of=cluster.local_of,
        rank_of=np.full(cluster.n_devices, -1, dtype=np.int32),
        group_of=cluster.domain(name),
        word=name,
        n_groups=counts[name],
        cluster=cluster,
        notes=tuple(notes),
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
