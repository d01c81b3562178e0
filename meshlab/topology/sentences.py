"""What a placement means, in a sentence per axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshlab.topology.placement.placement.crossings import Crossings
from meshlab.topology.levels import INNER_LEVELS
from meshlab.topology.model.links import Distance
from meshlab.units import format_bandwidth

if TYPE_CHECKING:
    from meshlab.topology.placement.placement.placement import Placement

__all__ = ["sentence", "slowest_gbs"]

_NVLINK = INNER_LEVELS.index("nvlink")


def sentence(placement: Placement, axis: str) -> str:
    """Say in one sentence what the groups of an axis cross, and what that leaves them.

    Parameters
    ----------
    placement : Placement
    axis : str
        An axis, or a group by name.
    """
    answer = placement.of(axis)
    name, groups = placement.groups(axis)
    if groups.size == 1:
        return f"{name} has one rank per group: nothing crosses a link"
    worst = int(np.argmax(answer.worst_level * 16 + answer.worst_distance))
    level = int(answer.worst_level[worst])
    gbs = slowest_gbs(answer)
    rate = "" if gbs is None else f", {format_bandwidth(gbs)}"
    word = placement.worst_words(axis)[worst]
    if level == 0:
        return f"{name} stays on one device: {int(answer.ranks_per_node[1].max())} ranks share it"
    if level == _NVLINK:
        racks = "" if answer.domains[_HOST].max() == 1 else f" across {int(answer.domains[_HOST].max())} hosts"
        some = "; not every two of its devices have NVLink between them" if _has_unlinked_pair(answer) else ""
        return f"{name} stays inside NVLink{racks}: {'NVLink' if word == 'nvlink' else word}{rate}{some}"
    if level == _HOST:
        return f"{name} stays inside the host{_why_no_nvlink(placement, answer, worst)}: its worst link is {word}{rate}"
    return f"{name} leaves the host: {_sharing(placement, answer)}; {_crossing(placement, answer)}"


def _has_unlinked_pair(answer: Crossings) -> bool:
    """Whether a group whose ring is all NVLink has two ranks that are not linked: all_to_all goes between them too."""
    return bool(((answer.domains[_HOST] == 1) & (answer.domains[_NVLINK] > 1)).any())


def _why_no_nvlink(placement: Placement, answer: Crossings, worst: int) -> str:
    template = placement.cluster.templates[placement.ground.kind[answer.worst[0, worst]]]
    if template.devices and template.devices[0].backend == "cpu":
        return ", on CPUs"
    if not template.nvlink_known:
        return ", and the source does not say whether NVLink joins it"
    return " but leaves NVLink" if (template.distance == Distance.NVLINK).any() else ""


def _sharing(placement: Placement, answer: Crossings) -> str:
    groups = answer.groups_per_node
    who = f"{groups} group{'s' * (groups > 1)} share{'s' * (groups == 1)}"
    nics = _nics_per_node(placement, answer)
    if not nics:
        return f"{who} the host's NICs, which are not known"
    busiest = float(np.nanmax(answer.groups_per_nic))
    slowest = np.nanmin(answer.node_gbs) if np.isfinite(answer.node_gbs).any() else None
    rate = "" if slowest is None else f", {format_bandwidth(float(slowest))} a group"
    if groups == 1:
        return f"it has the host's {nics} NIC{'s' * (nics > 1)} for itself{rate.removesuffix(' a group')}"
    if busiest == 1:
        each = ", one each"
    elif busiest > 1:
        each = f", {busiest:g} to a NIC"
    else:
        each = f", {1 / busiest:g} each"
    return f"{who} {nics} NIC{'s' * (nics > 1)}{each}{rate}"


def _nics_per_node(placement: Placement, answer: Crossings) -> int:
    """The NICs that groups leaving a host use there, on the host with the fewest."""
    leaving = answer.worst_level > _HOST
    kinds = np.unique(placement.ground.kind[answer.worst[0][leaving]])
    return min(int(placement.cluster.templates[k].near_nics.any(axis=0).sum()) for k in kinds)


def _crossing(placement: Placement, answer: Crossings) -> str:
    names = placement.cluster.level_names
    outermost = int(answer.worst_level.max())
    span = int(answer.span.max())
    below = outermost - 1
    if below > _HOST:
        text = f"it crosses {int(answer.domains[below].max())} {_plural(names[below])}"
    elif answer.domains[outermost].max() == 1:
        text = f"it stays inside {_article(names[outermost])}"
    else:
        text = "every hop stays on its rail"
    if below > _HOST and names[outermost] != names[-1] and span == outermost:
        text += f" and stays inside {_article(names[outermost])}"
    taper = float(answer.taper.max())
    gbs = slowest_gbs(answer)
    if taper > 1:
        text += f" and pays the 1:{taper:g} taper"
        if gbs is not None and gbs < np.nanmin(answer.node_gbs):
            text += f", {format_bandwidth(gbs)} a group"
    return text


def slowest_gbs(answer: Crossings) -> float | None:
    """GB/s of the slowest hop of all groups of an axis; None where none is known."""
    known = answer.ring_gbs[np.isfinite(answer.ring_gbs)]
    return float(known.min()) if known.size else None


def _plural(level: str) -> str:
    return {"leaf": "leaf switches"}.get(level, f"{level}s")


def _article(level: str) -> str:
    return {"leaf": "one leaf switch", "cluster": "the cluster"}.get(level, f"a {level}")
