"""Lazy: a sequence whose items are created on access, because a cluster may have millions of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, overload

Item = TypeVar("Item")


class Lazy(Sequence[Item], Generic[Item]):
    """A sequence that creates its items on access."""

    def __init__(self, length: int, create: Callable[[int], Item]) -> None:
        self._length = length
        self._create = create

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._create(i) for i in range(*index.indices(self._length))]
        number = index + self._length if index < 0 else index
        if not 0 <= number < self._length:
            raise IndexError(f"index {index} is out of range for {self._length:,} items")
        return self._create(number)

    def __repr__(self) -> str:
        first = ", ".join(repr(item) for item in self[:3])
        return f"[{first}{', …' if self._length > 3 else ''}] ({self._length:,})"
