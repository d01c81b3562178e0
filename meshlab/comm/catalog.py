"""One row per collective: its buffers, its bus-bandwidth factor, and the right answer.

The whole system reads this table: the communicator checks calls against it, the benchmark takes sizes and factors from
it, and the correctness check takes the right answer from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from meshlab.errors import CommunicatorError

__all__ = [
    "CATALOG",
    "DTYPES",
    "OPS",
    "Collective",
    "ReduceOp",
    "encode",
    "find_collective",
    "find_dtype",
    "find_op",
]

Array = npt.NDArray[Any]
Value = Callable[[int, npt.NDArray[np.int64]], Array]
"""``value(member, index)``: what the group's member put at those places of its input."""


@dataclass(frozen=True, slots=True)
class ReduceOp:
    """How values of several ranks become one.

    Parameters
    ----------
    name : str
        The name in a call.
    combine : callable
        Two arrays in, one array out, elementwise.
    """

    name: str
    combine: Callable[[Array, Array], Array]


OPS: Mapping[str, ReduceOp] = MappingProxyType(
    {op.name: op for op in (ReduceOp("sum", np.add), ReduceOp("min", np.minimum), ReduceOp("max", np.maximum))}
)
"""The reduce operations, by name."""

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {name: np.dtype(name) for name in ("float32", "float64", "int32", "int64")}
)
"""The element types, by name."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What one collective does.

    Parameters
    ----------
    name : str
        In snake case.
    sends, receives : {"count", "count x n", "nothing"}
        How many elements the input and the output of every rank have, in terms of the call's count.
    reduces : bool
        True when it takes a reduce operation.
    rooted : bool
        True when it takes a root.
    bus_factor : callable
        busbw / algbw for n ranks, from nccl-tests' PERFORMANCE.md.
    answer : callable
        ``answer(value, n, member, count, index, combine, root)``: the right output of one member at the places `index`.
    text : str
        One sentence.
    """

    name: str
    sends: Literal["count", "count x n", "nothing"]
    receives: Literal["count", "count x n", "nothing"]
    reduces: bool
    rooted: bool
    bus_factor: Callable[[int], float]
    answer: Callable[..., Array] | None
    text: str

    def elements(self, side: Literal["sends", "receives"], count: int, n: int) -> int:
        """How many elements the input or the output of one rank has."""
        kind = self.sends if side == "sends" else self.receives
        return {"count": count, "count x n": count * n, "nothing": 0}[kind]

    def count_for(self, size_bytes: int, itemsize: int, n: int) -> int:
        """The call's count for a wanted size S, rounded down to whole elements, at least 1.

        S is the total for gather-like collectives, as in nccl-tests.

        Examples
        --------
        >>> CATALOG["all_gather"].count_for(1024, 4, 4), CATALOG["all_reduce"].count_for(1024, 4, 4)
        (64, 256)
        """
        return max(1, size_bytes // (itemsize * self._ranks_in_size(n)))

    def size_bytes(self, count: int, itemsize: int, n: int) -> int:
        """The size S of a call, in bytes; the inverse of `count_for`."""
        return count * itemsize * self._ranks_in_size(n)

    def _ranks_in_size(self, n: int) -> int:
        return n if "count x n" in (self.sends, self.receives) else 1


def _reduce(value: Value, n: int, index: npt.NDArray[np.int64], combine: Callable[[Array, Array], Array]) -> Array:
    total = value(0, index)
    for other in range(1, n):
        total = combine(total, value(other, index))
    return total


def _all_reduce_answer(
    value: Value, n: int, member: int, count: int, index: npt.NDArray[np.int64], combine: Any, root: int
) -> Array:
    return _reduce(value, n, index, combine)


def _all_gather_answer(
    value: Value, n: int, member: int, count: int, index: npt.NDArray[np.int64], combine: Any, root: int
) -> Array:
    parts = []
    for source in range(n):
        places = index[(index >= source * count) & (index < (source + 1) * count)]
        if places.size:
            parts.append(value(source, places - source * count))
    return np.concatenate(parts)


def _reduce_scatter_answer(
    value: Value, n: int, member: int, count: int, index: npt.NDArray[np.int64], combine: Any, root: int
) -> Array:
    return _reduce(value, n, index + member * count, combine)


def _broadcast_answer(
    value: Value, n: int, member: int, count: int, index: npt.NDArray[np.int64], combine: Any, root: int
) -> Array:
    return value(root, index)


CATALOG: Mapping[str, Collective] = MappingProxyType(
    {
        collective.name: collective
        for collective in (
            Collective(
                "all_reduce",
                "count",
                "count",
                reduces=True,
                rooted=False,
                bus_factor=lambda n: 2 * (n - 1) / n,
                answer=_all_reduce_answer,
                text="Every rank gets the reduction of all inputs.",
            ),
            Collective(
                "all_gather",
                "count",
                "count x n",
                reduces=False,
                rooted=False,
                bus_factor=lambda n: (n - 1) / n,
                answer=_all_gather_answer,
                text="Every rank gets all inputs, one behind the other.",
            ),
            Collective(
                "reduce_scatter",
                "count x n",
                "count",
                reduces=True,
                rooted=False,
                bus_factor=lambda n: (n - 1) / n,
                answer=_reduce_scatter_answer,
                text="Every rank gets its own part of the reduction of all inputs.",
            ),
            Collective(
                "broadcast",
                "count",
                "count",
                reduces=False,
                rooted=True,
                bus_factor=lambda n: 1.0,
                answer=_broadcast_answer,
                text="Every rank gets the root's input.",
            ),
            Collective(
                "barrier",
                "nothing",
                "nothing",
                reduces=False,
                rooted=False,
                bus_factor=lambda n: float("nan"),
                answer=None,
                text="No rank leaves before every rank has come.",
            ),
        )
    }
)
"""The collectives, by name."""


def encode(member: int, index: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> Array:
    """The value that global rank `member` puts at each place of its input: rank-coded, small, exact in every dtype.

    The period 61 is prime, so chunks that land at the wrong place (offsets are powers of two) do not match.

    Examples
    --------
    >>> encode(3, np.arange(4), np.dtype("float32"))
    array([51., 52., 53., 54.], dtype=float32)
    """
    return ((index + 17 * member) % 61).astype(dtype)


def find_collective(name: str) -> Collective:
    """Look a collective up by name.

    Raises
    ------
    CommunicatorError
        If there is none; the message lists what there is.
    """
    try:
        return CATALOG[name]
    except (KeyError, TypeError):
        raise CommunicatorError(f"there is no collective {name!r}; there are {', '.join(CATALOG)}") from None


def find_dtype(name: Any) -> np.dtype[Any]:
    """Look an element type up by its name or its numpy dtype.

    Raises
    ------
    CommunicatorError
        If collectives do not carry it; the message lists what they carry.
    """
    try:
        key = name if isinstance(name, str) else np.dtype(name).name
        return DTYPES[key]
    except (KeyError, TypeError):
        raise CommunicatorError(f"there is no dtype {name!r}; there are {', '.join(DTYPES)}") from None


def find_op(name: str) -> ReduceOp:
    """Look a reduce operation up by name.

    Raises
    ------
    CommunicatorError
        If there is none; the message lists what there is.
    """
    try:
        return OPS[name]
    except (KeyError, TypeError):
        raise CommunicatorError(f"there is no reduce operation {name!r}; there are {', '.join(OPS)}") from None
