"""The logical side: named axes over ranks, and the groups that follow from them."""

from meshlab.mesh.axes import WELL_KNOWN_AXES, WORLD, Axis
from meshlab.mesh.groups import Group, Groups
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["WELL_KNOWN_AXES", "WORLD", "Axis", "DeviceMesh", "Group", "Groups"]
