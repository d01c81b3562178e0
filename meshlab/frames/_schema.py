"""The `results`, `samples`, `ranks`, `devices` and `conditions` frames: columns, dtypes and units.

Everything that produces or reads measurements uses this module: runs on engines, readers of other tools' logs, the live
view, plots and reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._backends import BACKENDS
from meshlab.base._collectives import COUNTED
from meshlab.base._errors import BenchError
from meshlab.plans._options import CALL_OPTIONS, OPTIONS, UNKNOWN_IF_MISSING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a frame, with the unit as a suffix of its name."""

    name: str
    dtype: str
    text: str


CALL = ("collective", "op", "dtype", "root", "in_place", "mode", *OPTIONS)
"""The columns that describe a call, apart from its size."""

LOAD = ("grouping", "concurrent_axis", "concurrent_collective")
"""The columns that describe what else was active at the same time."""

PAIR = ("src_rank", "dst_rank")
"""The columns with the ranks of a pair."""


def columns_of(columns: Sequence[Column], *names: str) -> tuple[Column, ...]:
    """Return some columns of a frame, by name."""
    by_name = {column.name: column for column in columns}
    return tuple(by_name[name] for name in names)


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


RESULTS = _columns(
    ("run_id", "string", "Unique ID of the run."),
    ("launch", "Int64", "Repetition with new communicators, counted from 0."),
    ("step", "Int64", "Index of the step in the plan, from 0."),
    (
        "source",
        "string",
        f"The meshlab backend ({', '.join(BACKENDS)}) or the tool (nccl-tests) that measured the row.",
    ),
    ("collective", "string", "Name of the collective, in snake case, or of a user-defined function."),
    ("op", "string", "The reduce operation. Missing if nothing is reduced."),
    ("dtype", "string", "NumPy name of the element type."),
    ("root", "Int64", "The root, as a rank of the group. Missing for collectives without a root."),
    ("in_place", "boolean", "True if input and output share memory."),
    ("mode", "string", "isolated, pipelined or graph."),
    *((name, option.dtype, option.text) for name, option in CALL_OPTIONS.items()),
    ("axis", "string", "The measured axis or group set."),
    ("group", "string", "Name of the group. For pairs, the group that both ranks belong to."),
    (
        "grouping",
        "string",
        "The ranks that were active at the same time: together (all groups of the axis), alone (one group), or pairs.",
    ),
    ("concurrent_axis", "string", "The axis that was busy at the same time. Missing if there was none."),
    ("concurrent_collective", "string", "The collective that ran on the concurrent axis. Missing if there was none."),
    ("src_rank", "Int64", "Global rank of a pair's sender. Missing unless pairs were measured."),
    (
        "dst_rank",
        "Int64",
        "Global rank of a pair's receiver. With send_recv both ranks send. Missing unless pairs were measured.",
    ),
    ("n_ranks", "Int64", "Number of ranks in the group, or 2 for pairs."),
    ("count", "Int64", "The count argument of the call, in elements: per rank for gather-like collectives."),
    (
        "size_bytes",
        "Int64",
        "Message size in bytes, S of nccl-tests: the total over ranks for gather-like collectives, and for "
        f"{COUNTED} the largest number of bytes that a rank sends or receives. Missing for functions.",
    ),
    (
        "imbalance",
        "float64",
        f"Largest number of bytes that a rank sends or receives in an {COUNTED}, divided by the mean: 1 for equal "
        "chunks. Missing for other collectives.",
    ),
    ("n_samples", "Int64", "Number of batches in the statistics."),
    ("calls", "Int64", "Number of calls per batch."),
    ("time_us", "float64", "Median over the batches of the slowest rank's time per call, in µs."),
    ("time_us_lo", "float64", "Lower bound of the 95 % interval of that median, in µs. Missing below 6 batches."),
    ("time_us_hi", "float64", "Upper bound of the 95 % interval of that median, in µs. Missing below 6 batches."),
    ("p95_us", "float64", "95th percentile over the batches, in µs. Missing below 20 batches."),
    ("p99_us", "float64", "99th percentile over the batches, in µs. Missing below 100 batches."),
    ("min_us", "float64", "Time per call of the fastest batch, in µs."),
    ("max_us", "float64", "Time per call of the slowest batch, in µs."),
    ("skew_us", "float64", "Median over the batches of the slowest minus the fastest rank, in µs."),
    (
        "alignment_us",
        "float64",
        "Median over the batches of the last minus the first start, in µs. Missing unless starts were aligned.",
    ),
    (
        "n_modes",
        "Int64",
        "Number of distinct levels of the time: 2 if batches are either fast or slow with few in between, otherwise 1. "
        "Missing below 20 batches.",
    ),
    (
        "trend",
        "float64",
        "Relative change of the time from the first to the last batch: 0.1 is 10 % more time. Missing if it is not "
        "significant.",
    ),
    ("algbw_gbs", "float64", "Algorithm bandwidth, size_bytes / time_us, in GB/s."),
    (
        "busbw_gbs",
        "float64",
        "Bus bandwidth, algbw_gbs times the collective's factor, in GB/s. The factor of "
        f"{COUNTED} is (n - 1) / n "
        "for any traffic, as in nccl-tests. Missing for one rank.",
    ),
    ("n_wrong", "Int64", "Number of elements on all ranks that differ from the expected result. Missing if unchecked."),
    ("status", "string", "ok, wrong, failed, cancelled, or skipped because its buffers exceed the free memory."),
    ("stop_reason", "string", "Why sampling stopped (precise, time or batches), or an error message."),
    ("mesh_fingerprint", "string", "Fingerprint of the mesh."),
    ("process_set", "string", "Identity of the set of rank processes that measured the row. Missing if unknown."),
)
"""Columns of the results: one row per step and group."""

