"""Writes results in the text layout of nccl-tests, so that tools for its logs can read meshlab's numbers too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._collectives import NCCL_TESTS
from meshlab.base._errors import BenchError
from meshlab.comm._backend import BUFFERS, CTA_POLICIES
from meshlab.frames._labels import axis_label
from meshlab.nccl_tests._infer import COLLECTIVE_OF_PROGRAM
from meshlab.nccl_tests._log import DTYPE_OF_TYPE, ITEMSIZE, UNKNOWN
from meshlab.plans._options import OPTIONS, option_label
from meshlab.runs._store import as_results

if TYPE_CHECKING:
    import pandas as pd

_PROGRAMS = {collective: program for program, collective in COLLECTIVE_OF_PROGRAM.items()}
_PRINTS_OP = frozenset(name for name, test in NCCL_TESTS.items() if test.may_print_op)
_TYPES = {dtype: name for name, dtype in reversed(DTYPE_OF_TYPE.items())}
_OPS = {"pre_mul_sum": "mulsum"}
# The tool's table has no column for these, so rows that differ in one of them need separate tables. Otherwise rows
# of one group alone, or next to another axis, would look like repetitions of each other.
_ONE_TABLE = [
    "run_id",
    "launch",
    "source",
    "collective",
    "mode",
    *OPTIONS,
    "axis",
    "grouping",
    "concurrent_axis",
    "concurrent_collective",
    "group",
    "src_rank",
    "dst_rank",
    "n_ranks",
]
_ONE_LINE = ["size_bytes", "count", "dtype", "op", "root"]
_HALF = ["in_place", "time_us", "algbw_gbs", "busbw_gbs", "n_wrong"]
_MOST_DEVICES = 4096
_HEADER = (
    "#",
    f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}           out-of-place                       in-place          ",
    f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
    + f"  {'time':>7}  {'algbw':>6}  {'busbw':>6} {'#wrong':>6}" * 2,
    f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}"
    + f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>5}" * 2,
)


def write(source: Any) -> str:
    """Write results as a log of nccl-tests, with one table per run, collective and group.

    The text has less information than the frame: times and rates have two decimals, intervals and percentiles are
    lost, and settings that meshlab does not record are 0. Both placements of a size share a line. Sizes with only one
    placement get their own table, in which the other placement is blank. Rows without a time, and rows of a collective
    that nccl-tests does not have, become comments.

    Parameters
    ----------
    source : RunData, DataFrame, path, or object with ``.results``
        The results: a run or its folder, or a results frame. ``attrs["gpu"]`` is the name of the devices.

    Returns
    -------
    str
        Text that `meshlab.nccl_tests.read` can read.

    Raises
    ------
    BenchError
        If there are no results, or no row can be written.

    Examples
    --------
    >>> import pandas as pd
    >>> row = dict(collective="all_reduce", op="sum", dtype="float32", in_place=False, mode="graph", n_ranks=2,
    ...            count=1 << 28, size_bytes=1 << 30, time_us=3295.43, algbw_gbs=325.83, busbw_gbs=325.83)
    >>> print(write(pd.DataFrame([row])).splitlines()[-5].rstrip())
    1073741824     268435456     float     sum      -1  3295.43  325.83  325.83    N/A
    """
    results = as_results(source)
    usable = results["collective"].isin(_PROGRAMS) & results["dtype"].isin(_TYPES)
    usable &= results[["count", "size_bytes"]].notna().all(axis=1)
    timed = usable & (results["time_us"] > 0)
    if not timed.any():
        raise BenchError(
            "nothing to write: no row has a time and a collective of nccl-tests",
            hint=f"pass results of {', '.join(sorted(_PROGRAMS))}",
        )
    gpu = str(results.attrs.get("gpu") or UNKNOWN)
    lines: list[str] = []
    for _, table in results[timed].groupby(_ONE_TABLE, dropna=False, sort=False):
        repeat = table.groupby([*_ONE_LINE, "in_place"], dropna=False).cumcount()
        line = [table[name] for name in _ONE_LINE] + [repeat]
        placements = (table["in_place"].astype("int64") + 1).groupby(line, dropna=False).transform("sum")
        for _, part in table.groupby(placements, sort=False):
            lines += _section(part, gpu)
    for row in results[~timed].itertuples():
        reason = row.status if _missing(row.stop_reason) else row.stop_reason
        size = "" if _missing(row.size_bytes) else f" of {row.size_bytes!s} bytes"
        lines.append(f"# error: {row.collective!s}{size} is omitted: {reason!s}")
    return "\n".join(lines) + "\n"


def _section(rows: pd.DataFrame, gpu: str) -> Iterator[str]:
    first: dict[str, Any] = {
        str(name): None if _missing(value) else value for name, value in zip(rows.columns, rows.iloc[0], strict=True)
    }
    program = f"{_PROGRAMS[first['collective']]}_perf"
    yield f"# Written by meshlab ({_describe(first)}); settings that it does not record are 0"
    if first["buffers"] is not None:
        # The tool does not print these options, so readers find them only in its command line.
        register, policy = list(BUFFERS).index(first["buffers"]), first["cta_policy"]
        chosen = "" if policy is None else f" -x {list(CTA_POLICIES).index(policy)}"
        yield f"# As ./{program}{_repeated_options(rows, first)} -R {register}{chosen}"
    yield f"# Collective test starting: {program}"
    yield _settings(rows, first)
    if first["mode"] == "isolated":
        yield "# Blocking Enabled: wait and barrier after each inner iteration (-m) "
    yield "#"
    yield "# Using devices"
    if first["n_ranks"] is not None and first["n_ranks"] <= _MOST_DEVICES:
        for rank in range(first["n_ranks"]):
            yield f"#  Rank {rank:2d} Group  0 Pid {0:6d} on {UNKNOWN:>10} device {0:2d} [0x00] {gpu}"
    yield from _HEADER
    for (size, count, dtype, op, root, _), line in _lines(rows):
        halves = {bool(row.in_place): row for row in line.itertuples()}
        yield (
            f"{size:12d}  {count:12d}  {_TYPES[dtype]:>8}  {_operation(op, first['collective']):>6}  "
            f"{-1 if _missing(root) else root:6d}{_half(halves.get(False))}{_half(halves.get(True))}"
        ).rstrip()
    wrong = int((rows["n_wrong"].fillna(0) > 0).sum())
    busbw = rows["busbw_gbs"].fillna(0.0).mean()
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {busbw:g} "
    yield "#"
    yield f"# Collective test concluded: {program}"


def _describe(first: dict[str, Any]) -> str:
    """Describe the columns that the tool's layout does not have."""
    parts = [f"{name} {first[name]}" for name in ("run_id", "launch", "source") if first[name] is not None]
    if first["axis"] is not None:
        label = axis_label(first["axis"], first["grouping"], first["concurrent_axis"], first["concurrent_collective"])
        parts.append(label if first["grouping"] == "pairs" else f"axis {label}")
    if first["group"] is not None:
        parts.append(f"group {first['group']}")
    if first["src_rank"] is not None:
        parts.append(f"ranks {first['src_rank']} and {first['dst_rank']}")
    for name in ("algorithm", "protocol", "min_ctas", "max_ctas", "traffic"):
        label = option_label(name, first[name])
        parts += [label] if label else []
    return "; ".join(parts)


