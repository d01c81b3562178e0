"""Errors of MPI, libfabric, NVSHMEM, DeepEP and NIXL."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._other_transports import OTHER_TRANSPORT_RULES

BTL = """\
At least one pair of MPI processes are unable to reach each other for
MPI communications.

  Process 1 ([[1,1],1]) is on host: {other}
  Process 2 ([[1,1],0]) is on host: nodeA
  BTLs attempted: {btls}
"""
EFA = (
    "libfabric:9:17::efa:cq:efa_rdm_txe_handle_error():7<warn> err: 5, message: {text} My EFA addr: "
    "fi_addr_efa://[fe80::1]:0 "
    "My host id: i-01 Peer EFA addr: fi_addr_efa://[fe80::2]:0 Peer host id: i-02 (7)"
)
PEER = "the line does not show which"


def findings(text: str) -> list[TextFinding]:
    return [item for rule in OTHER_TRANSPORT_RULES for item in rule(Paste(text))]


@pytest.mark.parametrize(
    ("text", "code", "severity", "subject", "why"),
    [
        (BTL.format(other="nodeA", btls="self"), "net-unreachable", "error", "nodeA", "self only reaches"),
        (
            BTL.format(other="nodeB", btls="self tcp"),
            "net-unreachable",
            "error",
            "nodeB and nodeA",
            "it tried self, tcp",
        ),
        (
            "MPIDI_OFI_handle_cq_error(9): OFI poll failed (ofi_events.c:9:MPIDI_OFI_handle_cq_error:I/O error - "
            "UNDELIVERABLE)",
            "rank-died",
            "warning",
            "the rank that prints it",
            "(I/O error - UNDELIVERABLE)",
        ),
        (
            "MPIDI_CH3U_Request_unpack_uebuf(599): Message truncated; 1536 bytes received but buffer size is 1024",
            "size-mismatch",
            "error",
            "the rank that prints it",
            "1536 bytes for 1024",
        ),
        (
            "[nodeA:9] *** An error occurred in MPI_Recv\n[nodeA:9] *** MPI_ERR_TRUNCATE: message truncated",
            "size-mismatch",
            "error",
            "the rank that prints it, MPI_Recv",
            "longer than its buffer",
        ),
        (
            "tree_reduce(190): message sizes do not match across processes in the collective routine: Received 4 but "
            "expected 8",
            "size-mismatch",
            "error",
            "the rank that prints it",
            "4 bytes arrived instead of 8",
        ),
        (
            "Fatal error in PMPI_Bcast: Other MPI error, error stack:\nPMPI_Bcast(7)..: MPI_Bcast(count=1) failed\n"
            "MPIR_Bcast(9): Invalid communicator",
            "mpi-error",
            "warning",
            "the rank that prints it",
            "MPI_Bcast failed: Invalid communicator.",
        ),
        (
            "but there are no active ports detected (or Open MPI was unable to use",
            "ib-port-down",
            "warning",
            "the rank that prints it",
            "without an active port",
        ),
        (EFA.format(text="Unresponsive remote"), "ofi-request-failed", "error", "i-01, peer i-02", PEER),
        (
            EFA.format(text="Local error"),
            "ofi-request-failed",
            "error",
            "i-01, peer i-02",
            "whether the NIC, the memory",
        ),
        (
            "nodeA:1:2 [3] NCCL WARN NET/OFI Request 0x7 completed with error. RC: 113. Error: 15 (Unreachable "
            "remote).",
            "ofi-request-failed",
            "error",
            "nodeA GPU 3",
            PEER,
        ),
        (
            "/nvshmem/src/modules/transport/ibrc/ibrc.cpp:418: non-zero status: 110 ibv_modify_qp failed",
            "nvshmem-init-failed",
            "error",
            "the rank that prints it",
            "error 110",
        ),
        (
            "/nvshmem/src/host/init/init.cu:327: non-zero status: 7 bootstrap_init failed",
            "nvshmem-init-failed",
            "error",
            "the rank that prints it",
            "did not come together",
        ),
        (
            "[rank3]: RuntimeError: DeepEP error: timeout (dispatch CPU)",
            "deep-ep-timeout",
            "error",
            "rank 3",
            "is the one that noticed",
        ),
        (
            "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND",
            "kv-transfer-failed",
            "warning",
            "the rank that prints it",
            "does not say why",
        ),
    ],
)
def test_the_error_is_found_and_claims_no_more_than_its_line(
    text: str, code: str, severity: str, subject: str, why: str
) -> None:
    (finding,) = findings(text)
    assert (finding.code, finding.severity, finding.subject) == (code, severity, subject)
    assert why in finding.why
    assert finding.do


@pytest.mark.parametrize(
    "text",
    [
        "nodeA:1:2 [3] NCCL INFO NET/OFI Selected Provider is efa",
        "libfabric:9:17:efa:core:efa_x():5<warn> FI_HMEM capability requires RDMA",
        "src/x.cpp:9: non-zero status: 7 of a test",
        "nodeA:1:2 [3] bootstrap.cc:5 NCCL WARN Message truncated : received 1024 bytes instead of 256",
        "DeepEP: Allocating buffer size: 2115.1 MB",
    ],
)
def test_harmless_lines_give_nothing(text: str) -> None:
    assert findings(text) == []
