"""Named axes: reading and writing ``"dp=2, tp=4"``, filling a ``-1``, and finding sizes that do fit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError, ParseError

__all__ = [
    "LARGEST_WORLD",
    "MOST_AXES",
    "WELL_KNOWN_AXES",
    "WORLD",
    "AxesLike",
    "Axis",
    "Ranks",
    "axis_pairs",
    "check_axis_name",
    "check_rank",
    "check_size",
    "check_world_size",
    "fill_axes",
    "format_axes",
    "idle_text",
    "nearest_axes",
    "parse_axes",
    "place_ranks",
    "short",
]


Ranks = npt.NDArray[np.int32]
"""Global ranks, as int32."""

WORLD = "world"

LARGEST_WORLD = 1 << 24

MOST_AXES = 32

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

_DATA_AXES = ("dp", "dp_replicate", "dp_shard")

_RESERVED = {WORLD: "all ranks", "rank": "the global number of a rank"}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")

_ASSIGNMENT = re.compile(r"(?P<name>[^\s=,]+|(?==))\s*=\s*(?P<size>[^\s=,]*)|[^\s,]+")


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
        object.__setattr__(self, "size", check_size(self.name, self.size))

    def __str__(self) -> str:
        return f"{self.name}={self.size}"


AxesLike = str | Mapping[str, int] | Sequence[tuple[str, int] | Axis]
"""What can be read as axes: a text, names with sizes, or pairs."""


def check_axis_name(name: str, what: str = "an axis") -> None:
    """Raise a `MeshError` unless `name` can name an axis, or `what` else is said."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise MeshError(
            f"{short(name)} cannot name {what}; use letters, digits and underscores, such as tp or dp_shard"
        )
    if name in _RESERVED:
        raise MeshError(f"{name!r} always means {_RESERVED[name]} and cannot name {what}; choose another name")


def check_size(name: str, size: object, *, may_fill: bool = False) -> int:
    """Return the size of an axis as an int, or raise a `MeshError`."""
    whole = _whole(f"the size of axis {name!r}", size)
    if may_fill and whole == -1:
        return whole
    if whole < 1:
        hint = "; write -1 to let it fill the rest" if may_fill else ""
        raise MeshError(f"{name}={short(whole)} is not possible: an axis has at least one rank{hint}")
    if whole > LARGEST_WORLD:
        raise MeshError(f"{name}={short(whole)} is more than the {LARGEST_WORLD:,} ranks a mesh can have")
    return whole


def check_world_size(world_size: object) -> int:
    """Return a number of ranks as an int, or raise a `MeshError`."""
    whole = _whole("world_size", world_size)
    if not 1 <= whole <= LARGEST_WORLD:
        raise MeshError(f"world_size={short(whole)} is not possible; it lies between 1 and {LARGEST_WORLD:,}")
    return whole


def check_rank(rank: object, world_size: int) -> int:
    """Return a global rank as an int, or raise a `MeshError`."""
    whole = _whole("a rank", rank)
    if not 0 <= whole < world_size:
        raise MeshError(f"rank {short(whole)} does not exist; ranks go from 0 to {world_size - 1}")
    return whole


