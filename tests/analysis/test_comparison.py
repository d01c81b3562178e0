from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis.comparison import compare
from meshlab.cli.commands import print_comparison
from meshlab.errors import BenchError
from meshlab.frames.schema import RESULTS, SAMPLES, conform
from meshlab.frames.store import frame_to_csv, frame_to_json, frame_to_parquet

# Real times: four launches of 400 batches of numpy additions (40 calls of three additions of 32 KiB), measured on a
# shared virtual machine with two cores. The medians are about 5 µs, single batches scatter by 12 %, and neighbours are
# correlated (rank correlation 0.45).
STORED = pd.read_csv(Path(__file__).parent / "data" / "numpy_batches.csv")
LAUNCHES = [part["time_us"].to_numpy() for _, part in STORED.groupby("launch")]
BLOCK = 20


def again(series, rng):
    """Return a similar series: resampled blocks of its batches."""
    first = rng.integers(series.size, size=(series.size // BLOCK, 1))
    return series[((first + np.arange(BLOCK)) % series.size).ravel()]


def run(series_of_sizes, factor=1.0):
    """Results and samples of a run: for each size, a list of series, one per launch; two ranks, the first faster."""
    keys, series = [], []
    for step, (size, launches) in enumerate(series_of_sizes.items()):
        for launch, times in enumerate(launches):
            keys.append((launch, step, size, float(np.median(times)) * factor))
            series.append(np.concatenate([[1e4], times * factor]))
    common = {"run_id": "r", "axis": "tp", "group": "tp_0", "status": "ok"}
    what = {"source": "mpi", "collective": "all_reduce", "dtype": "float32", "mode": "pipelined", "n_ranks": 2}
    results = pd.DataFrame(keys, columns=["launch", "step", "size_bytes", "time_us"]).assign(**common, **what)
    length = [times.size for times in series]
    one_rank = (
        results[["launch", "step"]]
        .loc[np.repeat(results.index, length)]
        .assign(batch=np.concatenate([np.arange(n) for n in length]), time_us=np.concatenate(series), **common)
    )
    one_rank["is_warmup"] = one_rank["batch"] < 1
    ranks = [one_rank.assign(rank=rank, time_us=share * one_rank["time_us"]) for rank, share in ((0, 0.9), (1, 1.0))]
    return conform(results, RESULTS), conform(pd.concat(ranks, ignore_index=True), SAMPLES)


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


@pytest.mark.parametrize("launches", [1, pytest.param(4, marks=pytest.mark.long)])
def test_noise_is_the_same_and_a_slowdown_of_ten_percent_is_found_in_95_of_100_trials(launches):
    rng = np.random.default_rng(7)
    chosen = {1024 * trial: [LAUNCHES[(trial + k) % 4] for k in range(launches)] for trial in range(1, 101)}
    before, noise, slower = (
        {size: [again(series, rng) for series in parts] for size, parts in chosen.items()} for _ in range(3)
    )
    assert verdicts(compare(run(before), run(noise))).count("SAME") >= 95
    assert verdicts(compare(run(before), run(slower, 1.1))).count("SLOWER") >= 95


def test_the_interval_covers_the_true_ratio_in_most_trials():
    rng = np.random.default_rng(8)
    sizes = [1024 * trial for trial in range(1, 101)]
    before, after = ({size: [again(LAUNCHES[0], rng)] for size in sizes} for _ in range(2))
    frame = compare(run(before), run(after, 1.2)).frame()
    assert frame["ratio_lo"].le(1.2).mul(frame["ratio_hi"].ge(1.2)).sum() >= 90
    assert (frame["ratio_hi"] / frame["ratio_lo"]).median() < 1.1


def test_variation_between_launches_makes_a_difference_unclear():
    before = {1024: [LAUNCHES[0], 1.3 * LAUNCHES[0], 0.8 * LAUNCHES[0]]}
    after = {1024: [1.1 * LAUNCHES[0], 1.4 * LAUNCHES[0], 0.9 * LAUNCHES[0]]}
    comparison = compare(run(before), run(after))
    assert verdicts(comparison) == ["UNCLEAR"]
    assert comparison.frame()["basis"].tolist() == ["samples, 3 launches"]
    assert verdicts(compare(run({1024: before[1024][:1]}), run({1024: after[1024][:1]}))) == ["SLOWER"]


def test_times_are_of_the_slowest_rank_without_warmup():
    comparison = compare(run({1024: [LAUNCHES[0]]}), run({1024: [LAUNCHES[0]]}))
    assert comparison.frame()["before_us"].tolist() == pytest.approx([np.median(LAUNCHES[0])])
    assert "one launch" in repr(comparison)


def test_intervals_decide_if_there_are_no_batches():
    before = table({1: (100.0, 99.0, 101.0), 2: (100.0, 99.0, 101.0), 3: (100.0, 80.0, 120.0), 4: (100.0, 99.0, 101.0)})
    after = table({1: (101.0, 100.0, 102.0), 2: (110.0, 109.0, 111.0), 3: (110.0, 90.0, 130.0), 4: (80.0, 79.0, 81.0)})
    comparison = compare(before, after)
    assert verdicts(comparison) == ["SAME", "SLOWER", "UNCLEAR", "FASTER"]
    assert set(comparison.frame()["basis"]) == {"intervals"}
    assert comparison.frame()["ratio"].tolist() == pytest.approx([1.01, 1.1, 1.1, 0.8])


def test_repeats_decide_if_there_are_no_intervals():
    comparison = compare(
        table({1: [100.0, 101.0, 99.0], 2: [100.0, 101.0, 99.0]}),
        table({1: [120.0, 121.0, 119.0], 2: [100.5, 101, 99]}),
    )
    assert verdicts(comparison) == ["SLOWER", "SAME"]
    assert set(comparison.frame()["basis"]) == {"repeats"}


def test_a_list_of_logs_is_a_set_of_repeats(make_log):
    logs = [ml.nccl_tests.read(make_log("2.13", bandwidth_gbs=171 + k).text()) for k in range(3)]
    slow = [ml.nccl_tests.read(make_log("2.13", bandwidth_gbs=(171 + k) / 2, latency_us=50).text()) for k in range(3)]
    comparison = compare(logs, slow)
    assert set(comparison.frame()["basis"]) == {"repeats"}
    assert set(verdicts(comparison)) == {"SLOWER"}


def test_single_times_are_unclear_unless_the_difference_is_large():
    comparison = compare(
        table({1: 100.0, 2: 100.0, 3: 100.0, 4: 100.0}), table({1: 100.0, 2: 124.0, 3: 126.0, 4: 79.0})
    )
    assert verdicts(comparison) == ["UNCLEAR", "UNCLEAR", "SLOWER", "FASTER"]
    assert comparison.frame()["ratio_lo"].isna().all()
    assert "repeat the runs" in repr(comparison)


def test_many_rows_need_stronger_evidence_than_one():
    before, after = (100.0, 97.0, 103.0), (107.0, 103.5, 110.5)
    assert verdicts(compare(table({1: before}), table({1: after}))) == ["SLOWER"]
    sizes = range(1, 41)
    many = compare(table(dict.fromkeys(sizes, before)), table(dict.fromkeys(sizes, before) | {1: after}))
    assert many.frame().loc[many.frame()["size_bytes"] == 1, "verdict"].tolist() == ["UNCLEAR"]


def test_noise_with_intervals_rarely_gives_a_false_alarm():
    rng = np.random.default_rng(9)
    alarms = 0
    for _ in range(40):
        sides = [
            table(
                {size: (t := float(100 * np.exp(rng.normal(0, 0.05))), t * 0.907, t * 1.103) for size in range(1, 31)}
            )
            for _ in range(2)
        ]
        alarms += bool({"SLOWER", "FASTER"} & set(verdicts(compare(*sides))))
    assert alarms <= 6


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
    assert comparison.frame()[["before_us", "verdict"]].to_numpy().tolist() == [[pytest.approx(10.0), "SAME"]]
    assert (comparison.only_before, comparison.only_after) == (1, 0)
    assert sorted(compare(both, both).frame()["before_us"]) == pytest.approx([10.0, 30.0])
    with pytest.raises(BenchError, match="concurrent axis: dp before, none after"):
        compare(busy, alone)
    assert verdicts(compare(busy, alone, anyway=True)) == ["FASTER"]
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
    before = table(dict.fromkeys(range(1, 31), (100.0, 99.0, 101.0)))
    after = table(dict.fromkeys(range(1, 31), (200.0, 199.0, 201.0)))
    after.loc[29, ["status", "n_wrong"]] = ["ok", 288]  # elements differ, regardless of the status
    comparison = compare(before, after)
    assert comparison.headline.startswith("30 rows compared: 1 WRONG, 29 slower. Wrong: all_reduce 30\u2009B. Slowest:")
    assert "✕ WRONG   all_reduce 30\u2009B" in repr(comparison).splitlines()[2]
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
    assert compare(before, after).frame()["note"].tolist() == ["", "no time after"]
    assert compare(after, before).frame()["note"].tolist() == ["", "no time before"]


def test_functions_have_no_size_and_are_compared_too():
    both = pd.concat([table({1: 100.0}), table({2: (100.0, 99.0, 101.0)}, collective="step", size_bytes=None)])
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
    from meshlab.analysis.comparison import distinguishing_columns, row_name

    frame = compare(ml.example(), ml.example()).frame()
    assert len({row_name(row, distinguishing_columns(frame)) for _, row in frame.iterrows()}) == len(frame) == 168


def test_regressions_respect_their_threshold():
    before = table(dict.fromkeys((1, 2, 3), (100.0, 99.5, 100.5)))
    after = table({1: (107.0, 106.5, 107.5), 2: (112.0, 111.5, 112.5), 3: (90.0, 89.5, 90.5)})
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
    assert print_comparison(good, slow, file=out) == 1
    assert "▲ SLOWER" in out.getvalue()
    assert "14 regressions beyond 5%" in out.getvalue()
    assert print_comparison(good, slow, threshold=9.0, file=out) == 0
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
            "threshold must be positive, not -1; 0.05, or 5%, reports rows that are 5 % slower",
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
