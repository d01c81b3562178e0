"""Edits of a mesh by hand, on plain values, and the history that undoes them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from meshlab.base._errors import MeshError, MeshlabError
from meshlab.mesh._axes import WELL_KNOWN_AXES, nearest_axes
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._frameworks import READERS
from meshlab.widgets._machines import Machine

Pairs = tuple[tuple[str, int], ...]
"""Names and sizes of axes, the slowest first."""

MOST_OPTIONS = 3
MOST_UNDOS = 100

_DATA_AXES = ("dp", "dp_shard", "dp_replicate")
_OUTER_FIRST = ("pp", "dp_replicate", "dp", "dp_shard", "edp", "cp", "ep", "etp", "tp")
"""The usual order of axes: what sends most is the fastest."""


class MisfitError(MeshError):
    """An edit that is not possible, with valid axes near to it.

    Parameters
    ----------
    message : str
        The problem.
    options : sequence of Pairs, default ()
        Valid axes, the nearest first.
    """

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
    """Return the axis that takes the rest when `axis` changes: `rest`, else a data-parallel axis, else the largest.

    Examples
    --------
    >>> rest_axis((("pp", 2), ("dp", 4), ("tp", 8)), "tp"), rest_axis((("pp", 2), ("tp", 8)), "tp")
    ('dp', 'pp')
    """
    others = {name: size for name, size in pairs if name != axis}
    for name in (rest, *_DATA_AXES):
        if name in others:
            return name
    return max(others, key=lambda name: others[name], default=None)


def step_axis(pairs: Pairs, axis: str, by: int, rest: str = "") -> Pairs | None:
    """Move the smallest prime factor between an axis and the one that takes the rest, so that the product stays.

    Parameters
    ----------
    pairs : Pairs
        The axes.
    axis : str
        The axis that grows if `by` is positive, and shrinks if it is negative.
    by : int
        The direction.
    rest : str, default ""
        The axis that takes the rest, see `rest_axis`.

    Returns
    -------
    Pairs or None
        None if there is no factor to move.

    Examples
    --------
    >>> step_axis((("dp", 4), ("tp", 8)), "tp", -1)
    (('dp', 8), ('tp', 4))
    """
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
    """Set the size of an axis. Another axis takes the rest, so that the product is `total`.

    Parameters
    ----------
    pairs : Pairs
        The axes.
    axis : str
        The axis.
    size : int
        Its new size. -1 fills.
    total : int, optional
        The number of ranks. By default it follows from the sizes.
    rest : str, default ""
        The axis that takes the rest, see `rest_axis`.

    Raises
    ------
    MisfitError
        If no size of the other axis leads to the product.

    Examples
    --------
    >>> type_size((("dp", 4), ("tp", 8)), "tp", 4, 32)
    (('dp', 8), ('tp', 4))
    """
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
    what = f"{axis}={size:,}" if fixed == size else f"{axis}={size:,} makes {fixed:,} ranks without {other}, which"
    raise MisfitError(f"{what} does not divide {total:,}", _nearest(typed, total, axis, present=pairs))


def _nearest(pairs: Pairs, total: int, axis: str = "", present: Pairs = ()) -> list[Pairs]:
    """Return up to three axes with a product, the nearest first. Nearest to the size of `axis`, if it is given.

    `present` is not offered, because it is no answer to an edit.
    """
    names, sizes = zip(*pairs, strict=True)
    typed = dict(pairs).get(axis, 0)
    found: list[Pairs] = []
    if typed > 0 and total % typed == 0 and len(pairs) > 1:
        others = [pair for pair in pairs if pair[0] != axis]
        rest = nearest_axes([n for n, _ in others], [n for _, n in others], total // typed, most=MOST_OPTIONS)
        found += [_with_sizes(pairs, **dict(option)) for option in rest]
    found += nearest_axes(names, sizes, total, most=MOST_OPTIONS * 3)
    if typed > 0:
        found.sort(key=lambda option: round(abs(math.log(dict(option)[axis] / typed)), 9))
    return [option for option in dict.fromkeys(found) if option != present][:MOST_OPTIONS]


def move_axis(pairs: Pairs, axis: str, to: int) -> Pairs:
    """Move an axis to a position, 0 for the slowest.

    Examples
    --------
    >>> move_axis((("dp", 4), ("tp", 8)), "tp", 0)
    (('tp', 8), ('dp', 4))
    """
    order = list(pairs)
    moved = order.pop(_index(pairs, axis))
    order.insert(min(max(to, 0), len(order)), moved)
    return tuple(order)


def add_axis(pairs: Pairs, name: str) -> Pairs:
    """Add an axis of size 1 at its usual position: pp is the slowest, and tp the fastest axis.

    Examples
    --------
    >>> add_axis((("dp", 4), ("tp", 8)), "pp"), add_axis((("dp", 4), ("tp", 8)), "rows")
    ((('pp', 1), ('dp', 4), ('tp', 8)), (('dp', 4), ('rows', 1), ('tp', 8)))
    """
    at = {axis: number for number, axis in enumerate(_OUTER_FIRST)}
    own = at.get(name, at["cp"])
    position = next((k for k, (axis, _) in enumerate(pairs) if at.get(axis, at["cp"]) > own), len(pairs))
    return (*pairs[:position], (name, 1), *pairs[position:])


def free_names(pairs: Pairs) -> list[str]:
    """Return the usual names that no axis has, the most usual first."""
    usual = ("pp", "dp", "tp", "cp", "ep")
    taken = {name for name, _ in pairs}
    return [name for name in dict.fromkeys((*usual, *WELL_KNOWN_AXES)) if name not in taken]


def remove_axis(pairs: Pairs, axis: str, rest: str = "", *, keeps_product: bool = True) -> Pairs:
    """Remove an axis. The axis that takes the rest also takes its ranks.

    Examples
    --------
    >>> remove_axis((("pp", 2), ("dp", 4), ("tp", 8)), "pp")
    (('dp', 8), ('tp', 8))
    """
    other = rest_axis(pairs, axis, rest)
    size = dict(pairs)[pairs[_index(pairs, axis)][0]]
    if other is None:
        raise MeshError(f"cannot remove {axis}: a mesh has at least one axis")
    kept = tuple(pair for pair in pairs if pair[0] != axis)
    return _with_sizes(kept, **{other: dict(pairs)[other] * size}) if keeps_product else kept


def rename_axis(pairs: Pairs, axis: str, name: str) -> Pairs:
    """Rename an axis."""
    at = _index(pairs, axis)
    return (*pairs[:at], (name, pairs[at][1]), *pairs[at + 1 :])


# -- meshes ------------------------------------------------------------------------------------------------------------


def pairs_of(mesh: DeviceMesh) -> Pairs:
    """Return the names and sizes of a mesh."""
    return tuple((axis.name, axis.size) for axis in mesh.axes)


def rebuilt(mesh: DeviceMesh, pairs: Pairs, renamed: Mapping[str, str] = MappingProxyType({})) -> DeviceMesh:
    """Return a mesh with other axes. It keeps its custom groups, backends and order of ranks as far as they fit.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh.
    pairs : Pairs
        The new axes.
    renamed : mapping of str to str, default {}
        New names by old names.
    """
    ranks, world = None, None
    if not mesh.in_order and _product(pairs) == math.prod(mesh.shape):
        ranks, world = mesh.ranks.reshape(-1), mesh.world_size
    names = {name for name, _ in pairs}
    backends = {renamed.get(name, name): mesh.backends[name] for name in mesh.axis_names if name in mesh.backends}
    new = DeviceMesh(
        pairs, ranks=ranks, world_size=world, backends={name: one for name, one in backends.items() if name in names}
    )
    for group in mesh.custom_groups:
        if group.name not in names and int(group.array.max()) < new.world_size:
            new = new.with_group(group.name, group.array, backend=mesh.backends.get(group.name))
    return new


def fit_mesh(mesh: DeviceMesh, before: int | None, after: int, rest: str = "") -> DeviceMesh:
    """Return the mesh for a machine of a different size.

    The axis that takes the rest is filled, if it was as large as the machine permitted. A smaller mesh is kept while it
    fits.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh.
    before, after : int
        Number of devices before and after the change. None if there were none.
    rest : str, default ""
        The axis that takes the rest, see `rest_axis`.

    Examples
    --------
    >>> fit_mesh(DeviceMesh("dp=4, tp=8"), 32, 64)
    DeviceMesh('dp=8, tp=8')
    >>> fit_mesh(DeviceMesh("dp=4, tp=8"), 32, 31)
    DeviceMesh('dp=3, tp=8')
    >>> fit_mesh(DeviceMesh("dp=3, tp=8"), 31, 32)
    DeviceMesh('dp=4, tp=8')
    """
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


def paste_mesh(text: str, total: int | None) -> tuple[DeviceMesh, str]:
    """Read a mesh from text such as ``"dp=2, tp=4"``, or from the flags or the code of a framework.

    Parameters
    ----------
    text : str
        The text.
    total : int, optional
        The number of ranks, which flags often lack.

    Returns
    -------
    DeviceMesh
    str
        What the mesh does not show, empty if it shows all.

    Raises
    ------
    MisfitError
        If the mesh does not have `total` ranks.
    MeshError
        If the text is not a mesh.

    Examples
    --------
    >>> paste_mesh("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2", 64)[0]
    DeviceMesh('pp=2, dp=4, tp=8')
    """
    known = f"write axes such as dp=4, tp=8, or paste flags, code or a configuration of {', '.join(READERS)}"
    if not text.strip():
        raise MeshError(f"no mesh given; {known}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mesh = _read(text, total)
    except MisfitError:
        raise
    except MeshlabError as error:
        if "=" in text or "--" in text or "(" in text:
            raise MeshError(f"{error.summary}") from None
        raise MeshError(f"this is not a mesh; {known}") from None
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
    """Return the usual layouts of a number of devices.

    Parameters
    ----------
    devices : int
        Number of devices.
    domain : int
        Devices of an NVLink domain.

    Examples
    --------
    >>> for template in templates(1024, 8):
    ...     print(template.name, template.pairs)
    dp, tp inside NVLink (('dp', 128), ('tp', 8))
    pp, dp, tp (('pp', 8), ('dp', 16), ('tp', 8))
    FSDP (('dp_shard', 1024),)
    HSDP (('dp_replicate', 128), ('dp_shard', 8))
    MoE: dp, ep (('dp', 128), ('ep', 8))
    long context: dp, cp, tp (('dp', 32), ('cp', 4), ('tp', 8))
    data parallel (('dp', 1024),)
    """
    tp = math.gcd(devices, min(domain, 8)) if domain > 1 else math.gcd(devices, 2)
    shard = math.gcd(devices, domain) if domain > 1 else math.gcd(devices, 8)
    outer = devices // tp
    pp = next((n for n in (16, 8, 4, 2) if outer % n == 0 and outer // n >= n), 1)
    cp = next((n for n in (4, 2) if outer % n == 0 and outer // n >= 1), 1)
    wide = domain > 8 and shard % tp == 0  # an NVLink domain with room for both
    experts = (("ep", shard // tp), ("tp", tp)) if wide else (("ep", shard),)
    found = [
        Template("dp, tp inside NVLink" if domain > 1 else "dp, tp", (("dp", outer), ("tp", tp))),
        Template("pp, dp, tp", (("pp", pp), ("dp", outer // pp), ("tp", tp))),
        Template("FSDP", (("dp_shard", devices),)),
        Template("HSDP", (("dp_replicate", devices // shard), ("dp_shard", shard))),
        Template("MoE: dp, ep" + ", tp" * wide, (("dp", devices // shard), *experts)),
        Template("long context: dp, cp, tp", (("dp", outer // cp), ("cp", cp), ("tp", tp))),
        Template("data parallel", (("dp", devices),)),
    ]
    return [one for one in found if len(one.pairs) == 1 or all(size > 1 for _, size in one.pairs)]


# -- history -----------------------------------------------------------------------------------------------------------

_NO_CALLS: Mapping[str, tuple[str, str]] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Design:
    """All of a workbench that can be undone.

    Parameters
    ----------
    machine : Machine, optional
        The machine. None for ranks without hardware.
    mesh : DeviceMesh
        The mesh.
    rest : str, default ""
        The axis that takes the rest. Empty for the usual one.
    size : int or str, default "256M"
        Message size.
    per_axis : mapping of str to (str, str), default {}
        Collective and size by axis, where they are not the usual ones.
    pinned : tuple of (Machine, DeviceMesh), optional
        The candidate A.
    """

    machine: Machine | None
    mesh: DeviceMesh
    rest: str = ""
    size: int | str = "256M"
    per_axis: Mapping[str, tuple[str, int | str]] = field(default_factory=lambda: _NO_CALLS)
    pinned: tuple[Machine | None, DeviceMesh] | None = None

    @property
    def devices(self) -> int | None:
        """Number of devices, None without a machine."""
        return None if self.machine is None else self.machine.cluster.n_devices

    def with_machine(self, machine: Machine, total: int | None = None) -> Design:
        """Return the design with a different machine, and the mesh that fits it."""
        devices = machine.cluster.n_devices
        if not devices:
            return replace(self, machine=machine)
        mesh = fit_mesh(self.mesh, self.devices, total or devices, self.rest)
        return self.with_mesh(mesh, machine=machine)

    def with_mesh(self, mesh: DeviceMesh, **changes: Any) -> Design:
        """Return the design with a different mesh, without the settings of axes that it does not have."""
        names = {*mesh.axis_names, *(group.name for group in mesh.custom_groups)}
        calls = {name: call for name, call in self.per_axis.items() if name in names}
        rest = self.rest if self.rest in names else ""
        return replace(self, mesh=mesh, rest=rest, per_axis=MappingProxyType(calls), **changes)

    def equals(self, other: Design) -> bool:
        """Return whether two designs are the same for the user."""
        return self is other or self._key == other._key

    @property
    def _key(self) -> tuple[Any, ...]:
        machine, pinned = self.machine, self.pinned
        parts = None if machine is None else (machine.cluster, machine.failed)
        return (parts, self.mesh, self.rest, self.size, dict(self.per_axis), None if pinned is None else id(pinned))


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
