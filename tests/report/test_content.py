import re

import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._units import THIN
from meshlab.frames._schema import empty_results
from meshlab.report._answers import Answer, ReportEvidence, _by_chance, answers, headline, without_repeated
from meshlab.report._content import caveats, method
from meshlab.report._next_step import next_step
from meshlab.report._tables import MOST_ROWS, MOST_TABLES, detail_tables, load_tables, pivot_tables
from meshlab.report._words import code_parts
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._presets import preset


def plain(text):
    return text.replace(THIN, " ")


def found(results, question, samples=None):
    """The sentences of the answer to a question."""
    given = answers(ReportEvidence(results=results, samples=samples))
    return [plain(text) for answer in given if answer.question == question for text in answer.sentences]


def speed(results):
    """The sentences about bandwidths, without the first one: that nothing is known about how fast they should be."""
    first, *sentences = found(results, "fast enough")
    assert "unknown" in first
    return sentences


def has_failed(results):
    return headline(answers(ReportEvidence(results=results))).state == "bad"


def caveats_of(results, fingerprint=""):
    return caveats(results, fingerprint=fingerprint)


def test_the_verdict_starts_with_the_correctness(make_results):
    results = make_results()
    assert found(results, "correct") == ["All 240 results are correct."]
    assert not has_failed(results)


def advice(results, **evidence):
    given = ReportEvidence(results=results, **evidence)
    return " ".join(next_step(given, answers(given)).sentences)


def test_the_next_step_follows_from_the_most_urgent_answer(make_results):
    cpu, gpu = make_results(), make_results(source="nccl", where="4 ranks · NCCL")
    assert advice(cpu).startswith("To judge GPUs, measure on GPUs.")
    assert "--cluster" in advice(gpu)
    assert advice(cpu.assign(n_modes=2)).startswith("Measure again on an idle machine")
    assert advice(cpu.assign(n_modes=2, status="wrong")).startswith("Do not use these ranks")
    assert advice(cpu.assign(n_wrong=pd.NA)).startswith("Measure again with checked results")
    assert "--resume" in advice(cpu, state="interrupted")
    assert advice(cpu, progress="This run is still running.") == "Write the report again when the run has ended."
    assert "meshlab bench" in advice(empty_results())


def test_a_good_run_becomes_a_baseline_and_a_slow_one_is_searched_for_slow_links():
    report = ml.Report(ml.example(), mesh="tp=2", cluster="dgx-h200")
    assert report.next_step.startswith("No action is needed.")
    slow = ml.example().assign(busbw_gbs=lambda rows: rows["busbw_gbs"] / 2, time_us=lambda rows: rows["time_us"] * 2)
    assert "ml.bench_pairs" in ml.Report(slow, mesh="tp=2", cluster="dgx-h200").next_step


def test_wrong_results_are_named_and_counted(make_results):
    results = make_results()
    results.loc[results.index[:5], ["status", "n_wrong"]] = ["wrong", 1200]
    assert found(results, "correct")[0] == (
        "5 of 240 results are WRONG: all_reduce on tp_0 at 1 KiB (1,200 elements), all_reduce on tp_1 at 1 KiB "
        "(1,200 elements), all_reduce on tp_0 at 2 KiB (1,200 elements) and 2 more."
    )
    assert has_failed(results)


def test_unchecked_and_unfinished_results_are_not_correct_results(make_results):
    results = make_results()
    results.loc[results.index[:40], "n_wrong"] = None
    results.loc[results.index[:10], "status"] = "failed"
    results.loc[results.index[:1], "status"] = "skipped"
    assert found(results, "correct")[0] == (
        "All 200 checked results are correct; 30 were not checked. 9 measurements did not finish. 1 measurement was "
        "skipped because its buffers exceed the memory."
    )
    assert found(make_results(n_wrong=None), "correct")[0] == "None of the 240 results were checked."
    assert found(empty_results(), "measured") == ["Nothing was measured, so this report is empty."]


