"""Interactive edits of a mesh, on plain values, the design that they change, and the history that undoes them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from meshlab.base._collectives import MODELLED
from meshlab.base._errors import MeshError, MeshlabError, TopologyError
from meshlab.base._units import parse_size
from meshlab.mesh._axes import WELL_KNOWN_AXES, nearest_axes
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.mesh.interop._frameworks import READERS
from meshlab.prediction._job import Job
from meshlab.topology.readers._hosts import probe
from meshlab.widgets._jobs import as_job, fitting_experts
from meshlab.widgets._machines import Machine

Pairs = tuple[tuple[str, int], ...]  # names and sizes of axes, the slowest first
MOST_OPTIONS = 3
MOST_UNDOS = 100

_DATA_AXES = ("dp", "dp_shard", "dp_replicate")
# The usual order of axes: the axis that sends most is the fastest.
_OUTER_FIRST = ("pp", "dp_replicate", "dp", "dp_shard", "edp", "cp", "ep", "etp", "tp")


class MisfitError(MeshError):
    """An invalid edit, with valid axes, the nearest first."""

    def __init__(self, message: str, options: Sequence[Pairs] = ()) -> None:
        super().__init__(message)
        self.options = tuple(options)


# -- edits of the axes -------------------------------------------------------------------------------------------------


def _index(pairs: Pairs, axis: str) -> int:
    names = [name for name, _ in pairs]
    if axis not in names:
        raise MeshError(f"unknown axis {axis!r}; choose one of {', '.join(names)}")
    return names.index(axis)


def _product(pairs: Pairs) -> int:
    return math.prod(size for _, size in pairs)


def _with_sizes(pairs: Pairs, **sizes: int) -> Pairs:
    return tuple((name, sizes.get(name, size)) for name, size in pairs)


def rest_axis(pairs: Pairs, axis: str, rest: str = "") -> str | None:
    """Return the axis that takes the rest when `axis` changes: `rest`, else a data-parallel axis, else the largest."""
    others = {name: size for name, size in pairs if name != axis}
    for name in (rest, *_DATA_AXES):
        if name in others:
            return name
    return max(others, key=lambda name: others[name], default=None)


def step_axis(pairs: Pairs, axis: str, by: int, rest: str = "") -> Pairs | None:
    """Move the smallest prime factor from the axis of the rest to `axis`, or back if `by` < 0. None without one."""
    sizes, other = dict(pairs), rest_axis(pairs, axis, rest)
    _index(pairs, axis)
    if other is None:
        return None
    if by > 0 and sizes[other] == 1:  # the rest is used up, so the largest axis gives
        other = max((name for name in sizes if name != axis), key=lambda name: sizes[name])
    giver, taker = (other, axis) if by > 0 else (axis, other)
    factor = _smallest_factor(sizes[giver])
    if factor == 1:
        return None
    return _with_sizes(pairs, **{giver: sizes[giver] // factor, taker: sizes[taker] * factor})


def _smallest_factor(number: int) -> int:
    return next((factor for factor in range(2, math.isqrt(number) + 1) if number % factor == 0), number)


def type_size(pairs: Pairs, axis: str, size: int, total: int | None, rest: str = "") -> Pairs:
    """Set the size of an axis, where -1 fills. The axis `rest` changes so that the product is `total`, None for any."""
    _index(pairs, axis)
    typed = _with_sizes(pairs, **{axis: size})
    if total is None:
        if size < 1:
            raise MisfitError(f"the size of {axis} must be at least 1, not {size:,}")
        return typed
    others = math.prod(n for name, n in pairs if name != axis)
    if size == -1:
        if total % others == 0:
            return _with_sizes(pairs, **{axis: total // others})
        options = _nearest(typed, total, axis, present=pairs)
        raise MisfitError(f"the other axes have {others:,} ranks, which does not divide {total:,}", options)
    if size < 1:
        options = _nearest(_with_sizes(typed, **{axis: 1}), total, axis, present=pairs)
        raise MisfitError(f"the size of {axis} must be at least 1, not {size:,}", options)
    other = rest_axis(pairs, axis, rest)
    if other is None:
        if size == total:
            return typed
        options = _nearest(typed, total, axis, present=pairs)
        raise MisfitError(f"{axis} is the only axis, so its size must be {total:,}", options)
    fixed = others // dict(pairs)[other] * size
    if total % fixed == 0:
        return _with_sizes(typed, **{other: total // fixed})
    cause = f"{axis}={size:,}" if fixed == size else f"{axis}={size:,} makes {fixed:,} ranks without {other}, which"
    raise MisfitError(f"{cause} does not divide {total:,}", _nearest(typed, total, axis, present=pairs))


def _nearest(pairs: Pairs, total: int, axis: str = "", present: Pairs = ()) -> list[Pairs]:
    """Return up to three options for axes with a product but `present`, the nearest to the size of `axis` first."""
    names, sizes = zip(*pairs, strict=True)
    typed = dict(pairs).get(axis, 0)
    options: list[Pairs] = []
    if typed > 0 and total % typed == 0 and len(pairs) > 1:
        others = [pair for pair in pairs if pair[0] != axis]
        rest = nearest_axes([n for n, _ in others], [n for _, n in others], total // typed, most=MOST_OPTIONS)
        options += [_with_sizes(pairs, **dict(option)) for option in rest]
    options += nearest_axes(names, sizes, total, most=MOST_OPTIONS * 3)
    if typed > 0:
        options.sort(key=lambda option: round(abs(math.log(dict(option)[axis] / typed)), 9))
    return [option for option in dict.fromkeys(options) if option != present][:MOST_OPTIONS]


def move_axis(pairs: Pairs, axis: str, to: int) -> Pairs:
    """Move an axis to a position, 0 for the slowest."""
    order = list(pairs)
    moved = order.pop(_index(pairs, axis))
    order.insert(min(max(to, 0), len(order)), moved)
    return tuple(order)


def add_axis(pairs: Pairs, name: str) -> Pairs:
    """Add an axis of size 1 at its usual position: pp is the slowest, and tp the fastest axis."""
    order = {axis: number for number, axis in enumerate(_OUTER_FIRST)}
    ranks = [order.get(axis, order["cp"]) for axis in (name, *dict(pairs))]
    position = next((k for k, rank in enumerate(ranks[1:]) if rank > ranks[0]), len(pairs))
    return (*pairs[:position], (name, 1), *pairs[position:])


def free_names(pairs: Pairs) -> list[str]:
    """Return the usual names that no axis has, the most usual first."""
    usual = ("pp", "dp", "tp", "cp", "ep")
    taken = {name for name, _ in pairs}
    return [name for name in dict.fromkeys((*usual, *WELL_KNOWN_AXES)) if name not in taken]


def remove_axis(pairs: Pairs, axis: str, rest: str = "", *, keeps_product: bool = True) -> Pairs:
    """Remove an axis. The axis that takes the rest also takes its ranks."""
    other = rest_axis(pairs, axis, rest)
    size = dict(pairs)[pairs[_index(pairs, axis)][0]]
    if other is None:
        raise MeshError(f"cannot remove {axis}: a mesh has at least one axis")
    others = tuple(pair for pair in pairs if pair[0] != axis)
    return _with_sizes(others, **{other: dict(pairs)[other] * size}) if keeps_product else others


def rename_axis(pairs: Pairs, axis: str, name: str) -> Pairs:
    """Rename an axis."""
    at = _index(pairs, axis)
    return (*pairs[:at], (name, pairs[at][1]), *pairs[at + 1 :])


# -- meshes ------------------------------------------------------------------------------------------------------------


def pairs_of(mesh: DeviceMesh) -> Pairs:
    """Return the names and sizes of a mesh."""
    return tuple((axis.name, axis.size) for axis in mesh.axes)


def pairs_text(pairs: Pairs) -> str:
    """Return axes as text, such as "dp=4, tp=8"."""
    return ", ".join(f"{name}={size}" for name, size in pairs)


def rebuilt(mesh: DeviceMesh, pairs: Pairs, renamed: Mapping[str, str] = MappingProxyType({})) -> DeviceMesh:
    """Return a mesh with other axes. It keeps its custom groups, backends and order of ranks as far as they fit."""
    ranks, world = None, None
    if not mesh.in_order and _product(pairs) == math.prod(mesh.shape):
        ranks, world = mesh.ranks.reshape(-1), mesh.world_size
    names = {name for name, _ in pairs}
    backends = {renamed.get(name, name): mesh.backends[name] for name in mesh.axis_names if name in mesh.backends}
    backends = {name: backend for name, backend in backends.items() if name in names}
    new = DeviceMesh(pairs, ranks=ranks, world_size=world, backends=backends)
    for group in mesh.custom_groups:
        if group.name not in names and int(group.array.max()) < new.world_size:
            new = new.with_group(group.name, group.array, backend=mesh.backends.get(group.name))
    return new


def fit_mesh(mesh: DeviceMesh, before: int | None, after: int, rest: str = "") -> DeviceMesh:
    """Return the mesh for a machine that had `before` and has `after` devices. A mesh that fits stays as it is."""
    # But the axis that takes the rest is filled if it was as large as the machine permitted.
    pairs = pairs_of(mesh)
    other = rest_axis(pairs, "", rest)
    assert other is not None  # a mesh has an axis
    fixed = _product(pairs) // dict(pairs)[other]
    is_full = before is not None and dict(pairs)[other] == before // fixed
    if mesh.world_size == after or (mesh.world_size < after and not is_full):
        return mesh
    if after >= fixed:
        return rebuilt(mesh, _with_sizes(pairs, **{other: after // fixed}))
    return rebuilt(mesh, nearest_axes([name for name, _ in pairs], [size for _, size in pairs], after, most=1)[0])


def misfit_of(mesh: DeviceMesh, total: int) -> MisfitError | None:
    """Return why a mesh does not have `total` ranks, None if it has."""
    if mesh.world_size == total:
        return None
    product = " × ".join(f"{size:,}" for size in mesh.shape)
    ranks = f"{product} = {mesh.world_size:,}" if len(mesh.shape) > 1 else product
    return MisfitError(f"{ranks} ranks, but the machine has {total:,} GPUs", _nearest(pairs_of(mesh), total))


def check_fit(mesh: DeviceMesh, machine: Machine | None) -> DeviceMesh:
    """Return the mesh, or raise with the nearest sizes if it has more ranks than the machine has devices."""
    devices = 0 if machine is None else machine.cluster.n_devices
    problem = misfit_of(mesh, devices) if 0 < devices < mesh.world_size else None
    if problem is not None:
        raise MeshError(str(problem), hint=f"nearest: {' · '.join(map(pairs_text, problem.options))}")
    return mesh


def usual_mesh(machine: Machine) -> DeviceMesh:
    """Return the mesh of the first display: data parallel across NVLink domains, and tensor parallel inside."""
    devices = machine.cluster.n_devices
    if not devices:
        return DeviceMesh("dp=2, tp=4")
    domain = int(machine.values["nvlink_domain"] or machine.values["devices"] or 1)
    inner = math.gcd(devices, domain if domain <= 8 else 8)
    return DeviceMesh([("dp", devices // inner), ("tp", inner)])


def paste_mesh(text: str, total: int | None) -> tuple[DeviceMesh, str]:
    """Read a mesh of `total` ranks from its text, or from the flags or the code of a framework, and the warnings."""
    hint = f"write axes such as dp=4, tp=8, or paste flags, code or a configuration of {', '.join(READERS)}"
    if not text.strip():
        raise MeshError(f"no mesh given; {hint}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mesh = _read(text, total)
    except MisfitError:
        raise
    except MeshlabError as error:
        if "=" in text or "--" in text or "(" in text:
            raise MeshError(f"{error.summary}") from None
        raise MeshError(f"this is not a mesh; {hint}") from None
    problem = misfit_of(mesh, total) if total is not None else None
    if problem is not None:
        raise problem
    return mesh, "; ".join(str(warning.message).partition("; pass")[0] for warning in caught)


def _read(text: str, total: int | None) -> DeviceMesh:
    try:
        return DeviceMesh.read(text)
    except MeshlabError:
        if total is None:
            raise
        return DeviceMesh.read(text, world_size=total)


class Template(NamedTuple):
    """A usual layout: its name and its axes."""

    name: str
    pairs: Pairs


def templates(devices: int, domain: int) -> list[Template]:
    """Return the usual layouts of a number of devices in NVLink domains of `domain` devices."""
    tp = math.gcd(devices, min(domain, 8)) if domain > 1 else math.gcd(devices, 2)
    shard = math.gcd(devices, domain) if domain > 1 else math.gcd(devices, 8)
    outer = devices // tp
    pp = next((n for n in (16, 8, 4, 2) if outer % n == 0 and outer // n >= n), 1)
    cp = next((n for n in (4, 2) if outer % n == 0 and outer // n >= 1), 1)
    wide = domain > 8 and shard % tp == 0  # an NVLink domain with room for both
    experts = (("ep", shard // tp), ("tp", tp)) if wide else (("ep", shard),)
    layouts = [
        Template("dp, tp inside NVLink" if domain > 1 else "dp, tp", (("dp", outer), ("tp", tp))),
        Template("pp, dp, tp", (("pp", pp), ("dp", outer // pp), ("tp", tp))),
        Template("FSDP", (("dp_shard", devices),)),
        Template("HSDP", (("dp_replicate", devices // shard), ("dp_shard", shard))),
        Template("MoE: dp, ep" + ", tp" * wide, (("dp", devices // shard), *experts)),
        Template("long context: dp, cp, tp", (("dp", outer // cp), ("cp", cp), ("tp", tp))),
        Template("data parallel", (("dp", devices),)),
    ]
    return [layout for layout in layouts if len(layout.pairs) == 1 or all(size > 1 for _, size in layout.pairs)]


# -- designs -----------------------------------------------------------------------------------------------------------

Calls = Mapping[str, tuple[str, int | str]]  # collective and message size of the axes that do not have the usual ones


class Candidate(NamedTuple):
    """A machine with a mesh. Without a job, it is compared with the job of the present design."""

    machine: Machine | None
    mesh: DeviceMesh
    job: Job | None = None
    experts: str = ""

    @property
    def value(self) -> tuple[Any, ...]:
        """The candidate as the value of `Workbench.pinned`: cluster and mesh, and what else it has."""
        parts = (None if self.machine is None else self.machine.cluster, self.mesh, self.job, self.experts)
        return parts if self.experts else parts[:3] if self.job is not None else parts[:2]


def check_rest(name: str, mesh: DeviceMesh) -> str:
    """Return the name of the axis that takes the rest, or raise if the mesh does not have it."""
    if name and name not in mesh.axis_names:
        raise MeshError(f"unknown axis {name!r}; choose one of {', '.join(mesh.axis_names)}")
    return name


def check_calls(calls: Mapping[str, Any], mesh: DeviceMesh) -> Calls:
    """Return calls by axis, or raise if an axis, a collective or a size is not valid."""
    names, checked = mesh.creation_order, {}
    for axis, call in dict(calls).items():
        if axis not in names:
            raise MeshError(f"unknown axis {axis!r}; choose one of {', '.join(names)}")
        if not isinstance(call, tuple | list) or len(call) != 2:
            raise MeshError(f"per_axis[{axis!r}] must be a collective and a size, not {call!r}")
        collective, size = call
        if collective not in MODELLED:
            raise MeshError(f"unknown collective {collective!r}; choose one of {', '.join(MODELLED)}")
        parse_size(size)  # raises if it is not a size
        checked[axis] = (collective, size)
    return MappingProxyType(checked)


def as_candidate(pinned: Any) -> Candidate | None:
    """Return a cluster, a mesh and maybe a job and its expert layout as a candidate, and None as it is."""
    if pinned is None:
        return None
    try:
        cluster, mesh, *more = pinned
        job, experts = (*more, None, "")[:2] if len(more) < 2 else more
    except (TypeError, ValueError):
        raise MeshError(f"pinned must be a cluster and a mesh, not {pinned!r}") from None
    machine = None if cluster is None else Machine.of(cluster)
    shape = as_mesh(mesh, fill=None if machine is None else machine.cluster.n_devices or None)
    return Candidate(machine, shape, as_job(job), check_experts(experts, shape))


def check_experts(experts: str, mesh: DeviceMesh) -> str:
    """Return an expert layout, or raise if it is not one of the ranks of a mesh."""
    if experts:
        mesh.view(experts)
    return experts


CHECKS: Mapping[str, Callable[[Any, DeviceMesh], Any]] = MappingProxyType(
    {"rest": check_rest, "per_axis": check_calls, "experts": check_experts}
)
"""The checks of attributes that depend on the mesh."""


def first_machine(mesh: MeshLike | None) -> tuple[Machine, str]:
    """Return this machine or, if it does not have enough GPUs for a mesh, one that has, and a note about it."""
    shape = None if mesh is None or isinstance(mesh, str) else as_mesh(mesh)
    here = probe()
    if here.n_devices and (shape is None or shape.world_size <= here.n_devices):
        return Machine(here, "ml.probe()"), ""
    world = 32 if mesh is None else as_mesh(mesh, fill=32).world_size
    note = "not this machine: choose a preset, or read a description of yours"
    return Machine("dgx-h100").turned("nodes", max(-(-world // 8), 1)), note


@dataclass(frozen=True, eq=False)
class Design:
    """All of a workbench that can be undone. Its machine is None for ranks without hardware."""

    machine: Machine | None
    mesh: DeviceMesh
    rest: str = ""  # The axis that takes the rest. Empty for the usual one.
    size: int | str = "256M"
    per_axis: Calls = field(default_factory=lambda: MappingProxyType({}))
    pinned: Candidate | None = None  # the candidate A
    job: Job | None = None
    experts: str = ""  # the expert layout of the job

    @property
    def devices(self) -> int | None:
        """Number of devices, None without a machine."""
        return None if self.machine is None else self.machine.cluster.n_devices

    @property
    def present_machine(self) -> Machine:
        """The machine, or an error if there is none."""
        if self.machine is None:
            raise TopologyError("there is no machine", hint="set cluster, or choose a preset")
        return self.machine

    def with_machine(self, machine: Machine) -> Design:
        """Return the design with a different machine, and the mesh that fits it."""
        devices = machine.cluster.n_devices
        if not devices:
            return replace(self, machine=machine)
        return self.with_mesh(fit_mesh(self.mesh, self.devices, devices, self.rest), machine=machine)

    def with_mesh(self, mesh: DeviceMesh, **changes: Any) -> Design:
        """Return the design with a different mesh, without the settings of axes that it does not have."""
        calls = {name: call for name, call in self.per_axis.items() if name in mesh.creation_order}
        rest = self.rest if self.rest in mesh.creation_order else ""
        changes.setdefault("experts", fitting_experts(self.experts, mesh))
        return replace(self, mesh=mesh, rest=rest, per_axis=MappingProxyType(calls), **changes)

    def with_job(self, job: Job | None, **changes: Any) -> Design:
        """Return the design with a different job. A job without experts has no expert layout."""
        return replace(self, job=job, **({} if job is not None and job.experts else {"experts": ""}) | changes)

    @property
    def candidate(self) -> Candidate:
        """The present machine, mesh and job as a candidate."""
        return Candidate(self.machine, self.mesh, self.job, self.experts)

    def with_pin(self) -> Design:
        """Return the design whose candidate A is the present machine and mesh."""
        return replace(self, pinned=self.candidate)

    def swapped(self) -> Design:
        """Return the design with candidate A, whose place the present machine and mesh take."""
        if self.pinned is None:
            raise MeshError("no candidate is pinned; pin one first")
        machine, mesh, job, experts = self.pinned
        return self.with_mesh(mesh, machine=machine, job=job or self.job, experts=experts, pinned=self.candidate)

    def equals(self, other: Design) -> bool:
        """Return whether two designs are the same for the user."""
        return self is other or self._key == other._key

    @property
    def _key(self) -> tuple[Any, ...]:
        machine, pinned = self.machine, self.pinned
        parts = None if machine is None else (machine.cluster, machine.failed)
        a = None if pinned is None else id(pinned)
        return (parts, self.mesh, self.rest, self.size, dict(self.per_axis), a, self.job, self.experts)


ATTRIBUTES = ("mesh", "cluster", "failed", "pinned", "job", "size", "rest", "per_axis", "experts")


def with_attribute(design: Design, name: str, value: Any) -> Design:
    """Return the design after a change of one of the `ATTRIBUTES` of a workbench."""
    if name == "mesh":
        return design.with_mesh(value)
    if name == "cluster":
        return replace(design, machine=None) if value is None else design.with_machine(Machine.of(value))
    if name == "failed":
        return design.with_machine(design.present_machine.with_failed(value))
    if name == "pinned":
        return replace(design, pinned=as_candidate(value))
    if name == "job":
        return design.with_job(value)
    return replace(design, **{name: value})


@dataclass(frozen=True)
class History:
    """The designs before and after the present one."""

    past: tuple[Design, ...] = ()
    future: tuple[Design, ...] = ()

    def after(self, design: Design) -> History:
        """Return the history after a change of `design`."""
        return History((*self.past, design)[-MOST_UNDOS:])

    def undone(self, design: Design) -> tuple[Design, History]:
        """Return the design before the last change."""
        return self.past[-1], History(self.past[:-1], (design, *self.future))

    def redone(self, design: Design) -> tuple[Design, History]:
        """Return the design after the change that was undone last."""
        return self.future[0], History((*self.past, design), self.future[1:])
