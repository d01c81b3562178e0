"""Pictures: functions from meshes and frames to matplotlib axes. They take ``ax=``, return it and show nothing."""

from meshlab.plots.comparison import plot_comparison
from meshlab.plots.curves import plot_bandwidth, plot_latency
from meshlab.plots.figures import figure_png, figure_svg
from meshlab.plots.host import plot_host
from meshlab.plots.links import plot_links
from meshlab.plots.matrix import plot_matrix
from meshlab.plots.membership import plot_membership
from meshlab.plots.palette import group_colors
from meshlab.plots.ring import plot_ring
from meshlab.plots.stragglers import plot_batches, plot_stragglers
from meshlab.plots.topology import plot_topology

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
