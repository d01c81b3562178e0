"""Lines that grow with a run are those that the frame of its results gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from meshlab.plots._lines import GrowingLines, lines_of
from meshlab.runs._rundata import results_frame, rows_of_results


@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_growing_lines_are_those_of_the_results(make_results: Any, at_once: int) -> None:
    launches = [make_results(seed=number).assign(launch=number) for number in range(3)]
    results = pd.concat(launches, ignore_index=True).sample(frac=1, random_state=0, ignore_index=True)
    results.loc[[3, 50], ["status", "n_wrong"]] = ["wrong", 7]
    results.loc[[20, 90], "status"] = "failed"
    results.loc[20, ["time_us", "time_us_lo", "time_us_hi"]] = np.nan
    rows = [{**row, "source": None, "run_id": None} for row in rows_of_results(results)]
    growing, found = GrowingLines({}), {}
    for start in range(0, len(rows), at_once):
        found |= growing.add(rows[start : start + at_once])
    expected = lines_of(results_frame(rows, fixed={}, attrs={}), "busbw_gbs")
    assert len(found) == len(expected) == 8
    for line in expected:
        other = found[tuple(line.keys.values())]
        for column in ("size", "value", "low", "high", "wrong_size", "wrong_value", "rows"):
            assert np.array_equal(getattr(other, column), getattr(line, column), equal_nan=True), column
        assert np.array_equal(np.sort(other.groups, axis=0), np.sort(line.groups, axis=0), equal_nan=True)
        assert (other.n_groups, other.n_launches) == (line.n_groups, line.n_launches)
