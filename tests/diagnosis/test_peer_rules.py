"""Rules for P2P, NVLink, duplicate GPUs and versions: what they find, and what they must not."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._peers import PEER_RULES


def by_code(text: str) -> dict[str, TextFinding]:
    """The findings of a text by code."""
    return {item.code: item for rule in PEER_RULES for item in rule(Paste(text))}


def warn(text: str, source: str, where: str = "nodeA:30:40 [2]") -> str:
    return f"{where} {source} NCCL WARN {text}\n"


def info(text: str, where: str = "nodeA:30:40 [2]") -> str:
    return f"{where} NCCL INFO {text}\n"


def test_p2p_between_gpus_with_and_without_nvlink() -> None:
    broken = warn("P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case", "paths.cc:1")
    assert by_code(broken)["nvlink-p2p-broken"].subject == "GPUs 0 and 1 of nodeA"
    by_design = info("P2P is disabled between connected GPUs 2 and 1. You can repress this message with NCCL_X=1.")
    assert (by_code(by_design)["p2p-not-supported"].severity, set(by_code(by_design))) == (
        "info",
        {"p2p-not-supported"},
    )


def test_a_fault_of_nvlink_without_the_frame() -> None:
    text = "Last error:\nP2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case"
    assert by_code(text)["nvlink-p2p-broken"].subject == "GPUs 0 and 1"


@pytest.mark.parametrize(
    "value", ["NCCL_P2P_DISABLE set by environment to 1.", "NCCL_P2P_LEVEL set by environment to LOC"]
)
def test_p2p_that_a_variable_limits(value: str) -> None:
    assert "p2p-limited-by-env" in by_code(info(value))


@pytest.mark.parametrize(
    "value", ["NCCL_P2P_DISABLE set by environment to 0.", "NCCL_P2P_LEVEL set by environment to SYS"]
)
def test_p2p_that_a_variable_does_not_limit(value: str) -> None:
    assert not by_code(info(value))


@pytest.mark.parametrize(
    ("text", "source", "code"),
    [
        ("Cuda failure 101 'invalid device ordinal'", "transport/p2p.cc:275", "p2p-import-across-containers"),
        ("Cuda failure 'invalid device ordinal'", "transport/p2p.cc:275", "p2p-import-across-containers"),
        ("failed to open CUDA IPC handle : 205 mapping of buffer object failed", "transport/p2p.cc:9", "p2p-failed"),
        ("Cuda failure 400 'invalid resource handle'", "transport/p2p.cc:9", "p2p-failed"),
        ("hipIpcGetMemHandle failed : invalid argument", "hipify/src/transport/p2p.cc:256", "p2p-failed"),
        ("Cuda failure 711 'peer mapping resources exhausted'", "allocator.cc:79", "too-many-peers"),
        (
            "Cuda failure 401 'the operation cannot be performed in the present state'",
            "transport/nvls.cc:254",
            "nvls-fabric",
        ),
        ("Cuda failure 802 'system not yet initialized'", "misc/cudawrap.cc:188", "fabric-unhealthy"),
        ("Cuda failure 'operation not supported'", "init.cc:416", "vgpu-unsupported"),
        ("Cuda failure 'named symbol not found'", "enqueue.cc:58", "unsupported-arch"),
        (
            "MNNVL (cliqueSize 18) is available but not working on this system. Check the IMEX channel configuration",
            "mnnvl.cc:60",
            "imex-not-working",
        ),
        ("CUDA Driver version found is 11040. Minimum requirement is 11080", "misc/cudawrap.cc:1", "driver-too-old"),
    ],
)
def test_failures_by_text_and_file(text: str, source: str, code: str) -> None:
    findings = by_code(warn(text, source))
    assert set(findings) == {code}
    assert "nodeA GPU 2" in findings[code].subject


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Cuda failure 101 'invalid device ordinal'", "init.cc:1"),
        ("Cuda failure 2 'out of memory'", "transport/nvls.cc:1"),
        ("Cuda failure 2 'out of memory'", "transport/p2p.cc:1"),
        ("Cuda failure 700 'an illegal memory access was encountered'", "enqueue.cc:1"),
    ],
)
def test_the_same_error_elsewhere_is_another_thing(text: str, source: str) -> None:
    assert not by_code(warn(text, source))


@pytest.mark.parametrize(
    "line",
    [
        "NVLS multicast support is not available on dev 1",
        "NVLS multicast support is available on dev 1",
        "16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer",
        "MNNVL busId 0x70 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0",
        "MNNVL busId 0x70 fabric UUID 0.0 cliqueId 0x0 state 0 healthMask 0x0",
    ],
)
def test_a_healthy_fabric(line: str) -> None:
    assert not by_code(info(line))


def test_a_fabric_that_is_not_ready() -> None:
    finding = by_code(info("MNNVL busId 0x1b000 fabric UUID 0.0 cliqueId 0x0 state 2 healthMask 0x0"))[
        "fabric-unhealthy"
    ]
    assert (finding.severity, finding.subject) == ("warning", "nodeA, GPU 0000:1b:00.0")


def test_the_same_gpu_twice() -> None:
    text = "Duplicate GPU detected : rank 3 and rank 0 both on CUDA device f000\n" * 2
    text += "Duplicate GPU detected : rank 7 and rank 0 both on CUDA device f000\n"
    assert by_code(text)["duplicate-gpu"].subject == "ranks 0, 3 and 7 (GPU 0000:0f:00.0)"


@pytest.mark.parametrize(
    "wording",
    ["Multiple Ranks are using the same GPU/Partition.", "Multiple ranks detected using the same GPU on this node"],
)
def test_the_same_gpu_twice_in_the_wording_of_2_30(wording: str) -> None:
    text = warn(wording, "init.cc:1057 (init)", "a:511:560 [0]") + warn(wording, "init.cc:1057 (init)", "a:512:561 [0]")
    finding = by_code(text)["duplicate-gpu"]
    assert finding.subject == "processes 511 and 512 of a, CUDA device 0"
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in finding.do


def version(text: str, where: str) -> str:
    return info(f"NCCL version {text}", where)


def test_different_versions_that_nccl_names() -> None:
    text = version("2.27.7+cuda12.9", "nodeA:1:1 [0]") + version("2.26.2+cuda12.8", "nodeB:2:2 [0]")
    line = "Mismatched NCCL version detected : rank 0 version 22707 rank 8 version 22602"
    finding = by_code(text + warn(line, "init.cc:705"))["version-mismatch"]
    assert finding.severity == "error"
    assert finding.subject == "rank 0 on nodeA (2.27.7) against rank 8 on nodeB (2.26.2)"


def test_different_versions_in_one_communicator() -> None:
    start = "ncclCommInitRank comm 0x1 rank {} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0xabc - Init START"
    text = version("2.27.7", "nodeA:1:1 [0]") + version("2.26.2", "nodeB:2:2 [0]")
    text += info(start.format(0), "nodeA:1:1 [0]")
    assert "version-mismatch" in by_code(text + info(start.format(1), "nodeB:2:2 [0]"))
    other = info(start.format(1).replace("0xabc", "0xdef").replace("nranks 2", "nranks 4"), "nodeB:2:2 [0]")
    assert "version-mismatch" not in by_code(text + other)
    same = text.replace("2.26.2", "2.27.7+cuda12.9")
    assert "version-mismatch" not in by_code(same + info(start.format(1), "nodeB:2:2 [0]"))


def test_a_driver_of_an_older_major_version() -> None:
    build = version("2.27.7+cuda12.9", "nodeA:1:1 [0]")
    assert by_code(build + info("cudaDriverVersion 11080"))["driver-too-old"].severity == "warning"
    assert not by_code(build + info("cudaDriverVersion 12020"))


def test_a_program_that_needs_p2p_between_gpus_without_it() -> None:
    text = "CUDA error in cudaDeviceEnablePeerAccess(device, 0): peer access is not supported between these two devices"
    finding = by_code(text)["p2p-not-supported"]
    assert finding.severity == "error"
    assert "NCCL itself does not" in finding.why
