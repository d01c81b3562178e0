"""The parts that a `Cluster` is made of beside its hosts: levels of the network, and sequences made on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

__all__ = ["INNER_LEVELS", "Ints", "Lazy", "Level"]

Ints = npt.NDArray[np.int32]
Item = TypeVar("Item")

INNER_LEVELS = ("device", "nvlink", "host")
"""The levels that every cluster has, from the inside out; the network's levels follow."""


class Lazy(Sequence[Item], Generic[Item]):
    """A sequence whose items are made when they are asked for.

    Examples
    --------
    >>> squares = Lazy(4, lambda i: i * i)
    >>> len(squares), squares[-1], list(squares)
    (4, 9, [0, 1, 4, 9])
    """

    def __init__(self, length: int, make: Callable[[int], Item]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._length))]
        number = index + self._length if index < 0 else index
        if not 0 <= number < self._length:
            raise IndexError(f"there are {self._length}, not {index}")
        return self._make(number)

    def __repr__(self) -> str:
        shown = ", ".join(repr(item) for item in self[:3])
        return f"[{shown}{', …' if self._length > 3 else ''}] ({self._length:,})"


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the network: which hosts are inside one domain, and what crossing it costs.

    Parameters
    ----------
    name : str
        Such as ``"leaf"`` or ``"pod"``.
    of_node : numpy.ndarray
        int32 of shape (nodes,): the domain of every host.
    rails : int, default 1
        More than 1 when device k of every host hangs on its own switch: a domain then splits into one per rail.
    latency_us : float, optional
        What one hop at this level adds, in µs.
    taper : float, default 1
        How much less bandwidth crosses here than the NICs below could send: 7 is written 1:7.
    """

    name: str
    of_node: Ints
    rails: int = 1
    latency_us: float | None = None
    taper: float = 1.0
