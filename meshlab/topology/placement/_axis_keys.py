"""Keys of the groups of an axis on a machine: edits that leave an axis as it is keep what is known about it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np

from meshlab.topology.placement._placement import Placement

Value = TypeVar("Value")


def axis_key(placement: Placement, axis: str | Sequence[str]) -> tuple[object, tuple[Hashable, ...]]:
    """Return an object and a key that are the same for equal groups on one `Cluster`, such as pp=4 of two meshes.

    The groups of an axis follow from its size and its stride, not from its name or the other axes.
    """
    mesh, groups = placement.mesh, placement.mesh[axis]
    strides = dict(zip(mesh.axis_names, zip(mesh.shape, mesh.strides, strict=True), strict=True))
    is_plain = mesh.in_order and groups.axes and all(name in strides for name in groups.axes)
    if not is_plain or not np.array_equal(placement.devices, np.arange(len(placement.devices))):
        return placement, (groups.name,)
    return placement.cluster, (mesh.world_size, *(strides[name] for name in groups.axes))


class AxisCache(Generic[Value]):
    """A bounded cache by `axis_key`. It holds the objects of its keys, so that no other one gets their identity."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[tuple[Hashable, ...], tuple[object, Value]] = OrderedDict()

    def get(
        self, placement: Placement, axis: str | Sequence[str], more: tuple[Hashable, ...], make: Callable[[], Value]
    ) -> Value:
        """Return the value of an axis and of further parts of the key. It is made if it is not in the cache."""
        owner, of_axis = axis_key(placement, axis)
        key = (id(owner), *of_axis, *more)
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][1]
        value = make()
        with self._lock:
            self._values[key] = owner, value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
