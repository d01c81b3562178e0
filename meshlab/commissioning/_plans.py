"""The measurements of an acceptance: the mesh of a machine, and the plans of its stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from meshlab.analysis._nodes import PATH
from meshlab.analysis._thresholds import Threshold, Thresholds
from meshlab.base._backends import CPU_BACKENDS
from meshlab.base._units import parse_size, parse_sizes
from meshlab.comm._backend import Capabilities
from meshlab.engines._engines import Engines
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling
from meshlab.plans._steps import PAIRED
from meshlab.topology.model._cluster import Cluster

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_MOST_NAMED = 4  # hosts
_MOST_PAIRED = 64  # ranks, which have 63 rounds of pairs


@dataclass(frozen=True, slots=True)
class _Extent:
    """The sizes and the sampling of the plans."""

    pairs: str
    sweep: str
    contention: str
    sampling: str = "default"
    fabric: str = "1K, 64M"  # a small message and a large one
    fabric_sampling: Sampling | None = None  # by default as for the others


# On a CPU, many short batches, some of which end before a rank has to wait for a core. One call would be too short,
# because the message that it receives may have arrived while its rank left the barrier. The fastest batch counts, so
# batches for warm-up would only take time: on a slow path, as much as a fifth of that of a step.
_SHORT = Sampling(precision=0.01, min_batches=12, max_batches=120, batch_us=400_000.0, max_calls=4, warmup_batches=0)
_LONGER = (
    3  # times as much of a second measurement of paths, which decides, but sends no messages in one direction only
)

# The size of contention is not one of the sweep, because one result must not be measured in two ways.
_EXTENTS = {
    ("cpu", False): _Extent("1M", "1K:4M*16", "512K", fabric="1K, 1M", fabric_sampling=_SHORT),
    ("cpu", True): _Extent("256K", "1K:1M*32", "512K", "quick", fabric="1K, 256K", fabric_sampling=_SHORT),
    ("gpu", False): _Extent("64M", "1K:16G*4", "128M"),
    ("gpu", True): _Extent("64M", "1K:1G*32", "128M", "quick"),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a stage, or the reason why there is none."""

    plan: Plan | None
    reason: str = ""  # why the stage cannot run


def machine_mesh(hosts: Sequence[str], cluster: Cluster | None = None) -> DeviceMesh:
    """Return the mesh of a machine: its nodes or sockets, and the ranks within each of them."""
    sizes = _equal_parts(hosts)
    if sizes is not None:
        return DeviceMesh(node=sizes[0], local=sizes[1])
    if len(set(hosts)) == 1 and cluster is not None and cluster.n_nodes == 1 and cluster.n_devices == len(hosts):
        numa = [device.numa for device in cluster.node(0).devices]
        sizes = None if None in numa else _equal_parts([str(number) for number in numa])
        if sizes is not None:
            return DeviceMesh(socket=sizes[0], local=sizes[1])
    return DeviceMesh(all_ranks=len(hosts))


def mesh_reason(mesh: DeviceMesh, hosts: Sequence[str]) -> str:
    """Return the reason why `machine_mesh` has chosen a mesh for ranks on these hosts."""
    counts = Counter(hosts)
    named = ", ".join(f"{host}: {count}" for host, count in list(counts.items())[:_MOST_NAMED])
    named += ", …" if len(counts) > _MOST_NAMED else ""
    if "node" in mesh.axis_names:
        return f"there are {len(counts)} hosts with {mesh['local'].size} ranks each"
    if "socket" in mesh.axis_names:
        return f"the GPUs of the host are on {mesh['socket'].size} sockets"
    if len(counts) == 1:
        return "all ranks are on one host"
    if max(counts.values()) == 1:
        return "there is one rank per host"
    if len(set(counts.values())) > 1:
        return f"the hosts have different numbers of ranks ({named})"
    return (
        f"the ranks of a host are not neighbours ({', '.join(hosts[:_MOST_NAMED])}, …); start them host by host, with "
        f"srun -m block or mpiexec -ppn {max(counts.values())}, for an axis within the hosts and one between them"
    )


def _equal_parts(places: Sequence[str]) -> tuple[int, int] | None:
    """Return the number of places and of ranks in each, if there are several of equal size with neighbouring ranks."""
    counts = [len(list(group)) for _, group in groupby(places)]
    is_even = len(set(counts)) == 1 and len(counts) == len(set(places))
    return (len(counts), counts[0]) if is_even and len(counts) > 1 and counts[0] > 1 else None


def matching_preset(cluster: Cluster | None, n_ranks: int) -> str | None:
    """Return the name of the thresholds that are part of meshlab for such a machine, if there are some."""
    if cluster is None or cluster.n_nodes != 1 or cluster.n_devices != n_ranks:
        return None
    names = {device.name for device in cluster.node(0).devices}
    for name in Thresholds.presets():
        thresholds = Thresholds.read(name)
        is_same = thresholds.gpu and all(thresholds.gpu.casefold() in gpu.casefold() for gpu in names)
        if is_same and all(limit.n_ranks in (None, n_ranks) for limit in thresholds.limits):
            return name
    return None


