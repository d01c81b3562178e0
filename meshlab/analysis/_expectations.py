"""Measured bandwidth next to the bound of the hardware, the prediction, and published values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis._published import matching_references
from meshlab.base._errors import MeshlabError, TopologyError
from meshlab.base._units import THIN, format_bandwidth, format_range, format_size
from meshlab.frames._labels import GPU_SOURCES, is_wrong
from meshlab.frames._schema import is_pair, is_plain, plain_value
from meshlab.plans._options import OPTIONS
from meshlab.prediction._bounds import with_bounds
from meshlab.prediction._costs import COLLECTIVES
from meshlab.prediction._predictions import BOUND_FROM, predict
from meshlab.prediction._tuner import NcclSettings
from meshlab.runs._rundata import RunData
from meshlab.runs._store import as_results
from meshlab.topology.model._presets import ClusterLike

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh._mesh import MeshLike

EXPECTED_SHARE = 0.9
"""The share of a published or of the lowest predicted bandwidth from which a measurement is as expected.

Published values of the same system differ by less than 6 %: 460 to 482 GB/s for 8 × H100, and 431 to 475 GB/s for
8 × H200, of which the lower ones are limits of acceptance tests.
"""

_PUBLISHED_FROM = 1 << 30
"""Bandwidths are published for the largest messages. A smaller message than this cannot be compared with them."""

_CASE = ["axis", "collective", "op", "dtype", "mode", "in_place", *OPTIONS]
_PREDICTED = ("predicted_us", "predicted_us_lo", "predicted_us_hi")
_COLUMNS = ["axis", "collective", "dtype", "mode", "n_ranks", "size_bytes", "time_us", "busbw_gbs", "bound_gbs"]
_COLUMNS += ["bound", "of_bound", *_PREDICTED, "published_gbs", "of_published", "source", "verdict"]


def expectations(
    run: Any, cluster: ClusterLike | None = None, *, mesh: MeshLike | None = None, calibration: Any = None
) -> pd.DataFrame:
    """Compare the bandwidth at the largest size with the bound, the prediction and published values, a row per axis."""
    # Each row has the slowest group. Without a cluster, only published values are compared.
    import pandas as pd

    if isinstance(run, RunData):
        mesh = run.mesh if mesh is None else mesh
        calibration = run.calibration if calibration is None else calibration
    results = as_results(run)
    attrs = dict(results.attrs)
    usable = is_plain(results) & ~is_pair(results) & ~is_wrong(results) & results["time_us"].gt(0)
    results = results[usable & results["source"].isin(GPU_SOURCES) & results["size_bytes"].ge(BOUND_FROM)]
    results = results.reset_index(drop=True)  # frames that were joined may have equal labels
    results.attrs = attrs
    if not len(results):
        return pd.DataFrame(columns=_COLUMNS)
    if cluster is not None and mesh is not None:
        try:
            results = with_bounds(results, cluster, mesh=mesh)
        except TopologyError:  # the bandwidth of the links is unknown
            cluster = None
    rows = []
    for _, part in results.groupby(_CASE, sort=False, dropna=False):
        row = _slowest(part[part["size_bytes"] == part["size_bytes"].max()])
        row |= _predicted(row, cluster, mesh, calibration, attrs.get("environment") or {})
        row |= _published(row, attrs)
        rows.append(row | {"verdict": _verdict(row)})
    return pd.DataFrame(rows, columns=_COLUMNS)


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
    row: dict[str, Any], cluster: ClusterLike | None, mesh: MeshLike | None, calibration: Any, environment: Any
) -> dict[str, float]:
    """Return the predicted time of a row and its band."""
    unknown = dict.fromkeys(_PREDICTED, np.nan)
    if cluster is None or mesh is None or row["axis"] is None or row["collective"] not in COLLECTIVES:
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
            axis=row["axis"],
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


def _published(row: dict[str, Any], attrs: dict[Any, Any]) -> dict[str, Any]:
    """Return the published bandwidth of the same collective, GPUs and number of ranks."""
    import pandas as pd

    unknown = {"published_gbs": np.nan, "of_published": np.nan, "source": None}
    if row["size_bytes"] < _PUBLISHED_FROM:
        return unknown
    measured = pd.DataFrame([{name: row[name] for name in ("collective", "size_bytes", "time_us", "n_ranks")}])
    measured.attrs = attrs
    references = matching_references(measured)
    if not len(references):
        return unknown
    first = references.iloc[0]
    busbw = float(first["busbw_gbs"])
    return {
        "published_gbs": busbw,
        "of_published": row["busbw_gbs"] / busbw,
        "source": first["source"] if pd.isna(first["date"]) else f"{first['source']}, {first['date']}",
    }


def _verdict(row: dict[str, Any]) -> str:
    """Return slow if the bandwidth is below 90 % of the lower end of the prediction, or of a published value."""
    if is_below_prediction(row) or row["of_published"] < EXPECTED_SHARE:
        return "slow"
    is_known = np.isfinite(row["predicted_us_hi"]) or np.isfinite(row["of_published"])
    return "as expected" if is_known else "unknown"


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
