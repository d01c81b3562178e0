"""JobLayout: a mesh with its expert view, as the degrees of parallelism of a job and the axes of its calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshlab.base._errors import MeshError, did_you_mean
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.prediction._volumes import Degrees, problems

if TYPE_CHECKING:
    from meshlab.prediction._job import Job

JOB_AXES = ("pp", "dp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
_EXPERT_AXES = ("pp", "edp", "ep", "etp")


@dataclass(frozen=True, eq=False)
class JobLayout:
    """A mesh with its expert view, and the axes of every role of a call."""

    mesh: DeviceMesh
    degrees: Degrees
    axes: dict[str, tuple[str, ...]]
    sizes: dict[str, int]

    @classmethod
    def of(cls, job: Job, mesh: DeviceMesh, experts: MeshLike | None) -> JobLayout:
        """Return the layout of a job, or raise a `MeshError` if it cannot run on it."""
        view = None if experts is None else mesh.view(str(as_mesh(experts)))
        _check_axes(mesh, JOB_AXES, "a training job")
        sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        size = {name: sizes.get(name, 1) for name in JOB_AXES}
        if view is not None:
            _check_axes(view, _EXPERT_AXES, "an expert layout")
            if size["ep"] > 1:
                raise MeshError("both the mesh and its expert layout have the axis ep", hint="keep one of them")
            sizes |= dict(zip(view.axis_names, view.shape, strict=True))
        replicas = size["dp_replicate"]
        replicate = ("dp_replicate",) if replicas > 1 else ()
        data = {"dp_replicate", "dp_shard", "dp", "cp"} - set(replicate)
        if view is None:
            # Without an expert layout, ep divides the data-parallel ranks, and tp shards each expert.
            sharding = tuple(name for name in mesh.axis_names if name in data | {"ep"})
            expert_data, expert_tp = tuple(name for name in sharding if name != "ep"), "tp"
            dp_of_ep, expert_replicas = size["ep"], replicas
        else:
            sharding = tuple(name for name in mesh.axis_names if name in data)
            expert_data, expert_tp = ("edp",) if "edp" in sizes else (), "etp"
            dp_of_ep = expert_replicas = 1
        axes: dict[str, tuple[str, ...]] = {name: (name,) for name in ("tp", "cp", "pp", "ep")}
        axes |= {"etp": (expert_tp,), "data": sharding, "expert_data": expert_data, "replicas": replicate}
        sizes = {name: sizes.get(name, 1) for names in axes.values() for name in names}
        dp = size["dp"] * replicas * size["dp_shard"] * dp_of_ep
        edp = math.prod(sizes[name] for name in expert_data) * expert_replicas
        chunks = job.interleave if size["pp"] > 1 else 1
        numbers = size["pp"], dp, size["cp"], size["tp"], sizes["ep"], sizes[expert_tp], edp, replicas, chunks
        degrees = Degrees(*(np.array([number], dtype=np.int64) for number in numbers))
        for problem in problems(job, degrees):
            if problem.bad[0]:
                raise MeshError(f"{job.title} cannot run on {mesh}: {problem.reason(0)}", hint=problem.fix(0))
        return cls(mesh, degrees, axes, sizes)


def _check_axes(mesh: DeviceMesh, names: Sequence[str], what: str) -> None:
    for name, size in zip(mesh.axis_names, mesh.shape, strict=True):
        if name not in names and size > 1:
            raise MeshError(
                f"{what} has no axis {name!r}{did_you_mean(name, names)}", hint=f"use the axes {', '.join(names)}"
            )
