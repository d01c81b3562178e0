"""Named axes: reading and writing ``"dp=2, tp=4"``, filling a ``-1``, and finding sizes that do fit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from meshlab.errors import MeshError, ParseError

__all__ = [
    "LARGEST_WORLD",
    "WELL_KNOWN_AXES",
    "WORLD",
    "Axis",
    "check_axis_name",
    "fill_axes",
    "format_axes",
    "nearest_axes",
    "parse_axes",
]

WORLD = "world"
LARGEST_WORLD = 1 << 24

WELL_KNOWN_AXES: Mapping[str, str] = MappingProxyType(
    {
        "pp": "pipeline parallel: each rank holds some layers",
        "dp": "data parallel: each rank holds the whole model and other data",
        "dp_replicate": "data parallel, replicated: gradients are all-reduced",
        "dp_shard": "data parallel, sharded: parameters are gathered, gradients reduce-scattered",
        "cp": "context parallel: each rank holds a part of the sequence",
        "tp": "tensor parallel: each rank holds a part of every layer",
        "ep": "expert parallel: each rank holds some experts",
        "etp": "expert tensor parallel: each rank holds a part of every expert",
        "edp": "expert data parallel: ranks that hold the same experts",
    }
)
"""What the field's usual axis names stand for. Any other identifier is a fine axis name too."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"\s*([^=\s]*)\s*=\s*(\S*)\s*")


@dataclass(frozen=True, slots=True)
class Axis:
    """One named axis of a mesh.

    Parameters
    ----------
    name : str
        An identifier, such as ``"tp"``.
    size : int
        How many ranks lie along it, at least 1.

    Raises
    ------
    MeshError
        If the name or the size is not possible.

    Examples
    --------
    >>> str(Axis("tp", 4))
    'tp=4'
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        check_axis_name(self.name)
        object.__setattr__(self, "size", _check_size(self.name, self.size))

    def __str__(self) -> str:
        return f"{self.name}={self.size}"


def check_axis_name(name: str) -> None:
    """Raise a `MeshError` unless `name` can name an axis."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise MeshError(f"{name!r} cannot name an axis; use letters, digits and underscores, such as tp or dp_shard")
    if name == WORLD:
        raise MeshError(f"{WORLD!r} always means all ranks and cannot name an axis; choose another name")


def _check_size(name: str, size: object, *, may_fill: bool = False) -> int:
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise MeshError(f"the size of axis {name!r} must be a whole number, not {size!r}")
    whole = int(size.__index__())
    if may_fill and whole == -1:
        return whole
    if whole < 1:
        hint = "; write -1 to let it fill the rest" if may_fill else ""
        raise MeshError(f"{name}={whole} is not possible: an axis has at least one rank{hint}")
    if whole > LARGEST_WORLD:
        raise MeshError(f"{name}={whole} is more than the {LARGEST_WORLD:,} ranks a mesh can have")
    return whole


def parse_axes(text: str) -> tuple[tuple[str, int], ...]:
    """Read axis names and sizes.

    Parameters
    ----------
    text : str
        Such as ``"dp=2, tp=4"``; commas or spaces between, the last axis the fastest. One size may be -1.

    Returns
    -------
    tuple of (str, int)
        The names and sizes, in the order of the text.

    Raises
    ------
    ParseError
        If a part is not ``name=size``.
    MeshError
        If a name or a size is not possible.

    Examples
    --------
    >>> parse_axes("pp=2 dp=-1, tp=4")
    (('pp', 2), ('dp', -1), ('tp', 4))
    """
    if not text.strip():
        raise ParseError("the mesh is empty; write axes and sizes, such as 'dp=2, tp=4'")
    pairs: list[tuple[str, int]] = []
    joined = re.sub(r"\s*=\s*", lambda match: "=" + "\0" * (len(match[0]) - 1), text)
    for match in re.finditer(r"[^,\s]+", joined):
        part = match[0].replace("\0", "")
        assignment = _ASSIGNMENT.fullmatch(part)
        if assignment is None or not assignment[1] or not assignment[2]:
            raise ParseError(f"{part!r} is not an axis; write name=size, such as tp=4", text=text, column=match.start())
        try:
            size = int(assignment[2])
        except ValueError:
            raise ParseError(
                f"the size of {assignment[1]!r} must be a whole number, not {assignment[2]!r}",
                text=text,
                column=match.start(),
            ) from None
        pairs.append((assignment[1], size))
    if not pairs:
        raise ParseError("no axis was found; write axes and sizes, such as 'dp=2, tp=4'", text=text)
    return tuple(pairs)


def format_axes(axes: Sequence[Axis]) -> str:
    """Write axes the way `parse_axes` reads them.

    Examples
    --------
    >>> format_axes([Axis("dp", 2), Axis("tp", 4)])
    'dp=2, tp=4'
    """
    return ", ".join(str(axis) for axis in axes)


