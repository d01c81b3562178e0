"""From one mesh to another over the same ranks: other axes, another order, a part, a second factorisation."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh.axes import fill_axes, format_axes
from meshlab.mesh.groups import ranks_text
from meshlab.mesh.layout import AxesLike, Layout, axis_pairs, check_coordinate

__all__ = ["Transforms"]


class Transforms(Layout):
    """The methods of a mesh that return another mesh."""

    @abstractmethod
    def _derived(
        self, pairs: Sequence[tuple[str, int]], ranks: npt.NDArray[Any], came_from: Mapping[str, str] | None = None
    ) -> Self:
        """Another mesh of the same world; `came_from` says which old axis a new name continues, if names change."""

    @property
    def _pairs(self) -> list[tuple[str, int]]:
        return [(axis.name, axis.size) for axis in self.axes]

    def _permutation(self, axes: Sequence[str]) -> tuple[int, ...]:
        missing = [name for name in self.axis_names if name not in axes]
        indices = self._axis_indices(axes)
        if missing:
            raise MeshError(f"name every axis once; {', '.join(missing)} is missing")
        return indices

    def reorder(self, *axes: str) -> Self:
        """The same axes in another order over the same ranks: another axis becomes the fastest, so the groups change.

        Parameters
        ----------
        *axes : str
            Every axis once, slowest first.

        Raises
        ------
        MeshError
            If an axis is missing, unknown or repeated.

        See Also
        --------
        transpose : another order of the axes that keeps who is in which group.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, tp=4").reorder("tp", "dp")
        >>> mesh, mesh.group("tp_0")
        (DeviceMesh('tp=4, dp=2'), Group('tp_0', [0, 2, 4, 6]))
        """
        pairs = [self._pairs[index] for index in self._permutation(axes)]
        return self._derived(pairs, self.ranks.reshape(-1))

    def transpose(self, *axes: str) -> Self:
        """The same axes in another order, each rank at its old coordinates: groups keep their members.

        Parameters
        ----------
        *axes : str
            Every axis once, slowest first.

        Raises
        ------
        MeshError
            If an axis is missing, unknown or repeated.

        See Also
        --------
        reorder : another order of the axes that changes which is the fastest.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, tp=4").transpose("tp", "dp")
        >>> mesh, mesh.group("tp_0")
        (DeviceMesh('dp=2, tp=4').transpose('tp', 'dp'), Group('tp_0', [0, 1, 2, 3]))
        """
        indices = self._permutation(axes)
        return self._derived([self._pairs[index] for index in indices], self.ranks.transpose(indices).reshape(-1))

    def rename(self, **names: str) -> Self:
        """The same mesh with other axis names.

        Parameters
        ----------
        **names : str
            ``old="new"``.

        Raises
        ------
        MeshError
            If an axis is unknown or a new name is taken or not possible.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=4").rename(dp="data")
        DeviceMesh('data=2, tp=4')
        """
        self._axis_indices(tuple(names))
        pairs = [(names.get(name, name), size) for name, size in self._pairs]
        return self._derived(pairs, self.ranks.reshape(-1), {names.get(n, n): n for n in self.axis_names})

    def flatten(self, *axes: str, name: str | None = None) -> Self:
        """Merge axes into one, whose groups are exactly the groups that spanned them.

        Parameters
        ----------
        *axes : str
            At least one axis; the last counts fastest inside the new one.
        name : str, optional
            The name of the new axis; the old names with underscores between when left out.

        Raises
        ------
        MeshError
            If an axis is unknown or repeated, or the name is taken.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, cp=2, tp=2")
        >>> flat = mesh.flatten("dp", "cp")
        >>> flat, flat.group("dp_cp_0")
        (DeviceMesh('dp_cp=4, tp=2'), Group('dp_cp_0', [0, 2, 4, 6]))
        """
        inside = self._axis_indices(axes)
        new = ("_".join(axes) if name is None else name, self.size(*axes))
        spot = max(inside)  # at the fastest of them, so that neighbouring axes merge without moving a rank
        order: list[int] = []
        pairs: list[tuple[str, int]] = []
        for index in range(len(self.axes)):
            if index == spot:
                order += inside
                pairs.append(new)
            elif index not in inside:
                order.append(index)
                pairs.append(self._pairs[index])
        return self._derived(pairs, self.ranks.transpose(order).reshape(-1))

    def split_axis(self, axis: str, parts: AxesLike | None = None, /, **sizes: int) -> Self:
        """Cut one axis into several; no rank moves.

        Parameters
        ----------
        axis : str
            The axis to cut.
        parts : str, mapping or sequence of (str, int), optional
            The new axes, slowest first; one size may be -1.
        **sizes : int
            The new axes as keywords instead.

        Raises
        ------
        MeshError
            If the sizes do not multiply to the size of the axis, or a name is taken.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=8, tp=2").split_axis("dp", dp_replicate=2, dp_shard=-1)
        DeviceMesh('dp_replicate=2, dp_shard=4, tp=2')
        """
        index = self._axis_index(axis)
        if (parts is None) == (not sizes):
            raise MeshError("give the parts of the axis as one text or as keywords, and only once")
        try:
            new = fill_axes(axis_pairs(sizes if parts is None else parts), self.axes[index].size)
        except MeshError as error:
            raise MeshError(f"{self.axes[index]} cannot be cut this way: {error}") from None
        pairs = [*self._pairs[:index], *((part.name, part.size) for part in new), *self._pairs[index + 1 :]]
        return self._derived(
            pairs, self.ranks.reshape(-1), {name: name for name in self.axis_names} | {part.name: axis for part in new}
        )

    def select(self, **places: int | slice | Sequence[int]) -> Self:
        """The part of the mesh at the given coordinates; the other ranks become idle.

        Parameters
        ----------
        **places : int, slice or sequence of int
            Per axis: one coordinate, which removes the axis, or several, which shorten it.

        Returns
        -------
        DeviceMesh
            It keeps the global ranks and the world size.

        Raises
        ------
        MeshError
            If an axis is unknown, a coordinate lies outside it, or no axis would be left.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> stage = DeviceMesh("pp=2, dp=2, tp=2").select(pp=1)
        >>> stage.ranks.tolist(), stage.idle_ranks.tolist()
        ([[4, 5], [6, 7]], [0, 1, 2, 3])
        """
        for name in places:
            self._axis_index(name)
        pairs: list[tuple[str, int]] = []
        index: list[Any] = []
        for axis in self.axes:
            place = places.get(axis.name, slice(None))
            if isinstance(place, slice):
                chosen = list(range(axis.size)[place])
            elif isinstance(place, (Sequence, np.ndarray)):
                chosen = [check_coordinate(axis, value) for value in place]
            else:
                index.append([check_coordinate(axis, place)])
                continue
            if not chosen:
                raise MeshError(f"{axis.name}={place!r} selects no rank; the axis goes from 0 to {axis.size - 1}")
            pairs.append((axis.name, len(chosen)))
            index.append(chosen)
        if not pairs:
            raise MeshError("one coordinate on every axis leaves a single rank, not a mesh; rank_at() gives that rank")
        return self._derived(pairs, self.ranks[np.ix_(*index)].reshape(-1))

    def submesh(self, *axes: str, rank: int) -> Self:
        """The mesh over some axes that one rank sees: the ranks that differ from it only there.

        Raises
        ------
        MeshError
            If an axis is unknown, or there is no such rank.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, pp=2, cp=2").submesh("dp", "cp", rank=5).ranks.tolist()
        [[0, 1], [4, 5]]
        """
        self._axis_indices(axes)
        here = self.coordinates(rank)
        part = self.select(**{name: place for name, place in here.items() if name not in axes})
        return part.transpose(*axes)

    def reshape(self, axes: AxesLike | None = None, /, **sizes: int) -> Self:
        """Other axes over the same ranks; groups, names and numbers are made anew.

        Parameters
        ----------
        axes : str, mapping or sequence of (str, int), optional
            The new axes; one size may be -1.
        **sizes : int
            The new axes as keywords instead.

        Raises
        ------
        MeshError
            If the sizes do not multiply to the ranks of this mesh, or a group that was added by hand has a name that
            now means something else.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=4").reshape("pp=2, dp=-1, tp=2")
        DeviceMesh('pp=2, dp=2, tp=2')
        """
        if (axes is None) == (not sizes):
            raise MeshError("give the new axes as one text or as keywords, and only once")
        new = fill_axes(axis_pairs(sizes if axes is None else axes), self.size())
        return self._derived([(axis.name, axis.size) for axis in new], self.ranks.reshape(-1))

    def view(self, axes: AxesLike | None = None, /, **sizes: int) -> Self:
        """A second factorisation of the same ranks, such as the layout of experts beside the dense one.

        Like `reshape`, and an axis that both meshes name must have the same groups in both.

        Parameters
        ----------
        axes : str, mapping or sequence of (str, int), optional
            The axes of the view; one size may be -1.
        **sizes : int
            The axes as keywords instead.

        Raises
        ------
        MeshError
            If the sizes do not multiply to the ranks of this mesh, or a shared axis would have other groups.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> dense = DeviceMesh("pp=2, dp=4, tp=8")
        >>> experts = dense.view("pp=2, edp=2, ep=16")
        >>> experts.group("pp_0") == dense.group("pp_0")
        True
        """
        view = self.reshape(axes, **sizes)
        for name in self.axis_names:
            if name in view.axis_names:
                self._check_shared(name, view)
        return view

    def _check_shared(self, name: str, view: Layout) -> None:
        index = self._axis_index(name)
        here = self._group_array((index,))
        there = view._group_array((view._axis_index(name),))
        if here.shape == there.shape and np.array_equal(here, there):
            return
        first = 0
        if here.shape == there.shape:
            first = int(np.flatnonzero((here != there).any(axis=1))[0])
        raise MeshError(
            f"the axis {name!r} is in both meshes, but means other groups: {name}_{first} is {ranks_text(here[first])} "
            f"in {format_axes(self.axes)} and {ranks_text(there[first])} in {format_axes(view.axes)}; "
            f"give it size {self.axes[index].size} and axes behind it that multiply to "
            f"{math.prod(self.shape[index + 1 :])}, or another name"
        )
