from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._comparison import compare
from meshlab.analysis._launches import student_p, student_quantile
from meshlab.base._errors import BenchError
from meshlab.cli._compare import print_comparison
from meshlab.frames._files import frame_to_csv, frame_to_json, frame_to_parquet
from meshlab.frames._schema import RESULTS, conform

GPU = pd.read_csv(Path(__file__).parents[1] / "gpu" / "side_by_side_2xH200.csv")
GPU_LAUNCHES = GPU.filter(like="launch_").to_numpy()
"""Recorded times of collectives on two H200, in µs: shape (rows, 5 launches)."""


def table(times, **other):
    """Results without batches: size to time, or to several times, or to (time, low, high)."""
    rows = []
    for size, value in times.items():
        for index, entry in enumerate(value if isinstance(value, list) else [value]):
            time, low, high = entry if isinstance(entry, tuple) else (entry, None, None)
            rows.append(
                {
                    "run_id": "r",
                    "launch": index,
                    "process_set": f"processes {index}",
                    "source": "nccl",
                    "collective": "all_reduce",
                    "dtype": "float32",
                    "mode": "graph",
                    "n_ranks": 8,
                    "size_bytes": size,
                    "time_us": time,
                    "time_us_lo": low,
                    "time_us_hi": high,
                    "status": "ok",
                }
                | other
            )
    return conform(pd.DataFrame(rows), RESULTS)


def verdicts(comparison):
    return comparison.frame()["verdict"].tolist()


def launches_of(times):
    """Results with one row per size and launch, from times of shape (rows, launches)."""
    return table({1024 * (row + 1): list(values) for row, values in enumerate(np.asarray(times))})


def shares(comparison):
    """The share of each verdict."""
    return comparison.frame()["verdict"].value_counts(normalize=True).to_dict()


def test_on_gpus_a_change_of_17_percent_is_found_with_three_launches():
    rng = np.random.default_rng(7)
    found = np.zeros(5)
    for _ in range(3):
        order = rng.permuted(np.tile(np.arange(5), (len(GPU_LAUNCHES), 1)), axis=1)
        shuffled = np.take_along_axis(GPU_LAUNCHES, order, axis=1)
        same = shares(compare(launches_of(shuffled[:, :3]), launches_of(shuffled[:, 3:])))
        slower = shares(compare(launches_of(shuffled[:, :3]), launches_of(1.17 * shuffled[:, 2:])))
        found += [same.get("SLOWER", 0), same.get("FASTER", 0), same.get("SAME", 0), slower["SLOWER"], 1]
    found /= found[-1]
    assert found[0] + found[1] <= 0.01
    assert found[2] >= 0.9
    assert found[3] >= 0.95


@pytest.mark.full
@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_on_cpus_noise_gets_no_verdict_and_a_threefold_time_is_found(shared):
    # Launches differ by 8 to 30 %, partly in all rows alike, as if something else ran during a launch.
    rng = np.random.default_rng(8)
    n_rows, n_trials = 12, 15
    noise, slower = [], []
    for _ in range(n_trials):
        spread = rng.uniform(0.08, 0.3, size=(n_rows, 1))
        level = rng.uniform(10, 1000, size=(n_rows, 1))
        sides = [
            level * np.exp(spread * (shared**0.5 * rng.normal(size=(1, 3))
                                     + (1 - shared) ** 0.5 * rng.normal(size=(n_rows, 3))))
            for _ in range(2)
        ]  # fmt: skip
        noise.append(shares(compare(*map(launches_of, sides))))
        slower.append(shares(compare(launches_of(sides[0]), launches_of(3 * sides[1]))))
    assert np.mean([one.get("SLOWER", 0) + one.get("FASTER", 0) for one in noise]) <= 0.05
    assert np.mean([one.get("SLOWER", 0) for one in slower]) >= 0.9
    assert all("FASTER" not in one for one in slower)


