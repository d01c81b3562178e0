"""The difference between two meshes: which ranks get different peers, a different order or a different group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.mesh._axes import Ranks, format_ranks
from meshlab.mesh._groups import Groups, categories, ranks_repr

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh._mesh import DeviceMesh


CHANGES = ("same", "number", "order", "members", "joins", "leaves")
"""Possible changes of a rank along an axis.

number: the same group under a different number. order: the same peers in a different order. members: different peers.
joins, leaves: the rank is in no group along the axis before, or after.
"""
_SAME, _NUMBER, _ORDER, _MEMBERS, _JOINS, _LEAVES = range(6)
_TEXTS = {
    _MEMBERS: "different peers",
    _ORDER: "the same peers in a different order",
    _NUMBER: "the same group under a different number",
    _JOINS: "joined",
    _LEAVES: "left",
}


@dataclass(frozen=True, eq=False)
class AxisChange:
    """The change of every rank along one axis that both meshes have."""

    before: Groups
    after: Groups
    change: npt.NDArray[np.int8]  # index into `CHANGES`, of shape (ranks,)
    lost: Ranks  # number of peers, of shape (ranks,)
    gained: Ranks  # number of peers, of shape (ranks,)


@dataclass(frozen=True, eq=False)
class MeshDiff:
    """The difference between two meshes, created by `DeviceMesh.diff`. ``str()`` returns a summary.

    Parameters
    ----------
    before, after : DeviceMesh
        The two meshes.
    axes : mapping of str to AxisChange
        One entry for every axis and every custom group that both meshes have.

    Examples
    --------
    >>> import meshlab as ml
    >>> print(ml.DeviceMesh("dp=2, tp=2").diff("pp=2, tp=2"))
    dp=2, tp=2 → pp=2, tp=2: no rank changes groups
    removed: dp
    added: pp
    """

    before: DeviceMesh
    after: DeviceMesh
    axes: Mapping[str, AxisChange]

    @property
    def removed(self) -> tuple[str, ...]:
        """The axes and custom groups of the first mesh only."""
        return tuple(name for name in self.before.creation_order if name not in self.axes)

    @property
    def added(self) -> tuple[str, ...]:
        """The axes and custom groups of the second mesh only."""
        return tuple(name for name in self.after.creation_order if name not in self.axes)

    @cached_property
    def changed_ranks(self) -> Ranks:
        """The ranks with a change along any shared axis, ascending: read-only int32."""
        changed = np.zeros(self._n_ranks, dtype=bool)
        for axis in self.axes.values():
            changed |= axis.change != _SAME
        ranks = np.flatnonzero(changed).astype(np.int32)
        ranks.flags.writeable = False
        return ranks

    @property
    def _n_ranks(self) -> int:
        return max(self.before.world_size, self.after.world_size)

    def frame(self) -> pd.DataFrame:
        """Return one row per rank and axis with a change.

        Returns
        -------
        pandas.DataFrame
            Columns: ``rank``, ``axis``, the group names ``before`` and ``after`` (missing if the rank is in none),
            ``change`` (one of `CHANGES`), and the numbers of peers ``lost`` and ``gained``. Strings are categorical.
            ``before`` and ``after`` have the same categories, so they can be compared.
        """
        import pandas as pd

        columns = ("rank", "axis", "before", "after", "change", "lost", "gained")
        parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in columns}
        names: list[str] = []
        for number, axis in enumerate(self.axes.values()):
            ranks = np.flatnonzero(axis.change)
            parts["rank"].append(ranks.astype(np.int32))
            parts["axis"].append(np.full(len(ranks), number, dtype=np.int32))
            for side, groups in (("before", axis.before), ("after", axis.after)):
                color = _padded(groups.color, len(axis.change))[ranks]
                parts[side].append(np.where(color < 0, -1, color + len(names)))
            # Group names count up from 0 in both meshes, so the longer list contains the names of the shorter one.
            names += (axis.before if len(axis.before) > len(axis.after) else axis.after).names
            parts["change"].append(axis.change[ranks])
            parts["lost"].append(axis.lost[ranks])
            parts["gained"].append(axis.gained[ranks])
        group_names = categories(names)
        kinds = {
            "axis": categories(list(self.axes)),
            "before": group_names,
            "after": group_names,
            "change": categories(CHANGES),
        }
        joined = {name: np.concatenate(arrays) if arrays else np.empty(0, np.int32) for name, arrays in parts.items()}
        return pd.DataFrame(
            {
                name: pd.Categorical.from_codes(codes, dtype=kinds[name]) if name in kinds else codes
                for name, codes in joined.items()
            }
        )

    def __str__(self) -> str:
        lines = [f"{self.before} → {self.after}: {self._verdict()}", *self._one_sided()]
        lines += [f"{name}: {_axis_text(axis)}" for name, axis in self.axes.items() if axis.change.any()]
        return "\n".join(lines)

    def _one_sided(self) -> list[str]:
        sides = (("removed", self.removed), ("added", self.added))
        return [f"{side}: {', '.join(names)}" for side, names in sides if names]

    def _verdict(self) -> str:
        if self.before == self.after:
            return "the meshes are equal"
        if not self.axes:
            return "no axis is in both meshes"
        changed = len(self.changed_ranks)
        if changed:
            return f"{changed:,} of {self._n_ranks:,} ranks change groups"
        return "no rank changes groups"

    def __repr__(self) -> str:
        return f"<MeshDiff {self.before} → {self.after}: {self._verdict()}; next: .frame()>"

    def _repr_html_(self) -> str:
        rows: list[list[object]] = [
            [name, len(ranks), text, example, int(axis.lost[ranks].max()), int(axis.gained[ranks].max())]
            for name, axis in self.axes.items()
            for text, ranks, example in _kinds(axis)
        ]
        header = ["axis", "ranks", "change", "example", "max peers lost", "max peers gained"]
        return markup.card(
            f"{self.before} → {self.after}",
            " · ".join([self._verdict(), *self._one_sided()]),
            *([markup.table(header, rows)] if rows else []),
        )


def diff(before: DeviceMesh, after: DeviceMesh) -> MeshDiff:
    """Compare two meshes group by group. Their axes, sizes, ranks and world sizes may differ."""
    shared = [name for name in before.creation_order if name in after.creation_order]
    changes = {name: _compare(before[name], after[name]) for name in shared}
    return MeshDiff(before, after, MappingProxyType(changes))


def _padded(array: Ranks, length: int) -> Ranks:
    if len(array) == length:
        return array
    return np.concatenate([array, np.full(length - len(array), -1, dtype=np.int32)])


def _compare(before: Groups, after: Groups) -> AxisChange:
    world = max(before.world_size, after.world_size)
    old, new = _padded(before.color, world), _padded(after.color, world)
    stayed = np.flatnonzero((old >= 0) & (new >= 0))
    # The number of peers includes the rank itself. Ranks that leave together have the same colour, -1, but lose
    # each other, and ranks that join keep no peer: for both, only the rank itself is kept.
    peers = np.where(new >= 0, np.maximum(_common_peers(before, new), 1), 1)
    lost = np.where(old >= 0, before.size - peers, 0).astype(np.int32)
    gained = np.where(new >= 0, after.size - peers, 0).astype(np.int32)

    # The order changes for all ranks of a group if it changes for one of them: the group is a different ring.
    moved = np.zeros(world, dtype=bool)
    moved[stayed] = before.key[stayed] != after.key[stayed]
    group_moved = np.bincount(old[moved], minlength=len(before)) > 0
    change = np.zeros(world, dtype=np.int8)
    change[stayed] = np.select(
        [(lost[stayed] > 0) | (gained[stayed] > 0), group_moved[old[stayed]], old[stayed] != new[stayed]],
        [_MEMBERS, _ORDER, _NUMBER],
        _SAME,
    )
    change[(old >= 0) & (new < 0)] = _LEAVES
    change[(old < 0) & (new >= 0)] = _JOINS
    for array in (change, lost, gained):
        array.flags.writeable = False
    return AxisChange(before, after, change, lost, gained)


def _common_peers(before: Groups, after_color: Ranks) -> Ranks:
    """Return, per rank, the number of ranks that share its group before and after, itself included."""
    # Sort each row of old groups by new group. A run of equal colours is a set of ranks that stay together, so the
    # length of the run is the answer for all of them: O(n log n) for all groups, without a set per rank.
    color = after_color[before.array]
    order = np.argsort(color, axis=1)
    in_order = np.take_along_axis(color, order, axis=1)
    starts = np.ones(color.shape, dtype=bool)
    starts[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    lengths = np.diff(np.flatnonzero(starts), append=color.size)
    counts = np.zeros(len(after_color), dtype=np.int32)
    counts[np.take_along_axis(before.array, order, axis=1).reshape(-1)] = np.repeat(lengths, lengths)
    return counts


def _kinds(axis: AxisChange) -> list[tuple[str, Ranks, str]]:
    """Return, per kind of change along an axis, its text, its ranks, and an example or a list of the ranks."""
    kinds = []
    for kind, text in _TEXTS.items():
        ranks = np.flatnonzero(axis.change == kind).astype(np.int32)
        if not len(ranks):
            continue
        if kind in (_JOINS, _LEAVES):
            kinds.append((text, ranks, format_ranks(ranks.tolist())))
            continue
        old, new = axis.before.of(int(ranks[0])), axis.after.of(int(ranks[0]))
        move = f"{old.name} {ranks_repr(old.array)} to {new.name} {ranks_repr(new.array)}"
        kinds.append((text, ranks, f"rank {ranks[0]} moves from {move}"))
    return kinds


def _axis_text(axis: AxisChange) -> str:
    texts = []
    for text, ranks, example in _kinds(axis):
        if text in (_TEXTS[_JOINS], _TEXTS[_LEAVES]):
            texts.append(f"{example} {text}")
        else:
            texts.append(f"{len(ranks):,} {'ranks get' if len(ranks) > 1 else 'rank gets'} {text}; {example}")
    return "; ".join(texts)
