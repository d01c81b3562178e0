"""Rules for a job as a whole: data of different sizes, errors of a GPU, ended peers, variables, RCCL."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._nccl_lines import (
    CommRank,
    affected,
    hosts_of,
    number_list,
    read_communicators,
    read_variables,
    read_versions,
    read_warnings,
    text_list,
    warnings_with,
)
from meshlab.diagnosis.rules._line_rules import LineRule, cuda_failures, having, matching, rules_of
from meshlab.mesh._axes import MAX_RANKS

_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLESHOOTING = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_RCCL = "https://rocm.docs.amd.com/projects/rccl/en/latest/how-to/troubleshooting-rccl.html"

# -- sizes -------------------------------------------------------------------------------------------------------------

_AROUND = re.compile(r"at and around rank (\d+)")
_SIZES = re.compile(
    r"(?:peer (?P<peer>\S+) )?(?:collective mismatch error,? local size (?P<local>\d+) remote(?: size)? (?P<remote>\d+)"
    r"|message truncated : receiving (?P<received>\d+) bytes instead of (?P<wanted>\d+)"
    r"|posted incorrect receive info: size (?P<posted>\d+))"
)


@rule(
    "size-mismatch",
    "Two ranks disagree on the size of a transfer",
    source=(
        f"{_TROUBLESHOOTING}",
        "https://github.com/NVIDIA/nccl/issues/969",
        "NCCL src/transport/net_ib.cc, net_socket.cc",
    ),
    causes=("rank-died",),
)
def transfer_size_mismatch(paste: Paste) -> Iterator[TextFinding]:
    """The network transport received more or less than the other side announced."""
    matches = paste.matches(
        _SIZES, "collective mismatch error", "message truncated : receiving", "posted incorrect receive"
    )
    old = paste.find("Mismatched collective detected", "may be caused by a collective mismatch")
    if not matches and not old:
        return
    lines = [*(line for line, _ in matches), *old]
    peers = list(dict.fromkeys(match["peer"].partition("<")[0] for _, match in matches if match["peer"]))
    why = "Two ranks of the same step do not agree on the size of a transfer"
    if matches and matches[0][1]["local"]:
        why += f": {matches[0][1]['local']} bytes here, {matches[0][1]['remote']} bytes on the other side"
    elif matches and matches[0][1]["received"]:
        why += f": {matches[0][1]['received']} bytes arrived instead of {matches[0][1]['wanted']}"
    why += ". They call different collectives, or with different counts, or run with different settings of NCCL."
    against = f" against peer {text_list(peers[:4])}" if peers else ""
    around = dict.fromkeys(match[1] for line in old if (match := _AROUND.search(line.text)))
    against += f", around rank {text_list(list(around)[:6])}" if around else ""
    yield transfer_size_mismatch.finding(
        "error",
        f"{affected(paste, lines)}{against}".strip(),
        why,
        "Compare the NCCL_* variables and the versions of NCCL of both hosts first, then the order and the sizes of "
        "the calls with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL on all ranks.",
        lines,
    )


_OF_BOOTSTRAP = re.compile(r"^(?!.*(?:NET/|nvshmem))")  # NVSHMEM has its own rule

# -- errors of CUDA that NCCL meets ------------------------------------------------------------------------------------

_EARLIER = re.compile(
    r"illegal memory access|unspecified launch failure|misaligned address|illegal instruction|device-side assert"
    r"|invalid program counter|launch timed out|hardware stack error|invalid address space"
)


# -- ended peers -------------------------------------------------------------------------------------------------------

_ECHOES = re.compile(
    r"Connection closed by remote peer|Socket recv failed while polling|Failed to execute operation|Proxy Call to rank"
    r"|closing connection|communicator encountered a fatal error|socket progress error|comm \S+ is in abort"
    r"|ncclAsyncJobComplete|Could not receive type from localRank|Call to (?:recv from|send to) \S+ failed"
    r"|(?:ncclProxyClient|ncclProxyCall)\w* call to|commReclaim|commDestroySync|ncclProxyStop|Poll failed|handshake"
    r"|\[Rem Allocator\] Allocation failed"
    r"|ibv_get_async_event failed|Failed to (?:recv|send)|Connection reset by peer|Broken pipe|encountered progressing",
    re.IGNORECASE,
)


# A word of each of them, in lower case. Most warnings have none, and finding out takes a tenth of the time.
_WORDS_OF_ECHOES = (
    *("connection closed by", "socket recv failed", "execute operation", "proxy call to", "closing connection"),
    *("fatal error", "progress error", "is in abort", "ncclasyncjobcomplete", "could not receive type", "call to recv"),
    *("call to send", "ncclproxy", "commreclaim", "commdestroysync", "poll failed", "handshake", "[rem allocator]"),
    *("ibv_get_async_event", "failed to recv", "failed to send", "reset by peer", "broken pipe"),
    "encountered progressing",
)


def read_echoes(paste: Paste) -> frozenset[int]:
    """Return the numbers of the lines of warnings that only say that something else failed before."""
    warnings = paste.once(read_warnings)
    text = "\n".join([item.text for item in warnings]).lower()
    words = [word for word in _WORDS_OF_ECHOES if word in text]
    return frozenset(item.line for item in warnings if is_echo_text(item.text, words)) if words else frozenset()


def is_echo_text(text: str, words: Sequence[str] = _WORDS_OF_ECHOES) -> bool:
    """Return True for the text of such a warning, in which at most these words can be."""
    return any(map(text.lower().__contains__, words)) and bool(_ECHOES.search(text))


# NCCL warns of these at the start, and goes on without what it did not find.
_HARMLESS = re.compile(
    r"Failed to open libibverbs|NUMA auto balancing|No module present for GPU Direct|Missing .iommu=pt"
)
_WORDS_OF_HARMLESS = ("open libibverbs", "NUMA auto balancing", "No module present for GPU Direct", "iommu=pt")
_PEER = re.compile(r"(?:Connection closed by remote peer|Call to (?:recv from|send to)) (?P<peer>[^\s<]+)<")
_OTHER_CAUSES = (
    *("Watchdog caught collective operation timeout", "out of memory", "uncorrectable ECC", "NVRM: Xid", "CUDA error"),
    *("Bus error", "Segmentation fault", "No space left on device", "SIGKILL", "exitcode: -9"),
    *("Duplicate GPU detected", "Test CUDA failure"),
)


@rule("rank-died", "A process ended, and the others noticed", source="NCCL src/misc/socket.cc, src/proxy.cc")
def peer_ended(paste: Paste) -> Iterator[TextFinding]:
    """All warnings of NCCL in the text only say that another process closed its connection."""
    harmless = {item.line for item in warnings_with(paste, *_WORDS_OF_HARMLESS) if _HARMLESS.search(item.text)}
    echoes = paste.once(read_echoes)
    warnings = [item for item in paste.once(read_warnings) if item.line not in harmless]
    if not warnings or not all(item.line in echoes for item in warnings) or paste.numbers(*_OTHER_CAUSES):
        return
    closed = [(item, match) for item in warnings if (match := _PEER.search(item.text))]
    if not closed:
        return
    peers = list(dict.fromkeys(match["peer"] for _, match in closed))
    own_hosts = set(hosts_of(paste, [item.line for item in warnings]))
    # A peer is named with its domain, and the host that prints the line without it.
    others = [peer for peer in peers if not own_hosts & {peer, peer.partition(".")[0]}] or peers
    # If hosts report each other, each of the processes noticed an end, and none of them needs to be the first.
    is_mutual = len(peers) > 1 and own_hosts.issuperset(peers)
    yield peer_ended.finding(
        "error",
        f"a process on {text_list(others[:6], 'or' if is_mutual else 'and')}, noticed by "
        f"{affected(paste, [item for item, _ in closed])}",
        (
            f"Processes on {text_list(others[:6])} report each other: the lines do not show which of them ended first, "
            "or why."
            if is_mutual
            else f"A process on {text_list(others[:6])} closed its connection: it ended or aborted first. These lines "
            "only report this, and do not show why."
        ),
        "Read the log of the ranks on that host: the first warning or traceback in time is the cause. "
        "Look there for exit codes, dmesg | grep -i -E 'killed process|xid', and the limits of the job.",
        [item.line for item, _ in closed],
    )


# -- variables ---------------------------------------------------------------------------------------------------------

# Variables that change how two ranks talk to each other, so that different values hang or break the job.
_SAME_EVERYWHERE = re.compile(
    r"NCCL_(?:ALGO|PROTO|BUFFSIZE|(?:LL|LL128|SIMPLE)_BUFFSIZE|(?:MIN|MAX)_(?:NCHANNELS|NRINGS|CTAS)|NTHREADS|P2P_NET_CHUNKSIZE"
    r"|P2P_(?:DISABLE|LEVEL)|SHM_DISABLE|NET|NET_PLUGIN|COLLNET_ENABLE|NVLS_ENABLE|CROSS_NIC|TREE_THRESHOLD|LL_THRESHOLD"
    r"|MNNVL_ENABLE|CUMEM_ENABLE|CUMEM_HOST_ENABLE|IB_DISABLE|IB_SPLIT_DATA_ON_QPS|IB_QPS_PER_CONNECTION|IB_TC|IB_SL"
    r"|NSOCKS_PERTHREAD|SOCKET_NTHREADS|DMABUF_ENABLE|NET_SHARED_BUFFERS|PXN_DISABLE|TOPO_FILE|GRAPH_FILE)$"
)


@rule("variables-differ", "Ranks run with different settings of NCCL", source=_ENV, causes=("size-mismatch",))
def variables_differ(paste: Paste) -> Iterator[TextFinding]:
    """Two processes print different values of a variable that must be the same on all ranks."""
    values: dict[str, dict[str, list[tuple[str | None, int]]]] = defaultdict(lambda: defaultdict(list))
    for item in paste.once(read_variables):
        if item.host is not None and item.pid is not None and _SAME_EVERYWHERE.match(item.name):
            values[item.name][item.value].append((item.host, item.line))
    worlds = {item.n_ranks for item in paste.once(read_communicators)}
    if len({item.comm for item in paste.once(read_communicators) if item.comm}) > 1 and len(worlds) > 1:
        return  # perhaps several jobs
    for name, by_value in values.items():
        if len(by_value) > 1:
            parts = [
                f"{value!r} on {text_list(list(dict.fromkeys(host for host, _ in places if host))[:4])}"
                for value, places in by_value.items()
            ]
            yield variables_differ.finding(
                "warning",
                f"{name}: {', '.join(parts)}",
                f"{name} differs between ranks. Ranks that choose different algorithms, sizes or transports can hang "
                "or stop with a mismatch.",
                f"Give {name} the same value on every rank (mpirun -x, srun --export, the environment of the "
                "container, /etc/nccl.conf, ~/.nccl.conf).",
                [line for places in by_value.values() for _, line in places],
            )


# -- missing ranks -----------------------------------------------------------------------------------------------------


@rule("init-incomplete", "Some ranks did not finish the setup", source="NCCL src/init.cc (2.18.3 and newer)")
def init_incomplete(paste: Paste) -> Iterator[TextFinding]:
    """Some ranks of a communicator print that its setup is complete, and others only that it began."""
    for comm, ranks in _by_communicator(paste).items():
        stuck = [item for item in ranks if item.state == "started"]
        if stuck and len(stuck) < len(ranks):
            yield init_incomplete.finding(
                "info",
                f"{number_list((item.rank for item in stuck), 'rank')} of communicator {comm}",
                "These ranks began the setup of the communicator and do not print its end, while other ranks do. "
                "They are stuck there, or their lines are missing in the text.",
                "Look at the last lines of these ranks, and get their stacks (py-spy dump --native).",
                [item.line for item in stuck],
            )


def _by_communicator(paste: Paste) -> dict[str, list[CommRank]]:
    return grouped((item.comm, item) for item in paste.once(read_communicators) if item.comm)


@rule("ranks-not-shown", "The text has no lines of some ranks", source="NCCL src/init.cc")
def ranks_not_shown(paste: Paste) -> Iterator[TextFinding]:
    """A communicator has more ranks than the text, and none of them finished its setup."""
    for comm, ranks in _by_communicator(paste).items():
        if ranks[0].n_ranks > MAX_RANKS:  # a digit too many
            continue
        missing = set(range(ranks[0].n_ranks)) - {item.rank for item in ranks}
        if missing and len(ranks) > 1 and all(item.state == "started" for item in ranks):
            yield ranks_not_shown.finding(
                "info",
                f"{number_list(missing, 'rank')} of communicator {comm}",
                "No rank finished the setup of this communicator, and the text has no lines of these ranks. "
                "If their logs are complete, they never began it, and all others wait for them.",
                "Look whether these ranks are running, and at their last lines.",
                [item.line for item in ranks],
            )


# -- RCCL --------------------------------------------------------------------------------------------------------------


def _hosts_with_rccl(paste: Paste, numbers: Sequence[int]) -> str:
    version = next((f" (RCCL {item.version})" for item in paste.once(read_versions) if item.library == "RCCL"), "")
    return f"{text_list(hosts_of(paste, numbers)[:8])}{version}".strip()


JOB_RULES = rules_of(
    __name__,
    transfer_size_mismatch,
    LineRule(
        code="bootstrap-truncated",
        title="Ranks exchanged data of different sizes during the setup",
        looks_for="The bootstrap received more bytes than it expected.",
        find=matching(_OF_BOOTSTRAP, "Message truncated : received "),
        why="During the setup a rank received more data than it expected. The ranks use different versions of NCCL, "
        "or they are in different calls (one creates a communicator that another does not).",
        do="Compare the versions (NCCL_DEBUG=VERSION) on all ranks, and check that all ranks create the same "
        "communicators in the same order.",
        source="NCCL src/bootstrap.cc",
    ),
    LineRule(
        code="cuda-error",
        title="A GPU failed before NCCL used it",
        looks_for="A warning of NCCL has an error of CUDA that a kernel caused earlier.",
        find=cuda_failures(_EARLIER),
        why="CUDA reports '{text}'. Such errors come from a kernel that ran earlier on this GPU, usually one of the "
        "program; NCCL is only the next to call CUDA.",
        do="Run this rank with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer to find the kernel, and check dmesg | grep "
        "-i xid on its host.",
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
        causes=("rank-died",),
    ),
    peer_ended,
    variables_differ,
    init_incomplete,
    ranks_not_shown,
    LineRule(
        code="iommu-not-passthrough",
        title="The IOMMU may not be in passthrough mode",
        looks_for="RCCL misses ``iommu=pt`` in the command line of the kernel.",
        find=having('Missing "iommu=pt"'),
        level="warning",
        subject=_hosts_with_rccl,
        why="RCCL does not find iommu=pt in the command line of the kernel. Without passthrough, P2P between GPUs may "
        "fail or hang. This is only a hint: where passthrough is the default of the kernel, the message is wrong.",
        do='Check dmesg | grep "Default domain type": if it is not Passthrough, add iommu=pt to the kernel command '
        "line and reboot.",
        source=(_RCCL, "https://github.com/ROCm/rccl/issues/1454"),
    ),
    LineRule(
        code="numa-balancing",
        title="NUMA balancing is on",
        looks_for="RCCL reports that automatic NUMA balancing is on.",
        find=having("NUMA auto balancing enabled"),
        level="warning",
        subject="{hosts}",
        why="Automatic NUMA balancing moves pages while GPUs use them, so times vary. It is not the cause of an error.",
        do="Turn it off: sudo sysctl kernel.numa_balancing=0.",
        source=_RCCL,
    ),
    LineRule(
        code="fine-grain-pcie",
        title="Fine-grained memory over PCIe is off",
        looks_for="RCCL misses ``HSA_FORCE_FINE_GRAIN_PCIE=1``.",
        find=having('Missing "HSA_FORCE_FINE_GRAIN_PCIE=1"'),
        level="info",
        subject="{hosts}",
        why="RCCL does not find HSA_FORCE_FINE_GRAIN_PCIE=1, which P2P over PCIe needs on AMD GPUs without XGMI "
        "between them. It is a hint, not an error.",
        do="If the GPUs are connected by PCIe only, set HSA_FORCE_FINE_GRAIN_PCIE=1.",
        source=_RCCL,
    ),
)
