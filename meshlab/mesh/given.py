"""What a function that works on a mesh accepts for one: the mesh itself, or its text."""

from __future__ import annotations

from meshlab.errors import MeshError
from meshlab.mesh.axes import parse_axes
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["MeshLike", "as_mesh"]

MeshLike = DeviceMesh | str
"""A mesh, or text such as ``"dp=2, tp=4"``."""


def as_mesh(given: MeshLike, fill: int | None = None) -> DeviceMesh:
    """The mesh that was given as such or as text.

    Parameters
    ----------
    given : DeviceMesh or str
    fill : int, optional
        How many ranks there are, for a size of -1 in the text.

    Raises
    ------
    MeshError
        If it is neither, or the text is no possible mesh.
    ParseError
        If the text cannot be read.

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
    raise MeshError(
        f"a mesh is a DeviceMesh or its text, not {type(given).__name__}; give one such as DeviceMesh('dp=2, tp=4')"
    )
