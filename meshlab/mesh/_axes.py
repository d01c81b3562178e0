"""Axes of a mesh: parsing ``"dp=2, tp=4"``, filling a size of -1, and suggesting valid sizes."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshError, ParseError, did_you_mean
from meshlab.base._hints import Argument, Hint

Ranks = npt.NDArray[np.int32]
"""Global ranks as int32."""

WORLD = "world"

MAX_RANKS = 1 << 24

LONGEST_TEXT = 1 << 20
"""The most characters in a description of a mesh or in a config."""

MAX_AXES = 32  # numpy arrays have at most 64 dimensions, and `DeviceMesh.ranks` has one per axis

WELL_KNOWN_AXES: Mapping[str, str] = MappingProxyType(
    {
        "pp": "pipeline parallel: each rank holds some layers",
        "dp": "data parallel: each rank holds the complete model and processes different data",
        "dp_replicate": "data parallel, replicated: gradients are all-reduced",
        "dp_shard": "data parallel, sharded: parameters are all-gathered, gradients reduce-scattered",
        "cp": "context parallel: each rank holds a chunk of the sequence",
        "tp": "tensor parallel: each rank holds a shard of every layer",
        "ep": "expert parallel: each rank holds some experts",
        "etp": "expert tensor parallel: each rank holds a shard of every expert",
        "edp": "expert data parallel: ranks that hold the same experts",
    }
)
"""Meanings of the usual axis names. Any other identifier is a valid axis name too."""

_DATA_AXES = ("dp", "dp_replicate", "dp_shard")
_RESERVED = {WORLD: "the group of all ranks", "rank": "the global rank"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SETTING = re.compile(r".*_(?:size|degree)|(?:tensor|pipeline|expert)_model_parallel", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")

# Either name=size with optional spaces around "=", where one of the two may be missing so that the error can show it,
# or any other run of characters, which is an error.
_ASSIGNMENT = re.compile(r"(?P<name>[^\s=,]+|(?==))\s*=\s*(?P<size>[^\s=,]*)|[^\s,]+")


@dataclass(frozen=True, slots=True)
class Axis:
    """One named axis of a mesh.

    Parameters
    ----------
    name : str
        An identifier, such as ``"tp"``.
    size : int
        Number of ranks along the axis, at least 1.

    Raises
    ------
    MeshError
        If the name or the size is invalid.

    Examples
    --------
    >>> import meshlab as ml
    >>> str(ml.mesh.Axis("tp", 4))
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
"""Axes as text, as a mapping of names to sizes, or as pairs."""


def as_integer(value: object) -> int | None:
    """Return an integer of any type as an int, and None for everything else, including bools."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def short(value: object) -> str:
    """Return the repr of any value on one short line, for use in an error message."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length():,} bits"  # Python cannot convert very large integers to a string
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def check_axis_name(name: str, what: str = "axis") -> None:
    """Raise a `MeshError` unless `name` is a valid name for an axis, or for something else in the same namespace."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise MeshError(
            f"invalid {what} name {short(name)}", hint="use letters, digits and underscores, such as tp or dp_shard"
        )
    if name in _RESERVED:
        raise MeshError(f"{what} name {name!r} is reserved for {_RESERVED[name]}", hint="choose a different name")


def check_size(name: str, size: object, *, may_fill: bool = False) -> int:
    """Return the size of an axis as an int, or raise a `MeshError`."""
    number = as_integer(size)
    if number is None:
        raise MeshError(f"size of axis {name!r} must be an integer, not {short(size)}")
    if may_fill and number == -1:
        return number
    if number < 1:
        hint = "pass -1 to use all remaining ranks" if may_fill else ""
        raise MeshError(f"size of axis {name!r} must be at least 1, not {short(number)}", hint=hint)
    if number > MAX_RANKS:
        raise MeshError(f"size of axis {name!r} must be at most {MAX_RANKS:,}, not {short(number)}")
    return number


def check_world_size(world_size: object) -> int:
    """Return a number of ranks as an int, or raise a `MeshError`."""
    number = as_integer(world_size)
    if number is None or not 1 <= number <= MAX_RANKS:
        raise MeshError(f"world_size must be an integer from 1 to {MAX_RANKS:,}, not {short(world_size)}")
    return number


def check_rank(rank: object, world_size: int) -> int:
    """Return a global rank as an int, or raise a `MeshError`."""
    number = as_integer(rank)
    if number is None:
        raise MeshError(f"rank must be an integer, not {short(rank)}")
    if not 0 <= number < world_size:
        raise MeshError(f"rank {short(number)} does not exist", hint=f"use a rank from 0 to {world_size - 1}")
    return number


def check_coordinate(axis: Axis, value: Any) -> int:
    """Return a coordinate on an axis as an int, or raise a `MeshError`."""
    number = as_integer(value)
    if number is None or not 0 <= number < axis.size:
        raise MeshError(
            f"coordinate of axis {axis.name!r} must be an integer from 0 to {axis.size - 1}, not {short(value)}"
        )
    return number


def axis_index(names: Sequence[str], name: str) -> int:
    """Return the index of an axis, or raise a `MeshError` that suggests a similar one."""
    if name in names:
        return names.index(name)
    raise MeshError(f"unknown axis {short(name)}{did_you_mean(name, names)}", hint=f"choose one of {', '.join(names)}")


def axis_indices(names: Sequence[str], axes: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of at least one axis, each of them once, or raise a `MeshError`."""
    if not axes:
        raise MeshError("no axis given", hint=f"name at least one of {', '.join(names)}")
    indices = tuple(axis_index(names, axis) for axis in axes)
    if len(set(indices)) != len(indices):
        raise MeshError(f"axes {', '.join(axes)} repeat an axis", hint="name each axis once")
    return indices


