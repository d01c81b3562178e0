"""A mesh as pandas frames: who is where, what the groups are, and the proof that they are sound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh.groups import even_step, groups_name, ranks_text
from meshlab.mesh.layout import Layout

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh.mesh import DeviceMesh

__all__ = ["categories", "check_groups", "membership", "proof", "stats"]

_MOST_AXES_PROVED = 10


def categories(names: Sequence[str]) -> pd.CategoricalDtype[Any]:
    """The categorical dtype of these names."""
    import pandas as pd

    # As Python objects: pandas takes six times as long to see that Arrow strings are unique.
    return pd.CategoricalDtype(pd.Index(names, dtype=object))


def membership(mesh: DeviceMesh) -> pd.DataFrame:
    """See `DeviceMesh.membership`."""
    import pandas as pd

    ranks = np.flatnonzero(mesh.positions >= 0).astype(np.int32)
    coordinates = mesh.coordinate_array if len(ranks) == mesh.world_size else mesh.coordinate_array[ranks]
    columns: dict[str, Any] = {"rank": ranks}
    for index, name in enumerate(mesh.axis_names):
        columns[name] = coordinates[:, index]
    for name, groups in mesh.grouped_axes.items():
        columns[f"{name}_group"] = pd.Categorical.from_codes(groups.color[ranks], dtype=categories(groups.names))
    for group in mesh.custom_groups:
        columns[group.name] = np.isin(ranks, group.array)
    return pd.DataFrame(columns)


def stats(mesh: DeviceMesh) -> pd.DataFrame:
    """See `DeviceMesh.stats`."""
    import pandas as pd

    strides = dict(zip(mesh.axis_names, mesh.strides, strict=True))
    rows = []
    for name in mesh.creation_order:
        groups = mesh.group_set(name)
        rows.append(
            {
                "axis": name,
                "size": groups.size,
                "groups": len(groups),
                "stride": strides[name] if name in strides else even_step(groups.array[0]),
                "backend": mesh.backends.get(name),
                "first_group": ranks_text(groups.array[0]),
                "is_custom": name not in strides,
            }
        )
    return pd.DataFrame(rows).astype({"stride": "Int64", "backend": "string", "first_group": "string"})


def proof(mesh: DeviceMesh, axis_sets: Sequence[Sequence[str]]) -> pd.DataFrame:
    """See `DeviceMesh.proof`."""
    import pandas as pd

    sets = [(name,) if isinstance(name, str) else tuple(name) for name in axis_sets]
    if not sets:
        if len(mesh.axes) > _MOST_AXES_PROVED:
            raise MeshError(
                f"{len(mesh.axes)} axes have {2 ** len(mesh.axes) - 1:,} sets of axes; name those to prove, such as "
                f"proof({mesh.axis_names[0]!r}, {mesh.axis_names[:2]!r})"
            )
        counts = range(1, len(mesh.axes) + 1)
        sets = [names for count in counts for names in itertools.combinations(mesh.axis_names, count)]
    rows = []
    for names in sets:
        groups = mesh.groups(*names)
        rows.append(
            {
                "axes": groups_name(names),
                "groups": len(groups),
                "size": groups.size,
                **check_groups(groups.array, mesh, mesh._axis_indices(names)),
            }
        )
    return pd.DataFrame(rows)


def check_groups(array: npt.NDArray[np.int32], layout: Layout, inside: tuple[int, ...]) -> dict[str, bool]:
    """Compare a table of groups with what every rank finds out from its own coordinates.

    Parameters
    ----------
    array : numpy.ndarray
        int32 of shape (groups, size): the table.
    layout : Layout
        Where the ranks lie.
    inside : tuple of int
        The indices of the axes that the groups span, slowest first.

    Returns
    -------
    dict of str to bool
        ``disjoint``, ``covers``, ``equal_size`` and ``same_order``; see `DeviceMesh.proof`.
    """
    ranks = np.flatnonzero(layout.positions >= 0)
    coordinates = layout.coordinate_array[ranks]
    outside = [index for index in range(len(layout.axes)) if index not in inside]
    color = _count_along(coordinates, outside, layout.shape)
    key = _count_along(coordinates, inside, layout.shape)
    size = math.prod(layout.shape[index] for index in inside)
    listed = np.bincount(array.reshape(-1), minlength=layout.world_size)
    return {
        "disjoint": bool((listed <= 1).all()),
        "covers": bool((listed[ranks] >= 1).all()),
        "equal_size": bool((np.bincount(color) == size).all()) and array.shape[1] == size,
        "same_order": array.shape == (len(ranks) // size, size) and bool((array[color, key] == ranks).all()),
    }


def _count_along(
    coordinates: npt.NDArray[np.int32], indices: Sequence[int], shape: Sequence[int]
) -> npt.NDArray[np.int32]:
    number = np.zeros(len(coordinates), dtype=np.int32)
    for index in indices:
        number = number * np.int32(shape[index]) + coordinates[:, index]
    return number
