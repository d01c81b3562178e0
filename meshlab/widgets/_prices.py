"""Prices: the predicted time of a call, and the predicted curves of a plan, for the workbench."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from meshlab.base._errors import MeshlabError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.plots._lines import Line, line_key, line_names
from meshlab.prediction._predictions import predict
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.placement._loads import Loads
from meshlab.topology.placement._placement import Placement, place


class Price(NamedTuple):
    """The time of one call in seconds, and the bounds of its interval."""

    seconds: float  # without a prediction that of the slowest link
    low: float  # NaN without a prediction
    high: float
    basis: str  # of the time
    detail: str  # the algorithm of the prediction


def price_of(placement: Placement, axis_loads: Loads) -> Price:
    """Return the price of the call that causes the loads of an axis."""
    collectives = {axis_loads.axis: axis_loads.collective}
    try:
        lines = predict(placement, collectives=collectives, sizes=axis_loads.size_bytes).lines
    except MeshlabError:  # no GPUs, one rank per group, an unknown bandwidth, or a collective without a model
        lines = ()
    if not lines:
        return Price(axis_loads.seconds, math.nan, math.nan, "slowest link", "")
    line = max(lines, key=lambda line: float(line.time_us[0]))
    seconds, low, high = (float(values[0]) * 1e-6 for values in (line.time_us, line.time_us_lo, line.time_us_hi))
    share = f", at {100 * line.of_bound[0]:.0f} % of the bound" if np.isfinite(line.of_bound[0]) else ""
    return Price(seconds, low, high, line.basis[0], f"NCCL takes {line.choices[0][1]}{share}")


def predicted_lines(mesh: DeviceMesh, cluster: Cluster, plan: Plan) -> dict[str, Line]:
    """Return the predicted bandwidth of every line of a plan, by the name of the line."""
    placement = place(mesh, cluster)
    steps = [part for step in plan.steps(mesh) for part in step.parts]
    by_name: dict[str, Line] = {}
    for key, name in line_names(map(line_key, steps)).items():
        parts = [step for step in steps if line_key(step) == key]
        sizes = sorted({part.size_bytes for part in parts if part.size_bytes is not None})
        collectives, dtype = {parts[0].axis: parts[0].collective}, parts[0].dtype or "float32"
        try:
            lines = predict(placement, collectives=collectives, sizes=sizes, dtype=dtype).lines
        except MeshlabError:
            continue
        if lines:
            line = max(lines, key=lambda line: float(line.time_us[-1]))
            per_us = line.busbw_gbs * line.time_us
            low, high = per_us / line.time_us_hi, per_us / line.time_us_lo
            by_name[name] = Line(line.size_bytes, line.busbw_gbs, low, high, name=name)
    return by_name
