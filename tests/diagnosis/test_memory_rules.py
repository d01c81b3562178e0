"""Rules for memory that ranks share: what they find, and what they must not."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._memory import MEMORY_RULES


def by_code(text: str) -> dict[str, TextFinding]:
    """The findings of a text by code."""
    return {item.code: item for rule in MEMORY_RULES for item in rule(Paste(text))}


def warn(text: str, source: str = "misc/shmutils.cc:88") -> str:
    return f"nodeA:30:40 [2] {source} NCCL WARN {text}\n"


@pytest.mark.parametrize(
    "text",
    [
        "Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
        "Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes",
        "Error while creating shared memory segment /dev/shm/nccl-KWfVyt (size 5967872)",
        "Error while creating shared memory segment nccl-shm-recv-4f-0-1-2 (size 5967872)",
        "Call to posix_fallocate failed : No space left on device",
    ],
)
def test_a_full_dev_shm_in_all_versions(text: str) -> None:
    finding = by_code(warn(text))["shm-too-small"]
    assert finding.subject == "nodeA GPU 2, /dev/shm"


@pytest.mark.parametrize(
    "line",
    [
        "[nodeA:1131 ] Signal: Bus error (7)",
        "Fatal Python error: Bus error",
        "mpirun noticed that process rank 1 with PID 0 on node nodeA exited on signal 7 (Bus error).",
        "RuntimeError: DataLoader worker (pid 5) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory: insufficient shared memory (shm)",
    ],
)
def test_a_bus_error_beside_lines_of_nccl(line: str) -> None:
    assert "shm-too-small" in by_code(f"nodeA:1131:1142 [0] NCCL INFO Connected all rings\n{line}\n")


def test_the_process_with_the_bus_error_is_named() -> None:
    text = "nodeA:1131:1142 [0] NCCL INFO x\n[nodeA:1131 ] Signal: Bus error (7)\n"
    assert by_code(text)["shm-too-small"].subject == "nodeA, pid 1131, /dev/shm"


@pytest.mark.parametrize(
    "text",
    [
        "[nodeA:1131] Signal: Bus error (7)",
        "[nodeA:1131 ] Signal: Segmentation fault (11)\nnodeA:1:2 [0] NCCL INFO x",
        "OSError: [Errno 28] No space left on device: '/tmp/x'\nnodeA:1:2 [0] NCCL INFO x",
        "nodeA:1:2 [0] NCCL INFO fallocate: Failed to extend /dev/shm/nccl-a to 4 bytes, error: x (4) - retrying",
    ],
)
def test_other_faults_are_not_a_full_dev_shm(text: str) -> None:
    assert "shm-too-small" not in by_code(text)


def test_a_folder_without_permission() -> None:
    line = "Error while creating shared memory segment /dev/shm/nccl-a1b2c3 (size 64), error: Permission denied (13)"
    assert set(by_code(warn(line))) == {"shm-not-writable"}


@pytest.mark.parametrize(
    "line",
    [
        "Error while attaching to shared memory segment  (size 0), error: No such file or directory (2)",
        "Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such file (2)",
        "Error while attaching to shared memory segment /dev/shm/nccl-\x01\x7f (size 0)",
    ],
)
def test_a_name_that_is_none_means_that_ranks_disagree(line: str) -> None:
    assert set(by_code(warn(line))) == {"cumem-host-asymmetric"}


def test_a_segment_of_another_container() -> None:
    line = (
        "Error while attaching to shared memory segment /dev/shm/nccl-glnlGK (size 14156128), error: No such file (2)"
    )
    assert set(by_code(warn(line))) == {"shm-not-shared"}


FALL_BACK = "cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation"


def test_only_some_ranks_fall_back() -> None:
    first_rank = f"nodeA:1:2 [0] NCCL INFO NCCL version 2.27.3\nnodeA:1:2 [0] NCCL INFO {FALL_BACK}\n"
    other = "nodeA:3:4 [1] NCCL INFO NCCL version 2.27.3\n"
    failed = "nodeA:3:4 [1] x.cc:1 NCCL WARN failed\n"
    assert "cumem-host-asymmetric" in by_code(first_rank + other + failed)
    assert "cumem-host-asymmetric" not in by_code(first_rank + other)
    assert "cumem-host-asymmetric" not in by_code(first_rank + failed.replace("nodeA:3:4", "nodeA:1:2"))


def test_host_memory_of_cuda() -> None:
    line = "Cuda failure 217 'peer access is not supported between these two devices'"
    assert set(by_code(warn(line, "transport/shm.cc:590"))) == {"cumem-host-no-p2p"}
    assert set(by_code(warn("Cuda failure 1 'invalid argument'", "transport/shm.cc:590"))) == {"cumem-host-failed"}
    assert not by_code(warn(line, "transport/p2p.cc:590"))


def test_shared_memory_that_a_variable_turns_off() -> None:
    text = "nodeA:1:2 [0] NCCL INFO NCCL_SHM_DISABLE set by environment to 1."
    assert by_code(text)["shm-disabled-by-env"].subject == "nodeA"
    assert not by_code(text.replace("to 1", "to 0"))


def test_a_worker_of_a_data_loader_that_dies_of_a_bus_error() -> None:
    line = "RuntimeError: DataLoader worker (pid 4161) is killed by signal: {}. It is possible that\n"
    assert by_code(line.format("Bus error"))["shm-too-small"].subject.endswith("/dev/shm")
    assert not by_code(line.format("Killed"))
