from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import ParseError


def half(size, time, n=8, wrong=0.0):
    algbw = size / time / 1e3
    return {"time": time, "alg_bw": round(algbw, 6), "bus_bw": round(algbw * 2 * (n - 1) / n, 6), "nwrong": wrong}


def per_iteration(times, processes=None, skipped=2):
    summary = {
        "skipped_iterations": skipped,
        "min_us": min(times[skipped:]),
        "max_us": max(times[skipped:]),
        "p99_us": max(times[skipped:]),
        "cv_pct": 1.4,
        "times_us": times,
    }
    if processes is not None:
        summary["per_process_max_times_us"] = processes
    return summary


def document(version=3, sizes=(1 << 20, 1 << 22), iterations=True, gpus=1, processes=8):
    rng = np.random.default_rng(5)
    results = []
    for size in sizes:
        time = 30 + size / 2e5
        result = {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": half(size, time),
            "in_place": half(size, time * 0.99, wrong=None),
            "actual_iterations": 20,
            "experiment_name": "",
        }
        if version > 1 and iterations:
            ranks = (time * rng.normal(1, 0.01, size=(processes, 20))).round(6)
            ranks[:, 0] *= 3
            result["out_of_place_per_iter"] = per_iteration(ranks.max(axis=0).tolist(), ranks.tolist())
        results.append(result)
    average = np.mean([part["bus_bw"] for result in results for part in (result["out_of_place"], result["in_place"])])
    key, inner = ("average_bus_bandwidith", "bandwidith") if version == 1 else ("average_bus_bandwidth", "bandwidth")
    return {
        "version": version,
        "start_time": "2026-07-10 12:00:00",
        "args": ["./build/all_reduce_perf_mpi", "-b", "1M", "-J", "out.json"],
        "env": ["NCCL_ALGO=Ring", "AWS_SECRET_ACCESS_KEY=do-not-keep", "PATH=/usr/bin"],
        "nccl_version": 23004,
        "config": {
            "nthreads": 1,
            "ngpus": gpus,
            "minimum_bytes": sizes[0],
            "maximum_bytes": sizes[-1],
            "step_factor": 4,
            "iterations": 20,
            "aggregated_iterations": 1,
            "graph": 0,
            "blocking_collectives": "false",
            "devices": [
                {"rank": rank, "group": 0, "pid": rank, "hostname": "n0", "device": rank, "device_info": "NVIDIA X1"}
                for rank in range(processes)
            ],
        },
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        key: {inner: float(average), "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-07-10 12:00:05",
    }


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_is_read(version):
    log = ml.nccl_tests.read(json.dumps(document(version)))
    (section,) = log.sections
    assert (section.status, section.collective, section.n_ranks, section.library) == (
        "complete",
        "all_reduce",
        8,
        "NCCL 2.30.4",
    )
    assert section.average_matches_rows
    assert section.warnings == ()
    first = section.rows[0]
    assert (first.size_bytes, first.op, first.root) == (1 << 20, "sum", None)
    assert (first.out_of_place.n_wrong, first.in_place.n_wrong) == (0, None)


def test_iterations_become_samples_and_results_are_their_median():
    source = document()
    log = ml.nccl_tests.read(json.dumps(source))
    samples, results = log.samples, log.results
    assert len(samples) == 2 * 8 * 20
    assert samples.loc[samples["is_warmup"], "batch"].unique().tolist() == [0, 1]
    times = source["results"][1]["out_of_place_per_iter"]["times_us"]
    step = samples[(samples["step"] == 2) & ~samples["is_warmup"]]
    assert step.groupby("batch")["time_us"].max().tolist() == times[2:]
    row = results[(results["step"] == 2)].iloc[0]
    assert row["time_us"] == pytest.approx(np.median(times[2:]))
    assert row["time_us_lo"] <= row["time_us"] <= row["time_us_hi"] < times[0]
    assert (row["n_samples"], row["calls"]) == (18, 1)
    assert row["skew_us"] > 0
    assert results.loc[results["step"] == 3, "time_us_lo"].isna().all()


def test_processes_with_several_gpus_are_not_ranks():
    log = ml.nccl_tests.read(json.dumps(document(gpus=4, processes=2)))
    assert log.sections[0].n_ranks == 8
    assert log.samples["rank"].isna().all()
    assert len(log.samples) == 2 * 20


def test_only_the_variables_of_nccl_are_kept():
    log = ml.nccl_tests.read(json.dumps(document()))
    assert dict(log.nccl.environment) == {"NCCL_ALGO": "Ring"}
    assert log.results.attrs["environment"] == {"NCCL_ALGO": "Ring"}


def test_a_truncated_document_keeps_its_complete_results():
    text = json.dumps(document(sizes=(1 << 20, 1 << 22, 1 << 24)))
    whole = ml.nccl_tests.read(text).sections[0].rows
    for end in range(0, len(text), 97):
        try:
            log = ml.nccl_tests.read(text[:end] + "\n")
        except ParseError:
            assert '"results"' not in text[:end]
            continue
        rows = log.sections[0].rows
        assert rows == whole[: len(rows)]
        assert log.status == ("incomplete" if end < text.index("average_bus") else log.status)
        assert any("truncated" in note.text for note in log.warnings)


def test_inconsistent_results_are_omitted():
    broken = document()
    broken["results"][0]["in_place"]["time"] *= 10
    (section,) = ml.nccl_tests.read(json.dumps(broken)).sections
    assert [row.size_bytes for row in section.rows] == [1 << 22]
    assert section.unparsable_rows == 1


def test_nan_as_a_string_is_not_an_average():
    broken = document()
    broken["average_bus_bandwidth"]["bandwidth"] = "nan"
    assert ml.nccl_tests.read(json.dumps(broken)).status == "incomplete"


def test_concatenated_and_indented_documents_are_read(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(json.dumps(document(), indent=2) + "\n" + json.dumps(document(1)))
    log = ml.nccl_tests.read(path)
    assert [section.number for section in log.sections] == [1, 2]
    assert log.sections[1].line > 100


def test_malformed_values_are_omitted_and_never_raise():
    strange = document()
    strange["results"] += [None, 5, {}, {"size": "x"}, {"size": 8, "count": 2, "out_of_place": {"time": "nan"}}]
    strange["config"] = {"devices": [{"rank": "?"}, 7], "nthreads": None}
    log = ml.nccl_tests.read(json.dumps(strange))
    assert len(log.sections[0].rows) == 2


@pytest.mark.parametrize("text", ['{"version": 3, "args": [', '{"version": 3, "other": 1}', '{"results": 5'])
def test_other_json_is_rejected(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ParseError, match="no nccl-tests output found"):
        ml.nccl_tests.read(path)


def calls_to_read(text):
    """Return how many Python functions reading a text calls, which does not depend on the machine."""
    n_calls = 0

    def count(frame, event, argument):
        nonlocal n_calls
        n_calls += event == "call"

    sys.setprofile(count)
    try:
        ml.nccl_tests.read(text)
    finally:
        sys.setprofile(None)
    return n_calls


def test_a_result_takes_few_calls_because_a_file_may_have_100_000():
    short, long = (
        json.dumps(document(sizes=range(1 << 20, (1 << 20) + 4 * n, 4), iterations=False)) for n in (500, 1500)
    )
    ml.nccl_tests.read(short)  # imports
    assert (calls_to_read(long) - calls_to_read(short)) / 1000 < 13


def test_short_lines_before_a_run_take_no_call_because_a_file_may_have_millions():
    run = "# Collective test starting: all_reduce_perf\n# Avg bus bandwidth    : 1\n"
    assert calls_to_read("1\n- \n[[\n" * 20_000 + run) - calls_to_read("1\n- \n[[\n" * 1000 + run) < 1000


def test_a_time_that_is_not_a_number_is_no_result():
    text = document(sizes=(1 << 20, 1 << 22, 1 << 24))
    text["results"][1]["out_of_place"]["time"] = "nan"
    text["results"][1]["in_place"]["time"] = float("nan")
    assert ml.nccl_tests.read(json.dumps(text)).results["size_bytes"].unique().tolist() == [1 << 20, 1 << 24]
