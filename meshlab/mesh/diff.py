"""What changes between two meshes: which ranks get other peers, another order or another number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab import markup
from meshlab.errors import MeshError
from meshlab.mesh.axes import Ranks, idle_text
from meshlab.mesh.groups import Groups, categories, ranks_text
from meshlab.mesh.mesh import DeviceMesh

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CHANGES", "AxisChange", "MeshDiff", "diff"]

CHANGES = ("same", "number", "order", "members", "joins", "leaves")
"""What can happen to a rank along an axis.

number: the same group under another number; order: the same peers in another order; members: other peers; joins and
leaves: the rank is in no such group before, or after.
"""
_SAME, _NUMBER, _ORDER, _MEMBERS, _JOINS, _LEAVES = range(6)
_TEXTS = {
    _MEMBERS: "other peers",
    _ORDER: "the same peers in another order",
    _NUMBER: "the same group under another number",
    _JOINS: "joined",
    _LEAVES: "left",
}


@dataclass(frozen=True, eq=False)
class AxisChange:
    """What happens to every rank along one axis that both meshes have.

    Parameters
    ----------
    before, after : Groups
        The groups in the two meshes.
    change : numpy.ndarray
        int8 of shape (ranks,): an index into `CHANGES`, per global rank.
    lost, gained : numpy.ndarray
        int32 of shape (ranks,): how many peers go, and how many come.
    """

    before: Groups
    after: Groups
    change: npt.NDArray[np.int8]
    lost: Ranks
    gained: Ranks


@dataclass(frozen=True, eq=False)
class MeshDiff:
    """The difference between two meshes; in words as ``str()``, rank by rank as `frame`.

    Parameters
    ----------
    before, after : DeviceMesh
        The two meshes.
    axes : mapping of str to AxisChange
        For every axis, and every group added by hand, that both have.
    """

    before: DeviceMesh
    after: DeviceMesh
    axes: Mapping[str, AxisChange]

    @property
    def removed(self) -> tuple[str, ...]:
        """The axes and groups that only the mesh before has."""
        return tuple(name for name in self.before.creation_order if name not in self.axes)

    @property
    def added(self) -> tuple[str, ...]:
        """The axes and groups that only the mesh after has."""
        return tuple(name for name in self.after.creation_order if name not in self.axes)

    @cached_property
    def changed_ranks(self) -> Ranks:
        """The ranks for which any shared axis changes, ascending; int32."""
        worlds = max(self.before.world_size, self.after.world_size)
        changed = np.zeros(worlds, dtype=bool)
        for axis in self.axes.values():
            changed |= axis.change != _SAME
        ranks = np.flatnonzero(changed).astype(np.int32)
        ranks.flags.writeable = False
        return ranks

    def frame(self) -> pd.DataFrame:
        """One row per rank and axis that changes.

        Returns
        -------
        pandas.DataFrame
            ``rank``, ``axis``, the group's name ``before`` and ``after`` (missing where the rank is in none),
            ``change`` (one of `CHANGES`), and how many peers are ``lost`` and ``gained``. Texts are categorical;
            ``before`` and ``after`` share their categories, so they can be compared.
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
        lines = [f"{self.before} → {self.after}: {self._verdict()}"]
        for word, names in (("gone", self.removed), ("new", self.added)):
            if names:
                lines.append(f"{word}: {', '.join(names)}")
        lines += [f"{name}: {_axis_text(axis)}" for name, axis in self.axes.items() if axis.change.any()]
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.before == self.after:
            return "the two meshes are equal"
        if not self.axes:
            return "they share no axis"
        changed = len(self.changed_ranks)
        if changed:
            return f"{changed:,} of {max(self.before.world_size, self.after.world_size):,} ranks change a group"
        return "no rank changes a group"

    def __repr__(self) -> str:
        return f"<MeshDiff {self.before} → {self.after}: {self._verdict()}>"

    def _repr_html_(self) -> str:
        rows: list[list[object]] = [
            [name, len(ranks), text, example, int(axis.lost[ranks].max()), int(axis.gained[ranks].max())]
            for name, axis in self.axes.items()
            for text, ranks, example in _kinds(axis)
        ]
        header = ["axis", "ranks", "change", "example", "peers lost, at most", "gained, at most"]
        apart = [
            f"{word}: {', '.join(names)}" for word, names in (("gone", self.removed), ("new", self.added)) if names
        ]
        return markup.card(
            f"{self.before} → {self.after}",
            " · ".join([self._verdict(), *apart]),
            *([markup.table(header, rows)] if rows else []),
        )