@pytest.mark.parametrize("spread", [0.02, 0.2])
def test_nine_of_ten_slowdowns_of_the_detectable_size_are_found(spread):
    rng = np.random.default_rng(9)
    slowdown = 1 + spread * 4  # about the value for three launches
    sides = [100 * np.exp(rng.normal(0, spread, size=(400, 3))) for _ in range(2)]
    frame = compare(launches_of(sides[0]), launches_of(slowdown * sides[1])).frame()
    p = np.array([student_p_of(row) for _, row in frame.iterrows()])
    near = frame["detectable"].between(0.9 * slowdown, 1.1 * slowdown).to_numpy()
    assert near.sum() >= 30
    assert (p[near] <= 0.05).mean() >= 0.85


def student_p_of(row):
    """The p-value of one row, not adjusted for the other rows."""
    error = np.log(row["ratio_hi"] / row["ratio_lo"]) / 2 / student_quantile(0.95, 4)
    return student_p(np.log(row["ratio"]) / error, 4)


def test_one_launch_of_each_is_never_a_verdict():
    before = table({1: (100.0, 99.9, 100.1), 2: 100.0})
    after = table({1: (900.0, 899.9, 900.1), 2: 1.0})
    comparison = compare(before, after)
    assert verdicts(comparison) == ["UNCLEAR", "UNCLEAR"]
    assert comparison.frame()["note"].tolist() == ["one launch", "one launch"]
    assert comparison.frame()["ratio_lo"].isna().all()
    assert comparison.frame()["ratio"].tolist() == pytest.approx([9.0, 0.01])
    assert "measure three launches of each" in repr(comparison)
    assert comparison.regressions().empty


def test_new_communicators_on_the_same_processes_are_one_launch():
    before = table({1: [100.0, 101.0, 99.0]}, process_set="a")
    after = table({1: [200.0, 201.0, 199.0]}, process_set="b")
    assert verdicts(compare(before, after)) == ["UNCLEAR"]
    assert compare(before, after).frame()[["launches_before", "launches_after"]].to_numpy().tolist() == [[1, 1]]
    for frame in (before, after):
        frame["process_set"] = frame["process_set"] + frame["launch"].astype("string")
    assert verdicts(compare(before, after)) == ["SLOWER"]


def test_the_spread_of_one_side_serves_both():
    assert verdicts(compare(table({1: 100.0}), table({1: [120.0, 121.0, 119.0]}))) == ["SLOWER"]
    assert verdicts(compare(table({1: 100.0}), table({1: [80.0, 121.0, 159.0]}))) == ["UNCLEAR"]


def test_the_intervals_of_the_batches_are_the_least_spread():
    before, after = table({1: [100.0, 100.0, 100.0]}), table({1: [106.0, 106.0, 106.0]})
    assert verdicts(compare(before, after)) == ["SLOWER"]
    wide = [
        frame.assign(time_us_lo=0.8 * frame["time_us"], time_us_hi=1.25 * frame["time_us"]) for frame in (before, after)
    ]
    assert verdicts(compare(*wide)) == ["UNCLEAR"]


def test_launches_decide():
    comparison = compare(
        table({1: [100.0, 101.0, 99.0], 2: [100.0, 101.0, 99.0], 3: [100.0, 150.0, 70.0]}),
        table({1: [120.0, 121.0, 119.0], 2: [100.5, 101, 99], 3: [110.0, 160.0, 80.0]}),
    )
    assert verdicts(comparison) == ["SLOWER", "SAME", "UNCLEAR"]
    assert "3 launches per side" in repr(comparison)


def test_a_list_of_logs_is_a_set_of_launches(make_log):
    logs = [ml.nccl_tests.read(make_log("2.13", bandwidth_gbs=171 + k).text()) for k in range(3)]
    slow = [ml.nccl_tests.read(make_log("2.13", bandwidth_gbs=(171 + k) / 2, latency_us=50).text()) for k in range(3)]
    comparison = compare(logs, slow)
    assert set(comparison.frame()["launches_before"]) == {3}
    assert set(verdicts(comparison)) == {"SLOWER"}