def _lines(rows: pd.DataFrame) -> Iterable[tuple[Any, pd.DataFrame]]:
    """Group the rows that share a line. A placement that was measured twice gets a second line."""
    repeat = rows.groupby([*_ONE_LINE, "in_place"], dropna=False).cumcount()
    columns = rows[[*_ONE_LINE, *_HALF]].assign(_repeat=repeat)  # each line copies all columns, and results have 50
    groups: Iterable[tuple[Any, pd.DataFrame]] = columns.groupby([*_ONE_LINE, "_repeat"], dropna=False, sort=False)
    return groups


def _repeated_options(rows: pd.DataFrame, first: dict[str, Any]) -> str:
    """Return the options of the command line that the tool also prints."""
    offset = _offset(rows, first)
    return f" -m {first['n_aggregated'] or 1}" + (f" -u {offset}" if offset is not None else "")


def _offset(rows: pd.DataFrame, first: dict[str, Any]) -> int | None:
    """Return the number of elements by which the buffers are moved, or None if it is unknown."""
    sizes = {ITEMSIZE[_TYPES[dtype]] for dtype in rows["dtype"]}
    offset = first["alignment_bytes"]
    if offset is None or (offset and len(sizes) > 1):
        return None
    return int(offset) // sizes.pop()


def _settings(rows: pd.DataFrame, first: dict[str, Any]) -> str:
    mode, aggregated, offset = first["mode"], int(first["n_aggregated"] or 1), _offset(rows, first)
    sizes = np.unique(rows["size_bytes"].to_numpy(dtype=np.int64))
    steps = np.diff(sizes)
    if len(sizes) > 1 and (sizes[1:] == 2 * sizes[:-1]).all():
        step = "2(factor)"
    else:
        step = f"{steps[0] if len(steps) and (steps == steps[0]).all() else 0}(bytes)"
    iters = (rows["n_samples"] * rows["calls"] // aggregated).dropna().unique()
    is_checked = int(rows["n_wrong"].notna().any())
    line = (
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: {step} warmup iters: 0 "
        f"iters: {iters[0] if len(iters) == 1 else 0} agg iters: {aggregated} validation: {is_checked}"
    )
    if mode is None:
        return line
    return f"{line} graph: {int(mode == 'graph')}" + ("" if offset is None else f" unalign: {offset}")


def _operation(op: Any, collective: str) -> str:
    if _missing(op):
        # sendrecv does not reduce, but the tool prints its default operation.
        return "sum" if collective in _PRINTS_OP else "none"
    return _OPS.get(op, str(op))


def _half(row: Any) -> str:
    if row is None:
        return " " * 32
    wrong = "N/A" if _missing(row.n_wrong) else f"{row.n_wrong:g}"
    return f"  {_number(row.time_us, 7):>7}  {_number(row.algbw_gbs, 6):>6}  {_number(row.busbw_gbs, 6):>6}  {wrong:>5}"


def _number(value: float, width: int) -> str:
    """Format a number with as many decimals as fit, at most two, like the tool."""
    if math.isnan(value):
        value = 0.0
    return next((text for decimals in (2, 1, 0) if len(text := f"{value:.{decimals}f}") <= width), f"{value:.0f}")


def _missing(value: Any) -> bool:
    import pandas as pd

    return value is None or value is pd.NA or value != value
