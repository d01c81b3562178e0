from __future__ import annotations

import math

import pandas as pd
import pytest

import meshlab as ml
from meshlab.frames._schema import empty_results
from meshlab.frames._table import results_table
from meshlab.plans._sampling import Sampling


def test_results_are_printed_as_tables(thread_engines: ml.Engines) -> None:
    run = ml.bench(
        thread_engines,
        ml.DeviceMesh("dp=2, tp=2"),
        ["all_reduce", "broadcast"],
        sizes="1K, 64K",
        sampling=Sampling(max_s=0.02, min_batches=6),
    )
    results = run.wait(120)
    results.loc[results["size_bytes"] == 65536, "status"] = "wrong"
    text = str(results_table(results)).replace("\u2009", " ")
    assert text.count("2 groups of 2, the slowest shown · 4 ranks · threads in this process · pipelined") == 2
    lines = text.splitlines()
    assert lines[0].startswith("dp · ")
    assert lines[1].split() == ["all_reduce", "broadcast"]
    assert lines[2].split() == ["size", *["µs", "busbw", "GB/s"] * 2]
    assert lines[3].split()[:2] == ["1", "KiB"]
    assert len(lines[3].split()) == 6
    assert lines[4].split() == ["64", "KiB", "wrong", "wrong"]


def test_empty_results_are_printed() -> None:
    assert str(results_table(empty_results())) == "no results"


def test_a_low_bandwidth_is_not_rounded_to_zero(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, ml.DeviceMesh("tp=4"), sizes="1K", sampling=Sampling(max_s=0.02, min_batches=6))
    results = run.wait(120)
    results["time_us"], results["busbw_gbs"], results["time_us_lo"] = 123.4, 0.000456, float("nan")
    assert str(results_table(results)).splitlines()[-1].split()[-2:] == ["123", "0.000456"]


def row_of_example() -> pd.DataFrame:
    chosen = "collective == 'all_reduce' and size_bytes == 8 and mode == 'graph' and axis == 'tp'"
    return ml.example().query(chosen).head(1).assign(time_us=33.9)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(10.0, 435.0, "30"), (30.0, 37.0, "34"), (33.8, 34.0, "33.9"), (math.nan, math.nan, "33.9")],
)
def test_digits_follow_the_interval(low: float, high: float, text: str) -> None:
    table = results_table(row_of_example().assign(time_us_lo=low, time_us_hi=high))
    assert str(table.parts[0]).splitlines()[-1].split()[2] == text
    assert bool(table.below) == (len(text) < 4)


def test_two_levels_have_a_mark() -> None:
    assert "33.9‡" in str(results_table(row_of_example().assign(time_us_lo=33.8, time_us_hi=34.0, n_modes=2)))


def test_several_launches_are_labelled_and_shown_by_their_median() -> None:
    times = (1721.0, 1800.0, 22442.0)
    launches = pd.concat([row_of_example().assign(launch=number, time_us=time) for number, time in enumerate(times)])
    text = str(results_table(launches))
    assert "median of 3 launches" in text
    assert text.splitlines()[3].split()[2] == "2,000"


def test_decimal_points_of_a_column_are_aligned() -> None:
    table = results_table(ml.example().query("mode == 'graph'"))
    columns = [texts for part in table.parts for _, _, texts in part.columns()]
    assert all(len({text.index(".") for text in texts if "." in text}) == 1 for texts in columns)
    assert all(len({len(text) for text in texts}) == 1 for texts in columns)


def test_a_run_shows_its_table_as_text_and_as_html(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, ml.DeviceMesh("tp=4"), sizes="1K", sampling=Sampling(max_s=0.02, min_batches=6))
    run.wait(120)
    table = run.table()
    assert repr(table) == str(table) == str(results_table(run.results))
    html = table._repr_html_()
    assert html.count("<tr>") == 2
    assert "all_reduce µs" in html
    assert html in run._repr_html_()


def test_results_without_the_name_of_a_collective_are_printed() -> None:
    results = ml.example().head(2)
    results.loc[results.index[0], "collective"] = pd.NA
    assert "unknown" in str(results_table(results))
