"""DeviceMesh: named axes over ranks, and the groups that follow from them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshError
from meshlab.base._forwarding import implementation
from meshlab.mesh._axes import (
    WORLD,
    AxesLike,
    Axis,
    Ranks,
    axis_index,
    axis_indices,
    axis_pairs,
    check_coordinate,
    check_rank,
    fill_axes,
    format_axes,
    format_ranks,
    parse_axes,
    place_ranks,
    short,
)
from meshlab.mesh._custom_groups import check_backend, custom_group, custom_groups, family, names_range, unknown_group
from meshlab.mesh._describe import check_groups, explain, html, membership, source, stats
from meshlab.mesh._diff import MeshDiff, diff
from meshlab.mesh._groups import Group, Groups, Hierarchy, groups_name, split_levels
from meshlab.mesh._transforms import (
    check_same_groups,
    merged_axes,
    permutation,
    positional_or_keywords,
    selected_ranks,
    split_axes,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.mesh.interop._recipe import Recipe


class DeviceMesh:
    """Named axes over ranks, in row-major order: the last axis is the fastest.

    A mesh is an immutable value. It holds no devices and no processes. The order of the axes is also the order in
    which every rank creates its communicators.

    Parameters
    ----------
    axes : str, mapping, sequence of (str, int), or sequence of int, optional
        Names and sizes, such as ``"dp=2, tp=4"``, ``{"dp": 2, "tp": 4}`` or ``[("dp", 2), ("tp", 4)]``, slowest axis
        first. With `names`, sizes only, as in torch. One size may be -1: it is filled from `world_size`.
    names : sequence of str, optional
        Axis names, if `axes` contains sizes only: ``DeviceMesh((2, 4), ("dp", "tp"))``.
    world_size : int, optional
        Number of ranks in the world. Required for a size of -1. By default the product of the sizes.
    ranks : array_like of int, optional
        Global ranks in row-major order of the axes. By default 0, 1, 2, … Groups keep this order, so it is also the
        order of a ring. If `world_size` is larger than the number of ranks, the missing ranks are idle.
    backends : mapping of str to str, optional
        Communication backend of some axes, such as ``{"pp": "gloo"}``: one of meshlab or torch. `to` writes it for
        frameworks that support it. meshlab's own engines can open the groups of such an axis with Gloo, and all
        others with their own backend. For any other backend, they raise an error.
    **sizes : int
        Axes as keywords: ``DeviceMesh(dp=2, tp=4)``.

    Raises
    ------
    MeshError
        If names, sizes, ranks or backends are invalid. The message suggests the nearest valid sizes.
    ParseError
        If the text cannot be parsed.

    Examples
    --------
    >>> import meshlab as ml
    >>> mesh = ml.DeviceMesh("dp=2, tp=4")
    >>> mesh == ml.DeviceMesh(dp=2, tp=4) == ml.DeviceMesh((2, 4), ("dp", "tp"))
    True
    >>> [group.ranks for group in mesh["tp"]]
    [(0, 1, 2, 3), (4, 5, 6, 7)]
    >>> mesh.coordinates(6), mesh.rank_at(dp=1, tp=2)
    ({'dp': 1, 'tp': 2}, 6)
    >>> ml.DeviceMesh("dp=-1, tp=8", world_size=64).shape
    (8, 8)
    """

    axes: tuple[Axis, ...]
    """The axes, slowest first."""

    world_size: int
    """Number of ranks in the world, including idle ranks."""

    backends: Mapping[str, str]
    """Backend name of each axis and custom group that has one, in `creation_order` (read-only)."""

    custom_groups: tuple[Group, ...]
    """Groups added with `with_group`, in the order in which they were added."""

    _order: Ranks | None
    """Ranks in row-major order; None if they are 0, 1, 2, … without a gap, which saves the array in the usual case."""

    _groups: dict[tuple[str, ...], Groups]
    """Cache of the groups along each tuple of axis names."""

    __iter__ = None  # otherwise Python would iterate with mesh[0], mesh[1], …

    def __init__(
        self,
        axes: AxesLike | Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        /,
        *,
        world_size: int | None = None,
        ranks: npt.ArrayLike | None = None,
        backends: Mapping[str, str] | None = None,
        **sizes: int,
    ) -> None:
        if axes is not None and sizes:
            raise MeshError(
                "axes must be one argument or keywords, not both",
                hint="write DeviceMesh('dp=2, tp=4') or DeviceMesh((2, 4), ('dp', 'tp'))",
            )
        pairs = axis_pairs(sizes if axes is None else axes, names)
        placed_axes, order, world = place_ranks(pairs, ranks, world_size)
        self.__dict__.update(axes=placed_axes, world_size=world, custom_groups=(), _order=order, _groups={})
        self.__dict__.update(backends=self._check_backends(backends or {}))

    def _check_backends(self, backends: Mapping[str, str]) -> Mapping[str, str]:
        for axis, backend in backends.items():
            axis_index(self.axis_names, axis)
            check_backend("axis", axis, backend)
        return MappingProxyType({name: backends[name] for name in self.axis_names if name in backends})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"DeviceMesh is immutable; cannot set {name!r}")

    # -- named layouts and other frameworks ----------------------------------------------------------------------------

    @classmethod
    def data_parallel(cls, ranks: int) -> DeviceMesh:
        """Return a mesh with a single ``dp`` group of all ranks: every rank holds the complete model.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh.data_parallel(4).group("dp_0")
        Group('dp_0', [0, 1, 2, 3])
        """
        return cls([("dp", ranks)])

    @classmethod
    def tensor_parallel(cls, degree: int, world_size: int | None = None) -> DeviceMesh:
        """Return a mesh in which every layer is sharded over `degree` neighbouring ranks.

        Parameters
        ----------
        degree : int
            Size of the ``tp`` axis.
        world_size : int, optional
            Number of ranks, by default `degree`. The ``dp`` axis takes the remaining factor.

        Raises
        ------
        MeshError
            If `degree` does not divide `world_size`.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh.tensor_parallel(4, world_size=8)
        DeviceMesh('dp=2, tp=4')
        """
        return cls([("dp", -1), ("tp", degree)], world_size=degree if world_size is None else world_size)

    @classmethod
    def pipeline_parallel(cls, stages: int, world_size: int | None = None) -> DeviceMesh:
        """Return a mesh in which the layers are split into stages of neighbouring ranks.

        Parameters
        ----------
        stages : int
            Size of the ``pp`` axis.
        world_size : int, optional
            Number of ranks, by default `stages`. The ``dp`` axis takes the remaining factor.

        Raises
        ------
        MeshError
            If `stages` does not divide `world_size`.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh.pipeline_parallel(2, world_size=4)
        >>> mesh, mesh.group("pp_0"), mesh.stages()[1]
        (DeviceMesh('pp=2, dp=2'), Group('pp_0', [0, 2]), Group('pp_stage_1', [2, 3]))
        """
        return cls([("pp", stages), ("dp", -1)], world_size=stages if world_size is None else world_size)

    @classmethod
    def mixed(cls, tp: int, pp: int, dp: int, world_size: int | None = None) -> DeviceMesh:
        """Return a mesh with the axes ``pp``, ``dp`` and ``tp``, slowest first.

        Parameters
        ----------
        tp, pp, dp : int
            Axis sizes. One of them may be -1 if `world_size` is given.
        world_size : int, optional
            Number of ranks, by default the product of the sizes.

        Raises
        ------
        MeshError
            If the product of the sizes is not `world_size`.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh.mixed(tp=8, pp=2, dp=-1, world_size=64)
        DeviceMesh('pp=2, dp=4, tp=8')
        """
        return cls([("pp", pp), ("dp", dp), ("tp", tp)], world_size=world_size)

    @classmethod
    def read(
        cls,
        layout: str | Mapping[str, Any] | Recipe | object,
        *,
        framework: str | None = None,
        world_size: int | None = None,
        experts: bool | None = None,
    ) -> DeviceMesh:
        r"""Read a mesh from the code, flags, configs, arguments or objects of a training or serving framework.

        The frameworks are those that `to` writes, and Accelerate, axolotl, EasyLM, Levanter, LLaMA-Factory, MaxText,
        NeMo, OpenRLHF, picotron, slime, TensorRT-LLM and verl. The order of the axes is that of the framework.

        Parameters
        ----------
        layout : str, mapping, Recipe or object
            Code or command-line flags, such as a part of a script; a config as TOML, YAML, JSON or overrides of Hydra;
            arguments under the framework's own names; or a live mesh, grid or topology object. Text such as
            ``"dp=2, tp=4"``, variables such as ``TP_SIZE=4`` and a `DeviceMesh` are accepted too. Code is parsed and
            never executed.
        framework : str, optional
            One of ``meshlab.mesh.READERS``. Required for a mapping. By default text and objects are recognised.
        world_size : int, optional
            Number of ranks, if `layout` does not contain it. Megatron's flags do so only with those of torchrun.
        experts : bool, optional
            If `layout` has a dense and an expert layout, True reads the expert layout and False the dense one. By
            default the dense one is read, with a warning.

        Raises
        ------
        ParseError
            If the text cannot be parsed, contains no sizes, or is of a framework that meshlab does not read.
        MeshError
            If the layout is invalid or incomplete.

        Warns
        -----
        UserWarning
            If `layout` has experts and `experts` was not passed. Also for everything else that the mesh does not show:
            a setting about parallelism that is unknown or adds groups, a second mesh or role, or a slice. And for what
            was assumed, such as the order of variables without a framework.

        See Also
        --------
        to : write a mesh for a framework.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh.read("init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'tp'))")
        DeviceMesh('dp=2, tp=4')
        >>> flags = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --expert-model-parallel-size 16"
        >>> ml.DeviceMesh.read(flags, world_size=64, experts=False)
        DeviceMesh('pp=2, dp=4, tp=8')
        >>> flags += " --expert-tensor-parallel-size 1"
        >>> ml.DeviceMesh.read(flags, world_size=64, experts=True)
        DeviceMesh('pp=2, edp=2, ep=16, etp=1')
        >>> toml = "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 8"
        >>> ml.DeviceMesh.read(toml, world_size=64)
        DeviceMesh('dp_shard=8, tp=8')
        >>> ml.DeviceMesh.read("vllm serve model -tp 4 --decode-context-parallel-size 2")["dcp"].array.tolist()
        [[0, 1], [2, 3]]
        """
        return implementation(DeviceMesh.read)(layout, framework=framework, world_size=world_size, experts=experts)

    def to(self, framework: str, *, experts: DeviceMesh | None = None) -> Recipe:
        """Return the code or flags that create this layout in another framework.

        Parameters
        ----------
        framework : str
            ``torch``, ``jax``, ``megatron``, ``megatron-flags``, ``hypercomm``, ``deepspeed``, ``vllm``, ``sglang``,
            ``nanotron`` or ``torchtitan``.
        experts : DeviceMesh, optional
            A `view` of this mesh with the expert layout, for frameworks that have one.

        Returns
        -------
        Recipe
            ``text`` is the code or the flags, ``arguments`` the same as a mapping, and ``notes`` lists what the
            framework cannot express.

        Raises
        ------
        MeshError
            If the framework cannot express this layout.

        See Also
        --------
        read : the inverse.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=4").to("torch")
        init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        """
        return implementation(DeviceMesh.to)(self, framework, experts=experts)

    # -- axes and coordinates ------------------------------------------------------------------------------------------

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes, slowest first."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes, slowest first."""
        return tuple(axis.size for axis in self.axes)

    def size(self, *axes: str) -> int:
        """Return the number of ranks along one or more axes, or in the complete mesh if no axis is passed.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("pp=2, dp=3, tp=4")
        >>> mesh.size("dp", "tp"), mesh.size()
        (12, 24)
        """
        if not axes:
            return math.prod(self.shape)
        return math.prod(self.axes[index].size for index in axis_indices(self.axis_names, axes))

    @cached_property
    def ranks(self) -> Ranks:
        """The global ranks: read-only int32 in the shape of the mesh."""
        flat = np.arange(self.world_size, dtype=np.int32) if self._order is None else self._order
        return _read_only(flat.reshape(self.shape))

    @cached_property
    def idle_ranks(self) -> Ranks:
        """The ranks of the world that are not in the mesh, ascending: read-only int32.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("tp=4", ranks=[0, 1, 2, 3], world_size=6).idle_ranks.tolist()
        [4, 5]
        """
        return _read_only(np.flatnonzero(self.positions < 0).astype(np.int32))

    @cached_property
    def strides(self) -> tuple[int | None, ...]:
        """Distance in global rank between neighbours along each axis; None if it varies.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("pp=2, dp=3, tp=4").strides, ml.DeviceMesh("tp=3", ranks=[0, 2, 1]).strides
        ((12, 4, 1), (None,))
        """
        strides: list[int | None] = []
        for index, axis in enumerate(self.axes):
            # Also the stride of an axis with one rank, which has no neighbours to measure.
            stride: int | None = math.prod(self.shape[index + 1 :])
            if axis.size > 1 and self._order is not None:
                steps = np.diff(self.ranks, axis=index)
                first = int(steps.flat[0])
                stride = first if (steps == first).all() else None
            strides.append(stride)
        return tuple(strides)

    @property
    def in_order(self) -> bool:
        """True if the ranks are 0, 1, 2, … without a gap, which is the usual case."""
        return self._order is None

    @cached_property
    def positions(self) -> Ranks:
        """Row-major position of every global rank, -1 for an idle rank: read-only int32 of shape (world_size,)."""
        if self._order is None:
            return _read_only(np.arange(self.world_size, dtype=np.int32))
        positions = np.full(self.world_size, -1, dtype=np.int32)
        positions[self._order] = np.arange(len(self._order), dtype=np.int32)
        return _read_only(positions)

    @cached_property
    def coordinate_array(self) -> Ranks:
        """Coordinates of every global rank, -1 for an idle rank: read-only int32 of shape (world_size, axes)."""
        grid = np.empty((*self.shape, len(self.axes)), dtype=np.int32)
        for index, axis in enumerate(self.axes):
            # Broadcasting repeats the coordinates of one axis over all others without an index array per axis.
            along = np.arange(axis.size, dtype=np.int32)
            grid[..., index] = along.reshape(-1, *[1] * (len(self.axes) - index - 1))
        coordinates = grid.reshape(-1, len(self.axes))
        if self._order is not None:
            by_position = coordinates
            coordinates = np.full((self.world_size, len(self.axes)), -1, dtype=np.int32)
            coordinates[self._order] = by_position
        return _read_only(coordinates)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank on every axis.

        Raises
        ------
        MeshError
            If the rank does not exist or is idle.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=4").coordinates(5)
        {'dp': 1, 'tp': 1}
        """
        rank = check_rank(rank, self.world_size)
        position = rank if self._order is None else int(self.positions[rank])
        if position < 0:
            raise MeshError(f"rank {rank} is idle: this mesh does not use {format_ranks(self.idle_ranks.tolist())}")
        pairs = []
        for axis in reversed(self.axes):  # the last axis is the fastest, so it is the remainder
            position, coordinate = divmod(position, axis.size)
            pairs.append((axis.name, coordinate))
        return dict(reversed(pairs))

    def rank_at(self, **coordinates: int) -> int:
        """Return the rank at the given coordinates, one for every axis.

        Raises
        ------
        MeshError
            If an axis is missing or unknown.
            If a coordinate is out of range.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=4").rank_at(tp=1, dp=1)
        5
        """
        for name in coordinates:
            axis_index(self.axis_names, name)
        missing = [name for name in self.axis_names if name not in coordinates]
        if missing:
            raise MeshError("rank_at() needs a coordinate for every axis", hint=f"add {'=, '.join(missing)}=")
        position = 0
        for axis in self.axes:
            position = position * axis.size + check_coordinate(axis, coordinates[axis.name])
        return position if self._order is None else int(self._order[position])

    # -- groups --------------------------------------------------------------------------------------------------------

    def __getitem__(self, axes: str | Sequence[str]) -> Groups:
        """Return the groups along one or more axes: each group contains the ranks that differ only there.

        In torch, ``mesh["tp"]`` is a sub-mesh. Here it returns all groups along ``tp``, because every rank's group is
        known without running on that rank. For a sub-mesh as in torch, call ``mesh.submesh("tp", rank=5)``. For the
        ranks at chosen coordinates, call ``mesh.select(pp=0)``.

        Parameters
        ----------
        axes : str or sequence of str
            ``mesh["tp"]``, ``mesh["dp", "cp"]`` (also written ``mesh["dp-cp"]``), ``mesh["world"]``, a single group
            such as ``mesh["tp_0"]``, or the name of a custom group, or of several from `with_groups`. Ranks in a group
            are in row-major order of the axes as listed here, the last one fastest. Groups are in row-major order of
            the remaining axes.

        Returns
        -------
        Groups
            A sequence of `Group`. The groups along axes contain every rank of the mesh exactly once.

        Raises
        ------
        MeshError
            If an axis or group is unknown. The message lists the known ones.
            If an axis is repeated.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("dp=2, cp=2, tp=2").with_group("pair", [3, 0])
        >>> mesh["dp", "cp"].array.tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
        >>> mesh["tp"].of(5), mesh["pair"][0]
        (Group('tp_2', [4, 5]), Group('pair', [3, 0]))
        """
        if isinstance(axes, str):
            cached = self._groups.get((axes,))
            if cached is not None:
                return cached
            parts = axes.split("-")
            if not all(part in self.axis_names for part in parts):
                groups = family(self.custom_groups, axes, world_size=self.world_size)
                if groups is not None:
                    return groups
                group = self.group(axes)
                return Groups(axes, group.array[None, :], world_size=self.world_size, axes=group.axes, single=True)
            names = tuple(parts)
        else:
            names = tuple(axes) if isinstance(axes, Iterable) else (axes,)
            if not all(isinstance(name, str) for name in names):
                raise MeshError(
                    f"mesh[...] accepts axis names, such as mesh['tp'] or mesh['dp', 'cp'], not {short(axes)}",
                    hint=f"write mesh['{self.axis_names[-1]}'][0] for one group, or call rank_at() for a rank",
                )
        if names not in self._groups:
            array = self._group_array(axis_indices(self.axis_names, names))
            self._groups[names] = Groups(groups_name(names), array, world_size=self.world_size, axes=names)
        return self._groups[names]

    def _group_array(self, inside: tuple[int, ...]) -> Ranks:
        """Return one row per group along the axes with the indices `inside`: int32 of shape (groups, size)."""
        # A transposition puts the grouped axes last, in the order of `inside`, so that a reshape makes each group one
        # row. This costs one copy for all groups; Megatron and DeepSpeed loop over groups and ranks in Python.
        outside = [index for index in range(len(self.axes)) if index not in inside]
        size = math.prod(self.shape[index] for index in inside)
        return _read_only(np.ascontiguousarray(self.ranks.transpose(*outside, *inside).reshape(-1, size)))

    @property
    def world(self) -> Group:
        """The group of all ranks in ascending order, including idle ranks."""
        return Group(WORLD, np.arange(self.world_size, dtype=np.int32))

    def group(self, name: str) -> Group:
        """Return one group by its name.

        Parameters
        ----------
        name : str
            Axes and a number, such as ``"tp_0"`` or ``"dp-cp_1"``, the name of a custom group, or ``"world"``.

        Raises
        ------
        MeshError
            If no group has that name. The message lists the known ones.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=2").group("dp_1")
        Group('dp_1', [1, 3])
        """
        if name == WORLD:
            return self.world
        for group in self.custom_groups:
            if group.name == name:
                return group
        axes, _, number = str(name).rpartition("_")
        parts = axes.split("-")
        if re.fullmatch(r"0|[1-9][0-9]{0,8}", number) and all(part in self.axis_names for part in parts):
            groups = self[parts]
            if int(number) < len(groups):
                return groups[int(number)]
            raise MeshError(f"unknown group {name!r}", hint=f"choose {names_range(groups)}")
        raise unknown_group(self, name)

    @property
    def creation_order(self) -> tuple[str, ...]:
        """Order in which every rank creates its communicators: the axes, then the custom groups.

        All groups along an axis are created together, by one split of the world.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0]).creation_order
        ('dp', 'tp', 'pair')
        """
        return (*self.axis_names, *(group.name for group in self.custom_groups))

    def group_names(self, axes: str | Sequence[str] | None = None) -> list[str]:
        """Return the names of all groups, in the order in which every rank creates them.

        Parameters
        ----------
        axes : str or sequence of str, optional
            Only the groups of ``mesh[axes]``. By default those of each axis, then the custom groups.

        Raises
        ------
        MeshError
            If an axis or group is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0])
        >>> mesh.group_names(), mesh.group_names("tp")
        (['dp_0', 'dp_1', 'tp_0', 'tp_1', 'pair'], ['tp_0', 'tp_1'])
        """
        if axes is not None:
            return self[axes].names
        names = [name for axis in self.axis_names for name in self[axis].names]
        return names + [group.name for group in self.custom_groups]

    def ranks_by_backend(self) -> dict[str, Ranks]:
        """Return the ranks that communicate with each backend that this mesh names.

        Returns
        -------
        dict of str to numpy.ndarray
            Backends in the order of `backends`, each with its ascending ranks: read-only int32. A rank has several
            backends if its groups do. Groups without a named backend are omitted.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("pp=2, tp=2", backends={"pp": "gloo"}).with_group("pair", [3, 0], backend="mpi")
        >>> {name: ranks.tolist() for name, ranks in mesh.ranks_by_backend().items()}
        {'gloo': [0, 1, 2, 3], 'mpi': [0, 3]}
        """
        custom = {group.name: group.array for group in self.custom_groups}
        uses: dict[str, npt.NDArray[np.bool_]] = {}
        for name, backend in self.backends.items():
            uses.setdefault(backend, np.zeros(self.world_size, dtype=bool))[custom.get(name, self.ranks)] = True
        return {backend: _read_only(np.flatnonzero(ranks).astype(np.int32)) for backend, ranks in uses.items()}

    def backend_of(self, axes: str | Sequence[str]) -> str | None:
        """Return the backend that this mesh names for some groups, or None if it names none.

        Groups along several axes have a backend if it is that of each of these axes. The world has none.

        Parameters
        ----------
        axes : str or sequence of str
            The groups, as in ``mesh[axes]``.

        Raises
        ------
        MeshError
            If an axis or group is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("pp=2, dp=2, tp=2", backends={"pp": "gloo", "dp": "gloo"})
        >>> mesh.backend_of("pp"), mesh.backend_of("pp_0"), mesh.backend_of("pp-dp"), mesh.backend_of(["dp", "tp"])
        ('gloo', 'gloo', 'gloo', None)
        """
        groups = self[axes]
        named = {self.backends.get(name) for name in groups.axes or groups.names}
        return named.pop() if len(named) == 1 else None

    def with_group(
        self, name: str, ranks: Sequence[int] | npt.NDArray[Any], *, backend: str | None = None
    ) -> DeviceMesh:
        """Return a mesh with one more custom group.

        Parameters
        ----------
        name : str
            An identifier that is not an axis or group of this mesh.
        ranks : sequence of int
            Global ranks of the members, in group order.
        backend : str, optional
            Communication backend of the group, as that of an axis in ``DeviceMesh(…, backends=…)``.

        Raises
        ------
        MeshError
            If the name is taken.
            If the ranks are empty, repeated or not in the mesh.
            If the backend is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=2").with_group("diagonal", [3, 0]).group("diagonal")
        Group('diagonal', [3, 0])
        """
        return self._adding([custom_group(self, name, ranks, backend)], backend)

    def with_groups(self, name: str, rows: npt.ArrayLike, *, backend: str | None = None) -> DeviceMesh:
        """Return a mesh with several custom groups of one size, such as the parts into which an axis is split.

        Parameters
        ----------
        name : str
            Common name of the groups: they are called ``name_0``, ``name_1``, …, and ``mesh[name]`` returns them.
        rows : array_like of int
            One row of global ranks per group, of shape (groups, size).
        backend : str, optional
            Communication backend of the groups, as in `with_group`.

        Raises
        ------
        MeshError
            If the name is taken.
            If a row is not a valid group.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("tp=4").with_groups("dcp", [[0, 1], [2, 3]])
        >>> mesh["dcp"].of(2), mesh["tp"].of(2)
        (Group('dcp_1', [2, 3]), Group('tp_0', [0, 1, 2, 3]))
        """
        return self._adding(custom_groups(self, name, rows, backend), backend)

    def _adding(self, groups: Sequence[Group], backend: str | None) -> DeviceMesh:
        """Return a mesh with more custom groups, which all have one backend or none."""
        backends = {} if backend is None else {group.name: backend for group in groups}
        return self._with_custom_groups((*self.custom_groups, *groups), {**self.backends, **backends})

    def without_group(self, name: str) -> DeviceMesh:
        """Return a mesh without one of the custom groups.

        Raises
        ------
        MeshError
            If no custom group has that name.
        """
        others = tuple(group for group in self.custom_groups if group.name != name)
        if len(others) == len(self.custom_groups):
            names = ", ".join(group.name for group in self.custom_groups)
            hint = f"choose one of {names}" if names else ""
            raise MeshError(f"unknown custom group {short(name)}{'' if names else ': this mesh has none'}", hint=hint)
        backends = {other: backend for other, backend in self.backends.items() if other != name}
        return self._with_custom_groups(others, backends)

    def _with_custom_groups(self, groups: tuple[Group, ...], backends: Mapping[str, str]) -> DeviceMesh:
        # Copies the cached arrays too, because they do not depend on custom groups. Only the fingerprint does.
        mesh = object.__new__(DeviceMesh)
        mesh.__dict__.update({name: value for name, value in self.__dict__.items() if name != "fingerprint"})
        mesh.__dict__.update(custom_groups=groups, backends=MappingProxyType(dict(backends)))
        return mesh

    def stages(self, axis: str = "pp") -> Groups:
        """Return the ranks of every pipeline stage: each group contains the ranks with one coordinate on `axis`.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("pp=2, dp=1, tp=2").stages().array.tolist()
        [[0, 1], [2, 3]]
        """
        rows = np.moveaxis(self.ranks, axis_index(self.axis_names, axis), 0).reshape(self.size(axis), -1)
        return Groups(f"{axis}_stage", rows, world_size=self.world_size)

    def neighbours(self, axis: str = "pp", *, ring: bool = False) -> Ranks:
        """Return the pairs of ranks that are neighbours along an axis, such as pipeline stages.

        Parameters
        ----------
        axis : str, default "pp"
            Name of the axis.
        ring : bool, default False
            If True, the last rank of each group also sends to the first.

        Returns
        -------
        numpy.ndarray
            Sender and receiver, group by group: int32 of shape (pairs, 2). A group of one rank has no pairs.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("pp=3, dp=2").neighbours().tolist()
        [[0, 2], [2, 4], [1, 3], [3, 5]]
        """
        rows = self[axis,].array
        receivers = np.roll(rows, -1, axis=1) if ring and rows.shape[1] > 1 else rows[:, 1:]
        return np.stack([rows[:, : receivers.shape[1]], receivers], axis=-1).reshape(-1, 2)

    def hierarchy(self, axis: str | Sequence[str], nodes: int | npt.ArrayLike) -> Hierarchy:
        """Split the groups of an axis into two levels: inside a node, and across nodes.

        Parameters
        ----------
        axis : str or sequence of str
            Axes or group, as in ``mesh[axis]``.
        nodes : int or array_like of int
            Number of ranks per node, or the node number of every global rank.

        Returns
        -------
        Hierarchy
            ``inner`` and ``outer`` groups, whose ``color`` and ``key`` are the arguments of two splits.

        Raises
        ------
        MeshError
            If a group has different numbers of ranks on its nodes.

        Examples
        --------
        >>> import meshlab as ml
        >>> levels = ml.DeviceMesh("dp=8").hierarchy("dp", nodes=4)
        >>> levels.inner.array.tolist(), levels.outer.array.tolist()
        ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]])
        """
        return split_levels(self[axis], nodes)

    def check_groups(self, *axis_sets: str | Sequence[str]) -> pd.DataFrame:
        """Check the groups against an independent computation.

        Each rank's group and position are computed from the coordinates of that rank alone and compared with the
        arrays of ``mesh[axes]``.

        Parameters
        ----------
        *axis_sets : str or sequence of str
            Sets of axes to check. By default every set of axes of this mesh.

        Returns
        -------
        pandas.DataFrame
            One row per set of axes, with the columns ``axes``, ``groups`` and ``size``, and the results ``disjoint``
            (no rank is in two groups), ``covers`` (every rank of the mesh is in one), ``equal_size``, and
            ``same_order`` (the groups, and the ranks in each group, have the computed order).

        Raises
        ------
        MeshError
            If an axis is unknown.
            If the mesh has more than ten axes and no set was passed.

        Examples
        --------
        >>> import meshlab as ml
        >>> print(ml.DeviceMesh("dp=2, tp=4").check_groups().to_string(index=False))
         axes  groups  size  disjoint  covers  equal_size  same_order
           dp       4     2      True    True        True        True
           tp       2     4      True    True        True        True
        dp-tp       1     8      True    True        True        True
        """
        return check_groups(self, axis_sets)

    # -- other meshes of the same ranks --------------------------------------------------------------------------------

    def _derive(
        self, pairs: Sequence[tuple[str, int]], ranks: npt.NDArray[Any], origin: Mapping[str, str] | None = None
    ) -> DeviceMesh:
        """Return a mesh of the same world with its backends and custom groups. `origin` maps new axis names to old."""
        # Custom groups are added again, not copied, because a member may be idle in the new mesh, and a new axis may
        # have the name of a group.
        old_names = {name: (origin or {}).get(name, name) for name, _ in pairs}
        backends = {new: self.backends[old] for new, old in old_names.items() if old in self.backends}
        mesh = DeviceMesh(pairs, ranks=ranks.reshape(-1), world_size=self.world_size, backends=backends)
        for group in self.custom_groups:
            try:
                mesh = mesh.with_group(group.name, group.array, backend=self.backends.get(group.name))
            except MeshError as error:
                raise MeshError(
                    f"cannot keep group {group.name!r}: {error.message}",
                    hint=f"drop it first with without_group({group.name!r})",
                ) from None
        return mesh

    def reorder(self, *axes: str) -> DeviceMesh:
        """Return a mesh with the axes in a different order over the same sequence of ranks.

        A different axis becomes the fastest, so the groups change.

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
        transpose : a different order of the axes with the same groups.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("dp=2, tp=4").reorder("tp", "dp")
        >>> mesh, mesh.group("tp_0")
        (DeviceMesh('tp=4, dp=2'), Group('tp_0', [0, 2, 4, 6]))
        """
        pairs = [axis_pairs(self.axes)[index] for index in permutation(self, axes)]
        return self._derive(pairs, self.ranks)

    def transpose(self, *axes: str) -> DeviceMesh:
        """Return a mesh with the axes in a different order and every rank at its old coordinates.

        The groups keep their members.

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
        reorder : a different order of the axes that changes the fastest axis and the groups.

        Examples
        --------
        >>> import meshlab as ml
        >>> mesh = ml.DeviceMesh("dp=2, tp=4").transpose("tp", "dp")
        >>> mesh, mesh.group("tp_0")
        (DeviceMesh('dp=2, tp=4').transpose('tp', 'dp'), Group('tp_0', [0, 1, 2, 3]))
        """
        indices = permutation(self, axes)
        return self._derive([axis_pairs(self.axes)[index] for index in indices], self.ranks.transpose(indices))

    def rename(self, **names: str) -> DeviceMesh:
        """Return the same mesh with different axis names.

        Parameters
        ----------
        **names : str
            ``old="new"``.

        Raises
        ------
        MeshError
            If an axis is unknown.
            If a new name is taken or invalid.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=4").rename(dp="data")
        DeviceMesh('data=2, tp=4')
        """
        axis_indices(self.axis_names, tuple(names))
        # All names change at the same time, so rename(a="b", b="a") swaps them.
        pairs = [(names.get(axis.name, axis.name), axis.size) for axis in self.axes]
        return self._derive(pairs, self.ranks, {names.get(n, n): n for n in self.axis_names})

    def flatten(self, *axes: str, name: str | None = None) -> DeviceMesh:
        """Return a mesh with several axes merged into one, whose groups are the groups ``mesh[axes]``.

        Parameters
        ----------
        *axes : str
            At least one axis. The last one is the fastest inside the new axis.
        name : str, optional
            Name of the new axis. By default the old names joined with underscores.

        Raises
        ------
        MeshError
            If an axis is unknown or repeated.
            If the name is taken.

        Examples
        --------
        >>> import meshlab as ml
        >>> flat = ml.DeviceMesh("dp=2, cp=2, tp=2").flatten("dp", "cp")
        >>> flat, flat.group("dp_cp_0")
        (DeviceMesh('dp_cp=4, tp=2'), Group('dp_cp_0', [0, 2, 4, 6]))
        """
        return self._derive(*merged_axes(self, axes, name))

    def split_axis(self, axis: str, parts: AxesLike | None = None, /, **sizes: int) -> DeviceMesh:
        """Return a mesh with one axis split into several. Ranks keep their order.

        Parameters
        ----------
        axis : str
            The axis to split.
        parts : str, mapping or sequence of (str, int), optional
            The new axes, slowest first. One size may be -1.
        **sizes : int
            The new axes as keywords instead.

        Raises
        ------
        MeshError
            If the product of the sizes is not the size of the axis.
            If a name is taken.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=8, tp=2").split_axis("dp", dp_replicate=2, dp_shard=-1)
        DeviceMesh('dp_replicate=2, dp_shard=4, tp=2')
        """
        return self._derive(*split_axes(self, axis, parts, sizes))

    def select(self, **coordinates: int | slice | Sequence[int]) -> DeviceMesh:
        """Return the part of the mesh at the given coordinates, with its global ranks. The other ranks become idle.

        Parameters
        ----------
        **coordinates : int, slice or sequence of int
            Per axis, a single coordinate, which removes the axis, or several coordinates, which shorten it.

        Raises
        ------
        MeshError
            If an axis is unknown or a coordinate is out of range.
            If no axis would be left.

        Examples
        --------
        >>> import meshlab as ml
        >>> stage = ml.DeviceMesh("pp=2, dp=2, tp=2").select(pp=1)
        >>> stage.ranks.tolist(), stage.idle_ranks.tolist()
        ([[4, 5], [6, 7]], [0, 1, 2, 3])
        """
        return self._derive(*selected_ranks(self, coordinates))

    def submesh(self, *axes: str, rank: int) -> DeviceMesh:
        """Return the sub-mesh of one rank over some axes: the ranks that differ from it only there.

        This is the mesh that ``mesh["dp", "cp"]`` returns on that rank in torch.

        Parameters
        ----------
        *axes : str
            Axes of the sub-mesh, slowest first.
        rank : int
            Global rank.

        Raises
        ------
        MeshError
            If an axis or the rank is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, pp=2, cp=2").submesh("dp", "cp", rank=5).ranks.tolist()
        [[0, 1], [4, 5]]
        """
        axis_indices(self.axis_names, axes)
        fixed = {name: value for name, value in self.coordinates(rank).items() if name not in axes}
        return self.select(**fixed).transpose(*axes)

    def reshape(self, axes: AxesLike | None = None, /, **sizes: int) -> DeviceMesh:
        """Return a mesh with different axes over the same sequence of ranks.

        Parameters
        ----------
        axes : str, mapping or sequence of (str, int), optional
            The new axes. One size may be -1.
        **sizes : int
            The new axes as keywords instead.

        Raises
        ------
        MeshError
            If the product of the sizes is not the number of ranks of this mesh.
            If the name of a custom group is also the name of a new axis.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=4").reshape("pp=2, dp=-1, tp=2")
        DeviceMesh('pp=2, dp=2, tp=2')
        """
        pairs = axis_pairs(fill_axes(positional_or_keywords(axes, sizes), self.size()))
        return self._derive(pairs, self.ranks)

    def view(self, axes: AxesLike | None = None, /, **sizes: int) -> DeviceMesh:
        """Return a second factorisation of the same ranks, such as an expert layout next to the dense one.

        A view is a `reshape`, with its arguments, in which every axis that both meshes have keeps its groups.

        Raises
        ------
        MeshError
            If the product of the sizes is not the number of ranks of this mesh.
            If a shared axis would have different groups.

        Examples
        --------
        >>> import meshlab as ml
        >>> dense = ml.DeviceMesh("pp=2, dp=4, tp=8")
        >>> experts = dense.view("pp=2, edp=2, ep=16")
        >>> experts["pp"] == dense["pp"]
        True
        """
        view = self.reshape(axes, **sizes)
        for name in self.axis_names:
            if name in view.axis_names:
                check_same_groups(self, view, name)
        return view

    # -- descriptions --------------------------------------------------------------------------------------------------

    def membership(self) -> pd.DataFrame:
        """Return one row per rank of the mesh with its coordinates and its group on every axis.

        Returns
        -------
        pandas.DataFrame
            Columns: ``rank``, one integer column per axis, ``<axis>_group`` with the group name per axis (categorical),
            and one boolean column per custom group.

        Examples
        --------
        >>> import meshlab as ml
        >>> print(ml.DeviceMesh("dp=2, tp=2").membership().to_string(index=False))
         rank  dp  tp dp_group tp_group
            0   0   0     dp_0     tp_0
            1   0   1     dp_1     tp_0
            2   1   0     dp_0     tp_1
            3   1   1     dp_1     tp_1
        """
        return membership(self)

    def stats(self) -> pd.DataFrame:
        """Return one row per axis and custom group with its sizes and stride.

        Returns
        -------
        pandas.DataFrame
            Columns: ``axis`` (name of the axis or custom group), ``size`` (ranks per group), ``groups`` (number of
            groups), ``stride`` (distance in global rank between neighbours, missing if it varies), ``backend``,
            ``first_group`` (its ranks as a string) and ``is_custom``.

        Examples
        --------
        >>> import meshlab as ml
        >>> print(ml.DeviceMesh("dp=2, tp=4").stats()[["axis", "size", "groups", "stride"]].to_string(index=False))
        axis  size  groups  stride
          dp     2       4       4
          tp     4       2       1
        """
        return stats(self)

    def explain(self, ranks_per_node: int = 8) -> str:
        """Describe the rank layout in plain English: the fastest axis, and which groups leave a node.

        Parameters
        ----------
        ranks_per_node : int, default 8
            Number of consecutive ranks on one node.

        Raises
        ------
        MeshError
            If `ranks_per_node` is not a positive integer.

        Examples
        --------
        >>> import meshlab as ml
        >>> print(ml.DeviceMesh("dp=2, tp=4").explain(ranks_per_node=4))
        dp=2, tp=4: 8 ranks; the last axis is the fastest.
        tp (tensor parallel): the fastest axis; the first group is ranks 0 to 3 (adjacent).
        dp (data parallel): the first group is ranks 0 and 4 (stride 4).
        With 4 ranks per node, tp stays inside a node, and dp crosses nodes.
        Axis order in torch and JAX: (dp, tp). In Megatron, which lists the fastest axis first: tp-dp.
        """
        return explain(self, ranks_per_node)

    def diff(self, other: MeshLike) -> MeshDiff:
        """Compare the groups of this mesh with those of another mesh.

        Parameters
        ----------
        other : DeviceMesh or str
            A mesh with any axes, sizes, ranks and world size. A size of -1 is filled from this mesh's world size.

        Returns
        -------
        MeshDiff
            ``str()`` summarises the changes, and ``frame()`` lists them per rank.

        Raises
        ------
        MeshError
            If `other` is not a mesh.

        Examples
        --------
        >>> import meshlab as ml
        >>> change = ml.DeviceMesh("dp=2, tp=2").diff("tp=2, dp=2")
        >>> print(change)
        dp=2, tp=2 → tp=2, dp=2: 4 of 4 ranks change groups
        dp: 4 ranks get different peers; rank 0 moves from dp_0 [0, 2] to dp_0 [0, 1]
        tp: 4 ranks get different peers; rank 0 moves from tp_0 [0, 1] to tp_0 [0, 2]
        >>> print(change.frame().head(2).to_string(index=False))
         rank axis before after  change  lost  gained
            0   dp   dp_0  dp_0 members     1       1
            1   dp   dp_1  dp_0 members     1       1
        """
        return diff(self, as_mesh(other, fill=self.world_size))

    def plot(
        self, axis: str | Sequence[str] | None = None, *, ax: Axes | None = None, columns: int | None = None
    ) -> Axes:
        """Draw one cell per rank, coloured by the group of the rank along an axis.

        Parameters
        ----------
        axis : str or sequence of str, optional
            Axes or group, as in ``mesh[axis]``. By default the fastest axis.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default a new figure is created.
        columns : int, optional
            Number of ranks per row. By default the figure has an aspect ratio near 3:2.

        Raises
        ------
        MeshError
            If an axis or group is unknown, or `columns` splits an axis unevenly.

        Examples
        --------
        >>> import meshlab as ml
        >>> from matplotlib.figure import Figure
        >>> ml.DeviceMesh("dp=2, tp=4").plot("dp", ax=Figure().add_subplot()).get_title(loc="left")
        'dp: 4 groups of 2 ranks'
        """
        return implementation(DeviceMesh.plot)(self, axis, ax=ax, columns=columns)

    # -- identity ------------------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """Short, stable hash of the mesh, stored with every result and report.

        Two meshes have the same fingerprint only if axes, ranks, world size, backends and custom groups are equal. The
        hash does not depend on the machine, the process or the Python version.
        """
        # Saved runs contain this hash, so the bytes below must never change. A part is written only if it is not the
        # default, with its own prefix, so that no two meshes write the same bytes. Ranks are always little-endian.
        digest = hashlib.sha256(str(self).encode())
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
        # The default would pickle all cached arrays, and cannot pickle a mapping proxy.
        order = None if self._order is None else np.array(self._order)
        groups = [(group.name, group.array) for group in self.custom_groups]
        return rebuilt_mesh, (list(axis_pairs(self.axes)), order, self.world_size, dict(self.backends), groups)

    def __str__(self) -> str:
        return format_axes(self.axes)

    def __repr__(self) -> str:
        return source(self)

    def _repr_html_(self) -> str:
        return html(self)


def _read_only(array: Ranks) -> Ranks:
    array.flags.writeable = False
    return array


def rebuilt_mesh(
    axes: Sequence[tuple[str, int]],
    ranks: Ranks | Sequence[int] | None,
    world_size: int,
    backends: Mapping[str, str],
    groups: Sequence[tuple[str, Ranks | Sequence[int]]],
) -> DeviceMesh:
    """Return a mesh with custom groups. `backends` has the backends of axes and groups."""
    names = {name for name, _ in groups}
    of_axes = {name: backend for name, backend in backends.items() if name not in names}
    mesh = DeviceMesh(axes, ranks=ranks, world_size=world_size, backends=of_axes)
    for name, members in groups:
        mesh = mesh.with_group(name, members, backend=backends.get(name))
    return mesh


MeshLike = DeviceMesh | str
"""A mesh, or text such as ``"dp=2, tp=4"``."""


def as_mesh(given: MeshLike, fill: int | None = None) -> DeviceMesh:
    """Return a mesh unchanged, or the mesh described by text.

    Parameters
    ----------
    given : DeviceMesh or str
        A mesh, or text such as ``"dp=2, tp=4"``.
    fill : int, optional
        Number of ranks that a size of -1 in the text is filled from. Ignored otherwise.

    Raises
    ------
    MeshError
        If `given` is neither a mesh nor text.
        If the text describes an invalid mesh.
    ParseError
        If the text cannot be parsed.

    Examples
    --------
    >>> as_mesh("dp=2, tp=4")
    DeviceMesh('dp=2, tp=4')
    >>> as_mesh("dp=-1, tp=4", fill=16)
    DeviceMesh('dp=4, tp=4')
    """
    if isinstance(given, DeviceMesh):
        return given
    if isinstance(given, str):
        axes = parse_axes(given)
        return DeviceMesh(axes, world_size=fill if any(size == -1 for _, size in axes) else None)
    raise MeshError(f"mesh must be a DeviceMesh or text such as 'dp=2, tp=4', not {type(given).__name__}")
