import pytest

from meshlab.frames.schema import empty_results
from meshlab.report.content import MOST_ROWS, MOST_TABLES, correctness, has_failed, method, tables, verdict, warnings_of
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.model.hardware import Node
from meshlab.topology.model.presets import preset
from meshlab.units import THIN


def plain(text):
    return text.replace(THIN, " ")


def warn(results, state="done", fingerprint=""):
    return warnings_of(results, state=state, fingerprint=fingerprint)


def test_the_verdict_begins_with_whether_all_is_right(make_results):
    results = make_results()
    assert verdict(results)[0] == "All 240 rows are right."
    assert not has_failed(results)


def test_wrong_rows_are_named_and_counted(make_results):
    results = make_results()
    results.loc[results.index[:5], ["status", "n_wrong"]] = ["wrong", 1200]
    assert plain(correctness(results)) == (
        "5 of 240 rows are WRONG: all_reduce on tp_0 at 1 KiB (1,200 elements), all_reduce on tp_1 at 1 KiB "
        "(1,200 elements), all_reduce on tp_0 at 2 KiB (1,200 elements) and 2 more."
    )
    assert has_failed(results)


def test_unchecked_and_unfinished_rows_are_no_right_rows(make_results):
    results = make_results()
    results.loc[results.index[:40], "n_wrong"] = None
    results.loc[results.index[:10], "status"] = "failed"
    assert correctness(results) == "All 200 checked rows are right; 30 were not checked. 10 rows did not finish."
    assert correctness(make_results(n_wrong=None)) == "No answer was checked in 240 rows."
    assert correctness(empty_results()) == "Nothing was measured."


def test_each_axis_has_its_fastest_busbw_with_collective_and_size(make_results):
    results = make_results()
    results.loc[results["axis"] == "tp", "time_us"] = 1e3
    results.loc[results["axis"] == "tp", "busbw_gbs"] = 2.0
    best = results[(results["axis"] == "tp") & (results["collective"] == "broadcast") & (results["size_bytes"] == 2048)]
    results.loc[best.index, "busbw_gbs"] = 7.5
    assert plain(verdict(results)[1]) == "On tp, broadcast at 2 KiB reaches 7.50 GB/s busbw."
    assert verdict(results)[2].startswith("On dp, ")


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        (0.01, "is 2.00 × as fast on dp as on tp"),
        (0.99, "does not differ between dp and tp beyond the intervals"),
    ],
)
def test_axes_differ_only_if_their_intervals_do_not_meet(make_results, interval, said):
    results = make_results(collectives=["all_reduce"], exponents=[10, 20])
    results["busbw_gbs"] = results["axis"].map({"tp": 1.0, "dp": 2.0}).astype(float)
    results["time_us"] = 1000.0 / results["busbw_gbs"]
    results["time_us_lo"] = results["time_us"] * (1 - interval)
    results["time_us_hi"] = results["time_us"] * (1 + interval)
    assert plain(verdict(results)[-1]) == f"all_reduce at 1 MiB {said}: 2.00 GB/s against 1.00 GB/s busbw."


def test_axes_that_are_equally_fast_to_the_last_digit_are_compared_too(make_results):
    results = make_results(collectives=["all_reduce"], exponents=[20], time_us=100.0, n_ranks=2)
    results.loc[results["group"].str.endswith("_1"), "n_ranks"] = 4
    results["busbw_gbs"] = 1.0
    assert "does not differ" in verdict(results)[-1]


def test_one_axis_is_compared_with_nothing(make_results):
    assert len(verdict(make_results(axes=["tp"]))) == 2


def test_numbers_from_a_cpu_are_called_so(make_results):
    assert "MPI on a CPU" in warn(make_results())[0]
    assert "no machine's numbers" in warn(make_results(source="threads"))[0]
    assert warn(make_results(source="nccl")) == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"n_samples": 29, "stop_reason": "time"}, "240 rows have fewer than 30 batches; the median is unsure."),
        ({"time_us_lo": None, "time_us_hi": None}, "240 rows have no interval."),
        ({"time_us_lo": 1.0}, "240 rows have an interval wider than 10 % of the median."),
        ({"status": "failed", "stop_reason": "rank 3 died"}, "240 rows did not finish: rank 3 died."),
    ],
)
def test_weak_rows_are_counted(make_results, columns, said):
    assert said in warn(make_results(source="nccl", **columns))


