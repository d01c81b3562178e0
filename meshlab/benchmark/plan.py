"""What to measure, as data: a plan is a product of choices, and a step is one of its points."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshlab.comm.backend import MODES, Mode
from meshlab.comm.catalog import find_collective, find_dtype, find_op
from meshlab.comm.ops import ReduceOp
from meshlab.errors import BenchError
from meshlab.mesh import DeviceMesh
from meshlab.units import format_size, parse_sizes

__all__ = ["Plan", "Sampling", "Step"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many batches to take, and when to stop.

    Sampling stops when the 95 % interval of the median is narrow enough, or time or batches run out. The decision is
    made from times that all ranks share, so all ranks decide alike.

    Parameters
    ----------
    precision : float, default 0.05
        Half the interval's width over the median that counts as narrow enough.
    min_batches, max_batches : int
        At least and at most so many batches; fewer than `min_batches` only when time runs out, but never below 6.
    batch_us : float, default 1000
        How long a pipelined batch should last; it sets the calls per batch.
    max_calls : int, default 1000
        At most so many calls per batch.
    max_s : float, default 0.5
        How long a step may take, apart from one batch that is under way.
    warmup_batches : int, default 2
        Batches that are kept and marked, but not used.
    """

    precision: float = 0.05
    min_batches: int = 20
    max_batches: int = 200
    batch_us: float = 1000.0
    max_calls: int = 1000
    max_s: float = 0.5
    warmup_batches: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.min_batches <= self.max_batches:
            raise BenchError(
                f"min_batches={self.min_batches} and max_batches={self.max_batches} must be at least 1 and in order"
            )
        if not (self.precision > 0 and self.batch_us > 0 and self.max_s > 0 and self.max_calls >= 1):
            raise BenchError("precision, batch_us, max_s and max_calls must be above zero")
        if self.warmup_batches < 0:
            raise BenchError(f"warmup_batches={self.warmup_batches} must not be negative")


@dataclass(frozen=True, slots=True)
class Step:
    """One point of a plan: one call, on all groups of one axis, in one mode.

    Parameters
    ----------
    index : int
        Its place in the plan, from 0.
    collective, op, dtype, root, in_place, mode, axis
        What is called and how; `op` and `root` are None where they have no meaning.
    n_ranks : int
        How many ranks each group has.
    count : int
        The call's count argument, in elements.
    size_bytes : int
        S of nccl-tests for that count.
    """

    index: int
    collective: str
    op: str | None
    dtype: str
    root: int | None
    in_place: bool
    mode: Mode
    axis: str
    n_ranks: int
    count: int
    size_bytes: int

    def __str__(self) -> str:
        place = " in place" if self.in_place else ""
        return f"{self.collective} {format_size(self.size_bytes)} {self.dtype}{place} along {self.axis}, {self.mode}"