def _whole(what: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise MeshError(f"{what} must be a whole number, not {short(value)}")
    try:
        return int(value.__index__())
    except TypeError:
        raise MeshError(f"{what} must be one whole number, not {short(value)}") from None


def short(value: object) -> str:
    """Write any value on one short line, for an error's sentence."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


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
    pairs: list[tuple[str, int]] = []
    for match in _ASSIGNMENT.finditer(text):
        name, size = match["name"], match["size"]
        if not name or not size:
            raise ParseError(
                f"{short(match[0])} is not an axis; write name=size, such as tp=4", text=text, column=match.start()
            )
        if _WHOLE.fullmatch(size) is None:
            raise ParseError(
                f"the size of {short(name)} must be a whole number, not {short(size)}",
                text=text,
                column=match.start("size"),
            )
        pairs.append((name, int(size)))
    if not pairs:
        raise ParseError("the mesh is empty; write axes and sizes, such as 'dp=2, tp=4'")
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
    if len(pairs) > MOST_AXES:
        raise MeshError(f"{len(pairs)} axes are too many; a mesh has at most {MOST_AXES}")
    names = [name for name, _ in pairs]
    _check_names(names)
    sizes = [check_size(name, size, may_fill=True) for name, size in pairs]
    if world_size is not None:
        world_size = check_world_size(world_size)
    fixed = math.prod(size for size in sizes if size != -1)
    if fixed > LARGEST_WORLD:
        raise MeshError(f"{_product(names, sizes)} is {short(fixed)} ranks; a mesh has at most {LARGEST_WORLD:,}")
    open_axes = [name for name, size in zip(names, sizes, strict=True) if size == -1]
    if len(open_axes) > 1:
        raise MeshError(f"only one axis can be -1, but {' and '.join(open_axes)} are; give the others a size")
    if open_axes:
        if world_size is None:
            raise MeshError(f"{open_axes[0]}=-1 fills the ranks that are left, so say how many there are: world_size=")
        if world_size % fixed:
            known = _product(*zip(*((n, s) for n, s in zip(names, sizes, strict=True) if s != -1), strict=True))
            known += f" = {fixed}" if len(names) > 2 else ""
            raise MeshError(
                f"{_ranks(world_size)} cannot be divided by {known}, so {open_axes[0]}=-1 has no size; "
                f"{_cure(names, sizes, world_size)}"
            )
        sizes = [world_size // fixed if size == -1 else size for size in sizes]
    elif world_size is not None and fixed != world_size:
        given = f"{world_size} {'was' if world_size == 1 else 'were'} given"
        raise MeshError(f"{_product(names, sizes)} is {_ranks(fixed)}, but {given}; {_cure(names, sizes, world_size)}")
    return tuple(Axis(name, size) for name, size in zip(names, sizes, strict=True))


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        check_axis_name(name)
        if names.count(name) > 1:
            raise MeshError(f"the axis {name!r} stands {names.count(name)} times; give each axis a name of its own")
    for name in names:
        front, _, end = name.rpartition("_")
        if front in names and (end == "group" or end.isdecimal()):
            raise MeshError(
                f"the axis {name!r} reads like a group of the axis {front!r}; rename it, for example to {front}{end}"
            )


def _product(names: Sequence[str], sizes: Sequence[int]) -> str:
    return " × ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))


def _ranks(number: int) -> str:
    return f"{number} rank{'s' * (number != 1)}"


def _cure(names: Sequence[str], sizes: Sequence[int], world_size: int) -> str:
    """Say which size is to blame, what would fit, and who would be idle."""
    text = ""
    blamed = [f"{n}={s}" for n, s in zip(names, sizes, strict=True) if s != -1 and world_size % s]
    if blamed and sum(size != -1 for size in sizes) > 1:  # a single known size is to blame anyway
        text = f"{' and '.join(blamed)} {'does' if len(blamed) == 1 else 'do'} not divide {world_size}; "
    options = [", ".join(f"{n}={s}" for n, s in option) for option in nearest_axes(names, sizes, world_size)]
    text += "nearest: " + " · ".join(options)
    fixed = math.prod(size for size in sizes if size != -1)
    copies = world_size // fixed
    if copies == 0:
        return text
    if -1 in sizes:
        used = copies * fixed
        text += f" · or world_size={used}"
    elif copies > 1 and not set(_DATA_AXES) & set(names):
        used = copies * fixed
        text += f" · or a further axis dp={copies}" + (f" with world_size={used}" if used < world_size else "")
    else:
        used = fixed
        text += f" · or world_size={used}"
    if used < world_size:
        text += f", which leaves {idle_text(range(used, world_size))} idle"
    return text


def idle_text(ranks: Sequence[int]) -> str:
    """Name ranks in words.

    Examples
    --------
    >>> idle_text([6, 7]), idle_text(range(8, 12)), idle_text([3])
    ('ranks 6 and 7', 'ranks 8 to 11', 'rank 3')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"ranks {shown}" if len(ranks) <= 8 else f"{len(ranks):,} ranks ({shown}, …)"


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
    divisors = _divisors(world_size)
    tried = 8  # divisors tried for an axis: enough for good answers, few enough for eight axes
    most_found = 4096
    found: dict[tuple[int, ...], float] = {}

    def change(size: int, new: int) -> float:
        return 0.0 if size == -1 else abs(math.log(new / size))

    def place(index: int, rest: int, chosen: tuple[int, ...], cost: float) -> None:
        if len(found) >= most_found:
            return
        if index == len(sizes) - 1:
            found[(*chosen, rest)] = cost + change(sizes[index], rest)
            return
        options = sorted((d for d in divisors if rest % d == 0), key=lambda d: (change(sizes[index], d), d))
        for option in options[:tried]:
            place(index + 1, rest // option, (*chosen, option), cost + change(sizes[index], option))

    place(0, world_size, (), 0.0)
    ranked = sorted(
        found, key=lambda option: (round(found[option], 9), sum(a != b for a, b in zip(option, sizes, strict=True)))
    )
    return [tuple(zip(names, option, strict=True)) for option in ranked[:most]]


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def axis_pairs(axes: AxesLike) -> tuple[tuple[str, int], ...]:
    """Bring axes of any form into pairs of name and size.

    Raises
    ------
    MeshError
        If they have none of the forms.
    ParseError
        If a text cannot be read.

    Examples
    --------
    >>> axis_pairs("dp=2, tp=4") == axis_pairs({"dp": 2, "tp": 4}) == axis_pairs([Axis("dp", 2), ("tp", 4)])
    True
    """
    if isinstance(axes, str):
        return parse_axes(axes)
    if isinstance(axes, Mapping):
        return tuple(axes.items())
    try:
        return tuple(_pair(axis) for axis in axes)
    except (TypeError, ValueError):
        raise MeshError(
            f"{short(axes)} does not name axes; write 'dp=2, tp=4', a mapping, or pairs such as ('tp', 4)"
        ) from None


def _pair(axis: tuple[str, int] | Axis) -> tuple[str, int]:
    if isinstance(axis, Axis):
        return axis.name, axis.size
    if isinstance(axis, str):
        raise TypeError("a text is no pair")
    name, size = axis
    return name, size


def place_ranks(
    pairs: Sequence[tuple[str, int]], ranks: npt.ArrayLike | None, world_size: int | None
) -> tuple[tuple[Axis, ...], Ranks | None, int]:
    """Check axes against ranks.

    Parameters
    ----------
    pairs : sequence of (str, int)
        Names and sizes; one size may be -1.
    ranks : array_like of int, optional
        The global ranks in row-major order of the axes; 0, 1, 2, … when left out. More than one dimension must match
        the sizes.
    world_size : int, optional
        How many ranks the world has. Ranks that `ranks` leaves out are idle, and only this makes that legal.

    Returns
    -------
    axes : tuple of Axis
    order : numpy.ndarray or None
        The ranks as flat int32, or None when they are 0, 1, 2, … without a gap.
    world_size : int

    Raises
    ------
    MeshError
        If sizes and ranks do not fit, or a rank is repeated, outside the world or not a whole number.
    """
    if ranks is None:
        axes = fill_axes(pairs, world_size)
        return axes, None, math.prod(axis.size for axis in axes)
    given = _as_whole_numbers(ranks)
    axes = fill_axes(pairs, given.size)
    shape = tuple(axis.size for axis in axes)
    if given.ndim > 1 and given.shape != shape:
        raise MeshError(
            f"the ranks have shape {given.shape}, but the axes have {shape}; give them in that shape or as a flat list"
        )
    flat = given.reshape(-1)
    world = given.size if world_size is None else check_world_size(world_size)
    outside = flat[(flat < 0) | (flat >= world)]
    if outside.size:
        hint = "" if world_size is not None or outside[0] < 0 else f", or say world_size={int(flat.max()) + 1}"
        raise MeshError(f"rank {outside[0]} does not exist; ranks go from 0 to {world - 1}{hint}")
    counts = np.bincount(flat, minlength=world)
    if counts.max() > 1:
        twice = int(counts.argmax())
        raise MeshError(f"rank {twice} stands {counts[twice]} times; a rank has one place in a mesh")
    if world == flat.size and np.array_equal(flat, np.arange(world)):
        return axes, None, world
    order = flat.astype(np.int32)
    order.flags.writeable = False
    return axes, order, world


def _as_whole_numbers(ranks: npt.ArrayLike) -> npt.NDArray[np.int64]:
    try:
        given = np.asarray(list(ranks) if isinstance(ranks, (range, Sequence)) else ranks)
    except (TypeError, ValueError):
        raise MeshError("the ranks of a mesh must be one list of whole numbers, or nested lists of one shape") from None
    if given.size == 0 or given.ndim == 0:
        raise MeshError("the mesh has no ranks; give at least one")
    if given.dtype.kind not in "iu":
        raise MeshError(f"the ranks of a mesh must be whole numbers, not {short(given.reshape(-1)[0])}")
    return given.astype(np.int64)