def test_each_axis_has_its_fastest_busbw_with_collective_and_size(make_results):
    results = make_results()
    results.loc[results["axis"] == "tp", "time_us"] = 1e3
    results.loc[results["axis"] == "tp", "busbw_gbs"] = 2.0
    best = results[(results["axis"] == "tp") & (results["collective"] == "broadcast") & (results["size_bytes"] == 2048)]
    results.loc[best.index, "busbw_gbs"] = 7.5
    assert speed(results)[0] == "On tp, broadcast at 2 KiB reaches 7.50 GB/s busbw."
    assert speed(results)[1].startswith("On dp, ")


@pytest.mark.parametrize(
    ("interval", "finding"),
    [
        (0.01, "was 2.00× as fast on dp as on tp in this launch"),
        (0.99, "does not clearly differ between dp and tp"),
    ],
)
def test_axes_differ_only_if_their_intervals_do_not_overlap(make_results, interval, finding):
    results = make_results(collectives=["all_reduce"], exponents=[10, 20])
    results["busbw_gbs"] = results["axis"].map({"tp": 1.0, "dp": 2.0}).astype(float)
    results["time_us"] = 1000.0 / results["busbw_gbs"]
    results["time_us_lo"] = results["time_us"] * (1 - interval)
    results["time_us_hi"] = results["time_us"] * (1 + interval)
    assert speed(results)[-1] == f"all_reduce at 1 MiB {finding}: 2.00 GB/s and 1.00 GB/s busbw."
    launches = pd.concat([results.assign(launch=number) for number in range(3)], ignore_index=True)
    expected = finding.replace("was", "is").replace(" in this launch", "")
    assert speed(launches)[-1] == f"all_reduce at 1 MiB {expected}: 2.00 GB/s and 1.00 GB/s busbw."


def test_axes_with_exactly_equal_rates_are_compared_too(make_results):
    results = make_results(collectives=["all_reduce"], exponents=[20], time_us=100.0, n_ranks=2)
    results.loc[results["group"].str.endswith("_1"), "n_ranks"] = 4
    results["busbw_gbs"] = 1.0
    assert "does not clearly differ" in speed(results)[-1]


def test_a_single_axis_is_not_compared(make_results):
    assert len(speed(make_results(axes=["tp"]))) == 1


def test_axes_are_compared_under_the_same_load_only(make_results):
    together = make_results(collectives=["all_reduce"], grouping="together")
    alone = make_results(collectives=["all_reduce"], grouping="alone", step=1)
    busy = make_results(collectives=["all_reduce"], grouping="together", concurrent_axis="dp", axes=["tp"], step=2)
    pairs = make_results(collectives=["send_recv"], grouping="pairs", src_rank=0, dst_rank=1, step=3)
    alone[["time_us", "time_us_lo", "time_us_hi"]] /= 100
    alone["busbw_gbs"] *= 100
    results = pd.concat([together, alone, busy, pairs], ignore_index=True)
    expected = speed(together)
    assert len(expected) == 3
    assert speed(results) == expected


def test_runs_without_plain_rows_have_peaks_under_their_load(make_results):
    peaks = speed(make_results(grouping="alone"))
    assert [peak.partition(", all_reduce")[0] for peak in peaks] == [
        "On tp, one group at a time",
        "On dp, one group at a time",
    ]


def test_numbers_from_a_cpu_have_a_caveat(make_results):
    assert "MPI on a CPU" in caveats_of(make_results())[0]
    assert "do not apply to any machine" in caveats_of(make_results(source="threads"))[0]
    assert caveats_of(make_results(source="nccl")) == []


@pytest.mark.parametrize(
    ("columns", "caveat"),
    [
        (
            {"n_samples": 29, "stop_reason": "time"},
            "240 results have fewer than 30 batches, so the median is less certain.",
        ),
        ({"time_us_lo": None, "time_us_hi": None}, "240 results have no interval."),
        ({"time_us_lo": 1.0}, "240 results have an interval wider than 10 % of the median."),
        ({"status": "failed", "stop_reason": "rank 3 died"}, "240 measurements did not finish: rank 3 died."),
    ],
)
def test_uncertain_results_are_counted(make_results, columns, caveat):
    assert caveat in map(plain, caveats_of(make_results(source="nccl", **columns)))