def plans(mesh: DeviceMesh, engines: Engines, thresholds: Thresholds | None, *, quick: bool) -> dict[str, Planned]:
    """Return the plans of the stages that measure."""
    if mesh.world_size < 2:
        alone = Planned(None, "there is only one rank")
        return {"pairs": alone, "sweep": alone, "contention": alone}
    hosts = [info.host for info in engines.ranks]
    backends = {axis.name: engines.backend_of(mesh, axis.name) for axis in mesh.axes if axis.size > 1}
    extent = _EXTENTS["cpu" if set(CPU_BACKENDS).issuperset(backends.values()) else "gpu", quick]
    capabilities = [engines.capabilities(name) for name in dict.fromkeys(backends.values())]
    axes = list(backends)
    limits = () if thresholds is None else thresholds.limits
    collectives = _supported([*_COLLECTIVES, *_named(limits, "collective")], capabilities, "collectives")
    sweep = Plan(
        collectives,
        [*axes, *([WORLD] if len(axes) > 1 and len(capabilities) == 1 else [])],
        sizes=_sizes(extent.sweep, limits),
        dtype=_supported(["float32", *_named(limits, "dtype")], capabilities, "dtypes"),
        op=_supported(["sum", *_named(limits, "op")], capabilities, "ops"),
        mode=_supported(["pipelined", *_named(limits, "mode")], capabilities, "modes"),
        sampling=extent.sampling,
    )
    fabric = fabric_axis(mesh, hosts)
    of_pairs = [axis for axis in axes if fabric is None or _is_within_hosts(mesh, axis, hosts)]
    pairs = Planned(None, "the stage fabric measures the pairs, which are on different hosts")
    if of_pairs:
        pairs = Planned(Plan(PAIRED, of_pairs, sizes=extent.pairs, grouping="pairs", sampling=extent.sampling))
    planned = {"pairs": pairs, "sweep": Planned(sweep)}
    if len(set(hosts)) > 1 and fabric is None:
        planned["fabric"] = Planned(
            None, f"no axis of {mesh} has one rank per host, and the pairs of {mesh.world_size} ranks are too many"
        )
    elif fabric is not None:
        planned["fabric"] = Planned(
            Plan(
                PAIRED,
                fabric,
                sizes=extent.fabric,
                grouping="pairs",
                sampling=extent.fabric_sampling or extent.sampling,
            )
        )
    several = [axis for axis in axes if len(mesh[axis]) > 1]
    if not several:
        contention = Planned(None, f"no axis of {mesh} has several groups, so there is no contention to measure")
    else:
        size = parse_size(extent.contention)
        size = size if size not in sweep.sizes else size + size // 2
        together = ["together", "alone"]
        contention = Planned(Plan("all_reduce", several, sizes=[size], grouping=together, sampling=extent.sampling))
    return planned | {"contention": contention}


def confirming(fabric: Plan) -> Plan:
    """Return the second measurement of the paths between hosts, which takes about as long as the first one."""
    sampling = fabric.sampling
    longer = replace(sampling, max_batches=_LONGER * sampling.max_batches, max_s=_LONGER * sampling.max_s)
    return replace(fabric, collective=(PATH,), sampling=longer)


def fabric_axis(mesh: DeviceMesh, hosts: Sequence[str]) -> str | None:
    """Return the axis whose groups have one rank on every host, or that of all ranks. None if these are too many."""
    n_hosts = len(set(hosts))
    if n_hosts < 2:
        return None
    for axis in mesh.axis_names:
        if all(len(group) == len({hosts[rank] for rank in group}) == n_hosts for group in mesh[axis]):
            return axis
    return WORLD if mesh.world_size <= _MOST_PAIRED else None


def _is_within_hosts(mesh: DeviceMesh, axis: str, hosts: Sequence[str]) -> bool:
    return all(len({hosts[rank] for rank in group}) == 1 for group in mesh[axis])


def _named(limits: Sequence[Threshold], name: str) -> list[str]:
    """Return the values that limits name."""
    return list(dict.fromkeys(value for limit in limits if (value := getattr(limit, name)) is not None))


def _supported(names: Sequence[str], backends: Sequence[Capabilities], kind: str) -> list[str]:
    """Return the names that all backends support. A limit for another one is not measured."""
    return [name for name in dict.fromkeys(names) if all(name in getattr(backend, kind) for backend in backends)]


def _sizes(text: str, limits: Sequence[Threshold]) -> list[int | str]:
    """Return the sizes of the sweep, and one in the range of each limit without any of them."""
    sizes = list(parse_sizes(text))
    for limit in limits:
        low, high = limit.min_size, limit.max_size
        if not any((low is None or size >= low) and (high is None or size <= high) for size in sizes):
            edge = low if low is not None else high
            assert edge is not None
            sizes.append(edge)
    return [*sorted(set(sizes))]
