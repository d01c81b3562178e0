"""Errors of programs and GPUs in PyTorch's words, and lines that look like them."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._program_errors import PROGRAM_ERROR_RULES

ERRORS = {
    "fork": (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use "
        "the 'spawn' start method",
        "fork-after-init",
        "the child processes",
    ),
    "capture of CUDA": (
        '[rank2]:   File "c10d.py", line 2942, in all_reduce\n'
        "[rank2]: RuntimeError: CUDA error: operation not permitted when stream is capturing",
        "graph-capture",
        "rank 2, all_reduce inside a graph capture",
    ),
    "capture of HIP": (
        "[rank1]: RuntimeError: HIP error: operation failed due to a previous error during capture",
        "graph-capture",
        "rank 1",
    ),
    "capture in NCCL": (
        "nodeA:1:2 [0] enqueue.cc:1 NCCL WARN Cuda failure 900 'operation not permitted when stream is capturing'",
        "graph-capture",
        "nodeA",
    ),
    "bfloat16": (
        "[1,1]<stderr>:RuntimeError: Unconvertible NCCL type BFloat16",
        "dtype-unsupported",
        "rank 1, BFloat16",
    ),
    "complex": (
        "[rank0]: TypeError: Input tensor data type is not supported for NCCL process group: ComplexFloat",
        "dtype-unsupported",
        "rank 0, ComplexFloat",
    ),
    "ECC": (
        "[default0]:[rank12]:[E817 17:40:34 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] Process group "
        "watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
        "ecc-uncorrectable",
        "the GPU of rank 12 (local rank 0 of its host)",
    ),
    "ECC of 2023": (
        "[E ProcessGroupNCCL.cpp:916] [Rank 5] NCCL watchdog thread terminated with exception: CUDA error: "
        "uncorrectable ECC error encountered",
        "ecc-uncorrectable",
        "the GPU of rank 5",
    ),
    "illegal access": (
        "[rank4]:[E ProcessGroupNCCL.cpp:1414] [PG 0 Rank 4] Process group watchdog thread terminated with exception: "
        "CUDA error: an illegal memory access was encountered",
        "cuda-error",
        "rank 4",
    ),
    "NVLink": (
        "[rank3]: RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "nvlink-error",
        "the NVLinks of the GPU of rank 3",
    ),
    "busy GPU": (
        "[rank2]: torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "gpu-unavailable",
        "rank 2",
    ),
    "unused parameters": (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
        "error\n"
        "Parameter indices which did not receive grad for rank 2: 36 37",
        "unused-parameters",
        "the ranks that print it",
    ),
    "sizes of Gloo": (
        "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4",
        "size-mismatch",
        "rank 1",
    ),
    "open files": (
        "nodeA:12:13 [0] misc/socket.cc:434 NCCL WARN Call to accept failed : Too many open files",
        "too-many-open-files",
        "nodeA",
    ),
    "open files of 2.30": (
        "[2026-07-07 10:00:00] nodeB:12:13 [0] os/linux.cc:205 (ncclOsSocketTryAccept) NCCL WARN "
        "ncclOsSocketTryAccept: Accept failed: Too many open files",
        "too-many-open-files",
        "nodeB",
    ),
}


def findings(text: str) -> list[TextFinding]:
    return [item for rule in PROGRAM_ERROR_RULES for item in rule(Paste(text))]


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_is_found_with_its_rank(name: str) -> None:
    text, code, subject = ERRORS[name]
    (finding,) = findings(text)
    assert (finding.code, finding.subject, finding.severity) == (code, subject, "error")
    assert finding.do


@pytest.mark.parametrize(
    "text",
    [
        "INFO capturing CUDA graphs: 100%|##########| 35/35",
        "nodeA:1:2 [0] NCCL INFO Comm config Blocking set to 1",
        "Volatile Uncorr. ECC",
        "Uncorrectable NVLink errors: 0",
        "open files (-n) 1048576",
        "fork() was called before CUDA was used",
        "[ 1.2] NVRM: Xid (PCI:0000:1b:00): 13, pid=12, name=python, illegal memory access was encountered",
    ],
)
def test_harmless_lines_give_nothing(text: str) -> None:
    assert findings(text) == []


def test_an_engine_that_waits_for_its_workers_is_no_error() -> None:
    (finding,) = findings(
        "(EngineCore_DP0 pid=9) INFO shm_broadcast.py:466] No available shared memory broadcast block found in 60 s"
    )
    assert (finding.code, finding.severity) == ("workers-slow", "info")
    assert "/dev/shm is not the reason" in finding.do
