"""Measured bandwidth next to the bound of the hardware, the prediction, and published values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis._measured_machine import (
    MeasuredMachine,
    machine_of_frame,
    machine_of_run,
    with_statements,
)
from meshlab.analysis._published_comparison import (
    MeasuredCurve,
    PublishedComparison,
    compare_on_every_network,
    compare_with_published,
)
from meshlab.base._errors import MeshlabError, TopologyError
from meshlab.base._units import THIN, format_bandwidth, format_range, format_size
from meshlab.frames._labels import GPU_SOURCES, is_wrong
from meshlab.frames._schema import is_pair, is_plain, plain_value
from meshlab.frames._statistics import bandwidth
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plans._options import OPTIONS
from meshlab.prediction._bounds import with_bounds
from meshlab.prediction._calibration import grown
from meshlab.prediction._costs import COLLECTIVES
from meshlab.prediction._predictions import BOUND_FROM, predict
from meshlab.prediction._published import PublishedCurve
from meshlab.prediction._tuner import NcclSettings
from meshlab.runs._rundata import RunData
from meshlab.runs._store import as_results
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._levels import HOST
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._placement import as_placement

if TYPE_CHECKING:
    import pandas as pd

EXPECTED_SHARE = 0.7
"""The share of the lowest predicted bandwidth below which a measurement is slow, the same as for published runs.