def diff(before: DeviceMesh, after: DeviceMesh) -> MeshDiff:
    """Compare two meshes group by group.

    Parameters
    ----------
    before, after : DeviceMesh
        They may differ in axes, sizes, ranks and world size.

    Returns
    -------
    MeshDiff

    Raises
    ------
    MeshError
        If one of them is not a mesh.

    Examples
    --------
    >>> change = diff(DeviceMesh("dp=2, tp=2"), DeviceMesh("tp=2, dp=2"))
    >>> print(change)
    dp=2, tp=2 → tp=2, dp=2: 4 of 4 ranks change a group
    dp: 4 ranks get other peers; rank 0 goes from dp_0 [0, 2] to dp_0 [0, 1]
    tp: 4 ranks get other peers; rank 0 goes from tp_0 [0, 1] to tp_0 [0, 2]
    >>> print(change.frame().head(2).to_string(index=False))
     rank axis before after  change  lost  gained
        0   dp   dp_0  dp_0 members     1       1
        1   dp   dp_1  dp_0 members     1       1
    """
    for mesh in (before, after):
        if not isinstance(mesh, DeviceMesh):
            raise MeshError(f"a mesh can be compared with a mesh only, not with {type(mesh).__name__}")
    shared = [name for name in before.creation_order if name in after.creation_order]
    return MeshDiff(
        before,
        after,
        MappingProxyType({name: _compare(before.group_set(name), after.group_set(name)) for name in shared}),
    )


def _padded(array: Ranks, length: int) -> Ranks:
    if len(array) == length:
        return array
    return np.concatenate([array, np.full(length - len(array), -1, dtype=np.int32)])


def _compare(before: Groups, after: Groups) -> AxisChange:
    world = max(before.world_size, after.world_size)
    old, new = _padded(before.color, world), _padded(after.color, world)
    both = np.flatnonzero((old >= 0) & (new >= 0))
    kept = _peers_kept(before, new)
    lost = np.where(old >= 0, before.size - np.maximum(kept, 1), 0).astype(np.int32)
    gained = np.where(new >= 0, after.size - np.maximum(kept, 1), 0).astype(np.int32)

    moved = np.zeros(world, dtype=bool)
    moved[both] = before.key[both] != after.key[both]
    group_moved = np.bincount(old[moved], minlength=len(before)) > 0
    change = np.zeros(world, dtype=np.int8)
    change[both] = np.select(
        [(lost[both] > 0) | (gained[both] > 0), group_moved[old[both]], old[both] != new[both]],
        [_MEMBERS, _ORDER, _NUMBER],
        _SAME,
    )
    change[(old >= 0) & (new < 0)] = _LEAVES
    change[(old < 0) & (new >= 0)] = _JOINS
    for array in (change, lost, gained):
        array.flags.writeable = False
    return AxisChange(before, after, change, lost, gained)


def _peers_kept(before: Groups, after_color: Ranks) -> Ranks:
    """For every rank of `before`, how many ranks of its group share its group afterwards, itself counted."""
    color = after_color[before.array]
    order = np.argsort(color, axis=1)
    in_order = np.take_along_axis(color, order, axis=1)
    starts = np.ones(color.shape, dtype=bool)
    starts[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    lengths = np.diff(np.flatnonzero(starts), append=color.size)
    kept = np.zeros(len(after_color), dtype=np.int32)
    kept[np.take_along_axis(before.array, order, axis=1).reshape(-1)] = np.repeat(lengths, lengths)
    return kept


def _kinds(axis: AxisChange) -> list[tuple[str, Ranks, str]]:
    """What changes along an axis: the change in words, the ranks it happens to, and an example or the ranks' names."""
    found = []
    for kind, text in _TEXTS.items():
        ranks = np.flatnonzero(axis.change == kind).astype(np.int32)
        if not len(ranks):
            continue
        if kind in (_JOINS, _LEAVES):
            found.append((text, ranks, idle_text(ranks.tolist())))
            continue
        old, new = axis.before.of(int(ranks[0])), axis.after.of(int(ranks[0]))
        shown = f"{old.name} {ranks_text(old.array)} to {new.name} {ranks_text(new.array)}"
        found.append((text, ranks, f"rank {ranks[0]} goes from {shown}"))
    return found


def _axis_text(axis: AxisChange) -> str:
    texts = []
    for text, ranks, example in _kinds(axis):
        if text in (_TEXTS[_JOINS], _TEXTS[_LEAVES]):
            texts.append(f"{example} {text}")
        else:
            texts.append(f"{len(ranks):,} {'ranks get' if len(ranks) > 1 else 'rank gets'} {text}; {example}")
    return "; ".join(texts)