def check_length(text: str) -> None:
    """Raise a `ParseError` if a text is longer than any description of a mesh."""
    if len(text) > LONGEST_TEXT:
        raise ParseError(
            f"the text has {len(text):,} characters, but a mesh or a config has at most {LONGEST_TEXT:,}",
            hint="pass the part with the sizes, or read a log with ml.read()",
        )


def parse_axes(text: str) -> tuple[tuple[str, int], ...]:
    """Return the names and sizes in text such as ``"pp=2 dp=-1, tp=4"``, in its order. One size may be -1."""
    check_length(text)
    pairs: list[tuple[str, int]] = []
    for match in _ASSIGNMENT.finditer(text):
        name, size = match["name"], match["size"]
        if not name or not size:
            raise ParseError(
                f"{short(match[0])} is not an axis",
                hint="write name=size, such as tp=4",
                text=text,
                column=match.start(),
            )
        if _INTEGER.fullmatch(size) is None:
            raise ParseError(
                f"size of axis {short(name)} must be an integer, not {short(size)}",
                text=text,
                column=match.start("size"),
            )
        if _SETTING.fullmatch(name) is not None:
            raise ParseError(
                f"{short(name)} is a setting of a framework, whose axes have an order of their own",
                hint="read the text with DeviceMesh.read, or write axes such as tp=4, slowest first",
                text=text,
                column=match.start(),
            )
        pairs.append((name, int(size)))
    if not pairs:
        raise ParseError("the mesh is empty", hint="write axes and sizes, such as 'dp=2, tp=4'")
    return tuple(pairs)


def format_axes(axes: Sequence[Axis]) -> str:
    """Return axes as text that `parse_axes` accepts."""
    return ", ".join(str(axis) for axis in axes)


