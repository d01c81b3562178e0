"""Widgets for notebooks: the grid of ranks, live curves, and the designer of meshes."""

from meshlab.widgets.grid import Grid
from meshlab.widgets.curve import Curve, Line
from meshlab.widgets.designer import Designer
from meshlab.widgets.live import LiveView

__all__ = ["Curve", "Designer", "Grid", "Line", "LiveView"]