@dataclass(frozen=True, init=False)
class Plan:
    """What to measure.

    Every field takes one value or several; the plan is their product.

    Parameters
    ----------
    collective : str or sequence of str
        Such as ``"all_reduce"``.
    axis : str or sequence of str
        Axes of the mesh, or group sets by name: ``"tp"``, ``"dp-cp"``, ``"world"``, a group added by hand.
    sizes : str, int or sequence
        Anything `meshlab.units.parse_sizes` reads, such as ``"1K:64M"``: the total for gather-like collectives.
    dtype, op, mode : str or sequence of str
        Element types, reduce operations (``"pre_mul_sum(0.5)"`` too), and modes of `meshlab.comm.MODES`.
    in_place : bool or sequence of bool
        Whether input and output share memory. Where both are given, a collective that cannot stands once.
    root : int, default 0
        A rank of the group, for collectives that have a root.
    sampling : Sampling
        How many batches to take.
    check : bool, default True
        Whether to compare each step's result with the right answer, outside the timed part.

    Raises
    ------
    BenchError, CommunicatorError, ParseError
        If a value is unknown or missing.

    Examples
    --------
    >>> plan = Plan(["all_reduce", "broadcast"], "tp", sizes="1K:4K")
    >>> steps = plan.steps(DeviceMesh("dp=2, tp=2"))
    >>> len(steps), str(steps[0]).replace(chr(0x2009), " ")
    (6, 'all_reduce 1 KiB float32 along tp, pipelined')
    """

    collective: tuple[str, ...]
    axis: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: tuple[str, ...]
    op: tuple[str, ...]
    mode: tuple[Mode, ...]
    in_place: tuple[bool, ...]
    root: int
    sampling: Sampling
    check: bool

    def __init__(
        self,
        collective: str | Sequence[str],
        axis: str | Sequence[str],
        sizes: str | int | Sequence[int | str] = "1K:16M",
        dtype: str | Sequence[str] = "float32",
        op: str | ReduceOp | Sequence[str | ReduceOp] = "sum",
        mode: str | Sequence[str] = "pipelined",
        in_place: bool | Sequence[bool] = False,
        root: int = 0,
        sampling: Sampling | None = None,
        check: bool = True,
    ) -> None:
        choices: dict[str, tuple[object, ...]] = {
            "collective": _several(collective),
            "axis": _several(axis),
            "sizes": parse_sizes(sizes if isinstance(sizes, (str, int)) else list(sizes)),
            "dtype": tuple(find_dtype(name).name for name in _several(dtype)),
            "op": tuple(str(find_op(name)) for name in _several(str(op) if isinstance(op, ReduceOp) else op)),
            "mode": _several(mode),
            "in_place": (in_place,) if isinstance(in_place, bool) else tuple(in_place),
        }
        for name, values in choices.items():
            if not values:
                raise BenchError(f"the plan has no {name}; give at least one")
            object.__setattr__(self, name, tuple(dict.fromkeys(values)))
        object.__setattr__(self, "root", operator.index(root))
        object.__setattr__(self, "sampling", Sampling() if sampling is None else sampling)
        object.__setattr__(self, "check", check)
        for name in self.collective:
            row = find_collective(name)
            if row.peers and not row.is_measurable:
                raise BenchError(f"{name} is one side of a message; measure send_recv, which goes round in a ring")
            if not row.is_measurable:
                raise BenchError(f"{name} moves no data, so it has no sizes to measure; leave it out")
            if not row.in_place and False not in self.in_place:
                raise BenchError(f"{name} cannot work in place; give in_place=False, or both")
        for mode_name in self.mode:
            if mode_name not in MODES:
                raise BenchError(f"there is no mode {mode_name!r}; there are {', '.join(MODES)}")

    def steps(self, mesh: DeviceMesh) -> tuple[Step, ...]:
        """Lay the plan over a mesh.

        Sizes that round to the same count on the mesh's groups become one step.

        Raises
        ------
        MeshError
            If the mesh has no such axis or group.
        BenchError
            If the root is outside a group.
        """
        steps: dict[tuple[Any, ...], Step] = {}
        choices = itertools.product(
            self.axis, self.collective, self.dtype, self.op, self.mode, self.in_place, self.sizes
        )
        for axis, name, dtype, op, mode, in_place, size in choices:
            row, n = find_collective(name), mesh.group_set(axis).size
            if in_place and not row.in_place:
                continue
            if row.rooted and not 0 <= self.root < n:
                raise BenchError(f"root {self.root} is outside the groups of {axis}, whose ranks are 0 to {n - 1}")
            itemsize = find_dtype(dtype).itemsize
            count = row.count_for(size, itemsize, n)
            key = (axis, name, dtype, op if row.reduces else None, mode, in_place, count)
            if key not in steps:
                steps[key] = Step(
                    index=len(steps),
                    collective=name,
                    op=key[3],
                    dtype=dtype,
                    root=self.root if row.rooted else None,
                    in_place=in_place,
                    mode=mode,
                    axis=axis,
                    n_ranks=n,
                    count=count,
                    size_bytes=row.size_bytes(count, itemsize, n),
                )
        return tuple(steps.values())

    def __str__(self) -> str:
        sizes = self.sizes
        span = format_size(sizes[0]) + (f" to {format_size(sizes[-1])}" if len(sizes) > 1 else "")
        return (
            f"{', '.join(self.collective)} along {', '.join(self.axis)}, {span} ({len(sizes)} sizes), "
            f"{', '.join(self.dtype)}, {', '.join(self.mode)}"
        )


def _several(value: str | Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value)
