from __future__ import annotations

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
    assert lines[2].split() == ["size", "µs", "GB/s", "µs", "GB/s"]
    assert lines[3].split()[:2] == ["1", "KiB"]
    assert len(lines[3].split()) == 6
    assert lines[4].split() == ["64", "KiB", "wrong", "wrong"]


def test_empty_results_are_printed() -> None:
    assert str(results_table(empty_results())) == "no results"


def test_a_low_bandwidth_is_not_rounded_to_zero(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, ml.DeviceMesh("tp=4"), sizes="1K", sampling=Sampling(max_s=0.02, min_batches=6))
    results = run.wait(120)
    results["time_us"], results["busbw_gbs"] = 123.4, 0.000456
    assert str(results_table(results)).splitlines()[-1].split()[-2:] == ["123", "0.000456"]


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