SAMPLES = (
    *columns_of(RESULTS, "run_id", "launch", "step", "axis", "grouping", "concurrent_axis", "group", *PAIR),
    *_columns(
        ("rank", "Int64", "Global rank."),
        ("batch", "Int64", "Index of the batch, from 0, warm-up included."),
        (
            "block",
            "Int64",
            "Index of the block of batches, from 0. Alternatives take turns, and blocks with the same index were "
            "measured one after the other. Missing for steps without alternatives.",
        ),
        ("calls", "Int64", "Number of calls in the batch."),
        ("time_us", "float64", "Mean time per call of the batch on this rank, in µs."),
        ("host_us", "float64", "Mean time per call until it returned to the host, in µs."),
        (
            "start_offset_us",
            "float64",
            "Start of this rank minus the start of the first rank of the group, in µs. A function starts with its "
            "first collective. Missing unless starts were aligned.",
        ),
        ("is_warmup", "boolean", "True for batches that are excluded from all statistics."),
        (
            "status",
            "string",
            "ok, wrong if this rank had wrong elements in the check, or uncovered if the concurrent axis finished "
            "before the end of the batch.",
        ),
    ),
)
"""Columns of the samples: one row per step, rank and batch."""

RANKS = (
    *columns_of(SAMPLES, "run_id", "rank"),
    Column("host", "string", "Name of the host of the rank."),
    Column("local_rank", "Int64", "Index of the rank among those of its host, in rank order."),
    Column("device", "Int64", "CUDA index of the GPU of the rank. Missing for ranks without a GPU."),
)
"""Columns of the ranks frame: one row per rank of a run."""

RANK_BYTES = (
    *columns_of(RESULTS, "run_id", "step", "axis", "traffic", "size_bytes", "imbalance"),
    Column("rank", "Int64", "Rank within the group."),
    Column("sent_bytes", "Int64", "Bytes that the rank sends in a call, also to itself."),
    Column("received_bytes", "Int64", "Bytes that the rank receives in a call, also from itself."),
    Column("self_bytes", "Int64", "Bytes that the rank sends to itself. Missing if unknown."),
)
"""Columns of the rank_bytes frame: one row per step with uneven traffic and rank of a group."""