def test_many_rows_need_stronger_evidence_than_one():
    before, after = [100.0, 97.0, 103.0], [109.0, 106.0, 112.0]
    assert verdicts(compare(table({1: before}), table({1: after}))) == ["SLOWER"]
    sizes = range(1, 41)
    many = compare(table(dict.fromkeys(sizes, before)), table(dict.fromkeys(sizes, before) | {1: after}))
    assert many.frame().loc[many.frame()["size_bytes"] == 1, "verdict"].tolist() == ["UNCLEAR"]


def test_where_ranks_share_cores_slower_rows_do_not_count(tmp_path):
    before, after = table({1: [100.0, 101.0, 99.0]}), table({1: [300.0, 301.0, 299.0]})
    before.attrs["oversubscribed"] = "4 ranks share 2 cores"
    comparison = compare(before, after)
    assert verdicts(comparison) == ["SLOWER"]
    assert "4 ranks share 2 cores, so times also depend on the scheduler" in repr(comparison)
    for name, frame in (("before", before), ("after", after)):
        frame_to_parquet(frame, tmp_path / f"{name}.parquet")
    out = io.StringIO()
    assert print_comparison(tmp_path / "before.parquet", tmp_path / "after.parquet", file=out) == 0
    assert "1 regression beyond 5%, not counted because 4 ranks share 2 cores" in out.getvalue()
    assert print_comparison([tmp_path / "after.parquet"] * 2, tmp_path / "after.parquet", file=out) == 0
    both = [[tmp_path / f"{name}.parquet"] for name in ("after", "before")]
    assert compare(before.pipe(lambda frame: [frame, after]), after).oversubscribed == "4 ranks share 2 cores"
    assert print_comparison(*both, file=out) == 0


@pytest.mark.parametrize(
    ("column", "value", "word"),
    [
        ("n_ranks", 16, "ranks: 8 before, 16 after"),
        ("dtype", "float64", "dtype: float32 before, float64 after"),
        ("mode", "pipelined", "mode: graph before, pipelined after"),
        ("collective", "all_gather", "collective"),
        ("source", "threads", "source: nccl before, threads after"),
    ],
)
def test_sides_that_are_not_comparable_are_rejected_with_the_reason(column, value, word):
    before, after = table({1: 100.0}), table({1: 100.0}, **{column: value})
    with pytest.raises(BenchError, match="not comparable") as caught:
        compare(before, after)
    assert word in str(caught.value)
    assert "anyway=True" in str(caught.value)
    if column == "collective":
        with pytest.raises(BenchError, match="no row of 'before' has a counterpart in 'after'; rows are matched by"):
            compare(before, after, anyway=True)
    else:
        comparison = compare(before, after, anyway=True)
        assert comparison.differences[0].blocks
        assert len(comparison.frame()) == 1


def test_a_different_gpu_is_rejected_and_a_different_library_only_reported():
    before, after = table({1: 100.0}), table({1: 100.0})
    before.attrs |= {"gpu": "NVIDIA H100", "library": "NCCL 2.27.3", "environment": {"NCCL_ALGO": "Ring"}}
    after.attrs |= {"gpu": "NVIDIA H100", "library": "NCCL 2.29.2", "environment": {"NCCL_PROTO": "LL"}}
    comparison = compare(before, after)
    assert [(d.what, d.before, d.after) for d in comparison.differences] == [
        ("library", "NCCL 2.27.3", "NCCL 2.29.2"),
        ("NCCL_ALGO", "Ring", "not recorded"),
        ("NCCL_PROTO", "not recorded", "LL"),
    ]
    after.attrs["gpu"] = "NVIDIA H200"
    with pytest.raises(BenchError, match="GPU: NVIDIA H100 before, NVIDIA H200 after"):
        compare(before, after)
    after.attrs["gpu"] = ""
    assert compare(before, after).differences[0].after == "unknown"


