"""Levels: the domains of the network between hosts, and regular networks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError
from meshlab.mesh._axes import short

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

INNER_LEVELS = ("device", "nvlink", "host")
"""The levels of every cluster, from the inside out. The levels of the network follow."""

DEVICE, NVLINK, HOST = range(len(INNER_LEVELS))

HOP_US = 2.7
"""Latency of one network hop in a ring in µs (NVIDIA/nccl src/graph/tuning.cc, LL protocol)."""

MOST_NODES = 1 << 20
"""Limit for the number of hosts, so that a typing error cannot fill the memory."""

MOST_RAILS = 1024
"""Limit for the leaf switches per host. With it, the number of every switch fits into 32 bits."""


@dataclass(frozen=True, eq=False)
class Level:
    """A level of the network: its domains, and the cost of a hop between hosts at this level.

    Parameters
    ----------
    name : str
        Name of the level, such as ``"leaf"`` or ``"pod"``.
    of_node : numpy.ndarray
        int32 of shape (nodes,): the domain of every host.
    rails : int, default 1
        Number of rails, more than 1 if the devices of a host are connected to different switches. Each domain is then
        split by rail.
    latency_us : float, optional
        Latency of one hop at this level in µs.
    taper : float, default 1
        Oversubscription: the bandwidth of the NICs below this level divided by the bandwidth across it. 7 is written
        as 1:7.
    uplink_share : numpy.ndarray, optional
        float64 of shape (switches,): the share of the bandwidth of its uplinks that every switch has left. The numbers
        of the switches are those of `Cluster.domain`. By default all have all of it.
    failed : tuple of int, default ()
        Numbers of the switches that have failed.
    """

    name: str
    of_node: Ints
    rails: int = 1
    latency_us: float | None = None
    taper: float = 1.0
    uplink_share: Floats | None = None
    failed: tuple[int, ...] = ()

    @property
    def n_switches(self) -> int:
        """Number of switches: one for every domain and rail."""
        return (int(self.of_node.max(initial=-1)) + 1) * self.rails


def regular_levels(
    nodes: int, leaf: int, rails: int = 1, pod: int = 0, taper: float = 1.0, latency_us: float | None = HOP_US
) -> tuple[Level, ...]:
    """Return the levels of a regular network. A `leaf` of 0 is unknown, and a `pod` of 0 means no pods."""
    if nodes == 1:
        return ()
    number = np.arange(nodes, dtype=np.int32)
    levels = [Level("leaf", number // leaf, rails, latency_us=latency_us)] if leaf else []
    if pod:
        levels.append(Level("pod", number // pod, latency_us=latency_us))
    # A single pod joins all hosts already, and an outer level would count hops that no route takes.
    if not pod or nodes > pod:
        levels.append(Level("cluster", number * 0, latency_us=latency_us, taper=taper))
    return tuple(levels)


def rails_for(rails: int, before: int, after: int, devices: int) -> int:
    """Return the rails after a change of the NICs per host: one per NIC stays so, and none is without a NIC."""
    if rails < 2 or not after or before == after:
        return rails
    # The NICs of a device are on its rail, so more NICs than devices do not need more rails.
    return min(after, max(rails, devices)) if rails == before else min(rails, after)


def check_taper(taper: object) -> None:
    """Raise a `TopologyError` unless `taper` is a number of at least 1."""
    if not isinstance(taper, int | float | np.number) or not 1 <= taper < 1e300:  # a larger integer has no float
        raise TopologyError(
            f"taper must be a number of at least 1, not {short(taper)}",
            hint="pass 1 for full bandwidth, or 7 for a seventh of it",
        )