DEVICES = (
    Column("when", "string", "before or after the run."),
    Column("host", "string", "Name of the host."),
    Column("device", "Int64", "Index of the GPU in the numbering of the driver."),
    Column("clock_sm_mhz", "float64", "Clock of the streaming multiprocessors, in MHz."),
    Column("clock_memory_mhz", "float64", "Clock of the memory, in MHz."),
    Column("temperature_c", "float64", "Temperature, in °C."),
    Column("power_w", "float64", "Power draw, in W."),
    Column("utilisation_percent", "float64", "Share of the driver's last sampling period with a running kernel, in %."),
    Column("memory_bytes", "Int64", "Total memory, in bytes."),
    Column("memory_used_bytes", "Int64", "Used memory, in bytes."),
    Column("throttle", "string", "Reasons why the clocks are reduced. Empty if there are none."),
    Column("ecc_corrected", "Int64", "Number of corrected memory errors since the driver was loaded."),
    Column("ecc_uncorrected", "Int64", "Number of uncorrected memory errors since the driver was loaded."),
    Column("nvlink_errors", "Int64", "Number of replay, recovery and CRC errors, summed over all NVLinks."),
)
"""Columns of the devices frame: one row per GPU, before and after a run. Values that the driver lacks are missing."""

CONDITIONS = (
    Column("host", "string", "Name of the host."),
    Column("launch", "Int64", "Launch of the step after which the counters were read. Missing before the first step."),
    Column("step", "Int64", "Index of that step in the plan. Missing before the first step."),
    Column("n_steps", "Int64", "Number of steps since the previous reading of the host: short steps share a row."),
    Column("seconds", "float64", "Time since the previous reading of the host, in s."),
    Column("cores", "Int64", "Number of cores of the host."),
    Column(
        "own_cores",
        "float64",
        "Mean number of cores that the ranks on the host and the client kept busy, and the ranks of runs in turns with "
        "this one.",
    ),
    Column("other_cores", "float64", "Mean number of cores that other processes kept busy."),
    Column("steal_percent", "float64", "Share of the time of the cores that other virtual machines took, in %."),
    Column("waiting_percent", "float64", "Share of the time in which a process waited for a core, in %. Linux only."),
    Column("load", "float64", "Processes that ran or waited for a core, averaged over the last minute."),
    Column("cpu_mhz", "float64", "Mean frequency of the cores, in MHz. Missing where the system does not show it."),
    Column("gpu_clock_mhz", "float64", "Lowest clock of the streaming multiprocessors of the host's GPUs, in MHz."),
    Column("gpu_throttle", "string", "Reasons why the clocks of its GPUs are reduced. Empty if there are none."),
    Column(
        "gpu_other_processes",
        "Int64",
        "Number of processes of other programs on its GPUs. Missing if the driver does not list the ranks, as in some "
        "containers.",
    ),
)
"""Columns of the conditions frame: one row per host and reading, about twice per second between steps."""

LOADS = (
    *columns_of(CONDITIONS, "host", "launch", "step"),
    Column("at_s", "float64", "Time of the reading since the run began, in s."),
    Column("device", "string", "core 0, GPU 0 or the name of a network card."),
    Column("use_percent", "float64", "Load since the previous reading of the host, in %. Missing for network cards."),
    Column("memory_used_gib", "float64", "Used memory of the GPU, in GiB."),
    Column("tx_gbs", "float64", "Sent over the NVLinks of the GPU, or by the network card, in GB/s."),
    Column("rx_gbs", "float64", "Received over the NVLinks of the GPU, or by the network card, in GB/s."),
    Column("temperature_c", "float64", "Temperature of the GPU, in °C."),
    Column("power_w", "float64", "Power draw of the GPU, in W."),
    Column("clock_mhz", "float64", "Clock of the streaming multiprocessors of the GPU, in MHz."),
    Column("throttle", "string", "Reasons why the clocks of the GPU are reduced. Empty if there are none."),
)
"""Columns of the loads frame: one row per reading of the conditions frame and device of the host."""

STEP = ("run_id", "launch", "step", "axis", "group", *PAIR)
"""The columns that identify a row of the results and its samples. They may be NA, so group with ``dropna=False``."""


