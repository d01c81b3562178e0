"""The sentences about a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._units import format_number, format_time_us
from meshlab.mesh._axes import format_ranks
from meshlab.mesh._mesh import MeshLike
from meshlab.traces._axes import describe_group
from meshlab.traces._curves import slow_calls_text
from meshlab.traces._joining import missing_ranks

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.traces._trace import Trace

_MOST = 4  # sentences about delays, groups or libraries
_UNKNOWN, _SINGLE = "unknown groups", "groups of one rank"


def sentences(trace: Trace, mesh: MeshLike | None, machine: Any) -> Iterator[str]:
    """Yield the time by axis, late ranks, unusual delays, and what the files do not show."""
    table = trace.by_axis(mesh, steps=False)
    for row in records(table):
        yield axis_text(row)
    yield from _delay_texts(trace)
    if machine is not None:
        yield from slow_calls_text(trace.against(machine, mesh))
    if np.isfinite(trace.error_us):
        error = format_time_us(trace.error_us)
        yield f"The ends of a call differ by {error} in the median, which is the error of a wait."
    yield from _missing_texts(trace, table)
    yield from _group_texts(trace, mesh)
    yield from dict.fromkeys(f"{note[:1].upper()}{note[1:]}." for rank in trace.job.ranks for note in rank.notes)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def axis_label(row: Mapping[str, Any]) -> str:
    """Return the name of the axis of a row of the table, or words for calls without one."""
    axis, n = row["axis"], row["n_ranks"]
    return axis if isinstance(axis, str) else _SINGLE if not _is_missing(n) and n == 1 else _UNKNOWN


def bytes_text(size: float) -> str:
    """Return a number of bytes in decimal units, as bandwidths have them."""
    if not np.isfinite(size):
        return "unknown size"
    power = min(int(np.log10(max(size, 1)) // 3), 4)
    return f"{format_number(size / 1000**power)} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _count(n: float) -> str:
    return f"{n:,.0f} call{'s' * (n != 1)}" if float(n).is_integer() else f"{n:,.1f} calls"


def axis_text(row: dict[str, Any]) -> str:
    """Return a sentence about a row of the table by axis."""
    parts = [f"{_count(row['calls'])}, {bytes_text(row['size_bytes'])}"]
    exposed, hidden, transfer = row["exposed_us"], row["hidden_us"], row["transfer_us"]
    is_split = np.isfinite(transfer)
    if np.isfinite(exposed) and exposed + hidden > 0:
        share = f"{100 * exposed / (exposed + hidden):.0f} %"
        length = f" of {format_time_us(transfer)}" if is_split else ""
        parts.append(f"{share} of the {'transfer' if is_split else 'calls, with their waits,'}{length} exposed")
    elif is_split:
        parts.append(f"transfer {format_time_us(transfer)}")
    elif np.isfinite(row["duration_us"]):
        parts.append(f"duration {format_time_us(row['duration_us'])}, waits included")
    if np.isfinite(row["wait_us"]) and row["wait_us"] > 0:
        parts.append(f"a rank waits {format_time_us(row['wait_us'])} for others")
    if not _is_missing(row["late_rank"]):
        late = f"rank {row['late_rank']} is late in {row['late_calls']:,} of {row['counted_calls']:,}"
        parts.append(f"{late}, by {format_time_us(row['late_us'])} in the median")
    return f"{axis_label(row)}: {'; '.join(parts)}."


def _is_missing(value: object) -> bool:
    import pandas as pd

    return value is None or value is pd.NA or value != value


def _delay_texts(trace: Trace) -> Iterator[str]:
    delays = trace.delays()
    for row in records(delays.head(_MOST)):
        step = "The" if _is_missing(row["step"]) else f"Step {row['step']}: the"
        yield (
            f"{step} host of rank {row['rank']} was idle for {format_time_us(row['idle_us'])} before a call of "
            f"{row['collective']}, and the rank came {format_time_us(row['lateness_us'])} after the others."
        )
    if len(delays) > _MOST:
        yield f"{len(delays) - _MOST:,} more calls are late after an idle host, see delays()."


def _missing_texts(trace: Trace, table: pd.DataFrame) -> Iterator[str]:
    world, ranks = trace.world_size, trace.ranks
    if world is None or not ranks:
        yield "The file does not contain its rank or the number of ranks, so no wait is computed."
    elif missing := missing_ranks(ranks, world):
        which = f"{format_ranks(ranks)} of {world:,}"
        rest = "the durations contain the waits" if table["duration_us"].notna().any() else "the calls are listed"
        yield (
            f"A wait needs all ranks of a group, but only {which} {'has a file' if len(ranks) == 1 else 'have files'} "
            f"({missing} missing): {rest}."
            if table["wait_us"].isna().any()
            else f"Only {which} {'has a file' if len(ranks) == 1 else 'have files'}."
        )
    columns = trace.job.columns
    n_unknown = int(np.isnan(columns["size_bytes"]).sum())
    if n_unknown:
        yield f"{n_unknown:,} of {trace.job.n_calls:,} rows have no size in the files."
    n_untimed = int(np.isnan(columns["duration_us"]).sum())
    if n_untimed:
        yield f"{n_untimed:,} of {trace.job.n_calls:,} rows have no duration: their kernels are not in the files."
    n_unnamed = sum(name is None for name in columns["collective"])
    if n_unnamed:
        yield f"{n_unnamed:,} of {trace.job.n_calls:,} rows are not named as a collective in the files."


def _group_texts(trace: Trace, mesh: MeshLike | None) -> Iterator[str]:
    for number in trace._matched.unmatched[:_MOST]:
        yield f"The calls of {describe_group(trace.job.groups[number])} differ between its ranks, and are not matched."
    groups = trace.groups(mesh)
    unexplained = groups[groups["axis"].isna() & groups["n_ranks"].ne(1) & groups["calls"].gt(0)]
    listed_groups = unexplained[unexplained["ranks"].notna()]
    for number in listed_groups.index[:_MOST].tolist():
        calls = int(listed_groups["calls"][number])
        yield f"{describe_group(trace.job.groups[number])} is not along axes of the mesh ({_count(calls)}).".replace(
            "process", "Process", 1
        )
    n_unknown = int((trace.job.columns["group"] < 0).sum())
    if n_unknown:
        yield f"{n_unknown:,} of {trace.job.n_calls:,} rows have no process group in the files."
    listed = max((rank.n_groups or 0 for rank in trace.job.ranks), default=0)
    if listed > len(trace.job.groups):
        yield f"The files list {len(trace.job.groups):,} of {listed:,} process groups."
    for rank in trace.job.ranks[:1]:
        for other in rank.others[:_MOST]:
            yield (
                f"Rank {rank.rank} also ran {other.n:,} kernels of {other.library} for "
                f"{format_time_us(other.time_us)}, which have no group and no size in the file."
            )


def axis_rows(table: pd.DataFrame) -> list[list[str]]:
    """Return the header and the rows of the table by axis, as text. Times that no row has are left out."""
    has_steps = "step" in table.columns
    times = [name for name in ("transfer", "wait", "exposed", "hidden") if table[f"{name}_us"].notna().any()]
    rows = [["axis", *(["step"] if has_steps else []), "calls", "bytes", *times]]
    for row in records(table):
        values = [row[f"{name}_us"] for name in times]
        step = [] if not has_steps else ["" if _is_missing(row["step"]) else str(row["step"])]
        size = bytes_text(row["size_bytes"]) if np.isfinite(row["size_bytes"]) else ""
        texts = [format_time_us(value) if np.isfinite(value) else "" for value in values]
        rows.append([axis_label(row), *step, f"{row['calls']:,.10g}", size, *texts])
    return rows
