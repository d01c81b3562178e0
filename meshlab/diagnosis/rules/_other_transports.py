"""Rules for MPI, libfabric, NVSHMEM and DeepEP, which move data beside NCCL or below it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.diagnosis._findings import TextFinding, first_names, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._nccl_lines import NOT_NAMED, affected, source_host, text_list
from meshlab.diagnosis.formats._torch_lines import last_rank_prefix
from meshlab.diagnosis.rules._launching import innermost_error
from meshlab.diagnosis.rules._line_rules import LineRule, others_having, others_matching, rules_of

_ENDED = ("rank-died", "worker-exited")
_BELOW = 24  # lines of a message of Open MPI


def _who(paste: Paste, numbers: Sequence[int]) -> str:
    """Return the ranks, else the hosts, that the lines or their prefixes name."""
    lines = [paste.line(number) for number in numbers]
    ranks = {rank for line in lines if (rank := last_rank_prefix(line, len(line.raw))) is not None}
    hosts = dict.fromkeys(host for line in lines if (host := source_host(line)))
    return rank_list(ranks) if ranks else ", ".join(hosts) or NOT_NAMED


# -- MPI ---------------------------------------------------------------------------------------------------------------

_ON_HOST = re.compile(r"Process \d+ \(\[?\[?[\w,.@-]+\]?,\d+\]\) is on host: (?P<host>\S+)")
_TRIED = re.compile(r"BTLs attempted: (?P<names>.+)")


@rule(
    "net-unreachable",
    "Two processes of MPI cannot reach each other",
    source="Open MPI opal and ompi help texts, help-mca-bml-r2.txt",
    causes=("launcher-failed", *_ENDED),
)
def mpi_unreachable(paste: Paste) -> Iterator[TextFinding]:
    """Look for processes of Open MPI that no transport connects."""
    lines = other_lines(paste).find("pair of MPI processes are unable to reach each other")
    if not lines:
        return
    below = [paste.line(number) for number in range(lines[0].number, min(lines[0].number + _BELOW, len(paste) + 1))]
    hosts = [match["host"] for line in below if (match := _ON_HOST.search(line.text))][:2]
    tried = next((match["names"].split() for line in below if (match := _TRIED.search(line.text))), [])
    is_local = len(hosts) == 2 and hosts[0] == hosts[1]
    why = "Open MPI found no transport (BTL) that connects two processes"
    why += (f" of {hosts[0]}" if is_local else f" on {' and '.join(hosts)}") if hosts else ""
    why += f"; it tried {', '.join(tried)}." if tried else "."
    if tried == ["self"]:
        why += " self only reaches the process itself: the others are excluded, or could not be opened."
    yield mpi_unreachable.finding(
        "error",
        " and ".join(dict.fromkeys(hosts)) or "two processes of MPI",
        why,
        "Allow the transports that are needed: --mca pml ob1 --mca btl self,vader,tcp (sm instead of vader from Open "
        "MPI 5 on), or --mca pml ucx with UCX; check OMPI_MCA_* in the environment and openmpi-mca-params.conf"
        + ("." if is_local else ", and the interfaces with --mca btl_tcp_if_include NETWORK/BITS."),
        lines,
    )


_TRUNCATED = re.compile(
    r"MPI_ERR_TRUNCATE|Message truncated(?! :)(?:; (?P<received>\d+) bytes received but buffer size is "
    r"(?P<buffer>\d+))?"
    r"|message sizes do not match across processes in the collective routine: Received (?P<part>\d+) but expected "
    r"(?P<expected>\d+)"
)
_CALL = re.compile(r"An error occurred in (?P<call>MPI_\w+)|Fatal error in (?:internal_|P(?=MPI_))?(?P<fatal>\w+): ")
_REASON = re.compile(r"\*\*\* (?P<reason>MPI_ERR_\w+: .*)")


@rule(
    "size-mismatch",
    "Two ranks disagree on the size of a transfer",
    source=("MPI 4.1, section 3.2.4: MPI_ERR_TRUNCATE", "MPICH src/mpid"),
    causes=_ENDED,
)
def mpi_truncated(paste: Paste) -> Iterator[TextFinding]:
    """Look for messages of MPI that are longer than the buffer of their receiver."""
    matches = other_lines(paste).matches(
        _TRUNCATED, "MPI_ERR_TRUNCATE", "Message truncated", "message sizes do not match"
    )
    if not matches:
        return
    lines = [line for line, _ in matches]
    sizes = next((match for _, match in matches if match["received"] or match["part"]), None)
    calls = other_lines(paste).matches(_CALL, "An error occurred in MPI_", "Fatal error in ")
    call = next((match["call"] or match["fatal"] for _, match in calls), "")
    why = "A rank got a message that is longer than its buffer"
    if sizes is not None and sizes["received"]:
        why += f": {sizes['received']} bytes for {sizes['buffer']}"
    elif sizes is not None:
        part, expected = sizes.group("part", "expected")
        why = f"The sizes of a collective differ between ranks: {part} bytes arrived instead of {expected}"
    yield mpi_truncated.finding(
        "error",
        _who(paste, [line.number for line in lines]) + (f", {call}" if call.startswith("MPI_") else ""),
        f"{why}. The ranks call the same collective with different counts or types, or are in different calls.",
        "Compare the counts, types and order of the calls on all ranks. With MPICH, -check_mpi of Intel MPI or MUST "
        "find the first call that differs.",
        lines,
    )


@rule("mpi-error", "A call of MPI failed", source="MPI 4.1, section 9.3", causes=("worker-exited",))
def mpi_error(paste: Paste) -> Iterator[TextFinding]:
    """Look for errors of MPI after its start that no other rule knows."""
    calls = other_lines(paste).matches(_CALL, "An error occurred in MPI_", "Fatal error in ")
    calls = [(line, match) for line, match in calls if "Init" not in (match["call"] or match["fatal"])]
    if not calls or list(mpi_truncated.check(paste)) or other_lines(paste).numbers("OFI poll failed"):
        return
    line, match = calls[0]
    reason, stack = innermost_error(paste, line.number)
    reasons = other_lines(paste).matches(_REASON, "MPI_ERR_")
    reason = reasons[0][1]["reason"] if reasons else reason
    yield mpi_error.finding(
        "warning",
        _who(paste, [item.number for item, _ in calls]),
        f"{match['call'] or match['fatal']} failed"
        + (f": {reason[:200]}." if reason else ", and the text gives no reason."),
        "Read the log of all ranks above this line for the first error: a rank that ended, or a call with other "
        "arguments than on the other ranks.",
        [line, *stack],
    )


_POLL = re.compile(r"OFI poll failed \((?:[^()]*:)?(?P<why>[^():]*)\)")

# -- libfabric ---------------------------------------------------------------------------------------------------------

_OFI_REQUEST = re.compile(
    r"NET/OFI .*completed with error\. RC: (?P<code>-?\d+)(?:\. Error: (?:-?\d+ ?\((?P<known>[^)]*)\)"
    r"|(?P<text>[^.]*)))?"
)
_EFA = re.compile(
    r"libfabric:\S{0,60}efa\S{1,120}\(\):\d+<\w+> err: (?P<code>\d+), message: (?P<text>.{1,300}?)"
    r"(?: My EFA addr| \(\d+\)|$)"
)
_EFA_HOSTS = re.compile(r"My host id: (?P<local>\S{1,80}).{1,300}?Peer host id: (?P<peer>\S{1,80})")
_PEER_GONE = re.compile(
    r"invalid address|unresponsive|unreachable|peer|connection|no route|aborted|canceled", re.IGNORECASE
)


@rule(
    "ofi-request-failed",
    "A request of libfabric failed",
    source=("aws/aws-ofi-nccl src/nccl_ofi_rdma.cpp", "ofiwg/libfabric prov/efa/src/rdm"),
    causes=("rank-died", "unknown-warning", "warning-missing"),
)
def ofi_request_failed(paste: Paste) -> Iterator[TextFinding]:
    """Look for requests of the OFI plugin, or of the EFA provider below it, that ended with an error."""
    efa = other_lines(paste).matches(_EFA, "err: ")
    requests = paste.matches(_OFI_REQUEST, "completed with error. RC:")
    if not efa and not requests:
        return
    lines = [line for line, _ in (*efa, *requests)]
    texts = dict.fromkeys(
        text
        for _, match in (*efa, *requests)
        if (text := (match.groupdict().get("known") or match["text"] or f"RC {match['code']}").strip())
    )
    hosts = [match for line, _ in efa if (match := _EFA_HOSTS.search(line.text))]
    peers = list(dict.fromkeys(match["peer"] for match in hosts))
    local_hosts = list(dict.fromkeys(match["local"] for match in hosts))
    text = first_names(list(texts), 3)
    is_peer = any(_PEER_GONE.search(text) for text in texts)
    yield ofi_request_failed.finding(
        "error",
        (text_list(local_hosts[:4]) or affected(paste, lines)) + (f", peer {text_list(peers[:4])}" if peers else ""),
        f"A request of libfabric ended with an error{f' ({text})' if text else ''}."
        + (
            " Usually the process at the other end had ended, or the network between the two hosts broke; the line "
            "does not show which."
            if is_peer
            else " The text does not show whether the NIC, the memory or the peer is the reason."
        ),
        "Read the log of the peer before this time first. Then check that its security group allows all traffic within "
        "the group, the state of the instances, and fi_pingpong -p efa between them; FI_LOG_LEVEL=warn has the "
        "details.",
        lines,
    )


# -- NVSHMEM and DeepEP ------------------------------------------------------------------------------------------------

_STATUS = re.compile(
    r"(?<![\w/.-])(?P<file>[\w/.-]{1,200}\.(?:cpp|cu|h)):\d+: non-zero status: (?P<status>-?\d+):? ?(?P<text>[^/\n]*)"
)
_NVSHMEM_MARKS = ("nvshmem", "NVSHMEM")
_DEEP_EP = re.compile(
    r"DeepEP error: timeout \((?P<what>[^)]*)\)|DeepEP timeout check failed: (?P<rank>\d+)"
    r"|DeepEP (?P<kernel>[\w ]{0,40}?(?:dispatch|combine)[\w ]{0,60}?) ?timeout\b"
)


@rule(
    "nvshmem-init-failed",
    "NVSHMEM could not be initialised",
    source="NVIDIA/nvshmem src/host/init/init.cu, src/modules/transport",
    causes=("bootstrap-truncated", *_ENDED),
)
def nvshmem_init_failed(paste: Paste) -> Iterator[TextFinding]:
    """Look for the errors of NVSHMEM's start, of which each layer prints one."""
    if not any(mark in paste.text for mark in _NVSHMEM_MARKS):
        return
    statuses = other_lines(paste).matches(_STATUS, "non-zero status:")
    lines = [line for line, _ in statuses]
    lines += other_lines(paste).find("nvshmem initialization failed", "aborting due to error in nvshmemi_init")
    if not statuses:
        return
    text = " ".join(line.text for line in lines)
    if "ibv_modify_qp failed" in text or "ibrc.cpp" in text or "ibgda" in text:
        timed_out = "status: 110" in text
        why = "NVSHMEM could not connect its queue pairs over RDMA"
        why += " (error 110: the peer's NIC did not answer in time)." if timed_out else "."
        do = (
            "Check that each NIC reaches the NICs of the other hosts (ib_write_bw), choose them with NVSHMEM_HCA_LIST, "
            "and on RoCE the GID with NVSHMEM_IB_GID_INDEX and the traffic class. NICs of different rails need a "
            "route."
        )
    elif "bootstrap" in text:
        why = (
            "The processes of NVSHMEM did not come together at the start, which uses TCP: one of them ended or failed "
        )
        why += "first, runs another version, or cannot be reached."
        do = (
            "Find the process with the first error. Set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME to the interface that "
            "connects the hosts, and use one version of NVSHMEM everywhere."
        )
    else:
        why = f'NVSHMEM stopped with "{statuses[0][1][0].strip()[:120]}".'
        do = "Run again with NVSHMEM_DEBUG=INFO, and read the first error of each process."
    yield nvshmem_init_failed.finding("error", _who(paste, [line.number for line in lines]), why, do, lines)