def test_few_batches_that_were_precise_enough_are_not_uncertain(make_results):
    assert caveats_of(make_results(source="nccl", n_samples=10, stop_reason="precise")) == []


def test_a_different_mesh_has_a_caveat(make_results):
    results = make_results(source="nccl")
    assert caveats_of(results, fingerprint=results["mesh_fingerprint"][0]) == []
    assert "a different mesh" in caveats_of(results, fingerprint="0" * 12)[0]


def test_each_line_has_a_table_and_tables_are_ordered_by_axis(make_results):
    shown, more = detail_tables(make_results())
    assert more == 0
    assert [table.title.split(" (")[0] for table in shown] == [
        f"{collective} · {axis}"
        for axis in ("tp", "dp")
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    ]
    assert shown[0].title == "all_reduce · tp (2 groups of 2) · float32 · sum · out of place · pipelined"
    assert shown[0].header == ("size", "group", "n", "median", "95 % interval", "algbw", "busbw", "wrong")
    assert all(len(row) == len(table.header) for table in shown for row in table.rows)


def test_constant_columns_are_omitted(make_results):
    shown, _ = detail_tables(make_results("tp=4", axes=["tp"], where=""))
    assert "group" not in shown[0].header
    assert "launch" not in shown[0].header


def test_cells_have_units_and_missing_values_are_dashes(make_results):
    results = make_results(exponents=[20], time_us_lo=None, n_wrong=None)
    shown, _ = detail_tables(results)
    texts = [plain(cell.text) for cell in shown[0].rows[0]]
    assert texts[0] == "1 MiB"
    assert texts[3].endswith(" µs")
    assert texts[4] == "–"
    assert texts[6].endswith(" GB/s")
    assert texts[7] == "unchecked"


def test_wrong_cells_are_marked_by_text_too(make_results):
    results = make_results(exponents=[20])
    results.loc[results.index[0], ["status", "n_wrong"]] = ["wrong", 7]
    results.loc[results.index[1], "status"] = "failed"
    shown, _ = detail_tables(results)
    assert [(row[-1].text, row[-1].is_bad) for row in shown[0].rows] == [("✕ 7", True), ("✕ failed", True)]


def test_long_tables_and_the_number_of_tables_are_limited(make_results):
    results = make_results("dp=64, tp=4", axes=["tp"], collectives=["all_reduce"], exponents=range(10, 20))
    (table,), _ = detail_tables(results)
    assert len(table.rows) == MOST_ROWS
    assert table.more == len(results) - MOST_ROWS
    many = make_results(exponents=range(20), collectives=["all_reduce"])
    many["root"] = range(len(many))
    shown, more = detail_tables(many)
    assert (len(shown), more) == (MOST_TABLES, 80 - MOST_TABLES)


def test_the_method_explains_only_what_was_used(make_results):
    explained = dict(method(make_results()))
    assert explained["Mode"].startswith("pipelined: ")
    assert "isolated" not in explained["Mode"]
    assert "all_reduce 1 for 2 ranks, all_gather 0.5 for 2 ranks" in explained["busbw"]
    assert "Time from nccl-tests" not in explained
    assert "Axes" not in explained
    assert "Time" not in dict(method(make_results(source="nccl-tests")))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"grouping": "alone"}, "One group at a time: the other groups are idle."),
        ({"grouping": "pairs"}, "Pairs: every pair of ranks in a group"),
        (
            {"concurrent_axis": "dp", "concurrent_collective": "broadcast", "axes": ["tp"]},
            "“tp, while dp runs broadcast”: measured along tp, while a second thread of every rank runs along dp.",
        ),
    ],
)
def test_the_method_explains_loads(make_results, columns, text):
    assert dict(method(make_results(**columns)))["Axes"].startswith(text)