def test_columns_without_values_on_one_side_do_not_prevent_a_match(make_log):
    log = ml.nccl_tests.read(make_log("2.10").text())
    own = log.results.assign(mode="pipelined", axis="dp", source="nccl")
    comparison = compare(log, own)
    assert comparison.only_before == comparison.only_after == 0
    assert [(d.what, d.before) for d in comparison.differences if d.what == "mode"] == [("mode", "unknown")]


def test_placements_are_never_mixed(make_log):
    log = ml.nccl_tests.read(make_log("2.13").text())
    comparison = compare(log, log)
    assert len(comparison.frame()) == len(log.results)
    assert comparison.frame()["ratio"].eq(1).all()


def test_a_concurrent_axis_is_not_mixed_with_the_same_axis_in_isolation():
    alone = table({1024: (10.0, 9.9, 10.1)}, axis="tp", group="tp_0", grouping="together")
    load = {"concurrent_axis": "dp", "concurrent_collective": "reduce_scatter"}
    busy = table({1024: (30.0, 29.9, 30.1)}, axis="tp", group="tp_0", grouping="together", **load)
    both = pd.concat([alone, busy], ignore_index=True)
    comparison = compare(both, alone)
    assert comparison.frame()["before_us"].tolist() == pytest.approx([10.0])
    assert (comparison.only_before, comparison.only_after) == (1, 0)
    assert sorted(compare(both, both).frame()["before_us"]) == pytest.approx([10.0, 30.0])
    with pytest.raises(BenchError, match="concurrent axis: dp before, none after"):
        compare(busy, alone)
    assert compare(busy, alone, anyway=True).frame()["ratio"].tolist() == pytest.approx([1 / 3])
    assert "concurrent_axis" not in compare(alone, alone).frame()


def test_pairs_are_named_by_their_ranks_and_direction():
    pair = {"axis": "tp", "group": "tp_0", "grouping": "pairs", "src_rank": 0, "dst_rank": 1, "n_ranks": 2}
    frame = pd.concat([table({1024: 10.0}, **pair | {"collective": name}) for name in ("send", "send_recv")])
    text = str(compare(frame, frame))
    assert "send 1 KiB 0→1" in text.replace("\u2009", " ")
    assert "send_recv 1 KiB 0↔1" in text.replace("\u2009", " ")


def test_rows_without_a_counterpart_are_counted():
    comparison = compare(table({1: 100.0, 2: 100.0}), table({2: 100.0, 3: 100.0, 4: 100.0}))
    assert (comparison.only_before, comparison.only_after) == (1, 2)
    assert "1 row of 'before' without a counterpart in 'after'" in repr(comparison)


def test_wrong_results_have_no_ratio_and_new_ones_are_a_regression():
    before, after = table({1: 100.0, 2: 100.0}), table({1: 50.0, 2: 100.0})
    after.loc[0, "status"] = "wrong"
    comparison = compare(before, after)
    assert verdicts(comparison) == ["WRONG", "UNCLEAR"]
    assert comparison.regressions()["size_bytes"].tolist() == [1]
    assert "results are wrong after" in comparison._repr_html_()
    before.loc[0, "status"] = "wrong"
    assert compare(before, after.assign(status="ok")).regressions().empty


def test_wrong_results_are_first_in_the_headline_and_in_the_list():
    before = table({size: [100.0, 99.0, 101.0] for size in range(1, 31)})
    after = table({size: [200.0, 199.0, 201.0] for size in range(1, 31)})
    after.loc[89, ["status", "n_wrong"]] = ["ok", 288]  # elements differ, regardless of the status
    comparison = compare(before, after)
    assert comparison.headline.startswith("30 rows compared: 1 WRONG, 29 slower. Wrong: all_reduce 30\u2009B. Slowest:")
    assert "✕ WRONG   all_reduce 30\u2009B" in repr(comparison).splitlines()[3]
    assert comparison.counts["WRONG"] == 1


