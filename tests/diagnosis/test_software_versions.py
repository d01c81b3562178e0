"""Drivers, GPU generations and versions of NCCL that do not fit."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._software_versions import SOFTWARE_VERSION_RULES

DEVICES = """\
#   Rank  0 Pid   1592 on node01 device  0 [0x06] {name}
#   Rank  1 Pid   1592 on node01 device  1 [0x07] {name}
"""


def findings(text: str) -> list[TextFinding]:
    return [item for rule in SOFTWARE_VERSION_RULES for item in rule(Paste(text))]


def summaries(text: str) -> list[tuple[str, str]]:
    return [(item.code, item.subject) for item in findings(text)]


def test_a_program_without_code_for_the_gpu_is_found() -> None:
    text = (
        DEVICES.format(name="Tesla K80")
        + "node01: Test CUDA failure common.cu:253 'no kernel image is available for execution on the device'"
    )
    (finding,) = findings(text)
    assert finding.code == "unsupported-arch"
    assert finding.subject == "Tesla K80 (compute capability 3.7), ranks 0 and 1 on node01"
    assert "sm_37" in finding.do


def test_a_pytorch_without_code_for_the_gpu_is_found() -> None:
    text = (
        "UserWarning: \nNVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch "
        "installation.\nRuntimeError: CUDA error: no kernel image is available for execution on the device"
    )
    assert summaries(text) == [("unsupported-arch", "NVIDIA GeForce RTX 5090 (sm_120)")]


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        (
            "Cuda failure common.cu:891 'CUDA driver version is insufficient for CUDA runtime version'\n"
            "| NVIDIA-SMI 384.81                 Driver Version: 384.81                    |",
            "driver 384.81 on this host",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update",
            "driver for CUDA 11.4 on this host",
        ),
        (
            "[rank3]: RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
            "driver on rank 3",
        ),
    ],
)
def test_an_old_driver_is_found(text: str, subject: str) -> None:
    assert summaries(text) == [("driver-too-old", subject)]


def test_a_library_of_another_driver_is_not_an_old_driver() -> None:
    text = "Failed to initialize NVML: Driver/library version mismatch"
    assert summaries(text) == [("driver-library-mismatch", "the host that prints it")]


MEMORY = "lab:9:10 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\n"


def test_kernels_that_need_too_much_shared_memory_show_a_version_that_is_too_old() -> None:
    text = "lab:9:9 [0] NCCL INFO NCCL version 2.25.1+cuda12.8\n" + MEMORY
    ((code, subject),) = summaries(text)
    assert code == "nccl-too-old-for-gpu"
    assert subject.startswith("NCCL 2.25.1 on this GPU")
    assert summaries(text.replace("2.25.1", "2.27.3")) == []


def test_a_version_of_nccl_from_before_the_gpu_is_found_if_it_failed() -> None:
    text = DEVICES.format(name="NVIDIA GeForce RTX 5090") + "NCCL version 2.21.5+cuda12.4\n"
    assert summaries(text) == []
    failed = text + "lab:9:9 [0] enqueue.cc:1500 NCCL WARN Cuda failure 'invalid argument'\n"
    assert [code for code, _ in summaries(failed)] == ["nccl-too-old-for-gpu"]
    assert summaries(failed.replace("5090", "4090")) == []
    assert summaries(failed.replace("2.21.5", "2.26.2")) == []


@pytest.mark.parametrize(
    "failure", ["named symbol not found", "no kernel image is available for execution on the device"]
)
def test_kernels_that_are_missing_in_nccl_are_found(failure: str) -> None:
    text = f"c0ffee:5:5 [0] NCCL WARN Cuda failure '{failure}'\nNCCL version 2.14.3+cuda11.8\n"
    assert [code for code, _ in summaries(text)] == ["nccl-too-old-for-gpu"]


def test_healthy_versions_give_nothing() -> None:
    text = (
        DEVICES.format(name="NVIDIA H100 80GB HBM3")
        + "node01:1:1 [0] NCCL INFO cudaDriverVersion 12040\nNCCL version 2.28.9+cuda13.0\n"
        + "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |"
    )
    assert summaries(text) == []


TOO_OLD = """\
lab:9:9 [0] NCCL INFO NCCL version 2.25.1+cuda12.8
lab:9:10 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856
"""


def test_the_version_and_the_gpu_need_not_fail_in_the_text() -> None:
    assert [code for code, _ in summaries(TOO_OLD)] == ["nccl-too-old-for-gpu"]


ONE_WAY = """\
DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, internal error, NCCL version {}
Last error:
Failed to find reverse path from remNode 0/5f000 nlinks 4 to node 0/cb000
"""


def test_an_nccl_from_before_hopper_misreads_its_links() -> None:
    assert summaries(ONE_WAY.format("2.14.3")) == [("nccl-too-old-for-gpu", "NCCL 2.14.3 on this GPU")]
    hopper = DEVICES.format(name="NVIDIA H100 80GB HBM3")
    assert "NVIDIA H100" in summaries(hopper + ONE_WAY.format("2.14.3"))[0][1]


def test_links_that_are_misread_are_not_the_fault_of_a_recent_nccl_or_an_old_gpu() -> None:
    assert summaries(ONE_WAY.format("2.18.5")) == []
    assert summaries(DEVICES.format(name="NVIDIA A100-SXM4-40GB") + ONE_WAY.format("2.14.3")) == []