The band of a prediction is learnt from other machines and numbers of GPUs. Two healthy H200 reach 80 % of its lower
end in an all_gather.
"""

FAST_WORDS = ("faster than published", "normal", "as expected")
SLOW_WORDS = ("slow", "suspiciously slow")

_NO_COLLECTIVE = "the collective is missing: the text does not name its test"

_CASE = ["axis", "collective", "op", "dtype", "mode", "in_place", *OPTIONS]
_PREDICTED = ("predicted_us", "predicted_us_lo", "predicted_us_hi")
_COLUMNS = [
    "axis",
    "collective",
    "dtype",
    "mode",
    "in_place",
    "n_ranks",
    "size_bytes",
    "time_us",
    "busbw_gbs",
    "bound_gbs",
]
_COLUMNS += ["bound", "of_bound", *_PREDICTED, "published_gbs", "of_published", "machine", "published", "verdict"]


def expectations(
    run: Any,
    cluster: ClusterLike | None = None,
    *,
    mesh: MeshLike | None = None,
    calibration: Any = None,
    machine: MeasuredMachine | None = None,
    leave_out: Collection[str] = (),
) -> pd.DataFrame:
    """Compare the largest size of each axis with the bound, the prediction and published runs of the same machine.

    Every verdict of meshlab on speed is this ``verdict``: that of the published runs if they decide, otherwise that of
    the prediction, and unknown without either. `leave_out` names the sources of published runs to ignore.
    """
    # Each row has the slowest group. Without a cluster, only published runs are compared.
    import pandas as pd

    if isinstance(run, RunData):
        mesh = run.mesh if mesh is None else mesh
        calibration = run.calibration if calibration is None else calibration
        machine = machine_of_run(run) if machine is None else machine
    results = as_results(run)
    attrs = dict(results.attrs)
    base = machine_of_frame(results) if machine is None else machine
    if n_wrong := int(is_wrong(results).sum()):
        base = replace(base, excluded=f"{n_wrong:,} of its {len(results):,} results are wrong")
    usable = is_plain(results) & ~is_pair(results) & ~is_wrong(results) & results["time_us"].gt(0)
    results = results[usable & results["source"].isin(GPU_SOURCES) & results["size_bytes"].ge(BOUND_FROM)]
    results = results.reset_index(drop=True)  # frames that were joined may have equal labels
    results.attrs = attrs
    if not len(results):
        return pd.DataFrame(columns=_COLUMNS)
    layout = None if mesh is None else as_mesh(mesh)
    if cluster is not None and (layout is not None or machine is not None):
        try:
            results = with_bounds(results, cluster, mesh=layout)
        except TopologyError:  # the bandwidth of the links is unknown
            cluster = None
    rows = []
    for _, part in results.groupby(_CASE, sort=False, dropna=False):
        row = _slowest(part[part["size_bytes"] == part["size_bytes"].max()])
        row |= _predicted(row, cluster, layout, calibration, attrs.get("environment") or {})
        hosts = _machine_of_axis(row, base, cluster, layout)
        published = _published(part, hosts, leave_out)
        row |= {"machine": hosts, "published": published, "published_gbs": published.median}
        if published.size_bytes == row["size_bytes"]:
            row["of_published"] = row["busbw_gbs"] / published.median
        rows.append({"of_published": np.nan} | row | {"verdict": _verdict(row)})
    return pd.DataFrame(rows, columns=_COLUMNS)


def runs_by_collective(expected: pd.DataFrame) -> dict[str, list[PublishedCurve]]:
    """Return the published runs of the same machine in rows of `expectations`, each once, by collective."""
    runs: dict[str, dict[str, PublishedCurve]] = {}
    for collective, published in zip(expected["collective"], expected["published"], strict=True):
        if published.basis in ("machine", "hosts"):
            by_name = runs.setdefault(str(collective), {})
            by_name |= {run.curve.curve: run.curve for run in published.runs if run.curve.curve not in by_name}
    return {collective: list(by_name.values()) for collective, by_name in runs.items()}


def _machine_of_axis(
    row: dict[str, Any], base: MeasuredMachine, cluster: ClusterLike | None, mesh: DeviceMesh | None
) -> MeasuredMachine:
    """Return the hosts of the groups of an axis. Groups that share NICs are not comparable with published runs."""
    if row["n_ranks"] is None:
        return base
    n_ranks = int(row["n_ranks"])
    machine = base if cluster is None else with_statements(base, n_ranks, cluster=cluster)
    if row["axis"] is None or mesh is None or n_ranks == mesh.world_size:
        return with_statements(machine, n_ranks)
    if base.nodes == 1 or (isinstance(cluster, Cluster) and cluster.n_nodes == 1):
        return with_statements(replace(machine, nodes=1), n_ranks)
    if cluster is None:
        return replace(machine, nodes=None, unlike="it is unknown which hosts the groups of its axis use")
    try:
        placement = as_placement(mesh, grown(cluster, mesh))
        hosts = int(placement.of(str(row["axis"])).domains[HOST].max())
    except MeshlabError:
        return replace(machine, nodes=None, unlike="its mesh does not match the machine")
    if hosts == 1:
        return with_statements(replace(machine, nodes=1), n_ranks)
    shared = "its groups share the NICs of their hosts, while published runs have one group"
    machine = with_statements(replace(machine, nodes=hosts), n_ranks)
    return machine if len(mesh[str(row["axis"])]) == 1 else replace(machine, unlike=shared)


def _published(part: pd.DataFrame, machine: MeasuredMachine, leave_out: Collection[str]) -> PublishedComparison:
    """Compare the slowest group at every size with published runs."""
    last = part.iloc[int(part["size_bytes"].to_numpy(dtype=np.int64).argmax())]
    collective = plain_value(last["collective"])
    n_ranks = None if plain_value(last["n_ranks"]) is None else int(last["n_ranks"])
    largest = int(last["size_bytes"]), float(last["busbw_gbs"])
    if reason := machine.excluded or machine.unlike:
        return PublishedComparison(None, *largest, reason=reason)
    if collective is None:
        return PublishedComparison(None, *largest, reason=_NO_COLLECTIVE, is_missing=True)
    missing = machine.missing(n_ranks)
    if n_ranks is None or (missing and not machine.lacks_network_only(n_ranks)):
        return PublishedComparison(None, *largest, reason=missing, is_missing=True)
    slowest = part.groupby(["size_bytes", "run_id", "launch"], dropna=False)["time_us"].max()
    times = slowest.groupby("size_bytes").median()
    sizes = times.index.to_numpy(dtype=np.int64)
    _, busbw = bandwidth([collective] * len(times), sizes, np.full(len(times), n_ranks), times.to_numpy(float))
    in_place = bool(plain_value(last["in_place"]))
    curve = MeasuredCurve(collective, n_ranks, in_place, sizes, times.to_numpy(float), busbw)
    if not missing:
        return compare_with_published(curve, machine, leave_out=leave_out)
    comparison = compare_on_every_network(curve, machine, leave_out=leave_out)
    return comparison or PublishedComparison(None, *largest, reason=missing, is_missing=True)


def _slowest(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the row of the slowest group, with the median of all launches as its time."""
    by_launch = rows.groupby(["run_id", "launch"], dropna=False, sort=False)["time_us"].max()
    time_us = float(by_launch.median())
    nearest = rows.iloc[int((rows["time_us"] - time_us).abs().to_numpy().argmin())]
    row = {str(name): plain_value(nearest.get(name)) for name in (*_CASE, "n_ranks", "size_bytes", "bound")}
    busbw = float(nearest["busbw_gbs"]) * float(nearest["time_us"]) / time_us
    bound = float(nearest.get("bound_gbs", np.nan))
    return row | {"time_us": time_us, "busbw_gbs": busbw, "bound_gbs": bound, "of_bound": busbw / bound}


