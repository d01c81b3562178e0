"""DeviceMesh: named axes over ranks, and the groups that follow from them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh import frames, describe as words
from meshlab.mesh.axes import format_axes, short
from meshlab.mesh.grouping import Grouping
from meshlab.mesh.groups import Group, Ranks
from meshlab.mesh.layout import AxesLike, axis_pairs, place_ranks
from meshlab.mesh.transforms import Transforms

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh.interop.recipe import Recipe

__all__ = ["DeviceMesh"]

_BACKEND = re.compile(r"[a-z][a-z0-9_.:,+-]*")


class DeviceMesh(Grouping, Transforms):
    """Named axes over ranks, in row-major order: the last axis is the fastest.

    A value: it never changes, compares by what it says, and holds no devices and no processes. The order of the axes
    is also the order in which communicators are created, the same on every rank.

    Parameters
    ----------
    axes : str, mapping or sequence of (str, int), optional
        Such as ``"dp=2, tp=4"``. One size may be -1 and takes the ranks that are left.
    world_size : int, optional
        How many ranks there are; needed for -1, and checked otherwise.
    ranks : array_like of int, optional
        Which rank lies where, in row-major order of the axes; 0, 1, 2, … when left out. The order is kept inside every
        group, so it is the order of a ring. With `world_size` it may leave ranks out, which are then idle.
    backends : mapping of str to str, optional
        The name of a communication backend for some axes, such as ``{"pp": "gloo"}``.
    **sizes : int
        The axes as keywords instead: ``DeviceMesh(dp=2, tp=4)``.

    Raises
    ------
    MeshError
        If names, sizes or ranks are not possible; the message names the nearest that are.
    ParseError
        If the text cannot be read.

    Examples
    --------
    >>> mesh = DeviceMesh("dp=2, tp=4")
    >>> mesh
    DeviceMesh('dp=2, tp=4')
    >>> [group.ranks for group in mesh.groups("tp")]
    [(0, 1, 2, 3), (4, 5, 6, 7)]
    >>> mesh.coordinates(6), mesh.rank_at(dp=1, tp=2)
    ({'dp': 1, 'tp': 2}, 6)
    >>> DeviceMesh("dp=-1, tp=8", world_size=64).shape
    (8, 8)
    """

    backends: Mapping[str, str]
    """The backend's name for some axes, in the order of the axes."""

    def __init__(
        self,
        axes: AxesLike | None = None,
        /,
        *,
        world_size: int | None = None,
        ranks: npt.ArrayLike | None = None,
        backends: Mapping[str, str] | None = None,
        **sizes: int,
    ) -> None:
        if axes is not None and sizes:
            raise MeshError("give the axes as one text or as keywords, not both")
        placed = place_ranks(axis_pairs(sizes if axes is None else axes), ranks, world_size)
        self.__dict__.update(axes=placed[0], _order=placed[1], world_size=placed[2], custom_groups=(), _group_cache={})
        self.__dict__.update(backends=self._check_backends(backends or {}))

    def _check_backends(self, backends: Mapping[str, str]) -> Mapping[str, str]:
        for axis, backend in backends.items():
            self._axis_index(axis)
            if not isinstance(backend, str) or _BACKEND.fullmatch(backend) is None:
                raise MeshError(f"{short(backend)} cannot name the backend of {axis!r}; write a name such as 'nccl'")
        return MappingProxyType({name: backends[name] for name in self.axis_names if name in backends})

    def _derived(
        self, pairs: Sequence[tuple[str, int]], ranks: npt.NDArray[Any], came_from: Mapping[str, str] | None = None
    ) -> Self:
        old_names = {name: (came_from or {}).get(name, name) for name, _ in pairs}
        backends = {new: self.backends[old] for new, old in old_names.items() if old in self.backends}
        mesh = type(self)(pairs, ranks=ranks, world_size=self.world_size, backends=backends)
        for group in self.custom_groups:
            try:
                mesh = mesh.with_group(group.name, group.array)
            except MeshError as error:
                raise MeshError(
                    f"the group {group.name!r} cannot be kept: {error}; first drop it, without_group({group.name!r})"
                ) from None
        return mesh

    # -- the four usual layouts ----------------------------------------------------------------------------------------

    @classmethod
    def data_parallel(cls, ranks: int) -> DeviceMesh:
        """Every rank holds the whole model: one group of all ranks along ``dp``.

        Examples
        --------
        >>> DeviceMesh.data_parallel(4).group("dp_0")
        Group('dp_0', [0, 1, 2, 3])
        """
        return cls([("dp", ranks)])

    @classmethod
    def tensor_parallel(cls, degree: int, world_size: int | None = None) -> DeviceMesh:
        """Every layer is cut over `degree` neighbouring ranks; ``dp`` takes the rest of the world.

        Raises
        ------
        MeshError
            If `degree` does not divide `world_size`.

        Examples
        --------
        >>> DeviceMesh.tensor_parallel(4, world_size=8)
        DeviceMesh('dp=2, tp=4')
        """
        return cls([("dp", -1), ("tp", degree)], world_size=degree if world_size is None else world_size)

    @classmethod
    def pipeline_parallel(cls, stages: int, world_size: int | None = None) -> DeviceMesh:
        """The layers are cut into stages; the ranks of one stage are neighbours, along ``dp``.

        Raises
        ------
        MeshError
            If `stages` does not divide `world_size`.

        Examples
        --------
        >>> mesh = DeviceMesh.pipeline_parallel(2, world_size=4)
        >>> mesh, mesh.group("pp_0"), mesh.stages()[1]
        (DeviceMesh('pp=2, dp=2'), Group('pp_0', [0, 2]), Group('pp_stage_1', [2, 3]))
        """
        return cls([("pp", stages), ("dp", -1)], world_size=stages if world_size is None else world_size)

    @classmethod
    def mixed(cls, tp: int, pp: int, dp: int, world_size: int | None = None) -> DeviceMesh:
        """Tensor, pipeline and data parallel together: ``tp`` the fastest, then ``dp``, then ``pp``.

        One of the degrees may be -1 when `world_size` is given.

        Raises
        ------
        MeshError
            If the degrees do not multiply to `world_size`.

        Examples
        --------
        >>> DeviceMesh.mixed(tp=8, pp=2, dp=-1, world_size=64)
        DeviceMesh('pp=2, dp=4, tp=8')
        """
        return cls([("pp", pp), ("dp", dp), ("tp", tp)], world_size=world_size)

    # -- frames, words and other frameworks ----------------------------------------------------------------------------

    def membership(self) -> pd.DataFrame:
        """One row per rank of the mesh: its coordinates, and its group on every axis.

        Returns
        -------
        pandas.DataFrame
            Columns ``rank``, one integer column per axis, then ``<axis>_group`` with the group's name per axis
            (categorical), and one boolean column per group added by hand.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=2").membership().to_string(index=False))
         rank  dp  tp dp_group tp_group
            0   0   0     dp_0     tp_0
            1   0   1     dp_1     tp_0
            2   1   0     dp_0     tp_1
            3   1   1     dp_1     tp_1
        """
        return frames.membership(self)

    def stats(self) -> pd.DataFrame:
        """One row per axis and per group added by hand: size, number of groups, stride, backend, first group.

        Returns
        -------
        pandas.DataFrame
            The column ``stride`` is the distance in global rank between neighbours, missing where it varies.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=4").stats()[["axis", "size", "groups", "stride"]].to_string(index=False))
        axis  size  groups  stride
          dp     2       4       4
          tp     4       2       1
        """
        return frames.stats(self)

    def proof(self, *axis_sets: Sequence[str]) -> pd.DataFrame:
        """Prove that the groups are sound.

        Every rank works out from its own coordinates alone, without the table of groups, which group it is in and at
        which place. `same_order` says that all of them arrive at the table.

        Parameters
        ----------
        *axis_sets : sequence of str
            Which sets of axes to look at; every set of axes of this mesh when left out.

        Returns
        -------
        pandas.DataFrame
            One row per set of axes: ``axes``, ``groups``, ``size``, and the findings ``disjoint`` (no rank is in two
            groups), ``covers`` (every rank of the mesh is in one), ``equal_size`` and ``same_order`` (every rank
            numbers the groups, and itself inside its group, alike).

        Raises
        ------
        MeshError
            If an axis is unknown, or there are more than ten axes and no set was named.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=4").proof().to_string(index=False))
         axes  groups  size  disjoint  covers  equal_size  same_order
           dp       4     2      True    True        True        True
           tp       2     4      True    True        True        True
        dp-tp       1     8      True    True        True        True
        """
        return frames.proof(self, axis_sets)

    def explain(self, ranks_per_node: int = 8) -> str:
        """Say in words how the ranks are laid out: which axis is the fastest, and what that means.

        Parameters
        ----------
        ranks_per_node : int, default 8
            How many ranks a node has, to say which groups leave it.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=4").explain(ranks_per_node=4))
        dp=2, tp=4: 8 ranks; the last axis is the fastest.
        tp, tensor parallel: the fastest; its first group is ranks 0 to 3, next to each other.
        dp, data parallel: its first group is ranks 0 and 4, 4 apart.
        On nodes of 4 ranks, tp stays inside a node; dp leaves it.
        torch and JAX write the axes in this order: (dp, tp). Megatron writes the fastest first: tp-dp.
        """
        return words.explain(self, ranks_per_node)

    def to(self, framework: str, *, experts: DeviceMesh | None = None) -> Recipe:
        """The same layout in the words of another framework.

        Parameters
        ----------
        framework : str
            ``torch``, ``jax``, ``megatron``, ``megatron-flags``, ``hypercomm``, ``deepspeed``, ``vllm`` or
            ``torchtitan``.
        experts : DeviceMesh, optional
            A `view` of this mesh that says where the experts are, for the frameworks that take both.

        Returns
        -------
        Recipe
            Its ``text`` is code or flags, its ``arguments`` the same as a dict, its ``notes`` what does not carry over.

        Raises
        ------
        MeshError
            If the framework has no words for this layout.

        Examples
        --------
        >>> DeviceMesh("dp=2, tp=4").to("torch")
        init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        """
        from meshlab.mesh.interop import write_mesh

        return write_mesh(self, framework, experts=experts)

    # -- identity and looks --------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """A short stable hash of the whole value; it stands in every frame and report.

        Two meshes have the same fingerprint only if axes, sizes, order, ranks, backends and added groups agree. It
        does not depend on the machine, the process or the Python version.

        Examples
        --------
        >>> DeviceMesh("dp=2, tp=2").fingerprint == DeviceMesh(dp=2, tp=2).fingerprint
        True
        """
        digest = hashlib.sha256(format_axes(self.axes).encode())
        if self._order is not None:
            digest.update(f"\nranks of {self.world_size}:".encode())
            digest.update(self._order.astype("<i4").tobytes())
        for axis, backend in self.backends.items():
            digest.update(f"\n{axis} on {backend}".encode())
        for group in self.custom_groups:
            digest.update(f"\n{group.name}:{','.join(map(str, group.array.tolist()))}".encode())
        return digest.hexdigest()[:12]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        same = (self.axes, self.world_size, self.backends) == (other.axes, other.world_size, other.backends)
        return same and np.array_equal(self.ranks, other.ranks) and self.custom_groups == other.custom_groups

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[object, ...]:
        order = None if self._order is None else np.array(self._order)
        return (_rebuild_mesh, (self._pairs, order, self.world_size, dict(self.backends), self.custom_groups))

    def __str__(self) -> str:
        return format_axes(self.axes)

    def __repr__(self) -> str:
        return words.source(self)

    def _repr_html_(self) -> str:
        return words.html(self)


def _rebuild_mesh(
    pairs: Sequence[tuple[str, int]],
    order: Ranks | None,
    world_size: int,
    backends: Mapping[str, str],
    groups: Sequence[Group],
) -> DeviceMesh:
    mesh = DeviceMesh(pairs, ranks=order, world_size=world_size, backends=backends)
    for group in groups:
        mesh = mesh.with_group(group.name, group.array)
    return mesh
