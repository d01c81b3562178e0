"""From the sections of an nccl-tests log to the frames of meshlab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.bench.frame import RESULTS, SAMPLES, bandwidth, conform, empty_results, empty_samples
from meshlab.bench.nccl_log import IterationTimes, NcclTestsLog, Section
from meshlab.bench.nccl_rows import DTYPE_OF_TYPE
from meshlab.bench.nccl_statistics import summarise

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["REDUCING", "results_frame", "samples_frame"]

REDUCING = frozenset(("all_reduce", "reduce", "reduce_scatter"))
"""The collectives that take a reduce operation; the tool prints one for sendrecv too."""

_OPS = {"mulsum": "pre_mul_sum"}
_NAN = float("nan")


def results_frame(log: NcclTestsLog) -> pd.DataFrame:
    """All rows of a log in the schema of results.

    A row with times of single iterations gets their median, its interval and percentiles; any other row is one batch:
    its time is the tool's mean over all iterations and has no interval. ``attrs`` hold what applies to the whole log:
    ``file``, ``gpu``, ``library`` and ``environment`` (NCCL's variables).
    """
    import pandas as pd

    parts = [_section_rows(log, section) for section in log.sections if len(section.table)]
    if parts:
        frame = conform(pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0], RESULTS)
    else:
        frame = empty_results()
    algbw, busbw = bandwidth(frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"])
    printed = pd.concat([part["printed_busbw"] for part in parts]) if parts else pd.Series([], dtype="float64")
    return frame.assign(algbw_gbs=algbw, busbw_gbs=busbw)


def samples_frame(log: NcclTestsLog) -> pd.DataFrame:
    raise NotImplementedError