def _predicted(
    row: dict[str, Any], cluster: ClusterLike | None, mesh: DeviceMesh | None, calibration: Any, environment: Any
) -> dict[str, float]:
    """Return the predicted time of a row and its band."""
    unknown = dict.fromkeys(_PREDICTED, np.nan)
    axis = row["axis"]
    if axis is None and mesh is None and row["n_ranks"] and row["n_ranks"] > 1:  # a log has one group of all ranks
        mesh, axis = DeviceMesh(dp=int(row["n_ranks"])), "dp"
    if cluster is None or mesh is None or axis is None or row["collective"] not in COLLECTIVES:
        return unknown
    try:
        settings = NcclSettings.of_environment(
            environment, mode=row["mode"] or "pipelined", collective=row["collective"]
        )
        prediction = predict(
            mesh,
            cluster,
            row["collective"],
            [int(row["size_bytes"])],
            axis=axis,
            dtype=row["dtype"],
            calibration=calibration,
            settings=settings,
        )
    except MeshlabError:  # measured on another mesh, or no model
        return unknown
    # An axis whose groups cross different links has several lines, and its slowest group is measured.
    slowest = max(prediction.lines, key=lambda line: float(line.time_us[-1]))
    values = (slowest.time_us, slowest.time_us_lo, slowest.time_us_hi)
    return dict(zip(_PREDICTED, (float(value[-1]) for value in values), strict=True))


def _verdict(row: dict[str, Any]) -> str:
    """Return the word of the published runs, or else whether the prediction is reached."""
    if row["published"].word is not None:
        return str(row["published"].word)
    if row["machine"].excluded or row["published"].runs:  # published runs that do not decide are not overruled
        return "unknown"
    if is_below_prediction(row):
        return "slow"
    return "as expected" if np.isfinite(row["predicted_us_hi"]) else "unknown"


def is_below_prediction(row: Any) -> bool:
    """Return whether a row is clearly slower than its prediction, also if that is uncertain. False without one."""
    return bool(row["time_us"] > row["predicted_us_hi"] / EXPECTED_SHARE)


def predicted_range(row: Any) -> str:
    """Write the predicted bandwidths of a row of `expectations`, up to the bound. Empty without a prediction."""
    if not np.isfinite(row["predicted_us_hi"]):
        return ""
    low, high = _predicted_gbs(row, "predicted_us_hi"), _predicted_gbs(row, "predicted_us_lo")
    highest = max(low, min(high, row["bound_gbs"])) if np.isfinite(row["bound_gbs"]) else high
    return format_range(format_bandwidth(low), format_bandwidth(highest))


def _predicted_gbs(row: Any, time: str) -> float:
    """Return the bandwidth of a row in GB/s if it took one of the predicted times."""
    return float(row["busbw_gbs"] * row["time_us"] / row[time])


def lowest_expected_gbs(row: Any) -> float:
    """Return the bandwidth below which a row of `expectations` is slow, in GB/s. NaN without a prediction."""
    return EXPECTED_SHARE * _predicted_gbs(row, "predicted_us_hi")


def is_within_tolerance(row: Any) -> bool:
    """Return whether a row of `expectations` is slower than predicted, but not clearly."""
    return bool(row["time_us"] > row["predicted_us_hi"]) and not is_below_prediction(row)


def describe_expectation(row: Any, *, with_mode: bool = False) -> str:
    """Describe a row of `expectations` in a sentence without a full stop. With its mode, if other rows have others."""
    axis = f" on {row['axis']}" if plain_value(row["axis"]) is not None else ""
    mode = f" ({row['mode']})" if with_mode else ""
    text = f"{row['collective']}{axis} at {format_size(int(row['size_bytes']))}{mode} reaches "
    text += f"{format_bandwidth(row['busbw_gbs'])} busbw"
    parts = []
    if np.isfinite(row["of_bound"]):
        parts.append(
            f"{100 * row['of_bound']:.0f}{THIN}% of the {format_bandwidth(row['bound_gbs'])} that {row['bound']} allows"
        )
    if np.isfinite(row["of_published"]):
        parts.append(
            f"{100 * row['of_published']:.0f}{THIN}% of the published {format_bandwidth(row['published_gbs'])}"
        )
    if is_below_prediction(row):
        parts.append(f"while at least {format_bandwidth(_predicted_gbs(row, 'predicted_us_hi'))} is predicted")
    return ", ".join([text, *parts])
