"""The pictures of a report, each with words for those who do not see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.analysis.pairs import pair_matrix
from meshlab.files import write_file
from meshlab.frames.labels import PAIRS_OF, axis_words, describe_groups, say, say_axes, title_parts
from meshlab.mesh.mesh import DeviceMesh
from meshlab.plots.cells import CellGrid, membership_title
from meshlab.plots.cells import membership as plot_membership
from meshlab.plots.curves import bandwidth as plot_bandwidth
from meshlab.plots.curves import curve_box
from meshlab.plots.curves import latency as plot_latency
from meshlab.plots.lines import Quantity, lines_of
from meshlab.plots.style import figure_png, figure_svg
from meshlab.units import SEPARATOR, format_bandwidth, format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from meshlab.topology.model.cluster import Cluster

__all__ = [
    "WIDTH",
    "Picture",
    "Pictures",
    "curve_pictures",
    "draw",
    "matrix_pictures",
    "membership_pictures",
    "picture_file",
    "pictures_by_axis",
    "topology_pictures",
]


WIDTH = 5.75
"""Inches, 552 CSS pixels: a 600 px window shows it without shrinking its text."""

_CURVE = (WIDTH, 3.75)


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Parameters
    ----------
    name : str
        What to call it as a file, without a suffix.
    figure : matplotlib.figure.Figure
        What is drawn.
    text : str
        What it shows, in words.
    """

    name: str
    figure: Figure
    text: str

    @property
    def svg(self) -> str:
        """The picture as an ``<svg>`` element."""
        return figure_svg(self.figure, label=self.text)


@dataclass(frozen=True, slots=True)
class Pictures:
    """All pictures of a report.

    Parameters
    ----------
    memberships : list of Picture
        Who is in which group.
    machines : list of Picture
        The groups on the machine.
    curves : list of (str, list of Picture)
        Bandwidth and latency, under the name of what they were measured on.
    matrices : list of Picture
        Pairs of ranks.
    """

    memberships: list[Picture]
    machines: list[Picture]
    curves: list[tuple[str, list[Picture]]]
    matrices: list[Picture]

    def save(self, folder: Path, prefix: str) -> None:
        """Write all of them into a folder as PNG files, named as `picture_file` says."""
        curves = (one for _, pictures in self.curves for one in pictures)
        for picture in (*self.memberships, *self.machines, *self.matrices, *curves):
            write_file(folder / picture_file(prefix, picture), figure_png(picture.figure))


def picture_file(prefix: str, picture: Picture) -> str:
    """The name of the file of a picture that belongs to the report called `prefix`."""
    return f"{prefix}-{picture.name}.png"


def draw(results: pd.DataFrame, mesh: DeviceMesh | None, cluster: Cluster | None, axes: list[str]) -> Pictures:
    """Draw a report's pictures.

    Parameters
    ----------
    results : pandas.DataFrame
        A results frame.
    mesh : DeviceMesh or None
    cluster : Cluster or None
    axes : list of str
        The groups of `mesh` to show.
    """
    return Pictures(
        membership_pictures(mesh, axes) if mesh is not None else [],
        topology_pictures(mesh, cluster, axes) if mesh is not None and cluster is not None else [],
        pictures_by_axis(results),
        matrix_pictures(results),
    )


def membership_pictures(mesh: DeviceMesh, axes: list[str]) -> list[Picture]:
    """Who is in which group, one picture for each of `axes`."""
    from matplotlib.figure import Figure

    figsize, rect = CellGrid.of(mesh).figure_box(widest=WIDTH * 72)
    pictures = []
    for axis in axes:
        figure = Figure(figsize)
        plot_membership(mesh, axis, ax=figure.add_axes(rect))
        groups = mesh[axis]
        text = f"{', '.join(membership_title(groups))}. The first is {groups[0]!r}."
        pictures.append(Picture(f"membership-{axis}", figure, text))
    return pictures


