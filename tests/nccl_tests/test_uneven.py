"""The traffic of alltoallv_perf in its logs: names, imbalances and the bytes of every rank."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import meshlab as ml

CASES = Path(os.environ.get("MESHLAB_CASES", "")) / "own_gpu"
needs_cases = pytest.mark.skipif(
    not os.environ.get("MESHLAB_CASES") or not CASES.is_dir(), reason="MESHLAB_CASES names no folder with these logs"
)

HEAD = """\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: alltoallv_perf
# nThread 3 nGpus 1 minBytes 3072 maxBytes 3072 step: 1048576(bytes) warmup iters: 1 iters: 20 agg iters: 1 \
validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   2457 on         vm device  0 [0000:00:06] NVIDIA H200
#  Rank  1 Group  0 Pid   2457 on         vm device  1 [0000:00:07] NVIDIA H200
#  Rank  2 Group  0 Pid   2457 on         vm device  2 [0000:00:08] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
TAIL = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.204
#
# Collective test concluded: alltoallv_perf
"""


def summary(mode: str, time_us: float, ranks: list[tuple[int, int]]) -> str:
    lines = [f"# NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: {mode} time_usec={time_us:.2f}"]
    lines += [
        f"#   rank={rank} send_bytes={sent} recv_bytes={received} alg_bw=0.31 bus_bw=0.20"
        for rank, (sent, received) in enumerate(ranks)
    ]
    return "\n".join(lines) + "\n"


def log_of(mode: str, size: int, count: int, ranks: list[tuple[int, int]]) -> str:
    first = f"{size:12d}  {count:12d}     float    none      -1"
    row = summary(mode, 10.0, ranks) + "    10.00    0.31    0.20       0"
    row += summary(mode, 10.0, ranks) + "    10.00    0.31    0.20    N/A\n"
    return HEAD + first + row + TAIL


def test_summaries_have_the_bytes_of_every_rank_and_the_spread() -> None:
    ranks = [(3072, 3072)] * 3
    log = ml.nccl_tests.read(log_of("mode=generated nranks=3 total_bytes=3072 spread=0.500", 3072, 256, ranks))
    assert log.status == "complete"
    assert log.results["traffic"].tolist() == ["spread 0.5"] * 2
    assert log.results["imbalance"].tolist() == [1.0, 1.0]
    frame = log.rank_bytes
    assert list(frame.columns) == [column.name for column in ml.frames.RANK_BYTES]
    assert frame["rank"].tolist() == [0, 1, 2]
    assert frame["sent_bytes"].tolist() == [3072] * 3
    expected = ml.Traffic.spread(0.5).of(3, 3072)
    assert expected.sent_bytes.tolist() == [3072] * 3


def test_the_matrix_of_a_summary_has_an_imbalance() -> None:
    ranks = [(3072, 16), (0, 1024), (16, 2048)]
    log = ml.nccl_tests.read(log_of("mode=matrix nranks=3 matrix_dim=3 scale=1.000", 3072, 0, ranks))
    assert log.results["traffic"].tolist() == ["matrix"] * 2
    assert log.results["imbalance"].tolist() == [3072 * 3 / 3088] * 2
    assert log.rank_bytes["received_bytes"].tolist() == [16, 1024, 2048]


def test_a_summary_without_all_ranks_has_no_imbalance() -> None:
    log = ml.nccl_tests.read(log_of("mode=matrix nranks=3 matrix_dim=3 scale=1.000", 3072, 0, [(3072, 16)]))
    assert log.results["imbalance"].isna().all()
    assert log.rank_bytes.empty


def document(environment: list[str], count: int) -> str:
    half = {"time": 10.0, "alg_bw": 0.3072, "bus_bw": 0.2048, "nwrong": 0.0}
    row = {"size": 3072, "count": count, "type": "float", "redop": "none", "root": "-1", "out_of_place": half}
    config = {"nthreads": 3, "ngpus": 1, "graph": 0, "validation": 1, "devices": [{"rank": 0, "group": 0}]}
    values = {"version": 3, "args": ["./alltoallv_perf"], "env": environment, "config": config, "results": [row]}
    return json.dumps(values)


@pytest.mark.parametrize(
    ("environment", "count", "traffic"),
    [
        (["NCCL_NVLS_ENABLE=0"], 256, "spread 1"),  # the default of the tool
        (["NCCL_TESTS_ALLTOALLV_SPREAD=0.25"], 256, "spread 0.25"),
        (["NCCL_TESTS_ALLTOALLV_SPREAD=7"], 256, "spread 1"),
        (["NCCL_TESTS_ALLTOALLV_MATRIX_FILE=/data/moe_layer3.txt"], 0, "moe_layer3"),
    ],
)
def test_json_contains_the_environment(environment: list[str], count: int, traffic: str) -> None:
    results = ml.nccl_tests.read(document(environment, count)).results
    assert results["traffic"].tolist() == [traffic]


def test_the_text_alone_does_not_contain_the_spread() -> None:
    row = f"{3072:12d}  {256:12d}     float    none      -1"
    row += "    10.00    0.31    0.20       0    10.00    0.31    0.20    N/A"
    results = ml.nccl_tests.read(f"{HEAD}{row}\n{TAIL}").results
    assert results["traffic"].isna().all()
    assert results["imbalance"].tolist() == [1.0, 1.0]  # every generated pattern is balanced


@needs_cases
def test_recorded_logs_are_those_of_their_traffics() -> None:
    matrix = ml.Traffic.matrix(CASES / "alltoallv_2xh200_traffic.txt")
    log = ml.nccl_tests.read(CASES / "alltoallv_2xh200_matrix.txt")
    assert log.rank_bytes["sent_bytes"].tolist() == matrix.sent_bytes.tolist()
    assert log.rank_bytes["received_bytes"].tolist() == matrix.received_bytes.tolist()
    assert set(log.results["size_bytes"]) == {matrix.size_bytes}
    assert log.results["imbalance"].tolist() == [pytest.approx(matrix.imbalance)] * 2
    named = ml.nccl_tests.read(CASES / "alltoallv_2xh200_matrix.json").results
    assert set(named["traffic"]) == {"traffic"}
    for factor, name in ((1.0, "spread1"), (0.5, "spread05"), (0.0, "spread0")):
        results = ml.nccl_tests.read(CASES / f"alltoallv_2xh200_{name}.txt").results
        for size, count in zip(results["size_bytes"], results["count"], strict=True):
            assert ml.Traffic.spread(factor).of(2, int(count) * 2 * 4).size_bytes == size
    spread = ml.nccl_tests.read(CASES / "alltoallv_2xh200_graph.json").results
    assert set(spread["traffic"]) == {"spread 1"}
    steps = ml.Plan("all_to_all_v", "ep", sizes="1K:256M*4", traffic="spread:1").steps("ep=2")
    assert [step.size_bytes for step in steps] == sorted(set(spread["size_bytes"]))
    assert [step.count for step in steps] == sorted(set(spread["count"]))