def test_results_that_are_wrong_on_both_sides_or_have_no_counterpart_are_reported():
    one, two = table({1: 100.0}), table({1: 100.0, 2: 100.0})
    one.loc[0, "status"] = "wrong"
    both = compare(one, one)
    assert verdicts(both) == ["WRONG"]
    assert both.frame()["note"].tolist() == ["results are wrong before and after"]
    two.loc[1, "status"] = "wrong"
    new = compare(table({1: 100.0}), two)
    assert verdicts(new) == ["UNCLEAR", "WRONG"]
    assert len(new.regressions()) == 1


def test_a_row_without_a_time_names_the_side():
    before, after = table({1: 100.0, 2: 100.0}), table({1: 100.0, 2: 100.0})
    after.loc[1, "status"] = "failed"
    assert compare(before, after).frame()["note"].tolist() == ["one launch", "no time after"]
    assert compare(after, before).frame()["note"].tolist() == ["one launch", "no time before"]


def test_functions_have_no_size_and_are_compared_too():
    both = pd.concat([table({1: 100.0}), table({2: [100.0, 99.0, 101.0]}, collective="step", size_bytes=None)])
    comparison = compare(both, both)
    assert "= SAME    step: 100" in repr(comparison)
    assert "step" in comparison._repr_html_()
    alone = compare(both[both["collective"] == "step"], both[both["collective"] == "step"])
    assert alone.headline == "1 row compared: 1 the same."


@pytest.mark.parametrize("column", ["mode", "dtype", "axis", "op", "group", "root", "in_place"])
def test_rows_are_named_by_the_columns_that_vary(column):
    values = [False, True] if column == "in_place" else [0, 1] if column == "root" else ["one", "other"]
    both = pd.concat([table({1: 100.0}, **{column: value}) for value in values])
    names = {line.split(":")[0] for line in repr(compare(both, both)).splitlines()[-2:]}
    assert len(names) == 2


def test_rows_of_the_example_have_unique_names():
    import meshlab as ml
    from meshlab.analysis._comparison import distinguishing_columns, row_name

    frame = compare(ml.example(), ml.example()).frame()
    columns = distinguishing_columns(frame)
    assert len({row_name(row, columns) for _, row in frame.iterrows()}) == len(frame) == 168


def test_names_of_rows_have_only_the_columns_that_distinguish_them():
    from meshlab.analysis._comparison import distinguishing_columns

    rows = [("all_reduce", "sum", "tp_0"), ("all_gather", None, "tp_0"), ("all_gather", None, "dp_0")]
    frame = pd.DataFrame(rows, columns=["collective", "op", "group"])
    assert distinguishing_columns(frame) == ["collective", "group"]


def test_regressions_respect_their_threshold():
    before = table({size: [100.0, 99.5, 100.5] for size in (1, 2, 3)})
    after = table({1: [107.0, 106.5, 107.5], 2: [112.0, 111.5, 112.5], 3: [90.0, 89.5, 90.5]})
    comparison = compare(before, after)
    assert comparison.regressions()["size_bytes"].tolist() == [1, 2]
    assert comparison.regressions(0.1)["size_bytes"].tolist() == [2]
    assert comparison.headline == (
        "3 rows compared: 2 slower, 1 faster. Slowest: all_reduce 2\u2009B, 1.12× (1.11 to 1.13)."
    )