@pytest.mark.parametrize(
    ("source", "gpu", "machine", "measured"),
    [
        ("mpi", "", preset("dgx-h100", nodes=128), "a CPU"),
        ("threads", "", preset("dgx-h100"), "a CPU"),
        ("nccl", "NVIDIA H200", preset("dgx-h100"), "NVIDIA H200"),
        ("nccl", "NVIDIA H200", Cluster.from_nodes([Node("laptop", ())]), "NVIDIA H200"),
        ("nccl", "NVIDIA H100 80GB HBM3", preset("dgx-h100"), None),
        ("nccl", "some GPU", preset("dgx-h100"), None),
        ("nccl", "", preset("dgx-h100"), None),
        ("mpi", "", Cluster.from_nodes([Node("laptop", ())]), None),
    ],
)
def test_results_of_a_different_machine_have_a_caveat(make_results, source, gpu, machine, measured):
    results = make_results(source=source, where=source)
    results.attrs["gpu"] = gpu
    given = [text for text in caveats(results, fingerprint="", cluster=machine) if "different machine" in text]
    expected = f"These numbers were measured on {measured}, but this report shows a different machine: "
    assert given == ([] if measured is None else [f"{expected}{machine.summary}."])


MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = ml.Sampling(max_s=0.03, min_batches=6)


@pytest.fixture(scope="module")
def pairs():
    with ml.launch(4, backend="threads") as engines:
        run = ml.bench_pairs(engines, MESH, sizes="1K, 4K", sampling=QUICK)
        run.wait(120)
    return run


@pytest.fixture(scope="module")
def loaded():
    """A run with groups together and one at a time, and with a concurrent axis."""
    with ml.launch(4, backend="threads") as engines:
        run = ml.bench(
            engines,
            MESH,
            ["all_reduce", "all_gather"],
            axis="tp",
            sizes="1K",
            grouping="together, alone",
            concurrent={"dp": "reduce_scatter"},
            sampling=QUICK,
        )
        run.wait(120)
    return run


def with_times(results, **times):
    """The same results or samples with other times, by axis and load, and narrow intervals."""
    load = results["grouping"].where(results["concurrent_axis"].isna(), "concurrent")
    results = results.assign(time_us=(results["axis"] + "_" + load).map(times).astype(float))
    if "time_us_lo" not in results:
        return results
    results = results.assign(n_modes=1, trend=0.0)
    return results.assign(time_us_lo=0.99 * results["time_us"], time_us_hi=1.01 * results["time_us"])


def test_modes_and_trends_are_unusual(make_results):
    results = make_results(source="nccl", n_modes=1, trend=0.01)
    assert found(results, "unusual") == ["Nothing unusual was found."]
    results.loc[results.index[:4], "n_modes"] = 2
    results.loc[results.index[5], "trend"] = 0.23
    results.loc[results.index[6], "trend"] = -0.4
    sentences = found(results, "unusual")
    assert sentences[0] == (
        "4 results have two distinct levels of time, so the median may jump from one to the other: all_reduce on tp_0 "
        "at 1 KiB, all_reduce on tp_1 at 1 KiB, all_reduce on tp_0 at 2 KiB and 1 more."
    )
    assert sentences[1].startswith("1 result became slower during the measurement, by 23 %: all_reduce on ")
    assert sentences[1].endswith(". Possible causes are heating, throttling and other programs.")
    assert sentences[2].startswith("1 result became faster during the measurement, by 40 %: all_reduce on ")
    results.loc[results.index[5], "trend"] = 4.5
    assert "by a factor of 5.5: " in found(results, "unusual")[1]
    results.loc[results.index[4], "trend"] = 0.1
    assert "2 results became slower during the measurement, by up to a factor of 5.5: " in found(results, "unusual")[1]
    assert len(sentences) == 3


def test_a_report_of_pairs_has_matrices_and_tables_and_no_curves(pairs, tmp_path):
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
        f"{name} · pairs of all ranks · float32 · pipelined · slowest first" for name in ("send", "send_recv")
    ]
    assert len(load_tables(pairs.results)) == 2
    assert pivot_tables(pairs.results) == []