@rule(
    "deep-ep-timeout", "A kernel of DeepEP waited too long", source="deepseek-ai/DeepEP csrc/deep_ep.cpp", causes=_ENDED
)
def deep_ep_timeout(paste: Paste) -> Iterator[TextFinding]:
    """Look for dispatches and combines of experts in which a rank waited for others."""
    if matches := other_lines(paste).matches(_DEEP_EP, "DeepEP"):
        lines = [line for line, _ in matches]
        yield deep_ep_timeout.finding(
            "error",
            _who(paste, [line.number for line in lines]),
            "A rank waited about 100 s in a dispatch or combine of experts for data of the others. The rank that "
            "prints it is the one that noticed: another one did not make this call, is still compiling, failed, or its "
            "RDMA writes do not arrive.",
            "Read the logs of the other ranks before this time. If all of them made the call, check RDMA between the "
            "hosts (ib_write_bw, GID, NVSHMEM_HCA_LIST, IBGDA in /proc/driver/nvidia/params), and that NVSHMEM is the "
            "version that DeepEP was built with. If it only happens in the first steps, compile the kernels before.",
            lines,
        )


OTHER_TRANSPORT_RULES = rules_of(
    __name__,
    mpi_unreachable,
    mpi_truncated,
    mpi_error,
    LineRule(
        code="rank-died",
        title="A peer of MPI cannot be reached any more",
        looks_for="Look for requests of MPICH over libfabric that the peer's NIC did not take.",
        find=others_matching(_POLL, "OFI poll failed"),
        level="warning",
        subject=_who,
        why="A request of MPI failed in libfabric ({why}). Usually a process at the other end had ended, so the NIC "
        "there no longer knows it; the rank that prints this only noticed it.",
        do="Look for the rank that ended first (signal, lack of memory, exception) in the logs of all ranks. If none "
        "did, try FI_CXI_RX_MATCH_MODE=software on Slingshot, and check the NICs.",
        source="https://github.com/ofiwg/libfabric/issues/10072",
    ),
    LineRule(
        code="ib-port-down",
        title="Open MPI found no active port",
        looks_for="Look for the warning of the openib transport that no port is active.",
        find=others_having("there are no active ports detected"),
        level="warning",
        subject=_who,
        why="Open MPI found an RDMA device without an active port that it can use, and ignores it. MPI then uses TCP "
        "or fails.",
        do="Check ibstat and the cable. If the port is Ethernet or not for MPI, exclude it: --mca btl ^openib, or use "
        "--mca pml ucx.",
        source="Open MPI help-mpi-btl-openib.txt",
    ),
    ofi_request_failed,
    nvshmem_init_failed,
    deep_ep_timeout,
    LineRule(
        code="kv-transfer-failed",
        title="NIXL could not move data",
        looks_for="Look for errors of NIXL, which only names the layer that failed.",
        find=others_having("NIXL_ERR_BACKEND", "NIXL_ERR_REMOTE_DISCONNECT"),
        level="warning",
        subject=_who,
        why="A call of NIXL failed in the library below it, usually UCX. The name of the error does not say why.",
        do="Run again with UCX_LOG_LEVEL=info NIXL_LOG_LEVEL=DEBUG, and paste the first UCX ERROR of both. Memory "
        "of GPUs needs a UCX with CUDA (ucx_info -d | grep cuda) and, between hosts, nvidia_peermem or dma-buf.",
        source="ai-dynamo/nixl src/plugins/ucx",
        causes=("worker-exited",),
    ),
)
