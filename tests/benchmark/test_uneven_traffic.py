"""Benchmarks of all_to_all_v with uneven traffic: sizes, results and comparisons on real ranks."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.benchmark.on_ranks import _checking
from meshlab.cli._main import main
from meshlab.cli._ranks import memory_of_new_ranks
from tests.examples import examples

QUICK = ml.Sampling(max_s=0.02, min_batches=6)
MATRIX = ml.Traffic.matrix([[0, 640, 0], [0, 0, 0], [160, 0, 4800]])


@pytest.fixture(scope="module")
def engines() -> Any:
    with ml.launch(3, backend="threads") as ranks:
        yield ranks


def bench(ranks: ml.Engines, **choices: Any) -> ml.Run:
    options: dict[str, Any] = {"sizes": "4K, 64K", "sampling": QUICK, **choices}
    return ml.bench(ranks, "ep=3", "all_to_all_v", **options)


def test_sizes_are_the_largest_sums_and_results_are_checked(engines: ml.Engines) -> None:
    run = bench(engines, traffic=["even", "zipf:1.2", "spread:1", MATRIX])
    results = run.wait()
    assert set(results["status"]) == {"ok"}
    assert results["n_wrong"].eq(0).all()
    assert sorted(results["traffic"]) == sorted(["even", "zipf 1.2", "spread 1"] * 2 + ["matrix"])
    for row in results.to_dict("records"):
        name = row["traffic"]
        pattern = next(traffic for traffic in run.plan.traffic if str(traffic) == name)
        assert pattern is not None
        traffic = pattern.of(3, row["count"] * 3 * 4)
        assert row["size_bytes"] == traffic.size_bytes
        assert row["imbalance"] == pytest.approx(traffic.imbalance)
    # The bus bandwidth of nccl-tests: the size over the time, and (n - 1) / n whatever the traffic.
    rate = results["size_bytes"] / results["time_us"] / 1e3
    np.testing.assert_allclose(results["busbw_gbs"], rate * 2 / 3)
    assert results["imbalance"].max() == pytest.approx(4960 * 3 / 5600)


def test_without_a_traffic_the_chunks_are_equal_and_so_labelled(engines: ml.Engines) -> None:
    plain = bench(engines)
    results = plain.wait()
    even = bench(engines, traffic=ml.Traffic.even())
    even.wait()
    assert plain.steps == even.steps
    assert {step.traffic for step in plain.steps} == {"even"}
    assert "even traffic" in str(plain.steps[0])
    equal = ml.Plan("all_to_all", "ep", sizes="4K, 64K").steps("ep=3")
    assert [step.size_bytes for step in plain.steps] == [step.size_bytes for step in equal]
    assert [step.count for step in plain.steps] == [step.count for step in equal]
    assert {step.traffic for step in equal} == {None}
    assert results["imbalance"].tolist() == [1.0, 1.0]


def test_several_traffics_take_turns_and_are_compared(engines: ml.Engines) -> None:
    run = bench(engines, traffic="even, zipf:1.2, spread:0.5", sizes="64K")
    run.wait()
    table = run.traffics()
    assert table["traffic"].tolist() == ["zipf 1.2", "spread 0.5"]
    assert set(table["baseline"]) == {"even"}
    assert (table["n_blocks"] == 8).all()
    assert (table["ratio"] > 0).all()
    with pytest.raises(ml.MeshlabError, match="did not measure several traffics"):
        ml.analysis.traffics(ml.example())


def test_rank_bytes_have_every_rank_of_a_group(engines: ml.Engines) -> None:
    run = bench(engines, traffic=MATRIX)
    run.wait()
    frame = run.rank_bytes
    assert frame["sent_bytes"].tolist() == [640, 0, 4960]
    assert frame["received_bytes"].tolist() == [160, 640, 4800]
    assert frame["self_bytes"].tolist() == [0, 0, 4800]
    assert set(frame["size_bytes"]) == {4960}
    assert list(frame.columns) == [column.name for column in ml.frames.RANK_BYTES]


def test_a_saved_run_has_its_traffics(engines: ml.Engines, tmp_path: Path) -> None:
    run = bench(engines, traffic=[MATRIX.named("moe layer 3"), MATRIX.pattern(), "zipf:0.5:3"], sizes="4K")
    run.wait()
    loaded = ml.Run.load(run.save(tmp_path / "run"))
    assert loaded.plan == run.plan
    assert loaded.steps == run.steps
    assert loaded.results["traffic"].tolist() == ["moe layer 3", "matrix", "zipf 0.5 seed 3"]
    again = ml.bench(engines, resume=tmp_path / "run").wait()
    assert len(again) == 3


@pytest.mark.hypothesis
@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.lists(st.sampled_from([0, 0, 16, 48, 1008, 4096]), min_size=3, max_size=3), min_size=3, max_size=3),
    st.sampled_from(["float32", "int8", "float64", "bf16"]),
)
def test_no_element_of_any_traffic_is_wrong(engines: ml.Engines, table: list[list[int]], dtype: str) -> None:
    if not any(map(any, table)):
        return
    run = bench(engines, traffic=ml.Traffic.matrix(table), dtype=dtype)
    results = run.wait(progress=False)
    assert results["n_wrong"].tolist() == [0], results["stop_reason"]


def test_a_wrong_element_is_counted(engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    count = _checking._count_uneven

    def spoiled(xp: Any, output: Any, expected: Callable[..., Any], case: Any) -> int:
        if case.member == 2:
            output[-1] += 1
            output[40] = 200
        return count(xp, output, expected, case)

    monkeypatch.setattr(_checking, "_count_uneven", spoiled)
    results = bench(engines, traffic=MATRIX).wait()
    assert results["n_wrong"].tolist() == [2]
    assert results["status"].tolist() == ["wrong"]


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"traffic": ml.Traffic.matrix([[0, 16], [16, 0]])}, "is for 2 ranks, but the groups of ep have 3"),
        ({"traffic": ml.Traffic.matrix([[1 << 45, 0, 0]] * 3)}, "a rank may use"),
        ({"traffic": ml.Traffic.matrix(np.zeros((3, 3)))}, "sends nothing, so it cannot be measured"),
        ({"traffic": [MATRIX, MATRIX.transpose().named("matrix")]}, "two traffics have the name 'matrix'"),
        ({"traffic": [[0, 16, 0], [16, 0, 0]]}, "must be square, but has 2 rows and 3 columns"),
        ({"traffic": 5}, "traffic must be a Traffic, a matrix, or text"),
    ],
)
def test_invalid_traffics_are_refused_before_anything_starts(
    engines: ml.Engines, choices: dict[str, Any], text: str
) -> None:
    with pytest.raises(ml.MeshlabError) as error:
        bench(engines, **choices)
    assert text in str(error.value)


LARGE = ml.Traffic.matrix([[0, 64 << 20, 0], [0, 0, 0], [0, 32 << 20, 16 << 20]])


def test_a_matrix_larger_than_the_memory_of_a_device_is_refused(
    engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshlab.benchmark import _preparation

    free = {0: 200 << 20, 1: 180 << 20, 2: 300 << 20}
    monkeypatch.setattr(_preparation, "free_bytes", lambda comm: (False, free[comm.world_rank]))
    with pytest.raises(ml.MeshlabError) as error:
        bench(engines, traffic=LARGE)
    assert str(error.value) == (
        "traffic 'matrix' needs 160\u2009MiB of buffers on every rank, because rank 0 sends 64\u2009MiB and rank 1 "
        "receives 96\u2009MiB, but a rank may use 144\u2009MiB (80 % of the 180\u2009MiB of memory of the GPU of "
        "rank 1); divide the matrix, or measure its pattern() at smaller sizes"
    )
    assert engines.state == "ready"
    free[1] = 200 << 20  # 80 % of which is what the buffers need
    assert bench(engines, traffic=LARGE).wait()["status"].tolist() == ["ok"]


def test_patterns_that_exceed_the_memory_are_skipped_at_these_sizes(
    engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshlab.engines import _memory

    monkeypatch.setattr(_memory, "host_free_bytes", lambda: 3 * (200 << 10))
    results = bench(engines, traffic=[LARGE.pattern(), "zipf:1.2"], sizes="4K, 1M").wait()
    assert sorted(results["status"]) == ["ok", "ok", "skipped", "skipped"]


@pytest.mark.parametrize("backend", ["threads", "mpi"])
def test_the_command_line_refuses_a_large_matrix_before_ranks_start(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from meshlab.engines import _launch, _memory

    def launched(*_: object, **__: object) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr(_memory, "host_free_bytes", lambda: 300 << 20)
    monkeypatch.setattr(_launch, "launch", launched)
    file = LARGE.write(tmp_path / "large.txt")
    command = ["bench", "all_to_all_v", "--mesh", "ep=3", "--backend", backend, "--traffic", str(file)]
    assert main(command) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "traffic 'large' needs 160 MiB of buffers on every rank, because rank 0 sends 64 MiB" in error
    assert f"of memory of host {socket.gethostname()}, shared by 3 ranks)" in error


def test_the_memory_of_new_ranks_is_that_of_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.topology.readers import _hosts

    monkeypatch.setattr(_hosts, "probe", lambda: ml.preset("dgx-h100"))
    assert memory_of_new_ranks(2, "nccl") == 2 * [(False, 80 << 30)]
    assert memory_of_new_ranks(9, "nccl") is None
    assert memory_of_new_ranks(2, "threads") != memory_of_new_ranks(2, "nccl")


@pytest.mark.full
def test_processes_refuse_a_matrix_larger_than_the_memory_of_their_host() -> None:
    with ml.launch(3, backend="mpi") as ranks:
        with pytest.raises(ml.MeshlabError, match=r"on every rank, because rank 0 sends 32.*TiB and receives 96.*TiB"):
            bench(ranks, traffic=ml.Traffic.matrix([[1 << 45, 0, 0]] * 3))
        assert ranks.state == "ready"


def test_other_collectives_take_no_traffic() -> None:
    with pytest.raises(ml.MeshlabError, match="traffic cannot be chosen for all_reduce, which has equal chunks"):
        ml.Plan("all_reduce", "tp", traffic="zipf:1.2")
    both = ml.Plan(["all_to_all", "all_to_all_v"], "ep", sizes="4K", traffic="zipf:1.2").steps("ep=4")
    assert [step.traffic for step in both] == [None, "zipf 1.2"]


def test_the_command_line_takes_patterns_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = MATRIX.write(tmp_path / "router.txt")
    command = ["bench", "all_to_all_v", "--mesh", "ep=3", "--sizes", "4K", "--seconds", "0.02", "--backend", "threads"]
    command.append("--traffic")
    assert main([*command, f"zipf:1.2,{file}"]) == 0
    out = capsys.readouterr().out
    assert "zipf 1.2 traffic" in out
    assert "router traffic" in out
    assert main([*command, "zipf"]) == 2
    assert "unknown traffic 'zipf'" in capsys.readouterr().err


@pytest.mark.full
def test_processes_send_uneven_traffic() -> None:
    with ml.launch(3, backend="mpi") as ranks:
        results = bench(ranks, traffic=["even", "zipf:1.2", MATRIX], dtype=["float32", "int64"], sizes="4K").wait()
    assert set(results["status"]) == {"ok"}
    assert results["n_wrong"].eq(0).all()