def test_the_verdict_names_slow_pairs(pairs):
    results = pairs.results.assign(busbw_gbs=40.0, time_us=10.0, time_us_lo=9.9)
    slow = results.query("collective == 'send_recv' and src_rank == 1 and dst_rank == 3").index
    assert len(slow) == 2
    results.loc[slow, ["busbw_gbs", "time_us", "time_us_lo"]] = [10.0, 40.0, 39.0]
    sentences = found(results, "unusual")
    assert "send_recv at 4 KiB, pairs of all ranks: 10.0 to 40.0 GB/s busbw. SLOW: 1↔3 10.0 GB/s." in sentences
    assert "send at 4 KiB, pairs of all ranks: 40.0 GB/s busbw. No pair is clearly slow." in sentences
    assert found(results, "measured")[0].startswith("send and send_recv between pairs of all ranks, 1 KiB to 4 KiB of")
    assert " of float32, out of place, pipelined, on " in found(results, "measured")[0]
    mixed = results.assign(in_place=results["size_bytes"] == 1024)
    assert " of float32, in place and out of place, pipelined, on " in found(mixed, "measured")[0]
    assert found(results, "fast enough") == []
    assert "unusual again, look at their ranks" in advice(results)
    remarks = " ".join(found(results.assign(n_modes=2), "unusual"))
    assert re.search(r"from one to the other: send\w* \d[→↔]\d at \d KiB, send", remarks)
    both = next(table for table in load_tables(results) if table.title.startswith("send_recv"))
    assert [plain(cell.text) for cell in both.rows[0]] == ["1↔3", "1 KiB", "40.0 µs", "10.0 GB/s", "✕ 25 %"]
    assert both.rows[0][-1].is_bad


def test_ranks_that_share_cores_get_no_verdict_on_pairs_and_axes(pairs, make_results):
    results = pairs.results.assign(busbw_gbs=40.0, time_us=10.0, time_us_lo=9.9)
    slow = results.query("collective == 'send_recv' and src_rank == 1 and dst_rank == 3").index
    results.loc[slow, ["busbw_gbs", "time_us", "time_us_lo"]] = [10.0, 40.0, 39.0]
    results.attrs["oversubscribed"] = "4 ranks share 2 cores"
    unusual = " ".join(found(results, "unusual"))
    assert "SLOW" not in unusual
    assert "No pair is judged, because 4 ranks share 2 cores." in unusual
    assert not any(cell.is_bad for table in load_tables(results) for row in table.rows for cell in row)
    assert ml.analysis.pair_table(results)["is_slow"].isna().all()
    axes = make_results(collectives=["all_reduce"], exponents=[20])
    axes["busbw_gbs"] = axes["axis"].map({"tp": 1.0, "dp": 2.0}).astype(float)
    axes = axes.assign(time_us=1000.0, time_us_lo=990.0, time_us_hi=1010.0)
    axes.attrs["oversubscribed"] = "4 ranks share 2 cores"
    assert speed(axes)[-1] == "The axes are not compared, because 4 ranks share 2 cores."


