"""The frames `samples` and `results`: their columns, dtypes and units, and the one function that makes bandwidth.

Everything that produces or reads measurements goes through here: runs on engines, readers of other tools' logs, the
live view, plots and reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.comm.catalog import CATALOG
from meshlab.errors import BenchError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "DEVICES",
    "RESULTS",
    "SAMPLES",
    "STEP",
    "Column",
    "bandwidth",
    "conform",
    "describe",
    "devices_frame",
    "empty_results",
    "empty_samples",
    "is_plain",
    "require_columns",
    "with_step_columns",
]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a frame.

    Parameters
    ----------
    name : str
        The name; it carries the unit.
    dtype : str
        The pandas dtype; all of them have a missing value.
    text : str
        What it holds, in one sentence.
    """

    name: str
    dtype: str
    text: str


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


SAMPLES = _columns(
    ("run_id", "string", "Which run; unique."),
    ("launch", "Int64", "Which repeat with fresh communicators, from 0."),
    ("step", "Int64", "Which step of the plan, from 0."),
    ("axis", "string", "The axis or group set that was measured."),
    ("grouping", "string", "together, alone or pairs, as in the results."),
    ("concurrent_axis", "string", "The axis that was busy at the same time; missing if there was none."),
    ("group", "string", "The name of the group."),
    ("src_rank", "Int64", "The sender of a pair, as a global rank; missing unless pairs were measured."),
    ("dst_rank", "Int64", "The receiver of a pair, as a global rank; missing unless pairs were measured."),
    ("rank", "Int64", "The global rank."),
    ("batch", "Int64", "Which batch, from 0; warm-up counts too."),
    ("calls", "Int64", "How many calls the batch held."),
    ("time_us", "float64", "Time per call over the batch, on this rank, in µs."),
    ("host_us", "float64", "Time per call until the call returned to the host, in µs."),
    (
        "start_offset_us",
        "float64",
        "How long after the first rank of the group this rank began (a function: came to its first collective), in µs; "
        "missing unless aligned.",
    ),
    ("is_warmup", "boolean", "True for batches that no statistic uses."),
    ("status", "string", "ok, or what went wrong."),
)
"""Columns of the samples: one row per step, rank and batch."""

RESULTS = _columns(
    ("run_id", "string", "Which run; unique."),
    ("launch", "Int64", "Which repeat with fresh communicators, from 0."),
    ("step", "Int64", "Which step of the plan, from 0."),
    ("source", "string", "What measured: a backend of meshlab (nccl, mpi, threads) or another tool (nccl-tests)."),
    ("collective", "string", "The collective, in snake case; or the name of a function of the user's own."),
    ("op", "string", "The reduce operation; missing where nothing is reduced."),
    ("dtype", "string", "The element type, by numpy's name."),
    ("root", "Int64", "The root, as a rank of the group; missing where there is none."),
    ("in_place", "boolean", "True when input and output share memory."),
    ("mode", "string", "isolated, pipelined or graph."),
    ("axis", "string", "The axis or group set that was measured."),
    ("group", "string", "The name of the group; for pairs, the group that both ranks belong to."),
    (
        "grouping",
        "string",
        "The ranks that worked at the same time: together (all groups of the axis), alone (one group), or pairs.",
    ),
    ("concurrent_axis", "string", "The axis that was busy at the same time; missing if there was none."),
    ("concurrent_collective", "string", "The collective that ran on the concurrent axis; missing if there was none."),
    ("src_rank", "Int64", "The sender of a pair, as a global rank; missing unless pairs were measured."),
    (
        "dst_rank",
        "Int64",
        "The receiver of a pair, as a global rank; with send_recv both ranks send. Missing unless pairs were measured.",
    ),
    ("n_ranks", "Int64", "How many ranks the group has."),
    ("count", "Int64", "The count argument of the call, in elements: per rank for gather-like collectives."),
    (
        "size_bytes",
        "Int64",
        "S of nccl-tests: the total for all_gather, reduce_scatter and all_to_all; missing for a function.",
    ),
    ("n_samples", "Int64", "How many batches the statistics use."),
    ("calls", "Int64", "Calls per batch."),
    ("time_us", "float64", "Median over batches of the slowest rank's time per call, in µs."),
    ("time_us_lo", "float64", "Lower end of the 95 % interval of that median, in µs; missing below 6 batches."),
    ("time_us_hi", "float64", "Upper end of it."),
    ("p95_us", "float64", "95th percentile over batches, in µs; missing below 20 batches."),
    ("p99_us", "float64", "99th percentile over batches, in µs; missing below 100 batches."),
    ("min_us", "float64", "Fastest batch, in µs."),
    ("max_us", "float64", "Slowest batch, in µs."),
    ("skew_us", "float64", "Median over batches of slowest minus fastest rank, in µs."),
    ("alignment_us", "float64", "Median over batches of last minus first start, in µs; missing unless aligned."),
    ("algbw_gbs", "float64", "size_bytes / time_us, in GB/s."),
    ("busbw_gbs", "float64", "algbw_gbs times the collective's factor, in GB/s; missing for one rank."),
    ("n_wrong", "Int64", "Elements that differ from the right answer, summed over ranks; missing when unchecked."),
    ("status", "string", "ok, wrong, failed, cancelled, or skipped because its buffers do not fit into memory."),
    ("stop_reason", "string", "Why sampling stopped: precise, time, batches, or an error's sentence."),
    ("mesh_fingerprint", "string", "The fingerprint of the mesh."),
)
"""Columns of the results: one row per step and group."""