def describe(columns: Sequence[Column] = RESULTS) -> pd.DataFrame:
    """Return the columns of a frame with their dtypes and meanings.

    Parameters
    ----------
    columns : sequence of Column, default RESULTS
        The columns of a frame: ``RESULTS``, ``SAMPLES``, ``RANKS``, ``DEVICES`` or
        ``CONDITIONS`` of ``ml.frames``.

    Returns
    -------
    pandas.DataFrame
        One row per column, indexed by its name (``column``): ``dtype``, and ``meaning`` with the unit.

    Raises
    ------
    BenchError
        If `columns` is not a sequence of `Column`.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.describe().loc["busbw_gbs", "dtype"]
    'float64'
    >>> ml.describe(ml.frames.SAMPLES).loc["calls", "meaning"]
    'Number of calls in the batch.'
    """
    import pandas as pd

    argument: Any = columns
    if not isinstance(argument, (tuple, list)) or not all(isinstance(column, Column) for column in argument):
        what = f"the string {argument!r}" if isinstance(argument, str) else f"a {type(argument).__name__}"
        raise BenchError(
            f"columns must be a sequence of Column, not {what}; describe() without arguments lists the columns of the "
            "results, and describe().loc['busbw_gbs', 'meaning'] describes one of them"
        )
    rows = [(column.name, column.dtype, column.text) for column in columns]
    return pd.DataFrame(rows, columns=["column", "dtype", "meaning"]).set_index("column")


def require_columns(frame: pd.DataFrame, names: Sequence[str], what: str = "results") -> None:
    """Raise unless an object is a frame with these columns. `what` is the kind of frame, for the message."""
    argument: Any = frame
    columns = getattr(argument, "columns", None)
    if columns is None:
        fix = f"pass its .{what}" if hasattr(argument, what) else f"pass run.{what}"
        raise BenchError(f"expected a {what} frame, not {type(argument).__name__}; {fix}")
    missing = [name for name in names if name not in columns]
    if missing:
        raise BenchError(f"expected a {what} frame, but this one has no column {', '.join(missing)}")


