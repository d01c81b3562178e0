"""Rules for UCX: requests that a NIC could not complete, and processes without a way to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._nccl_lines import NOT_NAMED, text_list
from meshlab.diagnosis.formats._ucx_lines import UcxMessage, read_ucx_messages
from meshlab.diagnosis.rules._line_rules import Find, LineRule, Lines, rules_of

_LOG = "openucx/ucx src/uct/ib/mlx5/ib_mlx5_log.c"
_SELECT = "openucx/ucx src/ucp/wireup/select.c"
_DEVICE = re.compile(r" on (?P<device>[\w.-]+:\d+)/(?P<layer>IB|RoCE)\b")
_ENDED = ("rank-died", "worker-exited")

_RETRY = re.compile(r"Transport retry count exceeded on|UD endpoint .* unhandled timeout error")
_NOT_READY = re.compile(r"Receiver[- ]not[- ]ready retry count exceeded|RNR retry count exceeded", re.I)
_REFUSED = re.compile(r"Remote (?:access|invalid request|operation)\b.* on \S+:\d+/")
_PROTECTION = re.compile(r"Local (?:protection|access)\b.* on \S+:\d+/")
_NO_TRANSPORT = re.compile(
    r"[Nn]o (?:[\w-]+ )*transports? to (?P<peer>.*?): |[Nn]o usable transports/devices|failed to select lane for"
    r"|cannot find remote protocol for|Destination is unreachable"
)
_NOT_AVAILABLE = re.compile(r"(?:network device|transport)s? .*(?:is|are) not available, please use one or more of")
_MEMLOCK = re.compile(r"(?:ibv_|mlx5dv_)\w+\(.*failed: Cannot allocate memory|max locked memory")
_REGISTER = re.compile(r"ibv_reg_(?:dmabuf_)?mr\(.*failed: (?!Cannot allocate)")
_ADDRESS = re.compile(
    r"ibv_create_ah\(.{0,200}?dgid=(?P<gid>[\da-fA-F:.]{1,60}).{0,200}\) on (?P<device>\S+) failed: (?P<why>.+)"
)
_SHM = re.compile(r"Not enough memory to write total of \d+ bytes|/dev/shm.*No space left")
_TCP = re.compile(r"connect\(.*dest_addr=(?P<address>[\d.:a-fA-F\[\]]+)\) failed: (?P<why>.+)")
_CLOSED = re.compile(
    r"Connection reset by (?:remote )?peer|Broken pipe|Endpoint timeout|remote peer .*(?:closed|failed)", re.I
)
_KNOWN = (
    *(_RETRY, _NOT_READY, _REFUSED, _PROTECTION, _NO_TRANSPORT, _NOT_AVAILABLE, _MEMLOCK, _REGISTER, _ADDRESS, _SHM),
    *(_TCP, _CLOSED),
)


def _messages_with(pattern: re.Pattern[str], *, warnings: bool = False) -> Find:
    """Find the messages whose text matches a pattern: errors, or also warnings. Its named groups are values."""

    def find(paste: Paste) -> Lines:
        matches = [
            (item, match)
            for item in paste.once(read_ucx_messages)
            if (match := pattern.search(item.text)) and (warnings or item.level in ("ERROR", "FATAL"))
        ]
        values = matches[0][1].groupdict(default="") if matches else {}
        return Lines([item.line for item, _ in matches], values)

    return find


def _where(paste: Paste, numbers: Sequence[int]) -> str:
    """Name the hosts that print the messages, and their NICs."""
    items = [item for item in paste.once(read_ucx_messages) if item.line in set(numbers)]
    hosts = list(dict.fromkeys(item.host for item in items if item.host))
    devices = dict.fromkeys(
        f"{match['device']} ({match['layer']})" for item in items if (match := _DEVICE.search(item.text))
    )
    over = f" over {text_list(list(devices)[:6])}" if devices else ""
    return f"{text_list(hosts[:8]) or NOT_NAMED}{over}"


@rule("ucx-error", "UCX reports an error that no rule knows", source="openucx/ucx src")
def ucx_error(paste: Paste) -> Iterator[TextFinding]:
    """Look for errors of UCX without a rule of their own, if there is no other."""
    errors = [item for item in paste.once(read_ucx_messages) if item.level in ("ERROR", "FATAL")]
    if not errors or any(_is_known(item) for item in errors):
        return
    text = errors[0].text
    yield ucx_error.finding(
        "warning",
        _where(paste, [item.line for item in errors]),
        f'UCX reports: "{text if len(text) <= 160 else f"{text[:159]}…"}". meshlab has no rule for this text.',
        "Run again with UCX_LOG_LEVEL=info, compare the versions of UCX (ucx_info -v) and the UCX_* variables of all "
        "hosts, and search for this text in https://github.com/openucx/ucx/issues.",
        [item.line for item in errors],
    )


def _is_known(item: UcxMessage) -> bool:
    return any(pattern.search(item.text) for pattern in _KNOWN)


UCX_RULES = rules_of(
    __name__,
    LineRule(
        code="ib-retry-exceeded",
        title="Packets to a peer are not answered",
        looks_for="Look for packets of UCX that the peer's NIC did not acknowledge.",
        find=_messages_with(_RETRY),
        subject=_where,
        why="The NIC sent packets several times, and the NIC of the peer did not acknowledge them. Either the process "
        "at the other end ended before, or its port, the route or the fabric between them does not work; the lines do "
        "not show which.",
        do="Look first at the log of the other processes for one that ended earlier. Then check the ports (ibstat), "
        "their error counters (perfquery), and the path with ib_write_bw between the two hosts; on RoCE also the GID "
        "(UCX_IB_GID_INDEX), the MTU and flow control. UCX_RC_TIMEOUT and UCX_RC_RETRY_COUNT only hide it.",
        source=_LOG,
        causes=_ENDED,
    ),
    LineRule(
        code="ib-receiver-not-ready",
        title="A peer does not post receives",
        looks_for="Look for a peer that is alive for its NIC, but does not take part.",
        find=_messages_with(_NOT_READY),
        subject=_where,
        why="The NIC of the peer answers, but its process posts no receives: it is stuck, very slow, or stopped.",
        do="Get the stack of the process at the other end (gdb -p, py-spy dump --native).",
        source=_LOG,
        causes=_ENDED,
    ),
    LineRule(
        code="ib-remote-invalid-request",
        title="A NIC refused a request of its peer",
        looks_for="Look for requests that the NIC of the peer refused.",
        find=_messages_with(_REFUSED),
        subject=_where,
        why="The NIC of the peer refused the request: the memory that it names was freed, was never registered there, "
        "or may not be used in this way.",
        do="Look at the log of the peer for an earlier error. If both hosts run the same versions of UCX and MPI, try "
        "UCX_TLS without GPU memory (^cuda_ipc, ^gdr_copy) to see whether GPU memory is the reason.",
        source=_LOG,
        causes=_ENDED,
    ),
    LineRule(
        code="gdr-protection-error",
        title="A NIC may not access the memory that it was given",
        looks_for="Look for a NIC that could not read or write its own host's memory.",
        find=_messages_with(_PROTECTION),
        subject=_where,
        why="The NIC could not access a buffer of its own host, although it was registered: it was freed meanwhile, or "
        "it is memory of a GPU that the NIC cannot reach.",
        do="Try UCX_IB_GPU_DIRECT_RDMA=n to see whether GPU memory is the reason; if it is, check nvidia_peermem, ACS "
        "and the IOMMU. Check that the program does not free a buffer before its request is done.",
        source=_LOG,
        causes=_ENDED,
    ),
    LineRule(
        code="no-transport",
        title="UCX has no transport between two processes",
        looks_for="Look for processes that UCX cannot connect with the transports that it may use.",
        find=_messages_with(_NO_TRANSPORT),
        subject=_where,
        why="None of the transports that UCX may use here connects the two sides, or moves this kind of memory. The "
        "rest of the line gives the reason for each transport.",
        do="Compare UCX_TLS and UCX_NET_DEVICES on all hosts (unset both to see whether they exclude what is needed), "
        "and the lists of ucx_info -d. Memory of GPUs needs cuda_copy, and cuda_ipc within a host; containers of one "
        "host need the same IPC namespace and /dev/shm. Use one version of UCX everywhere.",
        source=_SELECT,
        causes=(*_ENDED, "launcher-failed"),
    ),
    LineRule(
        code="no-transport",
        title="A device or transport that UCX should use is not there",
        looks_for="Look for names in ``UCX_TLS`` or ``UCX_NET_DEVICES`` that do not exist on the host.",
        find=_messages_with(_NOT_AVAILABLE, warnings=True),
        level="warning",
        subject=_where,
        why="UCX_TLS or UCX_NET_DEVICES names something that does not exist on this host, and UCX goes on without it.",
        do="Use the names of ucx_info -d of this host, with the port (mlx5_0:1). A missing cuda_copy means a UCX that "
        "was built without CUDA.",
        source="openucx/ucx src/ucp/core/ucp_context.c",
    ),
    LineRule(
        code="memlock-too-small",
        title="A process may not lock enough memory",
        looks_for="Look for RDMA calls that got no memory.",
        find=_messages_with(_MEMLOCK, warnings=True),
        subject=_where,
        why="A call of RDMA got no memory: the limit of locked memory is too small, or the NIC or the host has none "
        "left.",
        do="Check ulimit -l where the processes start, and set it to unlimited (limits.conf, LimitMEMLOCK= of slurmd, "
        "--ulimit memlock=-1 of Docker).",
        source="openucx/ucx src/uct/ib/base/ib_md.c",
        causes=_ENDED,
    ),
    LineRule(
        code="gdr-registration-failed",
        title="Memory cannot be registered with the NIC",
        looks_for="Look for memory that the NIC does not take.",
        find=_messages_with(_REGISTER),
        subject=_where,
        why="The NIC did not take a buffer. For memory of a GPU this means that neither nvidia_peermem nor dma-buf "
        "works on this host; the line does not show what kind of memory it is.",
        do="Load nvidia_peermem (modprobe nvidia-peermem), or use a driver, a kernel and a UCX with dma-buf. To check, "
        "run with UCX_IB_GPU_DIRECT_RDMA=n.",
        source="openucx/ucx src/uct/ib/base/ib_md.c",
        causes=_ENDED,
    ),
    LineRule(
        code="roce-no-route",
        title="A NIC has no route to the NIC of its peer",
        looks_for="Look for addresses of RoCE that the NIC cannot reach.",
        find=_messages_with(_ADDRESS),
        subject=_where,
        why="{device} could not make an address for {gid} ({why}): that address is in a network which this NIC has no "
        "route to, or the GID in use does not belong to it.",
        do="Check that the interface of this NIC has an address in the same network (ip -br addr, ip route get "
        "ADDRESS), choose NICs that reach each other (UCX_NET_DEVICES), and the GID (UCX_IB_GID_INDEX, show_gids).",
        source="openucx/ucx src/uct/ib/base/ib_device.c",
        causes=_ENDED,
    ),
    LineRule(
        code="shm-too-small",
        title="/dev/shm is full or too small",
        looks_for="Look for shared memory that UCX could not fill.",
        find=_messages_with(_SHM),
        subject=_where,
        why="UCX could not fill a segment of shared memory: /dev/shm is full or too small.",
        do="Enlarge it: docker run --shm-size=16g or --ipc=host, an emptyDir with medium: Memory in Kubernetes. Remove "
        "what ended jobs left there.",
        source="openucx/ucx src/uct/sm/mm/posix/mm_posix.c",
        causes=_ENDED,
    ),
    LineRule(
        code="net-unreachable",
        title="A TCP connection between two processes could not be made",
        looks_for="Look for TCP connections of UCX that failed.",
        find=_messages_with(_TCP),
        subject=_where,
        why="UCX could not connect to {address}: {why}.",
        do="Choose the interface that connects the hosts (UCX_NET_DEVICES=eth0), and check the firewall between them.",
        source="openucx/ucx src/uct/tcp/tcp_ep.c",
        causes=_ENDED,
    ),
    LineRule(
        code="rank-died",
        title="A process ended, and the others noticed",
        looks_for="Look for connections of UCX that the other side closed.",
        find=_messages_with(_CLOSED),
        level="warning",
        subject=_where,
        why="UCX lost the connection to a peer: its process ended, or the network between them broke. The line does "
        "not show which.",
        do="Read the log of the other processes: the one that ended first has the cause.",
        source="openucx/ucx src/uct/tcp/tcp_ep.c, src/ucp/core/ucp_ep.c",
    ),
    ucx_error,
)
