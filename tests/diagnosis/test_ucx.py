"""Errors of UCX, in the words of its layers."""

from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._ucx_lines import read_ucx_messages
from meshlab.diagnosis.rules._ucx import UCX_RULES

RETRY = (
    "[nodeA:77:0:77] ib_mlx5_log.c:171  Transport retry count exceeded on mlx5_2:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)"
)

ERRORS = {
    "retry": (RETRY, "ib-retry-exceeded", "nodeA over mlx5_2:1 (IB)"),
    "remote": (
        "[nodeA:77:0:77] ib_mlx5_log.c:171  Remote access on mlx5_0:1/RoCE (synd 0x13 vend 0x88 hw_synd 0/0)",
        "ib-remote-invalid-request",
        "nodeA over mlx5_0:1 (RoCE)",
    ),
    "local": (
        "[nodeA:77:0:77] ib_mlx5_log.c:171  Local protection on mlx5_0:1/IB (synd 0x4 vend 0x51 hw_synd 0/0)",
        "gdr-protection-error",
        "nodeA over mlx5_0:1 (IB)",
    ),
    "receiver": (
        "[nodeA:77:0:77] ib_mlx5_log.c:171  Receiver-not-ready retry count exceeded on mlx5_0:1/IB (synd 0x16)",
        "ib-receiver-not-ready",
        "nodeA over mlx5_0:1 (IB)",
    ),
    "closed": (
        "[1.5] [nodeB:9:1] tcp_ep.c:1089 UCX  ERROR writev(fd=9) failed: Connection reset by peer",
        "rank-died",
        "nodeB",
    ),
    "transport": (
        "[1.5] [nodeB:9:1] select.c:630  UCX  ERROR no active messages transport to nodeC: tcp/eth0 - Destination is "
        "unreachable",
        "no-transport",
        "nodeB",
    ),
    "device": (
        "[1.5] [nodeB:9:1] ucp_context.c:1100 UCX  WARN  network device 'mlx5_9:1' is not available, please use one or "
        "more of: 'eth0'(tcp)",
        "no-transport",
        "nodeB",
    ),
    "address": (
        "[1.5] [nodeB:9:1] ib_device.c:1319 UCX  ERROR ibv_create_ah(dlid=1 sl=0 port=1 dgid=::ffff:10.3.0.9 "
        "sgid_index=3) "
        "on mlx5_1 failed: Invalid argument",
        "roce-no-route",
        "nodeB",
    ),
    "memory": (
        "[1.5] [nodeB:9:1] ib_md.c:287 UCX  ERROR ibv_reg_mr(address=0x7f, length=4096, access=0xf) failed: Bad "
        "address",
        "gdr-registration-failed",
        "nodeB",
    ),
    "locked memory": (
        "[1.5] [nodeB:9:1] ib_md.c:287 UCX  ERROR ibv_reg_mr(address=0x7f, length=4096, access=0xf) failed: Cannot "
        "allocate "
        "memory",
        "memlock-too-small",
        "nodeB",
    ),
    "shared memory": (
        "[1.5] [nodeB:9:1] mm_posix.c:233 UCX  ERROR Not enough memory to write total of 4292720 bytes. Please check "
        "that "
        "/dev/shm has more",
        "shm-too-small",
        "nodeB",
    ),
    "TCP": (
        "[1.5] [nodeB:9:1] tcp_ep.c:900 UCX  ERROR connect(fd=55, dest_addr=10.3.0.9:4455) failed: No route to host",
        "net-unreachable",
        "nodeB",
    ),
    "unknown": ("[1.5] [nodeB:9:1] cuda_ipc_ep.c:166 UCX  ERROR cuMemcpy failed: 1", "ucx-error", "nodeB"),
    "no host": (
        "[17.5] proto_reconfig.c:60 UCX  ERROR cannot find remote protocol for: get",
        "no-transport",
        "the rank that prints it",
    ),
}


def findings(text: str) -> list[TextFinding]:
    return [item for rule in UCX_RULES for item in rule(Paste(text))]


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_is_found_with_its_host_and_nic(name: str) -> None:
    text, code, subject = ERRORS[name]
    (finding,) = findings(text)
    assert (finding.code, finding.subject) == (code, subject)
    assert finding.severity == ("warning" if name in ("device", "unknown", "closed") else "error")
    assert finding.do


def test_a_retry_does_not_claim_which_end_failed() -> None:
    explanation = ml.explain(RETRY)
    (finding,) = explanation.findings
    assert "do not show which" in finding.why
    assert "log of the other processes" in finding.do
    assert explanation.recognised[0].kind == "UCX log"


def test_an_address_is_quoted_with_the_reason() -> None:
    (finding,) = findings(ERRORS["address"][0])
    assert "mlx5_1 could not make an address for ::ffff:10.3.0.9 (Invalid argument)" in finding.why


@pytest.mark.parametrize(
    "text",
    [
        "[1.5] [nodeB:9:1] parser.c:2305 UCX  WARN  unused environment variable: UCX_IB_X (maybe: UCX_IB_Y?)",
        "[1.5] [nodeB:9:1] ucp_worker.c:1903 UCX  INFO  ucp_context_0 inter-node cfg#3 rma(rc_mlx5/mlx5_2:1)",
        "[nodeA:77:0:77] Caught signal 11 (Segmentation fault: address not mapped to object)",
    ],
)
def test_other_lines_of_ucx_give_nothing(text: str) -> None:
    assert findings(text) == []


def test_a_message_has_its_host_level_and_text() -> None:
    (message,) = read_ucx_messages(Paste(ERRORS["TCP"][0]))
    assert (message.host, message.level, message.text[:8]) == ("nodeB", "ERROR", "connect(")
    assert read_ucx_messages(Paste(RETRY))[0].level == "FATAL"
