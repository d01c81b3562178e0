"""The loads of the links of an axis, by the algorithm that NCCL would choose for the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from meshlab.base._arguments import Arguments
from meshlab.base._collectives import usual_collective
from meshlab.base._errors import MeshlabError
from meshlab.base._units import format_size, format_time_us, parse_size
from meshlab.mesh._traffic import TrafficLike, as_traffic
from meshlab.prediction._constants import ALGORITHMS
from meshlab.prediction._costs import prices
from meshlab.prediction._group_links import GroupLinks
from meshlab.topology.placement._loads import (
    MARKS,
    Loads,
    check_collective,
    check_takes_traffic,
    find_places,
    link_loads,
    plain_algorithm,
)
from meshlab.topology.placement._placement import Placement
from meshlab.topology.placement._scene import Scene, scene_of


class LoadArguments(TypedDict, total=False):
    """The call that causes the loads of links, see `meshlab.plots.topology`."""

    collective: str | None
    size: int | str


LOAD_ARGUMENTS = Arguments(LoadArguments, {"collective": None, "size": "256M"})


def loads(
    placement: Placement,
    axis: str | Sequence[str],
    *,
    collective: str | None = None,
    size: int | str = "256M",
    scene: Scene | None = None,
    traffic: TrafficLike | None = None,
) -> Loads:
    """Return the load of every link while all groups of an axis run one collective, see `Placement.loads`."""
    name = placement.mesh[axis].name
    if traffic is not None:
        check_takes_traffic(collective)
        return link_loads(placement, axis, size=size, scene=scene, traffic=as_traffic(traffic))
    collective = collective or usual_collective(name)
    check_collective(collective)
    algorithm = algorithms_of(placement, axis, collective, parse_size(size))
    return link_loads(placement, axis, collective=collective, size=size, algorithm=algorithm, scene=scene)


def algorithms_of(
    placement: Placement, axis: str | Sequence[str], collective: str, size: int
) -> str | Sequence[str] | None:
    """Return NCCL's algorithm for the groups of an axis, one per group if they differ, or None if it is unknown."""
    if placement.mesh[axis].size == 1:
        return plain_algorithm(collective)
    try:
        links, of_group = GroupLinks.of(placement, axis)
        priced = prices(links, collective)
    except MeshlabError:
        return None
    choice, _, _ = priced.price(np.arange(len(links)), size)
    names = [ALGORITHMS[k] for k in priced.algorithm[choice].tolist()]
    return names[0] if len(set(names)) == 1 else [names[k] for k in of_group.tolist()]


def describe(placement: Placement, *, size: int | str = "256M") -> str:
    """Return the placement as text, see `Placement.describe`."""
    cluster, mesh = placement.cluster, placement.mesh
    scene = scene_of(cluster)
    axes = [loads(placement, axis, size=size, scene=scene) for axis in mesh.axis_names]
    network = [level.name if level.taper == 1 else f"{level.name} (1:{level.taper:g})" for level in cluster.levels]
    lines = [
        f"machine: {cluster.title or cluster.names[0]}, {cluster.summary}"
        + (f", network {' < '.join(network)}" if scene.network == "known" else ""),
        f"mesh: {mesh}",
        *(f"{MARKS[axis_loads.state][0]} {placement.explain(axis_loads.axis)}" for axis_loads in axes),
        *(f"{place.mark} {place.text}" for place in find_places(axes)),
    ]
    for axis_loads in axes:
        busy = [link for link in axis_loads.links if link.busiest is not None]
        if busy:
            call = f"{axis_loads.collective} of {format_size(axis_loads.size_bytes)}"
            lines.append(f"busiest links for {axis_loads.axis}, {call} ({axis_loads.algorithm_words}):")
        width = max((len(link.label) for link in busy), default=0)
        for link in busy:
            k = link.busiest or 0
            count = int(link.groups[k])
            lines.append(
                f"{'▸' if link.name == axis_loads.limit else ' '} {link.label.ljust(width)}  "
                f"{count:,} group{'s' * (count != 1)}, {format_size(float(link.bytes[k]))}, "
                + (format_time_us(float(link.seconds[k]) * 1e6) if np.isfinite(link.seconds[k]) else "time unknown")
            )
    return "\n".join([*lines, *scene.notes])