def test_contention_and_interference_have_a_sentence_and_a_table(loaded):
    results = with_times(
        loaded.results, tp_together=20, tp_alone=10, tp_concurrent=60, dp_together=10, dp_concurrent=10
    )
    samples = with_times(
        loaded.samples, tp_together=20, tp_alone=10, tp_concurrent=60, dp_together=10, dp_concurrent=10
    )
    findings = found(results, "unusual", samples)
    assert findings[0].startswith(
        "The groups of tp slow each other down: 4 of 4 results are clearly slower than one group at a time. The "
        "largest slowdown is 2.00× (2.00 to 2.00): "
    )
    assert findings[1].startswith(
        "reduce_scatter on dp slows tp down: 4 of 4 results are clearly slower than in isolation. The largest slowdown "
        "is 3.00× (3.00 to 3.00): "
    )
    results.attrs["oversubscribed"] = "4 ranks share 2 cores"
    assert found(results, "unusual", samples)[0].endswith(". 4 ranks share 2 cores, which may be the reason.")
    del results.attrs["oversubscribed"]
    assert findings[2:] == [
        "all_reduce on tp does not clearly slow dp down.",
        "all_gather on tp does not clearly slow dp down.",
    ]
    shown = load_tables(results, samples)
    assert shown[0].rows[0][-1].text == "2.00 – 2.00"
    assert [table.title.split(" · ")[:2] for table in shown] == [
        ["tp", "all groups together or one at a time"],
        ["tp", "with and without reduce_scatter on dp"],
        ["dp", "with and without all_reduce on tp"],
        ["dp", "with and without all_gather on tp"],
    ]
    assert shown[0].header == ("size", "collective", "group", "one at a time", "together", "ratio", "95 % interval")
    assert shown[1].header[3:5] == ("without", "with")
    document = ml.Report((results, samples)).markdown().replace("\\", "")
    assert all(sentence in document for sentence in findings[2:])
    unknown = found(results, "unusual")
    assert unknown[0] == (
        "It is unknown whether the groups of tp slow each other down: the samples are missing; pass the run instead of "
        "its results."
    )
    assert unknown[1].startswith("It is unknown whether reduce_scatter on dp slows tp down: the samples are missing;")
    assert load_tables(results)[0].rows[0][-1].text == "–"


def test_loads_are_labelled_and_are_not_separate_axes(loaded):
    document = ml.Report(loaded).markdown().replace("\\", "")
    document += " ".join(table.title for table in detail_tables(loaded.results)[0])
    for label in ("tp, one group at a time", "tp, while dp runs reduce_scatter", "dp, while tp runs all_gather"):
        assert f"· {label} (2 groups of 2)" in document
    assert [text.split(",")[0] for text in speed(loaded.results)[:2]] == ["On tp", "On dp"]


def test_an_old_run_without_the_concurrent_collective_has_the_same_findings(loaded):
    results = loaded.results.assign(concurrent_collective=None).astype({"concurrent_collective": "string"})
    assert sum(" dp slow" in text or text.startswith("dp ") for text in found(results, "unusual", loaded.samples)) == 1
    assert "tp · with and without dp" in " ".join(table.title for table in load_tables(results))


def test_other_runs_have_no_findings_about_loads(make_results):
    results = make_results(axes=["tp"], grouping="together")
    assert found(results, "unusual") == ["Nothing unusual was found."]
    assert load_tables(results) == []


def test_functions_under_contention_have_a_row_and_a_sentence(thread_engines, tmp_path):
    def both(comm):
        return comm.barrier

    sampling = ml.Sampling(max_s=0.05)
    run = ml.bench(thread_engines, "dp=2, tp=2", both, axis="tp", grouping="together, alone", sampling=sampling)
    run.wait(60)
    path = ml.Report(run).save(tmp_path / "report.html")
    assert "The groups of tp" in path.read_text() or "the groups of tp" in path.read_text()
    assert any(table.rows for table in load_tables(run.results, run.samples))


@pytest.mark.parametrize(("n", "count"), [(1, 0), (2, 0), (4, 1), (120, 3)])
def test_few_slowdowns_of_many_results_may_be_chance(n, count):
    assert _by_chance(n) == count


def test_the_answers_omit_what_the_stages_say():
    stage = Answer("pairs", "good", ("All 3 results are correct.", "No pair is slow."))
    found = [
        Answer("correct", "good", ("All 55 results are correct.",)),
        Answer("unusual", "good", ("No pair is slow.",)),
    ]
    assert without_repeated(found, [stage]) == tuple(found[:1])
    assert without_repeated(found, []) == tuple(found)


def test_a_title_cannot_command_a_terminal_or_reorder_a_page(tmp_path):
    report = ml.Report(ml.example(), title="Nightly\x1b[31m \u202eof us")
    for suffix in (".html", ".md", ".xml"):
        text = report.save(tmp_path / f"report{suffix}").read_text(encoding="utf-8")
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_backticks_mark_the_code_in_a_sentence():
    parts = [(False, "Run "), (True, "meshlab doctor"), (False, " first.")]
    assert code_parts("Run `meshlab doctor` first.") == parts
