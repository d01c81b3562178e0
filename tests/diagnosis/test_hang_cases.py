"""Real hangs, launches and reports: the right ranks, hosts and processes are named. Read from MESHLAB_CASES."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError
from meshlab.diagnosis._explanation import Explanation

CASES = Path(os.environ.get("MESHLAB_CASES", ""))

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not (CASES / "explain").is_dir() or not (CASES / "own_gpu").is_dir(),
        reason="MESHLAB_CASES names no folder with cases",
    ),
]

SUBJECTS = {
    "01_two_copies_every_process_rank0.txt": ("two-copies-no-mpi", ["12 processes", "node01", "node02"]),
    "02_slurm_pmi2_many_preambles.txt": ("two-copies-no-mpi", ["srun", "node-1"]),
    "03_slurm_pmix_ring_timeout.txt": ("launcher-failed", ["node-a", "node-b"]),
    "05_k80_no_kernel_image.txt": ("unsupported-arch", ["Tesla K80", "3.7", "ranks 0-7", "node01"]),
    "06_driver_older_than_toolkit.txt": ("driver-too-old", ["384.81"]),
    "07_pair_table_names_slow_node.txt": ("slow-node", ["node644"]),
    "09_log_ends_after_bootstrap.txt": ("log-ends-early", ["ranks 0 and 1"]),
    "14_torchrun_each_nranks_1.txt": ("communicator-of-one", ["node-4", "rank 0"]),
    "55_c10d_name_not_known_ray.txt": ("hostname-unresolved", ["10.0.0.134", "head-svc-abcde"]),
    "57_c10d_store_docker_bridge_address.txt": ("net-unreachable", ["172.17.0.9", "50437"]),
    "60_bf16_unconvertible.txt": ("dtype-unsupported", ["rank 1", "recv", "BFloat16"]),
    "61_fork_after_cuda.txt": ("fork-after-init", ["child processes"]),
    "62_graph_capture_not_permitted.txt": ("graph-capture", ["rank 1", "all_reduce"]),
    "65_watchdog_gather_one_rank_ray.txt": ("nccl-timeout", ["rank 1", "PG 1", "gather 158046"]),
    "66_zero3_first_failing_rank_15.txt": ("nccl-timeout", ["rank 15", "worker-1", "GPU 7", "of 64", "96383"]),
    "67_desync_report_rank7_missing.txt": ("rank-missing", ["rank 7"]),
    "69_fr_json_rank0_extra_barrier_SYNTH.txt": ("rank-missing", ["rank 1", "412", "default_pg"]),
    "70_collective_shapes_differ_per_rank.txt": ("size-mismatch", ["rank 0 ([41", "rank 1 ([40"]),
    "73_exitcode_minus9_local_rank3.txt": ("rank-killed", ["local rank 3", "8117"]),
    "74_ecc_error_watchdog_rank12.txt": ("ecc-uncorrectable", ["rank 12", "local rank 0"]),
    "75_ras_mismatch_lists_the_ones_ahead.txt": (
        "ras-mismatch",
        ["fa93daea854b060b", "30 ranks at AllGather 640", "ranks 12 and 13 at AllGather 641"],
    ),
    "76_ras_incomplete_after_restart.txt": ("ras-incomplete", ["6004", "10.0.0.13", "GPU 0"]),
}


def subjects(explained: Explanation, code: str) -> list[str]:
    return [finding.subject for finding in explained.findings if finding.code == code]


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_right_ranks_and_hosts_are_named(name: str) -> None:
    code, parts = SUBJECTS[name]
    (subject,) = subjects(ml.explain(CASES / "explain" / name), code)
    assert all(part in subject for part in parts), subject


def test_second_findings_of_a_case_are_named_as_well() -> None:
    folder = CASES / "explain"
    (subject,) = subjects(ml.explain(folder / "07_pair_table_names_slow_node.txt"), "slow-node-undecided")
    assert subject == "node284 or node678"
    (subject,) = subjects(ml.explain(folder / "69_fr_json_rank0_extra_barrier_SYNTH.txt"), "order-mismatch")
    assert subject == "ranks 0 and 1 at collective 411 of default_pg"
    (subject,) = subjects(ml.explain(folder / "76_ras_incomplete_after_restart.txt"), "ras-output-unreliable")
    assert subject == "groups 1 and 2"


def own(*names: str) -> Explanation:
    """Explain files that were recorded while a known fault was planted, pasted one after the other."""
    return ml.explain("".join((CASES / "own_gpu" / name).read_text() for name in names))


@pytest.mark.parametrize(
    ("names", "code", "part"),
    [
        (["torch_never_enters.txt"], "rank-missing", "rank 1, collective #7"),
        (["fr_never_enters_0.json", "fr_never_enters_1.json"], "rank-missing", "rank 1, all_reduce 7"),
        (["ras_never_enters.txt"], "ras-mismatch", "rank 1 at AllReduce 6"),
        (["ras_never_enters.json"], "ras-mismatch", "rank 1 at AllReduce 6"),
    ],
)
def test_the_rank_that_never_entered_is_named(names: list[str], code: str, part: str) -> None:
    explained = own(*names)
    assert [part in subject for subject in subjects(explained, code)] == [True]
    assert "rank 0" not in " ".join(subjects(explained, "rank-missing"))


def test_without_the_desync_report_the_status_lines_name_the_rank_too() -> None:
    text = (CASES / "own_gpu" / "torch_never_enters.txt").read_text()
    explained = ml.explain("\n".join(line for line in text.splitlines() if "#" not in line))
    assert subjects(explained, "rank-missing") == ["rank 1, all_reduce 7 of default_pg"]


def test_with_the_lines_of_one_rank_nobody_is_blamed() -> None:
    text = (CASES / "own_gpu" / "torch_never_enters.txt").read_text()
    lines = [line for line in text.splitlines() if line.startswith("[rank0]") and "2495" not in line]
    explained = ml.explain("\n".join(lines))
    assert {finding.code for finding in explained.findings} == {"nccl-timeout"}


def test_a_killed_rank_is_no_hang() -> None:
    explained = own("torch_killed.txt")
    assert subjects(explained, "rank-killed") == ["rank 1 (pid 1708)"]
    assert {finding.code for finding in explained.findings} == {"rank-killed"}


@pytest.mark.parametrize("name", ["torch_other_size.txt", "torch_other_order.txt"])
def test_a_log_that_does_not_show_the_fault_claims_nothing(name: str) -> None:
    assert not own(name).findings


@pytest.mark.parametrize("fault", ["size", "order"])
@pytest.mark.parametrize("kind", ["txt", "json"])
def test_a_ras_report_that_does_not_show_the_fault_says_that_it_cannot(fault: str, kind: str) -> None:
    (finding,) = own(f"ras_other_{fault}.{kind}").findings
    assert (finding.code, finding.severity) == ("ras-consistent", "info")
    assert "neither sizes and order" in finding.why


def test_a_pickle_is_refused_with_the_way_to_json(tmp_path: Path) -> None:
    import pickle

    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps({"version": "2.4", "entries": [], "pg_config": {}}, protocol=2))
    with pytest.raises(ParseError, match=r"json\.dumps?\(pickle\.load"):
        ml.explain(file)
