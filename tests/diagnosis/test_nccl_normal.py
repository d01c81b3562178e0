"""Lines of NCCL that only look wrong, logs without faults, and warnings that no rule knows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._nccl_normal import NCCL_NORMAL_RULES
from tests.examples import examples


def by_code(text: str) -> dict[str, TextFinding]:
    """The findings of a text by code."""
    return {item.code: item for rule in NCCL_NORMAL_RULES for item in rule(Paste(text))}


def info(text: str, where: str = "nodeA:30:40 [2]") -> str:
    return f"{where} NCCL INFO {text}\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NET/Plugin : No plugin found (libnccl-net.so), using internal implementation", "plugin-not-found"),
        ("NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.", "plugin-not-found"),
        ("NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.", "plugin-not-found"),
        ("TUNER/Plugin: Failed to find ncclTunerPlugin_v3 symbol.", "plugin-not-found"),
        ("NVLS multicast support is not available on dev 1", "nvls-not-available"),
        ("16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer", "nvls-not-available"),
        ("Pattern 3, crossNic 0, nChannels 0, bw 0.0/0.0, type NVL/PIX, sameChannels 1", "pattern-without-channels"),
        ("Could not enable P2P between dev 0(=1000) and dev 1(=2000)", "p2p-not-used-for-pair"),
        ("Topology detection : could not read /sys/devices/x/max_link_speed, ignoring", "not-readable"),
        ("Call to connect returned Connection refused, retrying", "connect-retried"),
        ("transport/net.cc:592 -> 2", "nccl-echo"),
    ],
)
def test_lines_that_only_look_wrong(line: str, code: str) -> None:
    explanation = ml.explain(info(line))
    assert [item.code for item in explanation.normal] == [code]
    assert not [item for item in explanation.findings if item.severity != "info"]
    assert explanation.normal[0].why


def test_a_device_number_of_a_thread_without_a_device() -> None:
    assert "device-number-odd" in by_code("a:1:2 [32581] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")
    assert "device-number-odd" not in by_code("a:1:2 [7] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")


def test_no_rdma_device_is_normal_on_one_host() -> None:
    line = info("NET/IB : No device found.")
    assert "no-rdma-device" in by_code(
        line + info("comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0")
    )
    assert "no-rdma-device" not in by_code(line)


def test_echoes_are_named_beside_their_cause() -> None:
    cause = "a:1:2 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 4 bytes\n"
    echo = "a:1:3 [2] proxy.cc:1326 NCCL WARN Socket recv failed while polling for opId=0x7f\n"
    assert by_code(cause + echo)["nccl-echo"].lines == (2,)
    assert "nccl-echo" not in by_code(echo)


COMPLETE = info("comm 0x1 rank 3 nranks 8 cudaDev 2 busId 60 commId 0xabc - Init COMPLETE")


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        (COMPLETE, "nodeA rank 3"),
        (info("Connected all rings") + info("Connected all trees"), "nodeA GPU 2"),
        (info("Using network IBext"), "nodeA GPU 2"),
        (info("GPU/8F000 :GPU/16000 (2/264.0/NVL) GPU/8F000 (0/5000.0/LOC) NET/4 (4/24.0/PXB)"), "nodeA GPU 2"),
    ],
)
def test_a_log_without_faults(text: str, subject: str) -> None:
    assert by_code(text)["nothing-wrong"].subject == subject


@pytest.mark.parametrize(
    "more",
    [
        "nodeA:30:40 [2] init.cc:1 NCCL WARN anything\n",
        "nodeA: Test NCCL failure common.cu:958 'internal error'\n",
        "Traceback (most recent call last):\n",
        "(hangs here)\n",
    ],
)
def test_a_log_with_a_failure_is_not_called_healthy(more: str) -> None:
    assert "nothing-wrong" not in by_code(COMPLETE + more)


def test_nothing_is_called_healthy_beside_a_finding() -> None:
    text = COMPLETE + info("NET/OFI Selected Provider is tcp (found 1 nics)")
    assert [item.code for item in ml.explain(text).findings] == ["efa-missing"]


def test_a_warning_that_no_rule_knows_is_quoted() -> None:
    finding = by_code("nodeA:30:40 [2] enqueue.cc:12 NCCL WARN The moon is in the wrong phase\n")["unknown-warning"]
    assert "The moon is in the wrong phase" in finding.why
    assert finding.severity == "warning"


FRAMES = ("nodeA:30:40 [2] ", "[2026-01-02 03:04:05] nodeA:30:40 [2] ", "[2] ", "nodeA: ", "")
FAILED_CALL = (
    "[2] NCCL INFO src/dev_runtime.cc:77 (symWindowCreate) -> {0}\n"
    "[2] NCCL INFO src/group.cc:79 (ncclAsyncJobMain) -> {0} [Async thread]\n"
)


@settings(max_examples=examples(60))
@given(
    words=st.text("aeioukmnstz ", min_size=6, max_size=60).filter(str.strip),
    file=st.sampled_from(["", "enqueue.cc:12 ", "src/transport/net_ib/p2p.cc:7 (isend) "]),
)
def test_no_warning_is_under_no_known_problem_with_any_frame(words: str, file: str) -> None:
    seen = set()
    for frame in FRAMES:
        explanation = ml.explain(f"{frame}{file}NCCL WARN {words}\n")
        seen.add(tuple((item.code, item.severity) for item in explanation.findings))
        assert "No known problem" not in explanation.verdict
    assert seen == {(("unknown-warning", "warning"),)}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(
    "warning",
    [
        "proxy.cc:88 NCCL WARN [Service thread] Error encountered progressing operation=Setup, res=1, closing",
        "proxy.cc:9 NCCL WARN [Proxy Service 2] Failed to execute operation Connect from rank 2, retcode 6",
        "misc/socket.cc:9 NCCL WARN socketProgress: a limit was exceeded while the peer was busy",
    ],
)
def test_warnings_whose_cause_is_not_in_the_text_are_in_the_verdict(warning: str, frame: str) -> None:
    (finding,) = ml.explain(f"{frame}{warning}\n").findings
    assert (finding.severity, finding.code) == ("warning", "unknown-warning")
    assert warning.partition("NCCL WARN ")[2].split(",")[0] in finding.why


def test_the_result_of_a_failed_operation_is_named() -> None:
    line = "proxy.cc:88 NCCL WARN [Service thread] Error encountered progressing operation=Setup, res=1, closing\n"
    assert "The result 1 is an error of CUDA" in ml.explain(line).findings[0].why


def test_a_trace_up_to_the_call_of_the_program_makes_a_warning_an_error() -> None:
    warning = "[2] src/dev_runtime.cc:70 (symWindowCreate) NCCL WARN The moon is in the wrong phase\n"
    (finding,) = ml.explain(warning + FAILED_CALL.format(3)).findings
    assert (finding.severity, finding.code, finding.subject) == ("error", "unknown-warning", "GPU 2")
    assert "failed with an internal error (ncclResult 3)" in finding.why
    (finding,) = ml.explain(warning + FAILED_CALL.format(7)).findings  # still in progress
    assert finding.severity == "warning"


def test_a_trace_without_its_warning_is_a_failure() -> None:
    explanation = ml.explain(FAILED_CALL.format(2))
    assert [(item.severity, item.code) for item in explanation.findings] == [("warning", "warning-missing")]


def test_an_echo_needs_no_finding_beside_its_cause() -> None:
    cause = "a:1:2 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 4 bytes\n"
    echo = "a:1:3 [2] proxy.cc:1326 NCCL WARN Socket recv failed while polling for opId=0x7f\n"
    assert [item.code for item in ml.explain(cause + echo).findings] == ["shm-too-small"]


RAS_BIND = "{}ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use\n"
RAS_NOTE = "b:5:6 [1] NCCL INFO RAS failed to establish a client listening socket at localhost:28028\n"


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("note", ["", RAS_NOTE])
def test_a_taken_port_of_ras_is_normal(frame: str, note: str) -> None:
    explanation = ml.explain(RAS_BIND.format(frame) + note)
    assert not explanation.findings
    assert [item.code for item in explanation.normal] == ["ras-port-taken"]


def test_a_taken_port_of_anything_else_is_not_normal() -> None:
    text = "nodeA:30:40 [2] misc/socket.cc:407 NCCL WARN Call to bind failed: Address already in use\n"
    assert [item.code for item in ml.explain(text).findings] == ["unknown-warning"]


def test_a_missing_library_of_rdma_is_no_problem_by_itself() -> None:
    (finding,) = ml.explain("b:5:6 [1] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n").findings
    assert (finding.severity, finding.code) == ("info", "no-rdma-device")


@pytest.mark.parametrize(
    "text",
    [
        "misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer nodeB<5>",
        "transport/p2p.cc:9 NCCL WARN Cuda failure 400 'invalid resource handle'",
        "init.cc:9 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60",
    ],
)
def test_a_warning_that_a_rule_knows_is_not_quoted(text: str) -> None:
    assert "unknown-warning" not in by_code(f"nodeA:30:40 [2] {text}\n")


def test_a_cuda_failure_that_no_rule_knows_is_quoted() -> None:
    assert "unknown-warning" in by_code("nodeA:30:40 [2] init.cc:9 NCCL WARN Cuda failure 3 'initialization error'\n")


def test_a_last_error_that_no_rule_knows_is_quoted() -> None:
    text = "[rank3]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank3]: Last error:\n[rank3]: {}\n"
    finding = by_code(text.format("Cuda failure 999 'unknown error'"))["unknown-warning"]
    assert finding.subject == "rank 3"
    assert "Cuda failure 999 'unknown error'" in finding.why
    explanation = ml.explain(text.format("NET/OFI Couldn't open AV. RC: -22"))
    assert [item.code for item in explanation.findings] == ["unknown-warning"]


def test_the_last_error_that_xla_repeats_is_quoted_with_its_doubt() -> None:
    text = (
        "INTERNAL: nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, n, id, rank) failed: internal error. Last "
        "NCCL warning(error) log entry (may be unrelated) 'Attribute speed of node gpu not found'.; current scope"
    )
    finding = by_code(text)["unknown-warning"]
    assert '"Attribute speed of node gpu not found"' in finding.why
    assert "may be unrelated" in finding.why
    assert "unknown-warning" not in by_code(text.replace("Attribute speed of node gpu not found", ""))


@pytest.mark.parametrize(
    "error",
    [
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
        "socketProgressOpt: Call to recv from 10.0.0.4<33759> failed : Connection reset by peer",
        "Cuda failure 2 'out of memory'",
    ],
)
def test_a_last_error_that_a_rule_knows_is_not_quoted(error: str) -> None:
    assert "unknown-warning" not in by_code(f"Last error:\n{error}\n")


def test_a_warning_about_a_path_below_sys_is_not_normal_if_the_call_failed() -> None:
    line = "b:5:6 [1] graph/xml.cc:332 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:0d/0000:0d:00.0\n"
    explanation = ml.explain(line + "b:5:6 [1] NCCL INFO graph/xml.cc:648 -> 2\nb:5:6 [1] NCCL INFO group.cc:73 -> 2\n")
    assert [(item.severity, item.code) for item in explanation.findings] == [("error", "unknown-warning")]
    assert "not-readable" not in {item.code for item in explanation.normal}
