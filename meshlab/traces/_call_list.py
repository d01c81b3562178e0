"""The calls of a trace as a list that can be made again: one item per call, with its ranks and their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshlab.base._collectives import COLLECTIVES
from meshlab.base._errors import BenchError, MeshError
from meshlab.base._hints import Argument, Hint
from meshlab.comm._elements import DTYPES
from meshlab.mesh._axes import format_ranks
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.traces._axes import check_mesh, describe_group
from meshlab.traces._rank_trace import COALESCED, MESSAGES, UNEVEN

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.traces._trace import Trace


class CallKind(NamedTuple):
    """What calls have in common that differ only in their time."""

    axis: str
    collective: str
    size_bytes: int  # 0 if the call moves no data
    dtype: str | None


_LIKE = {"bool": "uint8", "int16": "float16", "complex64": "float32", "complex128": "float64"}
"""Types of the same size, or of half of it, for those that meshlab lacks."""


def dtype_of(kind: CallKind) -> str:
    """Return the element type with which a call is made again: the same one, or another one of the same bytes."""
    if kind.dtype in DTYPES:
        return str(kind.dtype)
    if not COLLECTIVES[kind.collective].reduces:
        return "uint8"
    return _LIKE.get(kind.dtype or "", "uint8" if kind.size_bytes % 4 else "float32")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call of a trace: the ranks that made it, and when."""

    number: int  # of `Trace.frame`
    kind: CallKind
    groups: tuple[tuple[int, ...], ...]  # several, if ranks without a file make the call too
    step: int | None
    spans: Mapping[int, tuple[float, float]]  # start and end in µs of each rank with a file, NaN if unknown
    duration_us: float  # mean of the ranks
    transfer_us: float
    wait_us: float  # mean of the ranks
    exposed_us: float  # of the transfer; NaN if unknown

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that make the call."""
        return tuple(rank for group in self.groups for rank in group)


@dataclass(frozen=True, eq=False)
class CallList:
    """The calls of a trace that can be made again, in the order in which they began."""

    mesh: DeviceMesh
    calls: tuple[RecordedCall, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)  # numbers of calls by the reason, in words
    without_file: tuple[int, ...] = ()  # ranks that make the calls of other ranks
    uneven: int = 0  # calls whose chunks had different sizes
    n_steps: int = 1  # of the profiler

    @property
    def kinds(self) -> list[CallKind]:
        """The different calls, in the order in which they began first."""
        return list(dict.fromkeys(call.kind for call in self.calls))

    @cached_property
    def _groups(self) -> Mapping[str, set[tuple[int, ...]]]:
        groups: dict[str, set[tuple[int, ...]]] = {}
        for call in self.calls:
            groups.setdefault(call.kind.axis, set()).add(call.groups[0])
        return groups

    def n_groups(self, axis: str) -> int:
        """Return the number of groups of an axis with recorded calls, without those of ranks that have no file."""
        return len(self._groups[axis])

    @property
    def left_out_text(self) -> str:
        """The calls that are left out, in words. Empty if there are none."""
        return "; ".join(f"{n:,} {reason}" for reason, n in self.left_out.items())


def list_calls(trace: Trace, mesh: MeshLike | None = None, step: int | None = None) -> CallList:
    """Return the calls of a trace that can be made again. Raise if there are none, or the mesh contradicts them."""
    layout = _layout_of(trace, mesh)
    frame = trace.frame(layout)
    steps = sorted({int(number) for number in frame["step"].dropna().unique()})
    if step is not None:
        if step not in steps:
            choices = f"choose one of {', '.join(map(str, steps[:20]))}" if steps else "record it with prof.step()"
            raise BenchError(f"the trace has no step {step!r}", hint=choices)
        frame, steps = frame[frame["step"].eq(step).fillna(value=False)], [step]
    left_out: Counter[str] = Counter()
    calls, uneven = [], 0
    for rows in _calls_of(frame):
        if reason := _why_left_out(rows):
            left_out[reason] += 1
            continue
        calls.append(_recorded(rows))
        uneven += COLLECTIVES[calls[-1].kind.collective].counted
    if not calls:
        reasons = "; ".join(f"{n:,} {reason}" for reason, n in left_out.items())
        raise BenchError(
            f"no call of the trace can be made again: {reasons or 'it has none'}",
            hint="record all ranks with record_shapes=True, or with a newer version of torch or NCCL",
        )
    calls, without_file = _with_all_ranks(calls, trace, layout)
    return CallList(layout, tuple(calls), dict(left_out), without_file, uneven, max(len(steps), 1))


def _layout_of(trace: Trace, mesh: MeshLike | None) -> DeviceMesh:
    """Return the mesh of a trace, or raise if the passed one contradicts its groups."""
    if mesh is None:
        return trace.mesh()
    layout = check_mesh(as_mesh(mesh, trace.world_size), trace.world_size)
    unexplained = trace.unexplained(layout)
    unexplained = unexplained[unexplained["calls"].gt(0) & unexplained["ranks"].notna()]
    if len(unexplained):
        names = set(unexplained["process_group"])
        group = next(group for group in trace.job.groups if group.name in names and len(group.ranks) > 1)
        raise MeshError(
            f"the trace contradicts the mesh {layout}: {describe_group(group)} is not along any of its axes",
            hint=Hint("pass the mesh of the job, or omit {} to infer it", Argument("mesh")),
        )
    return layout


_TIMES = ("start_us", "duration_us", "transfer_us", "wait_us", "exposed_us")


class _Row(NamedTuple):
    """A row of `Trace.frame`. Missing values are None, and missing times NaN."""

    call: int
    rank: int | None
    axis: str | None
    group_ranks: tuple[int, ...] | None
    n_ranks: int | None
    n_files: int
    collective: str | None
    size_bytes: int | None
    dtype: str | None
    step: int | None
    start_us: float
    duration_us: float
    transfer_us: float
    wait_us: float
    exposed_us: float
    is_last: bool


def _calls_of(frame: pd.DataFrame) -> Iterable[list[_Row]]:
    """Yield the rows of each call."""
    table = frame[[*_Row._fields]].astype(object)
    rows = map(_Row._make, table.where(table.notna(), None).itertuples(index=False, name=None))
    calls: dict[int, list[_Row]] = {}
    for row in rows:
        unknown: Any = {name: np.nan for name in _TIMES if getattr(row, name) is None}
        calls.setdefault(row.call, []).append(row._replace(**unknown))
    return calls.values()


def _why_left_out(rows: Sequence[_Row]) -> str:
    """Return why a call cannot be made again, as the end of a sentence that begins with a number of calls."""
    first = rows[0]
    name = first.collective
    if name is None or name == COALESCED:
        return "of an unknown collective" if name is None else "that the program grouped, without their sizes"
    if name in MESSAGES:
        return f"of {name}, whose partners wait for each other in the order of the program"
    if first.n_ranks == 1:
        return "of groups of one rank, which move nothing"
    if first.axis is None or first.group_ranks is None or first.rank is None:
        return "of unknown groups"
    if COLLECTIVES[name].has_size and all(row.size_bytes is None for row in rows):
        return f"of {name} along {first.axis} without a size"
    return ""


def _recorded(rows: Sequence[_Row]) -> RecordedCall:
    """Return a call with the values of its ranks."""
    first = rows[0]
    names = [row.collective for row in rows if row.collective is not None]
    name = next((name for name in names if name in UNEVEN.values()), names[0])
    sizes = [row.size_bytes for row in rows if row.size_bytes is not None]
    last = [row for row in rows if row.is_last] or sorted(rows, key=lambda row: row.transfer_us)[:1]
    return RecordedCall(
        number=first.call,
        kind=CallKind(
            axis=str(first.axis),
            collective=name,
            # Ranks with chunks of different sizes have different totals.
            size_bytes=round(sum(sizes) / len(sizes)) if sizes else 0,
            dtype=next((row.dtype for row in rows if row.dtype is not None), None),
        ),
        groups=(tuple(first.group_ranks or ()),),
        step=first.step,
        spans={int(row.rank or 0): (row.start_us, row.start_us + row.duration_us) for row in rows},
        duration_us=float(np.mean([row.duration_us for row in rows])),
        transfer_us=last[0].transfer_us,
        wait_us=float(np.mean([row.wait_us for row in rows])),
        exposed_us=last[0].exposed_us if np.isfinite(last[0].transfer_us) else np.nan,
    )


def _with_all_ranks(
    calls: list[RecordedCall], trace: Trace, mesh: DeviceMesh
) -> tuple[list[RecordedCall], tuple[int, ...]]:
    """Add the groups of ranks without a file, which make the calls of the other groups of their axis."""
    recorded = set(trace.ranks)
    absent = tuple(rank for rank in range(mesh.world_size) if rank not in recorded)
    if not absent:
        return calls, ()
    kinds_of = _sequences(calls)
    copies: dict[tuple[str, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for axis in dict.fromkeys(call.kind.axis for call in calls):
        sequences = {group: sequence for (name, group), sequence in kinds_of.items() if name == axis}
        group_sets = _groups_of(mesh, axis)
        unrecorded = [group for group in group_sets if not recorded & set(group)]
        if not unrecorded:
            continue
        if len(set(sequences.values())) > 1:
            raise BenchError(
                f"{format_ranks(absent)} of {mesh.world_size:,} have no file, and the calls of the other groups of "
                f"{axis} differ, so theirs are unknown",
                hint="record all ranks",
            )
        copies[axis, next(iter(sequences))] = unrecorded
    more = [replace(call, groups=(*call.groups, *copies.get((call.kind.axis, call.groups[0]), ()))) for call in calls]
    return more, absent


def _sequences(calls: Iterable[RecordedCall]) -> dict[tuple[str, tuple[int, ...]], tuple[CallKind, ...]]:
    """Return the calls of each group of each axis, in their order."""
    sequences: dict[tuple[str, tuple[int, ...]], list[CallKind]] = {}
    for call in calls:
        sequences.setdefault((call.kind.axis, call.groups[0]), []).append(call.kind)
    return {key: tuple(kinds) for key, kinds in sequences.items()}


def _groups_of(mesh: DeviceMesh, axis: str) -> list[tuple[int, ...]]:
    return [group.ranks for group in mesh[axis]]
