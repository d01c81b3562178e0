"""Designer: edit a mesh with the keyboard or the mouse, and use it in Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import traitlets

from meshlab.base._errors import MeshError
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._presets import ClusterLike
from meshlab.widgets._machines import Machine
from meshlab.widgets._picture import Picture, reject_mesh
from meshlab.widgets._workbench import Workbench


class Designer(Workbench):
    """An editor for the names, sizes and order of the axes of a mesh, next to the picture of its groups.

    It is a `Workbench` with the panel of the mesh only, and it works without a machine. Invalid sizes are explained,
    and the nearest valid sizes are offered. `mesh` keeps the last valid value. All controls work with the keyboard, and
    all attributes can be set from any thread.

    Parameters
    ----------
    cluster : Cluster or str, optional
        The machine, or the name of a preset. It defines the number of ranks, and is drawn with the links they use.
    mesh : DeviceMesh or str, optional
        The initial mesh. By default it has two axes.
    world_size : int, optional
        The number of ranks that each mesh must have. By default the number of devices of the cluster. Without a
        cluster, any number is valid.

    Raises
    ------
    MeshError
        If the mesh does not have `world_size` ranks.
        If `world_size` exceeds the number of devices of the cluster.

    Examples
    --------
    >>> designer = Designer(mesh="dp=2, tp=4", world_size=8)
    >>> designer.mesh = "dp=4, tp=2"
    >>> designer.selected = [0, 1]
    >>> designer.undo()
    >>> designer.mesh, designer.selected
    (DeviceMesh('dp=2, tp=4'), (0, 1))
    """

    def __init__(
        self, cluster: ClusterLike | None = None, mesh: MeshLike | None = None, world_size: int | None = None
    ) -> None:
        self._fixed_size = world_size
        super().__init__(cluster, mesh, panels=("mesh",))

    def _first(self, cluster: ClusterLike | None, mesh: MeshLike | None) -> tuple[Machine | None, DeviceMesh]:
        reject_mesh(cluster)
        machine = None if cluster is None else Machine.of(cluster)
        if machine is not None and not machine.cluster.n_devices:
            machine = None
        size = self._fixed_size
        if machine is not None:
            devices = machine.cluster.n_devices
            size = devices if size is None else size
            if size > devices:
                raise MeshError(
                    f"world_size={size} exceeds the {devices} devices of the cluster; choose at most {devices}"
                )
            self._fixed_size = size
        return machine, self._with_size(_first_mesh(machine, size) if mesh is None else mesh)

    def _with_size(self, mesh: MeshLike) -> DeviceMesh:
        """Return a mesh, or raise with the nearest sizes if it does not have the number of ranks."""
        if isinstance(mesh, str):
            return DeviceMesh(mesh, world_size=self._fixed_size)
        mesh = as_mesh(mesh)
        DeviceMesh([(axis.name, axis.size) for axis in mesh.axes], world_size=self._fixed_size)
        return mesh

    @property
    def _total(self) -> int | None:
        return self._fixed_size

    @traitlets.validate("mesh")
    def _check_mesh(self, proposal: Any) -> DeviceMesh | None:
        if self._is_writing:
            return proposal["value"]  # type: ignore[no-any-return]
        return self._with_size(proposal["value"])

    @traitlets.validate("axis")
    def _check_axis(self, proposal: Any) -> str:
        axis: str = proposal["value"]
        options = self._design.mesh.creation_order
        if not self._is_writing and axis not in options:
            raise MeshError(f"unknown axis {axis!r}; choose one of {', '.join(options)}")
        return axis

    @property
    def picture(self) -> Picture:
        """The picture, which is the designer itself."""
        return self

    @property
    def code(self) -> str:
        """The mesh as Python code."""
        return repr(self.mesh).replace("'", '"')

    def _make_code(self) -> str:
        return self.code

    def __repr__(self) -> str:
        return f"Designer({self.mesh!r})"


def _first_mesh(machine: Machine | None, size: int | None) -> DeviceMesh:
    """Return the mesh of the first display: data parallel between hosts, and tensor parallel inside."""
    if size is None:
        return DeviceMesh("dp=2, tp=4")
    inner = (0 if machine is None else _devices_per_node(machine.cluster)) or math.gcd(size, 8)
    return DeviceMesh(dp=size) if size % inner else DeviceMesh(dp=size // inner, tp=inner)


def _devices_per_node(cluster: Cluster) -> int:
    """Return the number of devices per node, or 0 if it differs between nodes."""
    counts = np.bincount(cluster.node_of)
    return int(counts[0]) if np.all(counts == counts[0]) else 0