def fill_axes(pairs: Sequence[tuple[str, int]], world_size: int | None) -> tuple[Axis, ...]:
    """Turn names and sizes into axes, fill a -1 from the world size, or raise a `MeshError` with the nearest sizes."""
    if not pairs:
        raise MeshError("a mesh needs at least one axis", hint="write for example DeviceMesh('dp=2, tp=4')")
    if len(pairs) > MAX_AXES:
        raise MeshError(f"{len(pairs)} axes, but a mesh has at most {MAX_AXES}", hint="merge some of them")
    names = [name for name, _ in pairs]
    _check_names(names)
    sizes = [check_size(name, size, may_fill=True) for name, size in pairs]
    if world_size is not None:
        world_size = check_world_size(world_size)
    fixed = math.prod(size for size in sizes if size != -1)
    if fixed > MAX_RANKS:
        raise MeshError(f"{_product(names, sizes)} is {short(fixed)} ranks, but a mesh has at most {MAX_RANKS:,}")
    unknown = [name for name, size in zip(names, sizes, strict=True) if size == -1]
    if len(unknown) > 1:
        raise MeshError(f"{' and '.join(unknown)} are -1, but only one axis can be", hint="set the size of the others")
    if unknown:
        if world_size is None:
            raise MeshError(
                f"{unknown[0]}=-1 is filled from the number of ranks, which is unknown",
                hint=Hint("pass {}", Argument("world_size")),
            )
        if world_size % fixed:
            product = _product(*zip(*((n, s) for n, s in zip(names, sizes, strict=True) if s != -1), strict=True))
            product += f" = {fixed}" if len(names) > 2 else ""
            raise MeshError(
                f"{_count(world_size)} cannot be divided by {product}, so {unknown[0]}=-1 has no size",
                hint=_suggestions(names, sizes, world_size),
            )
        sizes = [world_size // fixed if size == -1 else size for size in sizes]
    elif world_size is not None and fixed != world_size:
        verb = "was" if world_size == 1 else "were"
        raise MeshError(
            f"{_product(names, sizes)} is {_count(fixed)}, but {world_size} {verb} given",
            hint=_suggestions(names, sizes, world_size),
        )
    return tuple(Axis(name, size) for name, size in zip(names, sizes, strict=True))


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        check_axis_name(name)
        if names.count(name) > 1:
            raise MeshError(f"axis {name!r} appears {names.count(name)} times", hint="give each axis a unique name")
    for name in names:
        front, _, end = name.rpartition("_")
        if front in names and (end == "group" or end.isdecimal()):
            raise MeshError(
                f"axis name {name!r} could be a group of axis {front!r}", hint=f"rename it, for example to {front}{end}"
            )


def _product(names: Sequence[str], sizes: Sequence[int]) -> str:
    return " × ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))


def _count(ranks: int) -> str:
    return f"{ranks} rank{'s' * (ranks != 1)}"


def _suggestions(names: Sequence[str], sizes: Sequence[int], world_size: int) -> str:
    """Return a hint with the wrong size, the nearest valid sizes, and the ranks that a smaller world leaves idle."""
    text = ""
    wrong = [f"{n}={s}" for n, s in zip(names, sizes, strict=True) if s != -1 and world_size % s]
    if wrong and sum(size != -1 for size in sizes) > 1:  # a single known size is obviously the wrong one
        text = f"{' and '.join(wrong)} {'does' if len(wrong) == 1 else 'do'} not divide {world_size}; "
    text += nearest_text(names, sizes, world_size)
    fixed = math.prod(size for size in sizes if size != -1)
    copies = world_size // fixed
    if copies == 0:
        return text
    adds_axis = -1 not in sizes and copies > 1 and not set(_DATA_AXES) & set(names)
    n_used = copies * fixed if -1 in sizes or adds_axis else fixed
    size = Argument("world_size", n_used)
    if adds_axis:
        text = Hint(
            "{} · or an additional axis dp={}{}", text, copies, Hint(" with {}", size) if n_used < world_size else ""
        )
    else:
        text = Hint("{} · or {}", text, size)
    if n_used < world_size:
        text = Hint("{}, which leaves {} idle", text, format_ranks(range(n_used, world_size)))
    return text


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text for a message, abbreviated if there are many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    head = ", ".join(str(rank) for rank in ranks[:8])
    return f"ranks {head}" if len(ranks) <= 8 else f"{len(ranks):,} ranks ({head}, …)"


def nearest_text(names: Sequence[str], sizes: Sequence[int], world_size: int) -> str:
    """Return the nearest sizes as the text of a hint."""
    options = [", ".join(f"{n}={s}" for n, s in option) for option in nearest_axes(names, sizes, world_size)]
    return "nearest: " + " · ".join(options)


def nearest_axes(
    names: Sequence[str], sizes: Sequence[int], world_size: int, *, most: int = 3
) -> list[tuple[tuple[str, int], ...]]:
    """Return the sizes nearest to those of some axes whose product is `world_size`, the nearest first."""
    # The distance is the product of the factors by which the sizes change. A size of -1 may become any number.
    all_divisors = divisors(world_size)
    # The search is exhaustive for small meshes only. Eight divisors per axis, nearest first, give good suggestions for
    # any mesh, and the limit on results bounds the time for many axes: 8 ** 20 combinations would take forever.
    tried = 8
    limit = 4096
    costs: dict[tuple[int, ...], float] = {}

    def change(size: int, new: int) -> float:
        return 0.0 if size == -1 else abs(math.log(new / size))

    def extend(index: int, rest: int, chosen: tuple[int, ...], cost: float) -> None:
        if len(costs) >= limit:
            return
        if index == len(sizes) - 1:
            costs[(*chosen, rest)] = cost + change(sizes[index], rest)
            return
        options = sorted((d for d in all_divisors if rest % d == 0), key=lambda d: (change(sizes[index], d), d))
        for option in options[:tried]:
            extend(index + 1, rest // option, (*chosen, option), cost + change(sizes[index], option))

    extend(0, world_size, (), 0.0)
    # Costs are sums of logarithms, so equal ones differ in the last bits. Rounding makes them equal, and then the
    # option that changes fewer axes wins.
    ranked = sorted(
        costs, key=lambda option: (round(costs[option], 9), sum(a != b for a, b in zip(option, sizes, strict=True)))
    )
    return [tuple(zip(names, option, strict=True)) for option in ranked[:most]]


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def axis_pairs(axes: Any, names: Any = None) -> tuple[tuple[str, int], ...]:
    """Return axes in any accepted form, text, a mapping, pairs, or sizes and `names`, as pairs of name and size."""
    if names is not None:
        return _zip_axes(axes, names)
    if isinstance(axes, str):
        return parse_axes(axes)
    if isinstance(axes, Mapping):
        return tuple(axes.items())
    try:
        return tuple(_pair(axis) for axis in axes)
    except (TypeError, ValueError):
        raise MeshError(
            "axes must be text such as 'dp=2, tp=4', a mapping, pairs such as ('tp', 4), or sizes followed by names "
            f"such as (2, 4), ('dp', 'tp'), not {short(axes)}"
        ) from None


def _pair(axis: tuple[str, int] | Axis) -> tuple[str, int]:
    if isinstance(axis, Axis):
        return axis.name, axis.size
    if isinstance(axis, str):
        raise TypeError("a string of two letters would unpack into a pair")
    name, size = axis
    return name, size


def _zip_axes(sizes: Any, names: Any) -> tuple[tuple[str, int], ...]:
    # A single name or size needs no tuple, as in torch. A string of sizes would be split into its characters.
    names = [names] if isinstance(names, str) else names
    sizes = [sizes] if as_integer(sizes) is not None else sizes
    if not isinstance(names, Iterable) or not isinstance(sizes, Iterable) or isinstance(sizes, (str, Mapping)):
        raise MeshError(
            f"axes must be one size per name, such as (2, 4), ('dp', 'tp'), not {short(sizes)}, {short(names)}"
        )
    names, sizes = tuple(names), tuple(sizes)
    if len(names) != len(sizes):
        raise MeshError(
            f"sizes {short(sizes)} and names {short(names)} have different lengths", hint="pass one name per size"
        )
    return tuple(zip(names, sizes, strict=True))


def place_ranks(
    pairs: Sequence[tuple[str, int]], ranks: npt.ArrayLike | None, world_size: int | None
) -> tuple[tuple[Axis, ...], Ranks | None, int]:
    """Check axes, ranks and world size against each other. Return the axes, the order and the world size."""
    # The order is the ranks in row-major order of the axes: flat, read-only int32, or None if they are 0, 1, 2, …
    if ranks is None:
        axes = fill_axes(pairs, world_size)
        return axes, None, math.prod(axis.size for axis in axes)
    array = _as_integers(ranks)
    axes = fill_axes(pairs, array.size)
    shape = tuple(axis.size for axis in axes)
    if array.ndim > 1 and array.shape != shape:
        raise MeshError(
            f"ranks have shape {array.shape}, but the axes have {shape}", hint="pass that shape, or a flat list"
        )
    flat = array.reshape(-1)
    world = array.size if world_size is None else check_world_size(world_size)
    outside = flat[(flat < 0) | (flat >= world)]
    if outside.size:
        hint = f"use ranks from 0 to {world - 1}"
        if world_size is None and outside[0] >= 0:
            hint = Hint("{}, or pass {}", hint, Argument("world_size", int(flat.max()) + 1))
        raise MeshError(f"rank {outside[0]} does not exist", hint=hint)
    counts = np.bincount(flat, minlength=world)
    if counts.max() > 1:
        repeated = int(counts.argmax())
        raise MeshError(f"rank {repeated} appears {counts[repeated]} times", hint="list every rank once")
    if world == flat.size and np.array_equal(flat, np.arange(world)):
        return axes, None, world
    order = flat.astype(np.int32)
    order.flags.writeable = False
    return axes, order, world


def _as_integers(ranks: npt.ArrayLike) -> npt.NDArray[np.int64]:
    try:
        array = np.asarray(list(ranks) if isinstance(ranks, (range, Sequence)) else ranks)
    except (TypeError, ValueError):
        raise MeshError("ranks must be a flat list of integers, or nested lists of equal lengths") from None
    if array.size == 0 or array.ndim == 0:
        raise MeshError(f"ranks must be a list of at least one rank, not {short(ranks)}")
    if array.dtype.kind not in "iu":
        raise MeshError(f"ranks must be integers, not {short(array.reshape(-1)[0])}")
    return array.astype(np.int64)
