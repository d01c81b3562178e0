"""Errors of the uncalibrated prediction over all public measurements, by system and size.

Hardware counts as known unless the NICs are not published (16 H200, case 31), or the run shows that they were not used
(Polaris, cases 04 and 08: 10 of 50 GB/s). Alps was measured twice; rows of the two runs agree within 15 % or are left
out of the goals.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from meshlab.prediction.cost import cost
from meshlab.prediction.links import GroupLinks
from tests.prediction.published import PublishedRun, h200_runs, needs_cases, public_runs

CLASSES = ("< 1 MiB", "1-128 MiB", "256-512 MiB", ">= 1 GiB")
EDGES = [0, 1 << 20, 256 << 20, 1 << 30, np.inf]


def errors_of(run: PublishedRun) -> pd.DataFrame:
    links, _ = GroupLinks.of(run.placement, "x")
    parts = []
    rows = run.rows.assign(agrees=run.agrees)
    for (collective, dtype), part in rows.groupby(["collective", "dtype"], observed=True):
        answer = cost(links, str(collective), part["size_bytes"].to_numpy(), dtype=str(dtype), settings=run.settings)
        parts.append(
            pd.DataFrame(
                {
                    "system": run.system,
                    "n_ranks": run.n_ranks,
                    "collective": collective,
                    "size_bytes": part["size_bytes"].to_numpy(np.int64),
                    "error": answer.time_us[0] / part["time_us"].to_numpy(float) - 1,
                    "counts": run.is_known & part["agrees"].to_numpy(bool),
                }
            )
        )
    return pd.concat(parts)


@pytest.fixture(scope="module")
def errors() -> pd.DataFrame:
    graph_runs = [run for run in h200_runs() if run.settings.mode == "graph"]
    frame = pd.concat([errors_of(run) for run in (*public_runs(), *graph_runs)], ignore_index=True)
    # Five launches of one program are one measurement: their median error.
    keys = ["system", "n_ranks", "collective", "size_bytes", "counts"]
    frame = frame.groupby(keys, as_index=False)["error"].median()
    frame["size_class"] = pd.cut(frame["size_bytes"], EDGES, right=False, labels=CLASSES)
    return frame


@needs_cases
def test_errors_by_system_and_size(errors: pd.DataFrame) -> None:
    table = errors.pivot_table(
        index=["system", "collective"], columns="size_class", values="error", aggfunc="median", observed=True
    )
    print("median error in %, of the time, by system and size")
    print((100 * table).round(0).to_string())
    share = errors.assign(error=errors["error"].abs()).groupby(["counts", "size_class"], observed=True)["error"]
    summary = share.agg(
        rows="size",
        median=lambda e: 100 * e.median(),
        p90=lambda e: 100 * e.quantile(0.9),
        within_15=lambda e: 100 * (e < 0.15).mean(),
    )
    print("all rows, whether their hardware is known and repetitions agree, by size: absolute errors in %")
    print(summary.round(1).to_string())
    assert len(errors) > 1300

    known = errors[errors["counts"]]
    large = known[known["size_class"] == CLASSES[3]]["error"].abs()
    medium = known[known["size_class"] == CLASSES[2]]["error"].abs()
    assert len(large) > 120
    assert large.median() <= 0.05
    assert (large < 0.15).mean() >= 0.80
    assert len(medium) > 60
    assert medium.median() <= 0.10


@needs_cases
def test_errors_by_cell(errors: pd.DataFrame) -> None:
    """Four of five cells of system, collective and number of ranks are within 15 % from 1 GiB on."""
    large = errors[errors["counts"] & (errors["size_class"] == CLASSES[3])]
    cells = large.groupby(["system", "collective", "n_ranks"])["error"].median().abs()
    print(cells[cells >= 0.15])
    assert len(cells) >= 30
    assert (cells < 0.15).mean() >= 0.8


@needs_cases
def test_small_messages_are_within_a_factor_of_two_mostly(errors: pd.DataFrame) -> None:
    small = errors[errors["counts"] & (errors["size_class"] == CLASSES[0])]["error"]
    assert small.between(-0.5, 1.0).mean() > 0.8
