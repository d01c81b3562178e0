"""The logical side: named axes over ranks, and the groups that follow from them."""

from meshlab.mesh.axes import WELL_KNOWN_AXES, WORLD, Axis
from meshlab.mesh.diff import MeshDiff, diff
from meshlab.mesh.given import MeshLike, as_mesh
from meshlab.mesh.groups import Group, Groups
from meshlab.mesh.hierarchy import Hierarchy
from meshlab.mesh.interop import FRAMEWORKS, read_mesh
from meshlab.mesh.interop.recipe import Recipe
from meshlab.mesh.mesh import DeviceMesh

__all__ = [
    "FRAMEWORKS",
    "WELL_KNOWN_AXES",
    "WORLD",
    "Axis",
    "DeviceMesh",
    "Group",
    "Groups",
    "Hierarchy",
    "MeshDiff",
    "MeshLike",
    "Recipe",
    "as_mesh",
    "diff",
    "read_mesh",
]
