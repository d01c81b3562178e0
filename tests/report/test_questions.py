"""Reports of runs that asked about pairs, groups at once, and two axes at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.report.content import answer_tables, answers, tables, verdict
from meshlab.units import THIN

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = ml.Sampling(max_s=0.03, min_batches=6)


@pytest.fixture
def pairs(thread_engines: ml.Engines) -> ml.Run:
    run = ml.bench_pairs(thread_engines, MESH, sizes="1K, 4K", sampling=QUICK)
    run.wait(30)
    return run


@pytest.fixture
def shared(thread_engines: ml.Engines) -> ml.Run:
    run = ml.bench(
        thread_engines, MESH, ["all_reduce", "all_gather"], axis="tp", sizes="1K", groups="together, alone",
        beside={"dp": "reduce_scatter"}, sampling=QUICK,
    )  # fmt: skip
    run.wait(30)
    return run


def settled(run: ml.Run, **times: float) -> ml.Run:
    """The same run with these times by axis, and narrow intervals."""
    results = run.results
    results["time_us"] = results["axis"].map(times).fillna(10.0)
    results["time_us_lo"], results["time_us_hi"] = 0.99 * results["time_us"], 1.01 * results["time_us"]
    run._record._frames["results"] = (len(results), results)
    return run


def test_a_report_of_pairs_has_the_matrix_and_a_table_and_no_curves(pairs: ml.Run, tmp_path: Path) -> None:
    report = ml.Report(pairs)
    assert ">Pairs<" in report.html()
    assert ">Bandwidth and latency<" not in report.html()
    assert "<svg" in report._repr_html_()
    report.save(tmp_path / "report.md", pictures=True)
    assert {path.name for path in tmp_path.glob("*-matrix-*")} == {
        "report-matrix-send.png",
        "report-matrix-send_recv.png",
    }
    headings = re.findall("^### (.*)$", (tmp_path / "report.md").read_text().replace("\\", ""), re.MULTILINE)
    assert sorted(headings[:2]) == [
        f"{name} · pairs of all ranks · float32 · pipelined · the slowest first" for name in ("send", "send_recv")
    ]
    assert tables(pairs.results)[0] == []


def test_the_verdict_names_slow_pairs(pairs: ml.Run) -> None:
    results = pairs.results
    results["busbw_gbs"], results["time_us"], results["time_us_lo"] = 40.0, 10.0, 9.9
    results.loc[results["group"] == "1↔3", ["busbw_gbs", "time_us", "time_us_lo"]] = [10.0, 40.0, 39.0]
    said = [text.replace(THIN, " ") for text in answers(results)]
    assert "send_recv at 4 KiB, pairs of all ranks: 10.0 GB/s to 40.0 GB/s busbw; SLOW: 1↔3 10.0 GB/s." in said
    assert "send at 4 KiB, pairs of all ranks: 40.0 GB/s to 40.0 GB/s busbw; no pair is slow." in said
    both = next(table for table in answer_tables(results) if table.title.startswith("send_recv"))
    assert [cell.text.replace(THIN, " ") for cell in both.rows[0]] == ["1↔3", "1 KiB", "40.0 µs", "10.0 GB/s", "✕ 25%"]
    assert both.rows[0][-1].is_bad


def test_contention_and_interference_have_a_sentence_and_a_table(shared: ml.Run) -> None:
    results = settled(shared, **{"tp": 20.0, "tp alone": 10.0, "tp+dp": 60.0, "dp": 10.0, "dp+tp": 10.0}).results
    said = [text.replace(THIN, " ") for text in answers(results)]
    assert said[0].startswith(
        "The groups of tp slow each other down: 4 of 4 rows are clearly slower than alone, at most"
    )
    assert said[0].endswith("2.00 × as long (1.96 to 2.04).")
    assert said[1].startswith("reduce_scatter on dp slows tp down: 4 of 4 rows are clearly slower than alone, at most")
    assert said[1].endswith("3.00 × as long (2.94 to 3.06).")
    assert said[2:] == [
        "all_reduce on tp does not slow dp down beyond the intervals.",
        "all_gather on tp does not slow dp down beyond the intervals.",
    ]
    shown = answer_tables(results)
    assert [table.title.split(" · ")[:2] for table in shown] == [
        ["tp", "all groups at once against one at a time"],
        ["tp", "while reduce_scatter on dp runs, against alone"],
        ["dp", "while all_reduce on tp runs, against alone"],
        ["dp", "while all_gather on tp runs, against alone"],
    ]
    assert shown[0].header == ("size", "collective", "group", "alone", "all at once", "ratio", "95 % interval")
    assert all(sentence in ml.Report(shared).markdown().replace("\\", "") for sentence in answers(results)[2:])


def test_axes_under_another_load_are_named_in_words_and_are_no_axes_of_their_own(shared: ml.Run) -> None:
    document = ml.Report(shared).markdown().replace("\\", "")
    for words in ("tp, one group at a time", "tp, while dp does reduce_scatter", "dp, while tp does all_gather"):
        assert f"· {words} (2 groups of 2)" in document
    assert "tp alone" not in document
    assert "tp+dp" not in document
    told = verdict(shared.results)
    assert [text.split(",")[0] for text in told[1:]] == ["On tp", "On dp"]


def test_other_runs_have_no_answers(thread_engines: ml.Engines) -> None:
    results = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK).wait(30)
    assert answers(results) == []
    assert answer_tables(results) == []