DEVICES = (
    Column("when", "string", "before or after the run."),
    Column("host", "string", "The host."),
    Column("device", "Int64", "The GPU's index as the driver counts."),
    Column("clock_sm_mhz", "float64", "Clock of the multiprocessors."),
    Column("clock_memory_mhz", "float64", "Clock of the memory."),
    Column("temperature_c", "float64", "Temperature."),
    Column("power_w", "float64", "Power drawn."),
    Column("utilisation_percent", "float64", "How much of the last moment a kernel ran."),
    Column("memory_bytes", "Int64", "Memory in all."),
    Column("memory_used_bytes", "Int64", "Memory in use."),
    Column("throttle", "string", "What holds the clocks down; empty for nothing."),
    Column("ecc_corrected", "Int64", "Memory errors that were corrected, since the driver came."),
    Column("ecc_uncorrected", "Int64", "Memory errors that were not."),
    Column("nvlink_errors", "Int64", "Replays, recoveries and checksum errors of all NVLinks."),
)
"""Columns of the frame of devices: one row per GPU, before and after a run; what a driver does not say is missing."""

STEP = ("run_id", "launch", "step", "axis", "group", "src_rank", "dst_rank")
"""The columns that identify a row of the results and its samples. Some are missing, so group with ``dropna=False``."""


def describe(columns: Sequence[Column] = RESULTS) -> pd.DataFrame:
    """List the columns of a frame with dtype and meaning.

    Parameters
    ----------
    columns : sequence of Column
        The definition of a frame: that of results, or ``meshlab.frames.schema.SAMPLES``.

    Raises
    ------
    BenchError
        If it is something else.

    Examples
    --------
    >>> describe(RESULTS).loc["busbw_gbs", "dtype"]
    'float64'
    """
    import pandas as pd

    given: Any = columns
    if not isinstance(given, (tuple, list)) or not all(isinstance(column, Column) for column in given):
        what = f"the text {given!r}" if isinstance(given, str) else f"a {type(given).__name__}"
        raise BenchError(
            f"describe() takes the definition of a frame, not {what}; describe() alone lists the columns of results, "
            "and describe().loc['busbw_gbs', 'meaning'] is one of them"
        )
    rows = [(column.name, column.dtype, column.text) for column in columns]
    return pd.DataFrame(rows, columns=["column", "dtype", "meaning"]).set_index("column")


def require_columns(frame: pd.DataFrame, names: Sequence[str], what: str = "results") -> None:
    """Raise a `BenchError` unless something is a frame with these columns.

    Parameters
    ----------
    frame : pandas.DataFrame
        What a user gave.
    names : sequence of str
        The columns that are needed.
    what : {"results", "samples"}
        The frame that is wanted.

    Examples
    --------
    >>> require_columns(empty_results(), ["status", "size_bytes"])
    >>> require_columns(empty_samples(), ["status", "size_bytes"])
    Traceback (most recent call last):
    meshlab.errors.BenchError: a results frame is needed, but this one has no column size_bytes
    """
    given: Any = frame
    columns = getattr(given, "columns", None)
    if columns is None:
        cure = f"give its .{what}" if hasattr(given, what) else f"run.{what} is one"
        raise BenchError(f"a {what} frame is needed, not {type(given).__name__}; {cure}")
    missing = [name for name in names if name not in columns]
    if missing:
        raise BenchError(f"a {what} frame is needed, but this one has no column {', '.join(missing)}")