def fill_axes(pairs: Sequence[tuple[str, int]], world_size: int | None) -> tuple[Axis, ...]:
    """Turn names and sizes into axes; -1 takes the ranks that are left.

    Parameters
    ----------
    pairs : sequence of (str, int)
        Names and sizes; at most one size is -1.
    world_size : int or None
        How many ranks there are; None when the sizes say it.

    Returns
    -------
    tuple of Axis

    Raises
    ------
    MeshError
        If a name stands twice, two sizes are -1, or the sizes do not multiply to `world_size`. The message names the
        nearest sizes that do.

    Examples
    --------
    >>> format_axes(fill_axes([("dp", -1), ("tp", 8)], 64))
    'dp=8, tp=8'
    """
    if not pairs:
        raise MeshError("a mesh needs at least one axis; write for example DeviceMesh('dp=2, tp=4')")
    names = [name for name, _ in pairs]
    for name in names:
        check_axis_name(name)
        if names.count(name) > 1:
            raise MeshError(f"the axis {name!r} stands {names.count(name)} times; give each axis a name of its own")
    sizes = [_check_size(name, size, may_fill=True) for name, size in pairs]
    if world_size is not None:
        world_size = _check_world_size(world_size)
    fixed = math.prod(size for size in sizes if size != -1)
    if fixed > LARGEST_WORLD:
        raise MeshError(f"{_product(names, sizes)} is {fixed:,} ranks; a mesh has at most {LARGEST_WORLD:,}")
    open_axes = [name for name, size in zip(names, sizes, strict=True) if size == -1]
    if len(open_axes) > 1:
        raise MeshError(f"only one axis can be -1, but {' and '.join(open_axes)} are; give the others a size")
    if open_axes:
        if world_size is None:
            raise MeshError(f"{open_axes[0]}=-1 fills the ranks that are left, so say how many there are: world_size=")
        if world_size % fixed:
            known = [(n, s) for n, s in zip(names, sizes, strict=True) if s != -1]
            known_text = _product([n for n, _ in known], [s for _, s in known])
            raise MeshError(
                f"{world_size} ranks cannot be divided by {known_text}"
                + (f" = {fixed}" if len(known) > 1 else "")
                + f", so {open_axes[0]}=-1 has no size; {_nearest_text(names, sizes, world_size)}"
            )
        sizes = [world_size // fixed if size == -1 else size for size in sizes]
    elif world_size is not None and fixed != world_size:
        raise MeshError(
            f"{_product(names, sizes)} is {fixed} ranks, but {world_size} were given; "
            f"{_nearest_text(names, sizes, world_size)}"
        )
    return tuple(Axis(name, size) for name, size in zip(names, sizes, strict=True))


def _check_world_size(world_size: object) -> int:
    if isinstance(world_size, bool) or not hasattr(world_size, "__index__"):
        raise MeshError(f"world_size must be a whole number of ranks, not {world_size!r}")
    whole = int(world_size.__index__())
    if not 1 <= whole <= LARGEST_WORLD:
        raise MeshError(f"world_size={whole} is not possible; it lies between 1 and {LARGEST_WORLD:,}")
    return whole


def _product(names: Sequence[str], sizes: Sequence[int]) -> str:
    return " × ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))


def _nearest_text(names: Sequence[str], sizes: Sequence[int], world_size: int) -> str:
    options = [", ".join(f"{n}={s}" for n, s in option) for option in nearest_axes(names, sizes, world_size)]
    fixed = math.prod(size for size in sizes if size != -1)
    used = world_size // fixed * fixed
    if used and used != world_size:
        idle = world_size - used
        options.append(f"or {idle} rank{'s' * (idle > 1)} idle with world_size={used}")
    return "nearest: " + " · ".join(options)


def nearest_axes(
    names: Sequence[str], sizes: Sequence[int], world_size: int, *, most: int = 3
) -> list[tuple[tuple[str, int], ...]]:
    """Find the sizes nearest to the given ones that multiply to `world_size`.

    Near means that the factors by which the sizes change, multiplied together, are small. Axes that shrink to 1 stay.

    Parameters
    ----------
    names, sizes : sequences of equal length
        The axes that do not fit; a size of -1 may become anything.
    world_size : int
        What the sizes should multiply to.
    most : int, default 3
        How many answers to give.

    Returns
    -------
    list of tuple of (str, int)
        The nearest first.

    Examples
    --------
    >>> nearest_axes(["dp", "tp"], [2, 3], 8)
    [(('dp', 2), ('tp', 4)), (('dp', 4), ('tp', 2)), (('dp', 1), ('tp', 8))]
    """
    near = 8  # divisors tried for an axis: enough for good answers, few enough for eight axes
    found: dict[tuple[int, ...], float] = {}

    def change(size: int, new: int) -> float:
        return 0.0 if size == -1 else abs(math.log(new / size))

    def place(index: int, rest: int, chosen: tuple[int, ...], cost: float) -> None:
        if len(found) > 20_000:
            return
        if index == len(sizes) - 1:
            found[(*chosen, rest)] = cost + change(sizes[index], rest)
            return
        options = sorted(_divisors(rest), key=lambda divisor: (change(sizes[index], divisor), divisor))
        for option in options[:near]:
            place(index + 1, rest // option, (*chosen, option), cost + change(sizes[index], option))

    place(0, world_size, (), 0.0)
    ranked = sorted(
        found, key=lambda option: (round(found[option], 9), sum(a != b for a, b in zip(option, sizes, strict=True)))
    )
    return [tuple(zip(names, option, strict=True)) for option in ranked[:most]]


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
