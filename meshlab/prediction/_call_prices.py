"""Prices of the calls of a training step, in the order of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshlab.base._errors import MeshError
from meshlab.base._hints import Argument, Hint
from meshlab.mesh._mesh import MeshLike, as_mesh
from meshlab.prediction._costs import prices
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._step_calls import StepCall, check_calls
from meshlab.prediction._tuner import NcclSettings
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._placement import place

if TYPE_CHECKING:
    import pandas as pd


def price(
    calls: Sequence[StepCall],
    mesh: MeshLike,
    cluster: ClusterLike,
    *,
    experts: MeshLike | None = None,
    settings: NcclSettings | None = None,
) -> pd.DataFrame:
    """Predict the time of every call of a step.

    Parameters
    ----------
    calls : sequence of StepCall
        The calls, see `Job.step`.
    mesh : DeviceMesh or str
        The mesh.
    cluster : Cluster or str
        The machine, or the name of a preset.
    experts : DeviceMesh or str, optional
        The expert layout, if calls name its axes.
    settings : NcclSettings, optional
        Settings of NCCL.

    Returns
    -------
    pandas.DataFrame
        One row per call: ``axis``, ``collective``, ``what``, ``size_bytes``, ``calls`` per step, ``time_us`` of one
        call on the slowest group with its band ``time_us_lo`` and ``time_us_hi``, and ``total_s`` per step.

    Examples
    --------
    >>> import meshlab as ml
    >>> from meshlab.prediction import price
    >>> calls = ml.Job.preset("llama3-8b").step("dp=2, tp=8")
    >>> frame = price(calls, "dp=2, tp=8", ml.preset("dgx-h100", nodes=2))
    >>> frame.groupby("axis")["total_s"].sum().round(2).to_dict()
    {'dp': 0.07, 'tp': 16.61}
    """
    import pandas as pd

    check_calls(calls)
    mesh = as_mesh(mesh)
    meshes = [mesh]
    if experts is not None:
        meshes.append(mesh.view(str(as_mesh(experts))))
    placements = [place(layout, cluster) for layout in meshes]
    groups: dict[tuple[tuple[str, ...], str, str], list[int]] = {}
    for number, call in enumerate(calls):
        groups.setdefault((call.axis, call.collective, call.dtype), []).append(number)
    time, low, high = np.zeros((3, len(calls)))
    for (axis, collective, dtype), numbers in groups.items():
        placement = next((candidate for candidate in placements if set(axis) <= set(candidate.mesh.axis_names)), None)
        if placement is None:
            raise MeshError(
                f"no mesh has the axes {', '.join(axis)} of a call",
                hint=Hint("pass {}, the expert layout of the step", Argument("experts")),
            )
        links, _ = GroupLinks.of(placement, "-".join(axis))
        priced = prices(links, collective, dtype=dtype, settings=settings or NcclSettings())
        sizes = np.array([calls[number].size_bytes for number in numbers])
        of_groups = priced.time_us(np.arange(len(links))[:, None], sizes)
        slowest = of_groups.argmax(axis=0)
        time[numbers] = of_groups.max(axis=0)
        low[numbers], high[numbers] = priced.errors.band(slowest, sizes)
    rows = [("-".join(call.axis), call.collective, call.what, call.size_bytes, call.calls) for call in calls]
    frame = pd.DataFrame(rows, columns=["axis", "collective", "what", "size_bytes", "calls"])
    frame = frame.assign(time_us=time, time_us_lo=time * np.exp(low), time_us_hi=time * np.exp(high))
    frame["total_s"] = time * frame["calls"] * 1e-6
    return frame
