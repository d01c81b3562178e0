"""Real traces. MESHLAB_CASES is a folder with them and their expected values."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import meshlab as ml

FOLDER = Path(os.environ.get("MESHLAB_CASES", "."))
EXPECTED = json.loads((FOLDER / "traces/expected.json").read_text()) if (FOLDER / "traces").is_dir() else {}
JOBS = FOLDER / "jobs"
NAMES = {"allreduce": "all_reduce", "_allgather_base": "all_gather", "broadcast": "broadcast"}
TYPES = {"Float": "float32", "Long": "int64", "BFloat16": "bfloat16"}

pytestmark = pytest.mark.skipif(not EXPECTED, reason="MESHLAB_CASES is not set to a folder of real traces")


@pytest.mark.parametrize("name", EXPECTED)
def test_public_traces_have_the_counted_kernels_calls_and_groups(name: str) -> None:
    expected = EXPECTED[name]
    trace = ml.read(FOLDER / "traces" / name)
    frame = trace.frame()
    kernels = frame[frame["kernel"].notna()]
    assert Counter(kernel.partition("(")[0] for kernel in kernels["kernel"]) == expected["kernels"]
    assert len(kernels) == expected["n_kernels"]
    assert kernels["duration_us"].sum() == pytest.approx(expected["kernel_us"], abs=0.1)
    info = expected["distributedInfo"] or {}
    assert trace.ranks == (() if info.get("rank") is None else (info["rank"],))
    assert trace.world_size == info.get("world_size")
    steps = {f"ProfilerStep#{step}" for step in frame["step"].dropna()}
    assert steps <= set(expected["steps"])
    groups = trace.groups()
    assert [[name, tuple(ranks)] for name, _, ranks in expected["groups"]] == groups[
        ["process_group", "ranks"]
    ].to_numpy().tolist()
    sized = frame[frame["group_ranks"].notna()]
    counts = Counter(zip(sized["collective"], sized["dtype"], sized["size_bytes"].astype("int64"), strict=True))
    assert counts == {
        (
            NAMES[call["collective"]],
            TYPES[call["dtype"]],
            (call["out_nelems"] if "gather" in call["collective"] else call["in_nelems"])
            * (call["in_bytes_each"] // call["in_nelems"]),
        ): call["n"]
        for call in expected["calls"]
        if call["collective"] != "wait"
    }
    assert frame["wait_us"].isna().all()  # no file has all ranks of a group
    assert trace.explain()


def test_two_ranks_of_128_are_not_all() -> None:
    trace = ml.read([FOLDER / f"traces/hta_128rank_rank{rank}.json.gz" for rank in (0, 1)])
    assert trace.frame()["wait_us"].isna().all()
    assert "only ranks 0 and 1 of 128 have files" in trace.explain()


def of_job(name: str) -> ml.Trace:
    return ml.Trace.read(sorted(JOBS.glob(f"{name}*")))


def test_a_ddp_step_has_its_counts_bytes_transfers_and_waits() -> None:
    trace = of_job("trace_ddp")
    frame = trace.frame("dp=2")
    first, last = (frame[frame["rank"].eq(rank)] for rank in (0, 1))
    assert len(first) == len(last) == 38
    assert first["duration_us"].sum() == pytest.approx(48_620, abs=10)
    assert first["wait_us"].sum() == pytest.approx(43_000, rel=0.02)
    for rows in (first, last):
        assert rows["transfer_us"].sum() == pytest.approx(5_156, rel=0.05)
    counts = Counter(first["size_bytes"] // 2)
    assert counts == {16785408: 12, 16789504: 12, 16783360: 10, 16779264: 2, 4096: 2}
    assert last["is_last"].all()
    assert last["lateness_us"].min() == pytest.approx(197, abs=1)
    assert last["lateness_us"].max() == pytest.approx(6_856, abs=1)
    shares = [rows["hidden_us"].sum() / rows["transfer_us"].sum() for rows in (last,)]
    assert shares == pytest.approx([0.23], abs=0.005)
    text = trace.explain("dp=2")
    assert text.startswith(
        "dp: 38 calls, 1.21 GB; 77 % of the transfer of 5.16 ms exposed".replace(" ms", "\N{THIN SPACE}ms")
    )
    assert "rank 1 is late in 38 of 38" in text


def test_an_fsdp_step_has_its_gathers_and_scatters() -> None:
    frame = of_job("trace_fsdp").frame()
    assert Counter(frame["collective"]) == {"all_gather": 48, "reduce_scatter": 24}
    assert set(frame["size_bytes"]) == {2 * 50358272}
    assert frame[frame["rank"].eq(0)]["duration_us"].sum() == pytest.approx(117_430, abs=10)
    assert frame[frame["rank"].eq(1)]["wait_us"].sum() == 0


def test_the_planted_delays_of_a_tensor_parallel_job_are_named_and_nothing_else() -> None:
    trace = of_job("tp_planted")
    delays = trace.delays()
    assert sorted(zip(delays["step"], delays["rank"], strict=True)) == [(1, 0), (2, 1)]
    assert delays["idle_us"].to_numpy() == pytest.approx([1500, 1500], rel=0.15)
    calls = trace.frame()
    assert np.median(calls.loc[calls["is_last"], "transfer_us"]) == pytest.approx(74, abs=5)


def test_logs_of_inspector_are_matched_by_their_numbers() -> None:
    trace = ml.Trace.read(sorted(JOBS.glob("inspector_node01-pid179*")))
    frame = trace.frame()
    assert len(frame) == 588
    assert trace.n_calls == 294
    assert frame["wait_us"].notna().sum() > 500
    tests = ml.read(JOBS / "inspector_node01-pid1828.log.gz")
    assert tests.kind == "NCCL Inspector log"


def test_dumps_of_the_flight_recorder_are_read() -> None:
    trace = ml.read(sorted((FOLDER / "own_gpu").glob("fr_never_enters_*.json")))
    assert trace.ranks == (0, 1)
    assert trace.frame()["n_files"].tolist().count(1) == 1  # rank 1 never enters the last call


def test_logs_of_inspector_are_followed_as_they_are_read(tmp_path: Path) -> None:
    contents = {path.stem: gzip.decompress(path.read_bytes()) for path in JOBS.glob("inspector_node01-pid179*")}
    with ml.Trace.follow(tmp_path, interval_s=60.0, error_us=0.0) as live:
        for begin in range(0, max(map(len, contents.values())), 5000):
            for name, content in contents.items():
                with (tmp_path / name).open("ab") as file:
                    file.write(content[begin : begin + 5000])
            live._poll()
    whole = ml.read(tmp_path)
    pd.testing.assert_frame_equal(live.by_axis(), whole.by_axis(steps=False), check_dtype=False)
    assert live.trace().frame().equals(whole.frame())