def test_all_sources_of_results_can_be_compared(make_log, tmp_path):
    log = ml.nccl_tests.read(make_log("2.17").text())
    path = tmp_path / "log.txt"
    path.write_text(make_log("2.17").text())
    paths = [tmp_path / f"results.{suffix}" for suffix in ("parquet", "csv", "json")]
    frame_to_parquet(log.results, paths[0])
    frame_to_csv(log.results, paths[1])
    paths[2].write_text(frame_to_json(log.results))
    for other in (log, log.results, (log.results, None), SimpleNamespace(results=log.results), str(path), path, *paths):
        assert compare(log, other).frame()["ratio"].eq(1).all()


@pytest.mark.parametrize("other", [5, None, pd.DataFrame({"x": [1]}), "missing.parquet"])
def test_sources_without_results_are_rejected(other):
    with pytest.raises((BenchError, OSError)):
        compare(table({1: 1.0}), other)


def test_empty_results_and_an_invalid_effect_are_rejected():
    with pytest.raises(BenchError, match="no results to compare"):
        compare(table({1: 1.0}), table({1: 1.0}).head(0))
    with pytest.raises(BenchError, match="effect must be a relative difference between 0 and 1, not 5"):
        compare(table({1: 1.0}), table({1: 1.0}), effect=5)
    with pytest.raises(BenchError, match="not None"):
        compare(table({1: 1.0}), table({1: 1.0}), effect=None)


def test_the_html_is_escaped():
    before, after = table({1: 100.0}), table({1: 100.0})
    before.attrs["library"], after.attrs["library"] = "<b>", "NCCL"
    page = compare(before, after)._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def write(path, maker):
    path.write_text(maker.text())
    return path


def test_the_command_prints_and_returns_an_exit_code(make_log, tmp_path):
    good = write(tmp_path / "good.txt", make_log("2.13"))
    slow = write(tmp_path / "slow.txt", make_log("2.13", bandwidth_gbs=60.0, latency_us=40.0))
    other = write(tmp_path / "other.txt", make_log("2.13", n_ranks=4))
    out = io.StringIO()
    assert print_comparison(good, slow, file=out) == 0  # one launch of each
    assert "SLOWER" not in out.getvalue()
    assert print_comparison([good] * 3, [slow] * 3, file=out) == 1
    assert "▲ SLOWER" in out.getvalue()
    assert "14 regressions beyond 5%" in out.getvalue()
    assert print_comparison([good] * 3, [slow] * 3, threshold=9.0, file=out) == 0
    assert print_comparison(good, good, file=out) == 0
    assert print_comparison([good, good, good], [slow, slow, slow], file=out) == 1
    assert print_comparison(good, other, file=(refused := io.StringIO())) == 2
    assert "not comparable" in refused.getvalue()
    assert print_comparison(good, other, anyway=True, file=out) in (0, 1)
    assert print_comparison(good, tmp_path / "missing.txt", file=out) == 2


def test_the_command_exits_with_1_when_results_are_wrong_after(make_log, tmp_path):
    good = write(tmp_path / "good.txt", make_log("2.13"))
    wrong = write(tmp_path / "wrong.txt", make_log("2.13", wrong={3: 288}))
    out = io.StringIO()
    assert print_comparison(good, wrong, file=out) == 1
    assert "2 rows are wrong after" in out.getvalue()
    assert print_comparison(wrong, wrong, file=out) == 1
    assert print_comparison(wrong, good, file=out) == 0


