"""Prices: the predicted time of a call, and the predicted curves of a plan, for the workbench."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from meshlab.base._errors import MeshlabError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.plots._lines import Line, line_key, line_names
from meshlab.prediction._predictions import PredictedLine, predict
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.placement._loads import Loads
from meshlab.topology.placement._placement import Placement, place


class Price(NamedTuple):
    """The time of one call in seconds, the bounds of its interval, its basis, and what the prediction is made of.

    Without a prediction the time is that of the slowest link, and the bounds are NaN.
    """

    seconds: float
    low: float
    high: float
    basis: str
    detail: str


def price_of(placement: Placement, loads: Loads) -> Price:
    """Return the price of the call that causes the loads of an axis.

    Examples
    --------
    >>> import meshlab as ml
    >>> placement = ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2))
    >>> price = price_of(placement, placement.loads("dp"))
    >>> price.low < price.seconds < price.high, price.detail
    (True, 'NCCL takes ring Simple, at 99 % of the bound')
    """
    try:
        lines = predict(placement, collectives={loads.axis: loads.collective}, sizes=loads.size_bytes).lines
    except MeshlabError:  # no GPUs, one rank per group, an unknown bandwidth, or a collective without a model
        lines = ()
    if not lines:
        return Price(loads.seconds, math.nan, math.nan, "slowest link", "")
    line = max(lines, key=lambda one: float(one.time_us[0]))
    seconds, low, high = (float(values[0]) * 1e-6 for values in (line.time_us, line.time_us_lo, line.time_us_hi))
    return Price(seconds, low, high, line.basis[0], _detail(line))


def _detail(line: PredictedLine) -> str:
    choice = line.choices[0][1]
    share = f", at {line.of_bound[0]:.0%} of the bound".replace("%", " %") if np.isfinite(line.of_bound[0]) else ""
    return f"NCCL takes {choice}{share}"


def predicted_lines(mesh: DeviceMesh, cluster: Cluster, plan: Plan) -> dict[str, Line]:
    """Return the predicted bandwidth of every line of a plan, by the name of the line."""
    placement = place(mesh, cluster)
    steps = [part for step in plan.steps(mesh) for part in step.parts]
    found: dict[str, Line] = {}
    for key, name in line_names(map(line_key, steps)).items():
        own = [step for step in steps if line_key(step) == key]
        sizes = sorted({step.size_bytes for step in own if step.size_bytes is not None})
        try:
            lines = predict(
                placement, collectives={own[0].axis: own[0].collective}, sizes=sizes, dtype=own[0].dtype or "float32"
            ).lines
        except MeshlabError:
            continue
        if lines:
            line = max(lines, key=lambda one: float(one.time_us[-1]))
            per_us = line.busbw_gbs * line.time_us
            found[name] = Line(
                line.size_bytes, line.busbw_gbs, per_us / line.time_us_hi, per_us / line.time_us_lo, name=name
            )
    return found
