"""A plan that benchmarks exactly the calls of a trace."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, Unpack

from meshlab.base._collectives import COLLECTIVES
from meshlab.base._errors import BenchError
from meshlab.mesh._mesh import MeshLike
from meshlab.plans._arguments import PlanArguments, check_arguments
from meshlab.plans._plan import Plan
from meshlab.plans._steps import PlannedCall
from meshlab.traces._call_list import CallKind, dtype_of, list_calls

if TYPE_CHECKING:
    from meshlab.traces._trace import Trace


def plan_from_trace(trace: Trace, mesh: MeshLike | None = None, **arguments: Unpack[PlanArguments]) -> Plan:
    """Return a plan of the calls of a trace, see `Plan.from_trace`."""
    for name in ("dtype", "op", "grouping", "concurrent"):
        if name in arguments:
            raise BenchError(f"{name} of the calls is that of the trace, so it cannot be passed", hint=f"omit {name}=")
    check_arguments("Plan.from_trace", arguments)
    options: Any = arguments
    calls = list_calls(trace, mesh)
    if calls.left_out:
        warnings.warn(f"the plan lacks calls of the trace: {calls.left_out_text}", stacklevel=3)
    counts = Counter(call.kind for call in calls.calls)
    planned = [_planned(kind, n / calls.n_groups(kind.axis) / calls.n_steps) for kind, n in counts.items()]
    sized = [call for call in planned if call.size_bytes]
    if not sized:
        raise BenchError("the calls of the trace move no data", hint="benchmark a barrier: ml.Plan('barrier', axis)")
    return Plan(
        list(dict.fromkeys(call.collective for call in planned)),
        list(dict.fromkeys(call.axis for call in planned)),
        sorted({call.size_bytes for call in sized}),
        dtype=list(dict.fromkeys(call.dtype for call in sized)),
        calls=planned,
        **options,
    )


def _planned(kind: CallKind, per_step: float) -> PlannedCall:
    facts = COLLECTIVES[kind.collective]
    if not facts.has_size:
        return PlannedCall(kind.collective, kind.axis, 0, "", "", per_step)
    op = "sum" if facts.reduces else ""
    return PlannedCall(kind.collective, kind.axis, kind.size_bytes, dtype_of(kind), op, per_step)