def test_errors_of_the_command_name_its_options(make_log, tmp_path, capsys):
    good = write(tmp_path / "good.txt", make_log("2.13"))
    other = write(tmp_path / "other.txt", make_log("2.13", n_ranks=4))
    for arguments, sentence in (
        ({"after": other}, "; pass --anyway to compare the rows by the columns that both sides share"),
        (
            {"after": tmp_path / "nothing"},
            "nothing: No such file or directory; pass the folder of a run",
        ),
        (
            {"after": good, "threshold": -1.0},
            "threshold must be positive, not -1; 0.05, or 5%, reports rows that take 5 % more time",
        ),
    ):
        assert print_comparison(good, **arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("meshlab: ")
        assert sentence in err
        assert "Error" not in err
        assert "Errno" not in err


def test_sides_have_the_names_of_their_files_or_their_paths_if_these_are_equal(make_log, tmp_path):
    paths = [tmp_path / name / "log.txt" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        write(path, make_log("2.13"))
    alike = compare(*paths)
    assert (alike.before, alike.after) == tuple(map(str, paths))
    write(tmp_path / "new.txt", make_log("2.13"))
    assert str(compare(paths[0], tmp_path / "new.txt")).splitlines()[0] == "log.txt (before) → new.txt (after)"


def test_small_significant_differences_do_not_give_noisy_rows_a_verdict():
    rng = np.random.default_rng(11)
    spread = np.repeat([0.002, 0.06], [150, 40])[:, None]
    change = np.repeat([1.03, 1.0], [150, 40])[:, None]
    wrong = 0
    for _ in range(6):
        before, after = (100 * np.exp(spread * rng.normal(size=(190, 3))) for _ in range(2))
        verdicts_of = compare(launches_of(before), launches_of(change * after)).frame()["verdict"]
        wrong += int(verdicts_of.isin(["SLOWER", "FASTER"]).sum())
    assert wrong <= 2  # without a threshold that ignores them, about ten


def test_launches_of_an_older_run_count_as_one():
    times = {1: [100.0, 101.0, 99.0]}
    before, after = table(times, process_set=None), table({1: [200.0, 201.0, 199.0]}, process_set=None)
    assert compare(before, after).frame()["note"].tolist() == ["one launch"]


def log_of(times: Sequence[float]) -> str:
    """A log of nccl-tests with one run per time of 1 GiB."""
    head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    lines = []
    for time in times:
        rate = (1 << 30) / time / 1e3
        half = f"{time:9.1f}  {rate:6.2f}  {rate:6.2f}      0"
        lines += [
            head,
            f"{1 << 30:12}  {1 << 28:12}     float     sum      -1{half}{half}",
            "# Avg bus bandwidth    : 1",
        ]
    return "\n".join(lines)


def test_sections_of_one_log_are_runs_that_can_be_chosen() -> None:
    log = ml.nccl_tests.read(log_of([27211.0, 195000.0]))
    headline = ml.compare(*log.sections).headline
    assert headline.endswith("because each side has one launch; all of them take 7.2 times as long after as before.")


def test_runs_of_one_log_that_differ_sevenfold_are_no_repeats() -> None:
    log = ml.nccl_tests.read(log_of([27211.0, 195000.0]))
    with pytest.raises(BenchError, match=r"2 runs whose times differ by a factor of up to 7\.2"):
        ml.compare(log, log)
    assert ml.compare(log, log, anyway=True).counts["UNCLEAR"] == 2
    repeats = ml.nccl_tests.read(log_of([27211.0, 27400.0]))
    assert ml.compare(repeats, repeats).rows["launches_before"].tolist() == [2, 2]


def test_axes_that_exchanged_their_backends_are_not_compared(make_results) -> None:
    before, after = make_results(), make_results(seed=1)
    before.loc[before["axis"] == "tp", "source"] = "gloo"
    after.loc[after["axis"] == "dp", "source"] = "gloo"
    assert set(before["source"]) == set(after["source"]) == {"mpi", "gloo"}
    with pytest.raises(BenchError, match="source of"):
        compare(before, after)
    assert len(compare(before, before.copy()).frame())


def test_a_slowdown_beyond_a_small_effect_decides() -> None:
    rows = {"collective": "all_reduce", "size_bytes": 1024, "launch": [0, 1, 2], "time_us": [10.0, 10.01, 9.99]}
    before = pd.DataFrame(rows)
    comparison = ml.compare(before, before.assign(time_us=1.03 * before["time_us"]), effect=0.02)
    assert comparison.counts["SLOWER"] == 1
    assert comparison.outcome == "failed"
