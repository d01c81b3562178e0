"""Axes whose groups span more hosts than they would with another order of the ranks or of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import numpy.typing as npt

from meshlab.mesh._axes import format_axes
from meshlab.mesh._mesh import DeviceMesh

# Axes that should stay within a host come last: those inside a node, and those with much traffic. If a mesh has other
# names, the order of its axes decides, of which the last one is the fastest, so that no other order is proposed.
_FROM_OUTER = (
    *("rack", "pod", "node", "host", "pp", "dp", "dp_replicate", "edp", "dp_shard"),
    *("cp", "ep", "etp", "tp", "socket", "local", "gpu"),
)
_MOST_PERMUTED = 5  # axes, which have 120 orders


@dataclass(frozen=True, slots=True)
class Straddle:
    """An axis whose groups span more hosts than necessary, and the orders with which they would not."""

    axis: str
    size: int  # of its groups
    n_hosts: int  # the most hosts of a group
    fewest: int  # the same with a better order
    ranks_per_host: int  # if the launcher should start the ranks host by host, or else 0
    mesh: str  # the mesh with a better order of its axes, or an empty string

    def __str__(self) -> str:
        room = "fit on one host" if self.fewest == 1 else f"need only {self.fewest}"
        fixes = []
        if self.ranks_per_host:
            fixes.append(f"start the ranks host by host (srun -m block, mpiexec -ppn {self.ranks_per_host})")
        if self.mesh:
            fixes.append(f'use the mesh "{self.mesh}"')
        return f"groups of {self.axis} span {self.n_hosts} hosts, but {self.size} ranks {room}: {', or '.join(fixes)}"


def find_straddle(mesh: DeviceMesh, hosts: Sequence[str]) -> Straddle | None:
    """Return the busiest axis that straddles hosts without need. `hosts` has the host of each rank."""
    if len(set(hosts)) < 2 or len(hosts) != mesh.world_size:
        return None
    numbers = np.unique(hosts, return_inverse=True)[1]
    axes = [axis.name for axis in mesh.axes if axis.size > 1]
    by_position = {name: position for position, name in enumerate(axes)}
    has_known_axes = set(axes) <= set(_FROM_OUTER)
    if has_known_axes:
        axes.sort(key=lambda name: (_FROM_OUTER.index(name), by_position[name]))
    axes.reverse()
    spans = _spans(mesh, axes, numbers)
    if all(count == 1 for count in spans):
        return None
    names = list(dict.fromkeys(hosts))
    blocks = np.array(sorted(map(names.index, hosts)))
    in_blocks = _spans(mesh, axes, blocks)
    meshes = _reordered(mesh) if has_known_axes and len(mesh.axes) <= _MOST_PERMUTED else [mesh]
    best_mesh = min(meshes, key=lambda candidate: _spans(candidate, axes, numbers))
    reordered = _spans(best_mesh, axes, numbers)
    best = min(in_blocks, reordered)
    if best >= spans:
        return None
    worse = next(place for place, counts in enumerate(zip(spans, best, strict=True)) if counts[0] != counts[1])
    sizes = np.bincount(numbers)
    return Straddle(
        axis=axes[worse],
        size=mesh[axes[worse]].size,
        n_hosts=spans[worse],
        fewest=best[worse],
        ranks_per_host=int(sizes.max()) if in_blocks == best else 0,
        mesh=format_axes(best_mesh.axes) if reordered == best else "",
    )


def _reordered(mesh: DeviceMesh) -> list[DeviceMesh]:
    """Return the mesh with each order of its axes, that of the mesh first."""
    if mesh.custom_groups:  # which another order of the axes would not contain
        return [mesh]
    return [DeviceMesh([(axis.name, axis.size) for axis in axes]) for axes in permutations(mesh.axes)]


def _spans(mesh: DeviceMesh, axes: Sequence[str], hosts: npt.NDArray[np.intp]) -> tuple[int, ...]:
    """Return the largest number of hosts of a group, for each axis."""
    return tuple(_most_hosts(hosts[mesh[axis].array]) for axis in axes)


def _most_hosts(groups: npt.NDArray[np.intp]) -> int:
    ordered = np.sort(groups, axis=1)
    return int((np.diff(ordered, axis=1) != 0).sum(axis=1).max()) + 1