def test_few_batches_that_were_precise_enough_are_not_weak(make_results):
    assert warn(make_results(source="nccl", n_samples=10, stop_reason="precise")) == []


def test_a_cancelled_run_and_another_mesh_are_told(make_results):
    results = make_results(source="nccl")
    assert warn(results, state="cancelled") == ["The run was cancelled; rows are missing."]
    assert warn(results, fingerprint=results["mesh_fingerprint"][0]) == []
    assert "another mesh" in warn(results, fingerprint="0" * 12)[0]


def test_there_is_a_table_for_each_line_with_its_axes_together(make_results):
    shown, more = tables(make_results())
    assert more == 0
    assert [table.title.split(" (")[0] for table in shown] == [
        f"{collective} · {axis}"
        for axis in ("tp", "dp")
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    ]
    assert shown[0].title == "all_reduce · tp (2 groups of 2) · float32 · sum · out of place · pipelined"
    assert shown[0].header == ("size", "group", "n", "median", "95 % interval", "p99", "algbw", "busbw", "wrong")
    assert all(len(row) == len(table.header) for table in shown for row in table.rows)


def test_columns_that_say_the_same_in_all_rows_are_left_out(make_results):
    shown, _ = tables(make_results("tp=4", axes=["tp"], where=""))
    assert "group" not in shown[0].header
    assert "launch" not in shown[0].header


def test_cells_have_units_and_missing_values_are_dashes(make_results):
    columns = {"time_us_lo": None, "p99_us": None, "n_wrong": None}
    shown, _ = tables(make_results(exponents=[20], **columns))
    texts = [plain(cell.text) for cell in shown[0].rows[0]]
    assert texts[0] == "1 MiB"
    assert texts[3].endswith(" µs")
    assert texts[4:6] == ["–", "–"]
    assert texts[7].endswith(" GB/s")
    assert texts[8] == "unchecked"


def test_what_is_wrong_is_marked_in_words_too(make_results):
    results = make_results(exponents=[20])
    results.loc[results.index[0], ["status", "n_wrong"]] = ["wrong", 7]
    results.loc[results.index[1], "status"] = "failed"
    shown, _ = tables(results)
    assert [(row[-1].text, row[-1].is_bad) for row in shown[0].rows] == [("✕ 7", True), ("✕ failed", True)]


def test_large_tables_and_many_tables_are_capped_and_say_so(make_results):
    results = make_results("dp=64, tp=4", axes=["tp"], collectives=["all_reduce"], exponents=range(10, 20))
    (table,), _ = tables(results)
    assert len(table.rows) == MOST_ROWS
    assert table.more == len(results) - MOST_ROWS
    many = make_results(exponents=range(20), collectives=["all_reduce"])
    many["root"] = range(len(many))
    shown, more = tables(many)
    assert (len(shown), more) == (MOST_TABLES, 80 - MOST_TABLES)


def test_the_method_explains_what_was_used_and_nothing_else(make_results):
    told = dict(method(make_results()))
    assert told["Mode"].startswith("pipelined: ")
    assert "isolated" not in told["Mode"]
    assert "all_reduce 1 for 2 ranks, all_gather 0.5 for 2 ranks" in told["busbw"]
    assert "Time from nccl-tests" not in told
    assert "Time" not in dict(method(make_results(source="nccl-tests")))


@pytest.mark.parametrize(
    ("source", "gpu", "machine", "who"),
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
def test_a_machine_that_did_not_give_the_numbers_is_named(make_results, source, gpu, machine, who):
    results = make_results(source=source, where=source)
    results.attrs["gpu"] = gpu
    said = [
        text for text in warnings_of(results, state="done", fingerprint="", cluster=machine) if "machine shown" in text
    ]
    expected = f"The machine shown here did not give these numbers, {who} did: {machine.summary}."
    assert said == ([] if who is None else [expected])