def bandwidth(
    collective: Sequence[str | None], size_bytes: Any, n_ranks: Any, time_us: Any
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Algorithm and bus bandwidth from time; the one place where bandwidth is computed.

    algbw = S / t, and busbw = algbw times the collective's factor, as nccl-tests' PERFORMANCE.md defines both.

    Parameters
    ----------
    collective : sequence of str
        One name per row; an unknown or missing name gives a missing busbw.
    size_bytes, n_ranks, time_us : array_like
        One value per row; missing values may stand anywhere.

    Returns
    -------
    algbw_gbs, busbw_gbs : numpy.ndarray
        In GB/s (10^9 bytes per second). NaN where time, size or factor is missing, and busbw for one rank.

    Examples
    --------
    >>> algbw, busbw = bandwidth(["all_reduce"], [1 << 30], [2], [3295.43])
    >>> round(float(algbw[0]), 2), round(float(busbw[0]), 2)
    (325.83, 325.83)
    """
    size, ranks, time = (_floats(values) for values in (size_bytes, n_ranks, time_us))
    with np.errstate(divide="ignore", invalid="ignore"):
        algbw = np.where(time > 0, size / time / 1e3, np.nan)
        factor = np.array(
            [
                CATALOG[name].bus_factor(int(n)) if isinstance(name, str) and name in CATALOG and n >= 2 else np.nan
                for name, n in zip(collective, ranks, strict=True)
            ],
            dtype=np.float64,
        ).reshape(algbw.shape)
    return algbw, algbw * factor


def _floats(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy(dtype="float64", na_value=np.nan), dtype=np.float64)
    return np.asarray(values, dtype=np.float64)


def conform(frame: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Give a frame exactly the columns of a definition, in order, with its dtypes; `attrs` are kept.

    Columns that are absent become missing values.

    Raises
    ------
    BenchError
        If the frame has a column that the definition does not know, or a value does not fit its dtype.
    """
    import pandas as pd

    names = [column.name for column in columns]
    unknown = [str(name) for name in frame.columns if name not in names]
    if unknown:
        raise BenchError(f"unknown columns {', '.join(unknown)}; the frame has {', '.join(names)}")
    data = {}
    for column in columns:
        absent = pd.Series([pd.NA] * len(frame), index=frame.index)
        values: Any = frame.get(column.name, absent)
        try:
            data[column.name] = _cast(values, column.dtype)
        except (TypeError, ValueError) as error:
            raise BenchError(f"column {column.name} must be {column.dtype}: {error}") from error
    new = pd.DataFrame(data, index=frame.index)
    new.attrs = dict(frame.attrs)
    return new


def _cast(values: Any, dtype: str) -> Any:
    import pandas as pd

    if str(values.dtype) == dtype:  # pandas' own comparison takes its two string dtypes for one
        return values
    if dtype == "float64":
        return pd.to_numeric(values).astype("Float64").astype("float64")
    if dtype == "Int64":
        return pd.to_numeric(values).astype("Int64")
    if dtype == "boolean":
        return values.astype(object).map({"True": True, "False": False, True: True, False: False}).astype("boolean")
    return values.astype(object).where(values.notna(), None).astype("string")


def empty_results() -> pd.DataFrame:
    """A results frame without rows."""
    return _empty(RESULTS)


def empty_samples() -> pd.DataFrame:
    """A samples frame without rows."""
    return _empty(SAMPLES)


def _empty(columns: Sequence[Column]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({column.name: pd.Series([], dtype=column.dtype) for column in columns})


def is_plain(results: pd.DataFrame) -> pd.Series[bool]:
    """Select the rows that axes are compared by: all groups together, and nothing concurrent on another axis.

    Logs of other tools do not record the grouping; their rows count as plain.

    Examples
    --------
    >>> import pandas as pd
    >>> rows = [("tp", "together", None), ("tp", "alone", None), ("tp", "together", "dp"), (None, None, None)]
    >>> is_plain(pd.DataFrame(rows, columns=["axis", "grouping", "concurrent_axis"])).tolist()
    [True, False, False, True]
    """
    together = results["grouping"].isna() | results["grouping"].eq("together").fillna(value=False).astype(bool)
    return together & results["concurrent_axis"].isna()


_DESCRIPTION = (
    "grouping",
    "concurrent_axis",
    "concurrent_collective",
    "collective",
    "op",
    "dtype",
    "mode",
    "n_ranks",
    "size_bytes",
)


def with_step_columns(frame: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return a frame that is keyed by `STEP`, preceded by the columns that describe each step."""
    described = results[[*STEP, *_DESCRIPTION]]
    described.attrs = {}
    keys = {name: described[name].dtype for name in STEP}
    return described.merge(frame.astype(keys), on=list(STEP), how="right").drop(columns="run_id")


def devices_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The frame of devices."""
    import pandas as pd

    return conform(pd.DataFrame(rows, columns=[column.name for column in DEVICES], dtype=object), DEVICES)
