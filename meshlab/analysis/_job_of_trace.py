"""The training job of a trace: what its calls show of the job, and the check of the sizes that the caller adds."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshlab.base._collectives import COLLECTIVES
from meshlab.base._errors import MeshError
from meshlab.base._hints import Argument, Hint
from meshlab.comm._elements import DTYPES, find_dtype
from meshlab.mesh._axes import as_integer
from meshlab.mesh._mesh import DeviceMesh, MeshLike
from meshlab.prediction._job import Job
from meshlab.prediction._job_layout import JOB_AXES
from meshlab.traces._call_list import CallList, RecordedCall, list_calls
from meshlab.traces._sentences import bytes_text

if TYPE_CHECKING:
    from meshlab.traces._trace import Trace

_SHARDING = {"dp", "dp_shard"}
_GATHERED_TWICE = 1.5  # all_gathers per reduce_scatter, from which weights are gathered in both passes
_ALIKE = 1.25  # ratio of two volumes that do not contradict each other
_REDUCES = ("scattering", "reduction")  # roles of calls that add up gradients
_NEEDED = ("layers", "hidden", "heads", "sequence", "global_batch")


def job_from_trace(
    trace: Trace, mesh: MeshLike | None = None, *, model: str | None = None, steps: int = 0, **fields: Any
) -> Job:
    """Return the job of a trace, see `Job.from_trace`."""
    calls = list_calls(trace, mesh)
    layout = calls.mesh
    foreign = next(
        (name for name, size in zip(layout.axis_names, layout.shape, strict=True) if _is_foreign(name, size)), ""
    )
    if foreign:
        raise MeshError(
            f"the axis {foreign!r} of the trace is not an axis of a training job",
            hint=Hint("pass {} with the axes " + ", ".join(JOB_AXES), Argument("mesh")),
        )
    n_steps = _number_of_steps(calls, steps)
    facts = _options(calls) | fields
    sizes = {} if model is not None else _sizes(calls, n_steps, facts)
    facts = sizes | facts
    missing = [name for name in (_NEEDED if model is None else ()) if facts.get(name) is None]
    if "parameters" in sizes and "vocabulary" not in facts:
        missing.append("vocabulary")
    if "zero" not in facts and _data_ranks(layout) > 1:
        missing.append("zero")
    if missing:
        raise MeshError(
            f"a trace does not show {_listed(missing)} of the job",
            hint="pass them" if model else "pass them, or a preset such as model='llama3-8b'",
        )
    job = Job(**({"name": "job of a trace"} | facts)) if model is None else Job.preset(model, **facts)
    if n_steps is not None:
        _check_volumes(job, calls, n_steps)
    return job


def _data_ranks(mesh: DeviceMesh) -> int:
    """Return the number of ranks over which weights can be sharded."""
    shape = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    return math.prod(shape.get(name, 1) for name in _SHARDING)


def _is_foreign(name: str, size: int) -> bool:
    return size > 1 and name not in JOB_AXES


def _number_of_steps(calls: CallList, steps: int) -> int | None:
    """Return the number of steps in the trace, None if it is unknown."""
    number = as_integer(steps)
    if number is None or number < 0:
        raise MeshError(f"steps must be an integer of at least 0, not {steps!r}")
    if number:
        return number
    return calls.n_steps if any(call.step is not None for call in calls.calls) else None


def _options(calls: CallList) -> dict[str, Any]:
    """Return the options of the job that its calls show."""
    facts: dict[str, Any] = {}
    data, tensor = _along_data(calls), [call for call in calls.calls if call.kind.axis == "tp"]
    gathers, scatters, reductions = (
        [call for call in data if _role(call) == role] for role in ("gathering", *_REDUCES)
    )
    if reductions and not gathers and not scatters:
        facts |= {"zero": 0, "gradient_dtype": _dtype(reductions)}
        facts |= {} if tensor else {"dtype": _dtype(reductions)}  # DDP reduces in the type of the weights
    elif scatters and len(gathers) >= _GATHERED_TWICE * len(scatters):
        # As many gathers as reductions could also be those of an optimizer that shards its state.
        facts |= {"zero": 3, "reshard": True, "gradient_dtype": _dtype(scatters), "dtype": _dtype(gathers)}
    if tensor:
        facts |= {"sequence_parallel": any(_role(call) == "scattering" for call in tensor)}
        facts |= {"dtype": _dtype(tensor)}
    return {name: value for name, value in facts.items() if value is not None}


def _sizes(calls: CallList, n_steps: int | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of the model that the calls determine, together with those that the caller passed."""
    sizes: dict[str, Any] = {}
    shape = dict(zip(calls.mesh.axis_names, calls.mesh.shape, strict=True))
    tensor = [call for call in calls.calls if call.kind.axis == "tp"]
    sequence, micro_batch, global_batch = (  # which the Job checks
        as_integer(facts.get(name)) or 0 for name in ("sequence", "micro_batch", "global_batch")
    )
    tokens = sequence * micro_batch // shape.get("cp", 1)
    if tensor and tokens:
        size, itemsize = _most_common_size(tensor), find_dtype(str(facts.get("dtype", "bfloat16"))).itemsize
        if size % (tokens * itemsize) == 0:
            sizes["hidden"] = size // (tokens * itemsize)
    is_whole = all(shape.get(name, 1) == 1 for name in ("pp", "tp", "ep"))
    if n_steps is None or not is_whole or facts.get("experts"):
        return sizes
    data = _along_data(calls)
    role = {0: "reduction", 3: "scattering"}.get(facts.get("zero", -1))
    gradients = [call for call in data if _role(call) == role]
    n_micro = global_batch / (micro_batch or 1) / (calls.mesh.world_size // shape.get("cp", 1))
    if not gradients or (role == "scattering" and n_micro != 1):
        return sizes
    per_rank = n_steps * len({call.groups[0] for call in gradients})
    if role == "scattering":
        most = _most_common_size(gradients)
        n_layers = sum(call.kind.size_bytes == most for call in gradients) / per_rank
        sizes |= {"layers": int(n_layers)} if n_layers.is_integer() else {}
    if facts.get("parameters") is None and facts.get("ffn_hidden") is None:
        itemsize = find_dtype(str(facts.get("gradient_dtype", "float32"))).itemsize
        sizes["parameters"] = float(sum(call.kind.size_bytes for call in gradients)) / itemsize / per_rank
    return sizes


def _role(call: RecordedCall) -> str:
    """Return what a call does for sharded weights: gather them, scatter sums of gradients, or leave them everywhere."""
    row = COLLECTIVES[call.kind.collective]
    if row.rooted or row.peers or row.sends == row.receives != "count":
        return ""
    if not row.reduces:
        return "gathering" if row.sends == "count" and row.has_total_size else ""
    return "scattering" if row.has_total_size else "reduction"


def _along_data(calls: CallList) -> list[RecordedCall]:
    """Return the calls of weights and gradients: along data-parallel axes, alone or with context-parallel ones."""
    return [
        call
        for call in calls.calls
        if (names := set(call.kind.axis.split("-"))) & _SHARDING and names <= {*_SHARDING, "cp"}
    ]


def _dtype(calls: Sequence[RecordedCall]) -> str | None:
    """Return the floating-point type of most bytes of some calls, None if the trace does not contain it."""
    n_bytes: Counter[str] = Counter()
    for call in calls:
        name = call.kind.dtype or ""
        if name in DTYPES and "float" in name:
            n_bytes[name] += call.kind.size_bytes
    return n_bytes.most_common(1)[0][0] if n_bytes else None


def _most_common_size(calls: Sequence[RecordedCall]) -> int:
    return Counter(call.kind.size_bytes for call in calls).most_common(1)[0][0]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _check_volumes(job: Job, calls: CallList, n_steps: int) -> None:
    """Warn about each axis along which the job moves other volumes than the trace."""
    volumes = job.volumes(calls.mesh).groupby("axis")["total_bytes"].sum().to_dict()
    for axis in dict.fromkeys(kind.axis for kind in calls.kinds):
        members = [call for call in calls.calls if call.kind.axis == axis]
        recorded = sum(call.kind.size_bytes for call in members) / calls.n_groups(axis) / n_steps
        expected = float(volumes.get(axis, 0))
        if not expected or not 1 / _ALIKE <= recorded / expected <= _ALIKE:
            warnings.warn(
                f"the trace moves {bytes_text(recorded)} along {axis} a step, and the job "
                f"{bytes_text(expected) if expected else 'nothing'}; check the sizes of the model",
                stacklevel=4,
            )