def conform(frame: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Return a frame with exactly the given columns, in their order and with their dtypes. `attrs` are kept."""
    import pandas as pd

    names = [column.name for column in columns]
    unknown = [str(name) for name in frame.columns if name not in names]
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise BenchError(
            f"unknown columns {', '.join(name[:40] for name in unknown[:5])}{more}",
            hint=f"choose from {', '.join(names)}",
        )
    dtypes = [column.dtype for column in columns]
    if list(frame.columns) == names and [str(dtype) for dtype in frame.dtypes] == dtypes:
        _check_pairs(frame)
        return frame.copy()
    # Most frames lack many columns. One without values is the same for all of its dtype.
    missing = {
        dtype: pd.Series(float("nan") if dtype == "float64" else pd.NA, index=frame.index, dtype=dtype)
        for dtype in set(dtypes)
    }
    data = {}
    for name, dtype in zip(names, dtypes, strict=True):
        try:
            data[name] = _cast(frame[name], dtype) if name in frame else missing[dtype]
        except (TypeError, ValueError, OverflowError) as error:
            raise BenchError(f"column {name} must be {dtype}: {error}") from error
    new = pd.DataFrame(data, index=frame.index)
    new.attrs = dict(frame.attrs)
    _check_pairs(new)
    return new


def _check_pairs(frame: pd.DataFrame) -> None:
    """Raise if a row has only one rank of a pair."""
    if not {"src_rank", "dst_rank"} <= set(frame.columns):
        return
    incomplete = (frame["src_rank"].isna() != frame["dst_rank"].isna()).to_numpy(bool)
    if incomplete.any():
        row = frame.iloc[int(incomplete.argmax())]
        raise BenchError(
            f"{int(incomplete.sum()):,} of {len(frame):,} rows have only one of src_rank and dst_rank; the first has "
            f"src_rank {_or_missing(row['src_rank'])} and dst_rank {_or_missing(row['dst_rank'])}",
            hint="a pair has both ranks, and other rows have none",
        )


def _or_missing(value: Any) -> str:
    plain = plain_value(value)
    return "missing" if plain is None else f"{plain}"


def _cast(values: Any, dtype: str) -> Any:
    import pandas as pd

    if str(values.dtype) == dtype:  # by name, because == does not distinguish the two string dtypes of pandas
        return values
    if dtype == "float64":
        if pd.api.types.is_string_dtype(values.dtype):
            # Python rounds correctly, but the parser of pandas 2 may be off by one in the last digit.
            values = values.map(float, na_action="ignore")
        return pd.to_numeric(values).astype("Float64").astype("float64")
    if dtype == "Int64":
        with np.errstate(invalid="ignore"):  # pandas raises if a number changes
            return pd.to_numeric(values).astype("Int64")
    if dtype == "boolean":
        return values.astype(object).map({"True": True, "False": False, True: True, False: False}).astype("boolean")
    return values.astype(object).where(values.notna(), None).astype("string")


def empty_results() -> pd.DataFrame:
    """Return a results frame without rows."""
    return _empty(RESULTS).copy()


def empty_samples() -> pd.DataFrame:
    """Return a samples frame without rows."""
    return _empty(SAMPLES).copy()


@cache
def _empty(columns: tuple[Column, ...]) -> pd.DataFrame:
    """Make a frame without rows once: pandas needs as long for its many columns as for thousands of rows."""
    import pandas as pd

    return pd.DataFrame({column.name: pd.Series([], dtype=column.dtype) for column in columns})


def is_plain(results: pd.DataFrame) -> pd.Series[bool]:
    """Select the rows of the normal load: all groups of the axis together, and no concurrent axis."""
    # Logs of other tools do not record the grouping, so their rows count as plain.
    together = results["grouping"].isna() | results["grouping"].eq("together").fillna(value=False).astype(bool)
    return together & results["concurrent_axis"].isna()


def is_pair(results: pd.DataFrame) -> pd.Series[bool]:
    """Select the rows of pairs of ranks."""
    return results["grouping"].eq("pairs").fillna(value=False).astype(bool)


def plain_value(value: Any) -> Any:
    """Return a value, or None for any kind of missing value."""
    import pandas as pd

    return None if value is pd.NA or value != value else value


def plain_key(key: Iterable[Any]) -> tuple[Any, ...]:
    """Replace missing values by None, because NA and NaN are not equal to themselves and cannot be part of a key."""
    return tuple(map(plain_value, key))


def numbered_rows(
    frame: pd.DataFrame, names: Sequence[str]
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], list[tuple[Any, ...]]]:
    """Number rows by their values in some columns, in the order of their first rows. Returns numbers and values."""
    import pandas as pd

    # Ten times as fast as a tuple of Python objects per row. A missing value is None, which equals itself.
    numbers, columns = np.zeros(len(frame), dtype=np.intp), []
    for name in names:
        codes, values = frame[name].factorize()  # -1 for a missing value
        columns.append((codes, [*values.astype(object).tolist(), None]))
        if codes.size and codes.min() != codes.max():
            numbers = pd.factorize(numbers * (len(values) + 1) + codes)[0]
    first = np.unique(numbers, return_index=True)[1].tolist()
    return numbers, [tuple(values[codes[row]] for codes, values in columns) for row in first]


def differing_options(results: pd.DataFrame) -> list[str]:
    """Return the columns of `OPTIONS` in which rows differ. A missing value is one, unless it means unknown."""
    return [name for name in OPTIONS if results[name].nunique(dropna=name in UNKNOWN_IF_MISSING) > 1]


def shown_options(results: pd.DataFrame) -> list[str]:
    """Return the columns of `OPTIONS` that tables show: those in which rows differ, or are not the default."""
    differing = differing_options(results)
    return [
        name
        for name, default in OPTIONS.items()
        if name in differing or set(results[name].dropna().unique()) - {default}
    ]


_DESCRIPTION = (*LOAD, "collective", "op", "dtype", "mode", "n_ranks", "size_bytes")


def with_step_columns(frame: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return a frame that is keyed by `STEP`, preceded by the columns that describe each step."""
    described = results[[*STEP, *_DESCRIPTION, *shown_options(results)]]
    described.attrs = {}
    keys = {name: described[name].dtype for name in STEP}
    return described.merge(frame.astype(keys), on=list(STEP), how="right").drop(columns="run_id")


def ranks_frame(run_id: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the ranks frame of these rows of a run."""
    return _frame_of([{"run_id": run_id, **row} for row in rows], RANKS)


def rank_bytes_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the frame of the bytes of each rank from its rows, as far as they have the columns."""
    return _frame_of(rows, RANK_BYTES)


def devices_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the devices frame of these rows."""
    return _frame_of(rows, DEVICES)


def conditions_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the conditions frame of these rows."""
    return _frame_of(rows, CONDITIONS)


def loads_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Build the loads frame from its rows, as far as they have the columns."""
    return _frame_of(rows, LOADS)


def _frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pd.DataFrame:
    import pandas as pd

    return conform(pd.DataFrame(rows, columns=[column.name for column in columns], dtype=object), columns)