def topology_pictures(mesh: DeviceMesh, cluster: Cluster, axes: list[str]) -> list[Picture]:
    """The groups of every axis on the machine; none when the mesh does not fit on it."""
    from matplotlib.figure import Figure

    from meshlab.plots.machine import topology as plot_topology
    from meshlab.topology.placement.placement import place

    if cluster.n_devices < mesh.world_size:
        return []
    placement = place(mesh, cluster)
    pictures = []
    for axis in axes:
        figure = Figure((WIDTH, 2.5), layout="constrained")
        plot_topology(mesh, cluster, axis=axis, ax=figure.add_subplot())
        text = placement.explain(axis) if axis in mesh.axis_names else f"{axis} on {cluster.summary}"
        pictures.append(Picture(f"topology-{axis}", figure, text))
    return pictures


def curve_pictures(results: pd.DataFrame, name: str) -> list[Picture]:
    """Bandwidth and latency of results, one picture each; none where nothing can be drawn.

    Parameters
    ----------
    results : pandas.DataFrame
        Of one axis and mode.
    name : str
        What the names of the pictures end with.
    """
    from matplotlib.figure import Figure

    pictures = []
    plots: dict[Quantity, Callable[..., Axes]] = {"busbw_gbs": plot_bandwidth, "time_us": plot_latency}
    for quantity, plot in plots.items():
        lines = lines_of(results, quantity)
        told = []
        for line in lines:
            if line.size.size:
                best = line.value.argmax() if quantity == "busbw_gbs" else line.value.argmin()
                value = (format_bandwidth if quantity == "busbw_gbs" else format_time_us)(line.value[best])
                told.append(f"{line.name or line.keys['collective']} {value} at {format_size(line.size[best])}")
        if told:
            figure = Figure(_CURVE)
            box = curve_box(_CURVE, title_parts(results), [line.name for line in lines])
            plot(results, ax=figure.add_axes(box))
            kind, extreme = ("Bus bandwidth", "highest") if quantity == "busbw_gbs" else ("Time per call", "lowest")
            text = f"{kind} over message size; {extreme}: {', '.join(told)}."
            pictures.append(Picture(f"{'bandwidth' if quantity == 'busbw_gbs' else 'latency'}-{name}", figure, text))
    return pictures


def pictures_by_axis(results: pd.DataFrame) -> list[tuple[str, list[Picture]]]:
    """Bandwidth and latency for each axis and mode that was measured, under its name; pairs have a matrix instead."""
    named = []
    attrs = dict(results.attrs)
    results = say_axes(results)
    results = results[~results["axis"].str.startswith(PAIRS_OF).fillna(value=False).to_numpy(bool)]
    has_modes = results["mode"].nunique(dropna=False) > 1
    for (axis, mode), rows in results.groupby(["axis", "mode"], dropna=False, sort=False):
        rows.attrs = attrs
        title, name = describe_groups(rows) or "all ranks", _slug(str(axis))
        if has_modes:
            title, name = f"{title}{SEPARATOR}{say('mode', mode)}", f"{name}-{mode}"
        pictures = curve_pictures(rows, name)
        if pictures:
            named.append((title, pictures))
    return named


def matrix_pictures(results: pd.DataFrame) -> list[Picture]:
    """Pairs of ranks as matrices, at their largest size: one for each collective, axis, mode and element type."""
    from matplotlib.figure import Figure

    from meshlab.plots.heatmaps import matrix as plot_matrix

    is_pair = results["axis"].str.endswith(" pairs").fillna(value=False) & (results["status"] == "ok")
    pairs = results[is_pair.fillna(value=False).to_numpy(bool)]
    keys = pairs[["collective", "axis", "mode", "dtype"]].drop_duplicates()
    choices: list[tuple[str, str, str, str]] = list(keys.itertuples(index=False, name=None))
    told = [place for place in range(4) if len({choice[place] for choice in choices}) > 1]
    pictures = []
    for choice in choices:
        collective, axis, mode, dtype = choice
        matrix = pair_matrix(results, collective, axis=axis.removesuffix(" pairs"), mode=mode, dtype=dtype)
        figure = Figure((WIDTH, WIDTH * 0.8), layout="constrained")
        title = plot_matrix(matrix, ax=figure.add_subplot()).get_title(loc="left")
        name = "-".join(["matrix", *(_slug(choice[place]) for place in told or [0])])
        pictures.append(Picture(name, figure, f"{axis_words(axis)}. {'. '.join(title.splitlines())}."))
    return pictures


def _slug(text: str) -> str:
    """The text as a part of a file's name."""
    return re.sub(r"[^\w.]+", "-", text).strip("-")
