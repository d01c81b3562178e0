"""Pictures: functions from meshes and frames to matplotlib axes. They take ``ax=``, return it and show nothing."""

from meshlab.plots.ratios import plot_comparison
from meshlab.plots.curves import plot_bandwidth, plot_latency
from meshlab.plots.style import figure_png, figure_svg
from meshlab.plots.host_diagram import plot_host
from meshlab.plots.heatmaps import plot_links
from meshlab.plots.matrix import plot_matrix
from meshlab.plots.cells import plot_membership
from meshlab.plots.palette import group_colors
from meshlab.plots.rings import plot_ring
from meshlab.plots.lateness import plot_batches, plot_stragglers
from meshlab.plots.machine import plot_topology

__all__ = [
    "figure_png",
    "figure_svg",
    "group_colors",
    "plot_bandwidth",
    "plot_batches",
    "plot_comparison",
    "plot_host",
    "plot_latency",
    "plot_links",
    "plot_matrix",
    "plot_membership",
    "plot_ring",
    "plot_stragglers",
    "plot_topology",
]
