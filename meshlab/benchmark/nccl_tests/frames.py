"""From the sections of an nccl-tests log to the frames of meshlab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.frames.schema import RESULTS, SAMPLES, bandwidth, conform, empty_results, empty_samples
from meshlab.nccl_tests.log import NcclTestsLog, Section
from meshlab.nccl_tests.rows import DTYPE_OF_TYPE
from meshlab.benchmark.nccl_tests.table import IterationTimes
from meshlab.frames.statistics import summarise

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["results_frame", "samples_frame"]

_REDUCES = frozenset(("all_reduce", "reduce", "reduce_scatter", None))
_OPS = {"mulsum": "pre_mul_sum"}
# Bandwidths that do not follow from the size: the busiest rank's bytes, and (n - 1) / n of the size.
_PRINTED = frozenset(("all_to_all_v", "hypercube"))
_NAN = float("nan")
_STATISTICS = ("time_us", "time_us_lo", "time_us_hi", "p95_us", "p99_us", "min_us", "max_us", "skew_us")


def results_frame(log: NcclTestsLog) -> pd.DataFrame:
    """All rows of a log in the schema of results.

    A row with times of single iterations gets their median with its interval and percentiles. Any other row is one
    batch: its time is the tool's mean over all iterations, and has no interval. ``attrs`` hold what applies to the
    whole log: ``file``, ``gpu``, ``library`` and ``environment`` (NCCL's variables).
    """
    import pandas as pd

    parts = [_section_columns(log.name, section) for section in log.sections if len(section.table)]
    if not parts:
        return _with_attrs(empty_results(), log)
    data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    printed_algbw, printed_busbw = data.pop("printed_algbw"), data.pop("printed_busbw")
    algbw, busbw = bandwidth(data["collective"].tolist(), data["size_bytes"], data["n_ranks"], data["time_us"])
    use_printed = np.isnan(busbw) | np.isin(data["collective"].astype(str), list(_PRINTED))
    data["algbw_gbs"] = np.where(np.isnan(algbw), printed_algbw, algbw)
    data["busbw_gbs"] = np.where(use_printed & (data["n_ranks"] != 1), printed_busbw, busbw)
    return _with_attrs(conform(pd.DataFrame(data), RESULTS), log)


def _section_columns(name: str, section: Section) -> dict[str, npt.NDArray[Any]]:
    """The columns of one section, one entry per printed placement."""
    table = section.table
    present = table.present.ravel()
    n = int(present.sum())
    rows = np.repeat(np.arange(len(table)), 2)[present]
    values = table.values.reshape(-1, 4)[present]
    statistics = {column: np.full(n, _NAN) for column in _STATISTICS}
    statistics["time_us"] = np.where(table.cpu_time, _NAN, values[:, 0])
    n_samples = np.ones(n)
    iters, agg = section.preamble.iters, section.preamble.agg_iters
    calls = np.full(n, _NAN if iters is None or agg is None else iters * agg)
    if table.iteration is not None:
        statistics["min_us"], statistics["max_us"] = table.iteration.reshape(-1, 4)[present][:, :2].T
    place = np.cumsum(present) - 1
    for times in section.iterations:
        index = place[2 * times.row + times.in_place]
        used = times.times_us[times.skipped :]
        if used.size:
            for column, value in _summary(times).items():
                statistics[column][index] = value
            n_samples[index], calls[index] = used.size, _NAN if agg is None else agg
    n_wrong = np.round(values[:, 3]) if table.counted else np.full(n, _NAN)
    types = {text: DTYPE_OF_TYPE.get(text, text) for text in set(table.type)}
    reduces = section.collective in _REDUCES
    return {
        "run_id": _repeat(f"{name}#{section.number}", n),
        "launch": np.zeros(n, dtype=np.int64),
        "step": np.flatnonzero(present),
        "source": _repeat("nccl-tests", n),
        "collective": _repeat(section.collective, n),
        "op": np.array([_OPS.get(op, op) or None if reduces else None for op in table.op], dtype=object)[rows],
        "dtype": np.array([types[text] for text in table.type], dtype=object)[rows],
        "root": np.where(table.root >= 0, table.root, _NAN)[rows],
        "in_place": np.flatnonzero(present) % 2 == 1,
        "mode": _repeat(section.mode, n),
        "group": _repeat(_group(section), n),
        "n_ranks": np.full(n, _NAN if section.n_ranks is None else section.n_ranks),
        "count": table.count[rows],
        "size_bytes": table.size_bytes[rows],
        "n_samples": n_samples,
        "calls": calls,
        **statistics,
        "n_wrong": n_wrong,
        "status": np.where(np.nan_to_num(n_wrong) > 0, "wrong", "ok").astype(object),
        "stop_reason": _repeat("batches", n),
        "printed_algbw": values[:, 1],
        "printed_busbw": values[:, 2],
    }


def _repeat(value: str | None, n: int) -> npt.NDArray[Any]:
    column = np.empty(n, dtype=object)
    column[:] = value
    return column


def _group(section: Section) -> str | None:
    """All ranks are in one communicator unless ``NCCL_TESTS_SPLIT`` made several."""
    return "world" if section.n_ranks is not None and section.n_ranks >= len(section.devices) else None


def _summary(times: IterationTimes) -> dict[str, float]:
    """Statistics over the iterations that the tool does not skip."""
    told = summarise(times.times_us[times.skipped :])
    summary = {
        "time_us": told.median,
        "time_us_lo": told.lo,
        "time_us_hi": told.hi,
        "p95_us": told.p95,
        "p99_us": told.p99,
        "min_us": told.least,
        "max_us": told.most,
    }
    if times.per_process_us is not None and len(times.per_process_us) > 1:
        ranks = times.per_process_us[:, times.skipped :]
        summary["skew_us"] = float(np.median(ranks.max(axis=0) - ranks.min(axis=0)))
    return summary


def _with_attrs(frame: pd.DataFrame, log: NcclTestsLog) -> pd.DataFrame:
    gpu, library = (_joined(getattr(section, name) for section in log.sections) for name in ("gpu", "library"))
    attrs = {
        "file": log.name,
        "where": " · ".join(text for text in (gpu, library, "nccl-tests") if text),
        "gpu": gpu,
        "library": library,
        "environment": dict(log.nccl.environment),
    }
    frame.attrs = {name: value for name, value in attrs.items() if value}
    return frame


def _joined(texts: Iterator[str | None]) -> str:
    return " / ".join(dict.fromkeys(text for text in texts if text is not None))


def samples_frame(log: NcclTestsLog) -> pd.DataFrame:
    """Times of single iterations in the schema of samples: a batch is one iteration.

    There is one row per rank where every process has one GPU; else one per iteration, of the slowest, without a rank.
    """
    import pandas as pd

    parts = [_iteration_columns(log.name, section, times) for section in log.sections for times in section.iterations]
    if not parts:
        return _with_attrs(empty_samples(), log)
    data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _with_attrs(conform(pd.DataFrame(data), SAMPLES), log)


def _iteration_columns(name: str, section: Section, times: IterationTimes) -> dict[str, npt.NDArray[Any]]:
    per_process = (section.preamble.threads or 0) * (section.preamble.gpus or 0)
    if times.per_process_us is not None and per_process == 1:
        values = times.per_process_us
        ranks = np.arange(len(values), dtype=np.float64)
    else:
        values, ranks = times.times_us[None, :], np.array([_NAN])
    n_ranks, n = values.shape
    batch = np.tile(np.arange(n), n_ranks)
    agg = section.preamble.agg_iters
    return {
        "run_id": _repeat(f"{name}#{section.number}", n_ranks * n),
        "launch": np.zeros(n_ranks * n, dtype=np.int64),
        "step": np.full(n_ranks * n, 2 * times.row + times.in_place),
        "group": _repeat(_group(section), n_ranks * n),
        "rank": np.repeat(ranks, n),
        "batch": batch,
        "calls": np.full(n_ranks * n, _NAN if agg is None else agg),
        "time_us": values.ravel(),
        "is_warmup": batch < times.skipped,
        "status": _repeat("ok", n_ranks * n),
    }
