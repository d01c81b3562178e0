"""Measured bandwidth as a share of what the hardware allows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import MeshError
from meshlab.base._units import THIN, format_bandwidth
from meshlab.frames._labels import GPU_SOURCES
from meshlab.frames._schema import is_pair, is_plain
from meshlab.frames._table import ResultsTable, results_table
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.prediction._calibration import grown
from meshlab.prediction._costs import COLLECTIVES, cost
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._predictions import BOUND_FROM
from meshlab.prediction._tuner import NcclSettings
from meshlab.runs._rundata import RunData
from meshlab.runs._store import as_results
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._placement import Placement, as_placement

if TYPE_CHECKING:
    import pandas as pd


def with_bounds(
    results: Any,
    cluster: ClusterLike | None = None,
    *,
    mesh: MeshLike | Placement | None = None,
    settings: NcclSettings | None = None,
) -> pd.DataFrame:
    """Add the bus bandwidth that the hardware allows to measured results.

    The bound is that of the links which a group has while all groups of its axis run. It uses the best algorithm, so
    that it may exceed the bandwidth of a wire.

    Parameters
    ----------
    results : RunData, DataFrame, path, object with ``.results``, or a list of these
        Results of NCCL. Other rows get no bound.
    cluster : Cluster or str, optional
        The cluster, or the name of a preset.
    mesh : DeviceMesh, str or Placement, optional
        The mesh. By default that of the run. A Placement includes the cluster.
    settings : NcclSettings, optional
        Settings of NCCL. By default from the environment that the results contain.

    Returns
    -------
    pandas.DataFrame
        The rows with ``bound_gbs`` (GB/s), ``bound`` (the limiting hardware), ``of_bound`` (busbw / bound, from 16 MiB
        on) and ``above_wire`` (the reason why busbw may exceed the bandwidth of a wire). Values are missing for rows of
        a CPU, of pairs or single groups, and of collectives without a model.

    Raises
    ------
    TopologyError
        If the cluster is too small, or the bandwidth of its links is unknown.

    Examples
    --------
    >>> import meshlab as ml
    >>> rows = with_bounds(ml.example(), "dgx-h200", mesh="tp=2", settings=ml.prediction.NcclSettings(nvls=False))
    >>> row = rows.query("collective == 'broadcast' and mode == 'graph'").iloc[-1]
    >>> row["bound"], round(row["bound_gbs"]), f"{100 * row['of_bound']:.0f} %"
    ('NVLink', 371, '97 %')
    """
    target = results.mesh if mesh is None and isinstance(results, RunData) else mesh
    rows = as_results(results).copy()
    facts: dict[str, Any] = {
        "bound_gbs": np.full(len(rows), np.nan),
        "bound": np.full(len(rows), None, dtype=object),
        "above_wire": np.full(len(rows), "", dtype=object),
    }
    is_usable = (
        rows["source"].isin(GPU_SOURCES) & is_plain(rows) & ~is_pair(rows) & rows["collective"].isin(COLLECTIVES)
    )
    if is_usable.any():
        placement = _placement(rows, cluster, target)
        settings = settings or NcclSettings.of_environment(rows.attrs.get("environment") or {})
        keys = [rows["axis"].fillna(WORLD), rows["collective"]]
        for (axis, collective), part in rows[is_usable].groupby([key[is_usable] for key in keys], sort=False):
            _fill(facts, rows.index.get_indexer(part.index), part, placement, str(axis), str(collective), settings)
    for name, values in facts.items():
        rows[name] = values
    share = rows["busbw_gbs"] / rows["bound_gbs"]
    rows["of_bound"] = share.where(rows["size_bytes"] >= BOUND_FROM)
    return rows


def _placement(rows: pd.DataFrame, cluster: ClusterLike | None, mesh: MeshLike | Placement | None) -> Placement:
    if isinstance(mesh, Placement):
        return as_placement(mesh, cluster)
    target = as_mesh(mesh) if mesh is not None else DeviceMesh(dp=int(rows["n_ranks"].max()))
    return as_placement(target, grown(cluster, target))


def _fill(
    facts: dict[str, Any],
    positions: np.ndarray[Any, Any],
    part: pd.DataFrame,
    placement: Placement,
    axis: str,
    collective: str,
    settings: NcclSettings,
) -> None:
    """Fill in the bounds of the rows of one axis and collective."""
    try:
        groups = placement.mesh[axis]
    except MeshError:  # measured on a different mesh
        return
    links, of_group = GroupLinks.of(placement, axis)
    bounds = cost(links, collective, [BOUND_FROM], settings=settings)
    row_of = dict(zip(groups.names, of_group.tolist(), strict=True))
    for position, group, n_ranks in zip(positions, part["group"], part["n_ranks"], strict=True):
        row = row_of.get(group, 0 if len(links) == 1 else None)
        if row is None or n_ranks != groups.size or not np.isfinite(bounds.bound_gbs[row]):
            continue
        facts["bound_gbs"][position] = bounds.bound_gbs[row]
        facts["bound"][position], facts["above_wire"][position] = bounds.bound[row], bounds.above_wire[row]


def bounded_table(results: Any, cluster: ClusterLike) -> ResultsTable:
    """Return the table of results with the share of the bandwidth that the hardware allows. See `RunData.table`."""
    bounded = with_bounds(results, cluster)
    return replace(results_table(bounded), below=tuple(bound_note(bounded)))


def bound_note(rows: pd.DataFrame) -> list[str]:
    """Describe the bounds of results in sentences, each once, and the reasons why busbw may exceed a wire."""
    parts = [f"{format_bandwidth(gbs)} for {', '.join(what)} ({bound})" for (gbs, bound), what in _bounds(rows).items()]
    if not parts:
        return []
    reasons = dict.fromkeys(reason for reason in rows["above_wire"] if reason)
    note = [f"busbw may exceed the bandwidth of a wire: {'; '.join(reasons)}."] if reasons else []
    return [f"The bound is {'; '.join(parts)}.", *note]


def bound_lines(rows: pd.DataFrame) -> dict[str, float]:
    """Return the bounds of results as reference lines: GB/s by label. Empty without bounds."""
    bounds = _bounds(rows)
    if len(bounds) == 1:
        return {f"bound ({bound})": gbs for gbs, bound in bounds}
    return {f"bound of {', '.join(what)} ({bound})": gbs for (gbs, bound), what in bounds.items()}


def _bounds(rows: pd.DataFrame) -> dict[tuple[float, str], dict[str, None]]:
    """Return the collectives of each bound, with their axes if there are several."""
    axes_of_bound: dict[tuple[float, str], dict[str, None]] = {}
    if "of_bound" not in rows:
        return axes_of_bound
    bounded = rows[rows["of_bound"].notna()]
    several = bounded["axis"].nunique() > 1
    for gbs, bound, collective, axis in zip(
        bounded["bound_gbs"], bounded["bound"], bounded["collective"], bounded["axis"], strict=True
    ):
        axes_of_bound.setdefault((gbs, bound), {})[f"{collective} along {axis}" if several else collective] = None
    return axes_of_bound


def share_of_bound(rows: pd.DataFrame, size: float, busbw_gbs: float) -> str:
    """Return a bandwidth as a share of the bound of its rows, such as "92 %", or "" for small sizes or no bound."""
    if "of_bound" not in rows or size < BOUND_FROM or rows["bound_gbs"].isna().all():
        return ""
    return f"{100 * busbw_gbs / rows['bound_gbs'].min():.0f}{THIN}%"
