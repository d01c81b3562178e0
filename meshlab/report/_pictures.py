"""The figures of a report, each with a description for screen readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.analysis._nodes import NodeComparison
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import MeshlabError
from meshlab.base._files import write_file
from meshlab.base._units import SEPARATOR, format_bandwidth, format_size, format_time_us
from meshlab.comm._elements import find_dtype
from meshlab.frames._labels import GPU_SOURCES, axis_label, axis_labels, describe_groups, value_label
from meshlab.frames._schema import is_pair, is_plain, plain_value
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh._traffic import Traffic
from meshlab.plans._steps import Step
from meshlab.plots._cells import CellGrid, membership_title
from meshlab.plots._cells import membership as plot_membership
from meshlab.plots._curves import curve_box, draw_bandwidth, draw_latency
from meshlab.plots._lines import Line, Quantity, lines_by_quantity
from meshlab.plots._machine import topology_figure
from meshlab.plots._style import figure_png, figure_svg
from meshlab.plots._tuning import figure_of
from meshlab.prediction._costs import COLLECTIVES
from meshlab.prediction._predictions import BOUND_FROM, Prediction, predict
from meshlab.prediction._published import PublishedCurve
from meshlab.prediction._tuner import NcclSettings
from meshlab.topology.placement._placement import place

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from meshlab.topology.model._cluster import Cluster

# Width in inches. 5.75 inches are 552 CSS pixels, which fit into a 600 px window without shrinking the text.
WIDTH = 5.75
_CURVE = (WIDTH, 3.75)
_MOST_TRAFFICS = 6


@dataclass(frozen=True, slots=True)
class ReportPicture:
    """A figure with its name and description."""

    name: str  # of its file, without a suffix
    figure: Figure
    text: str  # the description for screen readers

    @property
    def svg(self) -> str:
        """The figure as an ``<svg>`` element."""
        return figure_svg(self.figure, label=self.text)


@dataclass(frozen=True, slots=True)
class Pictures:
    """All figures of a report."""

    memberships: list[ReportPicture]  # one per axis
    machines: list[ReportPicture]  # one per axis, with the hardware
    curves: list[tuple[str, list[ReportPicture]]]  # bandwidth and latency of each axis and mode, with a heading
    matrices: list[ReportPicture]  # pairs of ranks
    tunings: list[ReportPicture] = field(default_factory=list)  # default and tuned times
    nodes: list[ReportPicture] = field(default_factory=list)  # the times between hosts of an acceptance
    traces: list[ReportPicture] = field(default_factory=list)  # of the job
    traffics: list[ReportPicture] = field(default_factory=list)  # of uneven calls

    def save(self, folder: Path, prefix: str) -> None:
        """Write all figures to a folder as PNG files, see `picture_file`."""
        curves = (picture for _, pictures in self.curves for picture in pictures)
        for picture in (
            *self.nodes,
            *self.tunings,
            *self.traces,
            *self.memberships,
            *self.machines,
            *self.matrices,
            *self.traffics,
            *curves,
        ):
            write_file(folder / picture_file(prefix, picture), figure_png(picture.figure))


def picture_file(prefix: str, picture: ReportPicture) -> str:
    """Return the file name of a figure of the report with the name `prefix`."""
    return f"{prefix}-{picture.name}.png"


def draw(
    results: pd.DataFrame,
    mesh: DeviceMesh | None,
    cluster: Cluster | None,
    axes: list[str],
    *,
    previous: pd.DataFrame | None = None,
    published: Mapping[str, Sequence[PublishedCurve]] | None = None,
) -> Pictures:
    """Draw the figures of a report."""
    # The picture of the machine shows the groups too, and also where they are.
    has_machine = mesh is not None and cluster is not None and cluster.n_devices >= mesh.world_size
    return Pictures(
        membership_pictures(mesh, axes) if mesh is not None and not has_machine else [],
        topology_pictures(mesh, cluster, axes) if mesh is not None and cluster is not None else [],
        pictures_by_axis(results, mesh=mesh, cluster=cluster, previous=previous, published=published),
        matrix_pictures(results),
    )


def membership_pictures(mesh: DeviceMesh, axes: list[str]) -> list[ReportPicture]:
    """Draw the members of the groups, one figure per axis."""
    from matplotlib.figure import Figure

    figsize, rect = CellGrid.of(mesh).figure_box(widest=WIDTH * 72)
    pictures = []
    for axis in axes:
        figure = Figure(figsize)
        plot_membership(mesh, axis, ax=figure.add_axes(rect))
        groups = mesh[axis]
        text = f"{', '.join(membership_title(groups))}. The first is {groups[0]!r}."
        pictures.append(ReportPicture(f"membership-{axis}", figure, text))
    return pictures


def topology_pictures(mesh: DeviceMesh, cluster: Cluster, axes: list[str]) -> list[ReportPicture]:
    """Draw the groups of each axis on the machine, or only the machine if it is too small for the mesh."""
    if not cluster.n_devices:
        return []
    if cluster.n_devices < mesh.world_size:
        figure = topology_figure(mesh, cluster, width=WIDTH * 96)
        return [ReportPicture("topology", figure, f"{cluster.summary}. {mesh} is not placed on it.")]
    placement = place(mesh, cluster)
    pictures = []
    for axis in axes:
        figure = topology_figure(placement, None, axis=axis, group=0, width=WIDTH * 96)
        call = placement.loads(axis)
        by = f" for {call.collective} ({call.algorithm_words})" if mesh[axis].size > 1 else ""
        text = f"{placement.explain(axis)}. The picture shows the links of {mesh[axis].names[0]}{by}."
        pictures.append(ReportPicture(f"topology-{axis}", figure, text))
    return pictures


def curve_pictures(
    results: pd.DataFrame,
    name: str,
    *,
    previous: pd.DataFrame | None = None,
    published: Mapping[str, Sequence[PublishedCurve]] | None = None,
    predicted: Prediction | None = None,
) -> list[ReportPicture]:
    """Draw bandwidth and latency, one figure each, if there are lines."""
    from matplotlib.figure import Figure

    bounded = results if "of_bound" in results else None
    quantities: tuple[Quantity, Quantity] = ("busbw_gbs", "time_us")
    lines, earlier = (lines_by_quantity(part, quantities) if part is not None else {} for part in (results, previous))
    plots: dict[Quantity, Callable[..., Axes]] = {
        "busbw_gbs": partial(draw_bandwidth, bounded=bounded, predicted=predicted, published=published),
        "time_us": draw_latency,
    }
    pictures = []
    for quantity, plot in plots.items():
        if extremes := list(_extremes(lines[quantity], quantity)):
            figure = Figure(_CURVE)
            plot(figure.add_axes(curve_box(_CURVE)), results, lines[quantity], earlier.get(quantity, []))
            kind, extreme = ("Bus bandwidth", "Highest") if quantity == "busbw_gbs" else ("Time per call", "Lowest")
            text = f"{kind} against message size. {extreme}: {', '.join(extremes)}."
            pictures.append(
                ReportPicture(f"{'bandwidth' if quantity == 'busbw_gbs' else 'latency'}-{name}", figure, text)
            )
    return pictures


def _extremes(lines: Sequence[Line], quantity: Quantity) -> Iterator[str]:
    """Yield the highest bandwidth or the lowest time of each line."""
    for line in filter(len, lines):
        best = line.value.argmax() if quantity == "busbw_gbs" else line.value.argmin()
        value = (format_bandwidth if quantity == "busbw_gbs" else format_time_us)(line.value[best])
        yield f"{line.name or line.keys['collective']} {value} at {format_size(line.size[best])}"


def pictures_by_axis(
    results: pd.DataFrame,
    *,
    mesh: DeviceMesh | None = None,
    cluster: Cluster | None = None,
    previous: pd.DataFrame | None = None,
    published: Mapping[str, Sequence[PublishedCurve]] | None = None,
) -> list[tuple[str, list[ReportPicture]]]:
    """Draw bandwidth and latency of each axis label and mode, with headings. Pairs have a matrix instead."""
    sections = []
    attrs = dict(results.attrs)
    results = results[~is_pair(results)]
    labels = axis_labels(results)
    has_modes = results["mode"].nunique(dropna=False) > 1
    for (label, mode), rows in results.groupby([labels, "mode"], dropna=False, sort=False):
        rows.attrs = attrs
        title, name = describe_groups(rows) or "all ranks", _slug(str(label))
        if has_modes:
            title, name = f"{title}{SEPARATOR}{value_label('mode', mode)}", f"{name}-{mode}"
        pictures = curve_pictures(
            rows,
            name,
            previous=None if previous is None else _same_load(previous, rows),
            published=published,
            predicted=_prediction(rows, mesh, cluster),
        )
        if pictures:
            sections.append((title, pictures))
    return sections


def _same_load(previous: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame | None:
    """Return the earlier results of the same axis, collectives and mode, or None if there are none."""
    chosen = previous["collective"].isin(rows["collective"]) & ~is_pair(previous)
    for name in ("axis", "mode", "grouping", "concurrent_axis"):
        value, column = plain_value(rows[name].iloc[0]), previous[name]
        chosen &= column.isna() if value is None else column.isna() | column.eq(value).fillna(value=False)
    earlier = previous[chosen.fillna(value=False).to_numpy(bool)]
    return earlier if len(earlier) else None


def _prediction(rows: pd.DataFrame, mesh: DeviceMesh | None, cluster: Cluster | None) -> Prediction | None:
    """Return the prediction of the rows of one axis and mode, or None without a model of them."""
    model_rows = rows[rows["source"].isin(GPU_SOURCES) & rows["collective"].isin(COLLECTIVES) & is_plain(rows)]
    model_rows = model_rows[model_rows["size_bytes"] >= BOUND_FROM]
    if mesh is None or cluster is None or not len(model_rows) or model_rows["axis"].isna().any():
        return None
    sizes = sorted(int(size) for size in model_rows["size_bytes"].unique())
    try:
        settings = NcclSettings.of_environment(
            rows.attrs.get("environment") or {},
            mode=str(model_rows["mode"].iloc[0]),  # type: ignore[arg-type]
        )
        return predict(
            mesh,
            cluster,
            list(dict.fromkeys(model_rows["collective"])),
            sizes,
            axis=str(model_rows["axis"].iloc[0]),
            dtype=str(model_rows["dtype"].iloc[0]),
            settings=settings,
        )
    except MeshlabError:  # measured on another mesh, or the links are unknown
        return None


def matrix_pictures(results: pd.DataFrame) -> list[ReportPicture]:
    """Draw pairs of ranks as matrices at their largest size: one per collective, axis, mode and dtype."""
    from matplotlib.figure import Figure

    from meshlab.plots._heatmaps import matrix as plot_matrix

    keys = ["collective", "axis", "mode", "dtype"]
    pairs = results[is_pair(results) & results["status"].eq("ok").fillna(value=False)]
    if len({*pairs["src_rank"], *pairs["dst_rank"]}) <= 2:  # one pair, which a table shows better
        return []
    choices: list[dict[str, str]] = [
        dict(zip(keys, values, strict=True))
        for values in pairs[keys].drop_duplicates().itertuples(index=False, name=None)
    ]
    varying = [key for key in keys if len({choice[key] for choice in choices}) > 1]
    pictures = []
    for choice in choices:
        figure = Figure((WIDTH, WIDTH * 0.8), layout="constrained")
        title = plot_matrix(results, **choice, ax=figure.add_subplot()).get_title(loc="left")
        name = "-".join(["matrix", *(_slug(choice[key]) for key in varying or ["collective"])])
        text = f"{axis_label(choice['axis'], 'pairs')}. {'. '.join(title.splitlines())}."
        pictures.append(ReportPicture(name, figure, text))
    return pictures


def traffic_pictures(steps: Sequence[Step]) -> list[ReportPicture]:
    """Draw the uneven traffics of the steps of a run, each at its largest size."""
    from meshlab.plots._traffic import figure_of as figure_of_traffic

    largest: dict[tuple[str, str | None], Step] = {}
    for step in sorted(steps, key=lambda step: step.size_bytes or 0):
        if step.matrix is not None:
            largest[step.axis, step.traffic] = step
    pictures = []
    for (axis, name), step in list(largest.items())[:_MOST_TRAFFICS]:
        counts, itemsize = step.chunk_counts, find_dtype(step.dtype or "uint8").itemsize
        assert counts is not None
        traffic = Traffic.matrix(counts * itemsize, alignment_bytes=1).named(str(name))
        figure = figure_of_traffic(traffic)
        text = f"{name} traffic along {axis}. {traffic.headline}."
        pictures.append(ReportPicture("-".join(["traffic", _slug(axis), _slug(str(name))]), figure, text))
    return pictures


def node_pictures(comparison: NodeComparison) -> list[ReportPicture]:
    """Draw the times between the hosts of an acceptance, in which the slow paths are marked."""
    if len(comparison.hosts) <= 2:  # one path, which the table shows better
        return []
    from matplotlib.figure import Figure

    from meshlab.plots._heatmaps import matrix as plot_matrix

    figure = Figure((WIDTH, WIDTH * 0.8), layout="constrained")
    title = plot_matrix(comparison.matrix(), ax=figure.add_subplot()).get_title(loc="left")
    return [ReportPicture("nodes", figure, f"Times between hosts. {'. '.join(title.splitlines())}.")]


def tuning_pictures(tuning: Tuning) -> list[ReportPicture]:
    """Draw default and tuned times of a tuning, if there are any."""
    if not tuning.lines:
        return []
    return [ReportPicture("tuning", figure_of(tuning, WIDTH), ". ".join(tuning.verdicts))]


def _slug(text: str) -> str:
    """Return a string as a part of a file name."""
    return re.sub(r"[^\w.]+", "-", text).strip("-")
