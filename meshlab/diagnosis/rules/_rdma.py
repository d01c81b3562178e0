"""Rules for InfiniBand and RoCE: completions with an error, queue pairs, asynchronous events, memory registration."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._nccl_lines import affected, hosts_of, message_of, read_ports, read_variables, text_list
from meshlab.diagnosis.rules._line_rules import Find, LineRule, Lines, having, matching, rules_of

_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLESHOOTING = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_VERBS = "https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html"
_MODIFY = "https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html"
_NET_IB = "NCCL src/transport/net_ib.cc (2.4 to 2.30)"

# -- completions -------------------------------------------------------------------------------------------------------


class _Completion(NamedTuple):
    """A work request that ended with an error; status as in ``enum ibv_wc_status``."""

    status: int
    peer: str | None
    device: str | None
    local_gid: str | None
    remote_gid: str | None
    line: PasteLine


_COMPLETION = re.compile(
    r"Got completion (?:from peer (?P<peer>\S+) )?with (?:error |status=)(?:[A-Za-z_ -]+\()?(?P<status>\d+)\)?"
)
_DETAILS = {
    "device": re.compile(r"\bhca (\S+)"),
    "local_gid": re.compile(r"localGid (\S+)"),
    "remote_gid": re.compile(r"remoteGids? ?(\S+)"),
}


def _completions(paste: Paste) -> tuple[_Completion, ...]:
    completions = []
    for line, match in paste.matches(_COMPLETION, "Got completion "):
        details = {name: pattern.search(line.text) for name, pattern in _DETAILS.items()}
        device, local, remote = (item[1] if item else None for item in details.values())
        peer = match["peer"].partition("<")[0] if match["peer"] else None
        completions.append(_Completion(whole(match["status"]), peer, device, local, remote, line))
    return tuple(completions)


def _with_status(paste: Paste, *status: int) -> list[_Completion]:
    return [item for item in paste.once(_completions) if item.status in status]


def _completions_with(status: int) -> Find:
    return lambda paste: Lines([item.line.number for item in _with_status(paste, status)])


def _completion_ends(paste: Paste, numbers: Sequence[int]) -> str:
    return _where(paste, [item for item in paste.once(_completions) if item.line.number in numbers])


def _where(paste: Paste, completions: list[_Completion]) -> str:
    """Name the ranks, the NICs and the peers of completions."""
    lines = [item.line for item in completions]
    hosts = hosts_of(paste, [line.number for line in lines])
    devices = _devices(paste, completions, hosts)
    layer = _layer(paste, hosts)
    peers = list(dict.fromkeys(item.peer for item in completions if item.peer))
    text = affected(paste, lines)
    text += f" over {text_list(devices[:6])}" if devices else ""
    text += f" ({layer})" if layer else ""
    text += f", peer {text_list(peers[:4])}" if peers else ""
    return text.lstrip(", ")


def _devices(paste: Paste, items: Sequence[_Completion | _QueuePair], hosts: tuple[str, ...]) -> list[str]:
    """Return the NICs that some lines name, else the only ones of their hosts."""
    ports = (item for item in paste.once(read_ports) if item.host in hosts and len(item.devices) == 1)
    named = dict.fromkeys(item.device for item in items if item.device)
    return list(named or dict.fromkeys(item.devices[0] for item in ports))


def _layer(paste: Paste, hosts: tuple[str, ...]) -> str | None:
    layers = {layer for item in paste.once(read_ports) if item.host in hosts for layer in item.layers}
    return next(iter(layers)) if len(layers) == 1 else None


def _is_running(paste: Paste) -> bool:
    """Return True if the text shows that communication worked before."""
    return bool(paste.numbers("Init COMPLETE", "Connected all trees", "# Out of bounds", "iter ", "epoch"))


_WORK_QUEUE = re.compile(r"(local access violation|invalid request local) work queue error")


@rule(
    "ib-remote-invalid-request",
    "A NIC refused a request of its peer",
    source=(_VERBS, "https://github.com/NVIDIA/nccl/issues/1710", _NET_IB),
    causes=("ib-retry-exceeded", "ib-flushed", "ib-async-error", "rank-died"),
)
def remote_invalid_request(paste: Paste) -> Iterator[TextFinding]:
    """A completion has status 9, 10 or 11, or the NIC reports an access violation of its work queue."""
    completions = _with_status(paste, 9, 10, 11)
    events = paste.matches(_WORK_QUEUE, "work queue error")
    if not completions and (not events or _with_status(paste, 4)):
        return
    names = {9: "remote invalid request", 10: "remote access error", 11: "remote operation error"}
    statuses = text_list([f"{status} ({names[status]})" for status in sorted({item.status for item in completions})])
    hosts = text_list(hosts_of(paste, [line.number for line, _ in events])[:6])
    parts = [_where(paste, completions)] if completions else []
    why = f"Status {statuses}: the NIC of the peer refused what this rank sent. " if completions else ""
    if events:
        parts.append(f"{affected(paste, [line for line, _ in events])}{_port_names(events)}")
        why += f"The NIC of {hosts or 'one side'} reports: {events[0][1][0]}. "
        why += "The memory or the receive request there does not match the data, so that side is the one to look at."
    else:
        why += "The cause is on the side of the peer; its log is not in the text, or does not show it."
    yield remote_invalid_request.finding(
        "error",
        "; ".join(parts),
        why,
        "Read the log of the peer from the same time. Check that all ranks use the same NCCL version, the same NCCL_* "
        "variables and the same network plugin. Then try NCCL_NET_GDR_LEVEL=LOC to exclude GPU Direct RDMA, and check "
        "the firmware of the NICs.",
        [*(item.line for item in completions), *(line for line, _ in events)],
    )


_PORT_NAME = re.compile(r"NET/IB ?: ([\w.-]+):(\d+) ")


def _port_names(events: list[tuple[PasteLine, re.Match[str]]]) -> str:
    ports = [_PORT_NAME.search(line.text) for line, _ in events]
    names = list(dict.fromkeys(f"{match[1]} port {match[2]}" for match in ports if match))
    return f" {text_list(names[:6])}" if names else ""


@rule(
    "ib-retry-exceeded",
    "Packets to a peer are not answered",
    source=(_VERBS, f"{_ENV}#nccl-ib-gid-index", _NET_IB),
    causes=("ib-flushed", "rank-died"),
)
def retry_exceeded(paste: Paste) -> Iterator[TextFinding]:
    """A completion has status 12 (``IBV_WC_RETRY_EXC_ERR``)."""
    if not (completions := _with_status(paste, 12)):
        return
    hosts = hosts_of(paste, [item.line.number for item in completions])
    layer = _layer(paste, hosts)
    roce = layer == "RoCE" or any("::ffff:" in (item.local_gid or "") for item in completions)
    why = (
        "Status 12 is a transport retry timeout: the NIC of the peer does not answer, although the setup over TCP "
        "worked. "
    )
    if _is_running(paste):
        why += (
            "Communication worked before, so a link went down, the network dropped packets for too long, or the "
            "process or host of the peer is gone."
        )
    else:
        why += "If it happens at the first communication, the two NICs cannot talk to each other"
        why += " (wrong GID, missing route, a filter in a switch)." if roce else " (routing, partition, GID on RoCE)."
        why += " If communication worked before, a link went down or the peer is gone."
    link_local = [item for item in completions if (item.local_gid or "").lower().startswith("fe80")]
    if link_local and roce:
        why += " The local GID is a link-local address, which is not routed."
    do = (
        "Compare show_gids on both hosts and set NCCL_IB_GID_INDEX to the RoCE v2 entry with the IPv4 address, "
        "then prove the path with ib_write_bw -d DEVICE -x INDEX between these two hosts."
        if roce
        else "Prove the path with ib_write_bw -d DEVICE between these two hosts, and check ibstat, ibqueryerrors and "
        "the log of the switch. On RoCE, compare show_gids and set NCCL_IB_GID_INDEX to the RoCE v2 entry with the "
        "IPv4 address."
    )
    if _is_running(paste):
        do = (
            "Look for the first error in the log of the peer, and at its port counters (ibqueryerrors, ethtool -S). "
            + do
        )
    yield retry_exceeded.finding("error", _where(paste, completions), why, do, [item.line for item in completions])


@rule("ib-flushed", "Requests were flushed after another error", source=(_VERBS, _NET_IB))
def flushed(paste: Paste) -> Iterator[TextFinding]:
    """A completion has status 5 (``IBV_WC_WR_FLUSH_ERR``)."""
    if flushes := _with_status(paste, 5):
        alone = not [item for item in paste.once(_completions) if item.status != 5]
        yield flushed.finding(
            "warning" if alone else "normal",
            _where(paste, flushes),
            "Status 5 only says that a queue pair was already in an error state when this request was removed from it. "
            + ("The error that came first is not in the text." if alone else "The other completions name the cause."),
            "Find the first completion with another status, on this rank or on the peer." if alone else "",
            [item.line for item in flushes],
        )


# -- queue pairs -------------------------------------------------------------------------------------------------------


class _QueuePair(NamedTuple):
    """A queue pair that could not be changed to another state."""

    reason: str
    device: str | None
    local_gid: str | None
    remote_gid: str | None
    line: PasteLine


_ERRNO = {110: "timed out", 101: "unreachable", 22: "Invalid", 19: "No such device", 113: "No route", 12: "allocate"}
_MODIFY_QP = re.compile(r"Call to (?:\w+)?modify_qp failed(?: with)?(?: error)?:? ?(?P<errno>\d+)?(?P<text>[A-Za-z ]*)")
_ON_DEVICE = re.compile(r"on dev (\S+?):\d+")
_GIDS = re.compile(r"local GID (?!index)([0-9a-fA-F:.]+)(?:, remote GID ([0-9a-fA-F:.]+))?")


def _queue_pairs(paste: Paste) -> tuple[_QueuePair, ...]:
    pairs = []
    for line, match in paste.matches(_MODIFY_QP, "modify_qp failed"):
        if message_of(line).level == "INFO" and "retrying" in line.text:
            continue
        errno = match["errno"] or (re.search(r"errno (\d+)", line.text) or ["", None])[1]
        text = match["text"].strip() or _ERRNO.get(whole(errno or "0"), "")
        device, gids = _ON_DEVICE.search(line.text), _GIDS.search(line.text)
        pairs.append(
            _QueuePair(text, device[1] if device else None, gids[1] if gids else None, gids[2] if gids else None, line)
        )
    return tuple(pairs)


def _failed_for(paste: Paste, *words: str) -> list[_QueuePair]:
    return [item for item in paste.once(_queue_pairs) if any(word in item.reason for word in words)]


def _modify_failed(*words: str) -> Find:
    return lambda paste: Lines([item.line.number for item in _failed_for(paste, *words)])


def _pair_ends(paste: Paste, numbers: Sequence[int]) -> str:
    return _pair_where(paste, [item for item in paste.once(_queue_pairs) if item.line.number in numbers])


def _roce_ends(paste: Paste, numbers: Sequence[int]) -> str:
    return f"{_pair_ends(paste, numbers)}, RoCE"


def _ipv4(gid: str | None) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address of a RoCE GID."""
    try:
        return ipaddress.IPv6Address(gid or "").ipv4_mapped
    except ValueError:
        return None


def _pair_where(paste: Paste, pairs: list[_QueuePair]) -> str:
    devices = _devices(paste, pairs, hosts_of(paste, [item.line.number for item in pairs]))
    first = pairs[0]
    local, remote = (_ipv4(gid) or gid for gid in (first.local_gid, first.remote_gid))
    text = affected(paste, [item.line for item in pairs])
    text += f", {text_list(devices[:6])}" if devices else ""
    text += f" ({local})" if local else ""
    return f"{text} to {remote}" if remote else text


@rule(
    "rails-not-connected",
    "NICs of different rails cannot reach each other",
    source=(_MODIFY, f"{_ENV}#nccl-cross-nic", "NCCL src/misc/ibvwrap.cc"),
    causes=("rank-died", "net-unreachable"),
)
def rails_not_connected(paste: Paste) -> Iterator[TextFinding]:
    """``ibv_modify_qp`` timed out: no answer to the address resolution of the peer."""
    if not (timeouts := _failed_for(paste, "timed out")):
        return
    pairs = [(_ipv4(item.local_gid), _ipv4(item.remote_gid)) for item in timeouts]
    apart = any(a and b and int(a) >> 8 != int(b) >> 8 for a, b in pairs)
    link_local = any((item.local_gid or "").lower().startswith("fe80") for item in timeouts)
    why = "A RoCE connection timed out while the address of the peer's NIC was resolved"
    if apart:
        why += ", and the two NICs are in different subnets: the network connects only NICs of the same rail."
    elif link_local:
        why += ". The local GID is a link-local address, which is not routed: the GID index is wrong."
    else:
        why += ": the NICs are on rails that are not connected, in networks without a route, or use a wrong GID."
    do = (
        "Set NCCL_IB_GID_INDEX to the RoCE v2 entry with an IPv4 address (show_gids)."
        if link_local and not apart
        else "Set NCCL_CROSS_NIC=0, so that NICs connect only within their rail, or route between the rails. "
        "Check with ping -I INTERFACE ADDRESS and show_gids that each pair of NICs can talk."
    )
    yield rails_not_connected.finding("error", _pair_where(paste, timeouts), why, do, [item.line for item in timeouts])


@rule("gid-index-invalid", "A RoCE address index does not exist", source=(_MODIFY, f"{_ENV}#nccl-ib-gid-index"))
def gid_index_invalid(paste: Paste) -> Iterator[TextFinding]:
    """``ibv_modify_qp`` failed because of an invalid argument."""
    if pairs := _failed_for(paste, "Invalid"):
        forced = [item for item in paste.once(read_variables) if item.name == "NCCL_IB_GID_INDEX"]
        why = (
            "The NIC rejected the parameters of the connection. The usual reason is a GID index that does not exist on "
            "this port"
        )
        why += f" ({forced[0].name} is {forced[0].value})." if forced else ", or that has another type than the peer's."
        yield gid_index_invalid.finding(
            "error",
            _pair_where(paste, pairs),
            f"{why} Unequal MTUs and different link layers are other reasons.",
            "Remove NCCL_IB_GID_INDEX: NCCL 2.21 and newer find the index themselves (-1). Otherwise set the index of "
            "the RoCE v2 entry that show_gids lists on every host.",
            [*(item.line for item in pairs), *(item.line for item in forced)],
        )


_MIXED_LAYERS = re.compile(r"Attempted to (?:connect|merge) incompatible devices|device is incompatible with the local")


# -- events ------------------------------------------------------------------------------------------------------------

_EVENT = re.compile(
    r"NET/IB ?: (?:(?P<port>[\w.-]+:\d+) )?(?:Got (?:non-fatal )?async event|async fatal event[^:]*) ?: (?P<event>.+)"
)


def _events(paste: Paste, *words: str) -> list[tuple[PasteLine, str | None, str]]:
    matches = paste.matches(_EVENT, "async event", "async fatal event")
    events = [(line, match["port"], match["event"]) for line, match in matches]
    return [(line, port, event) for line, port, event in events if any(word in event for word in words)]


@rule(
    "ib-port-flap",
    "The link of a NIC went down",
    source=(_NET_IB, "https://github.com/NVIDIA/nccl/issues/905"),
    causes=("ib-retry-exceeded", "ib-flushed", "rank-died"),
)
def port_error(paste: Paste) -> Iterator[TextFinding]:
    """The NIC reports the event ``port error``."""
    if not (port_errors := _events(paste, "port error")):
        return
    ports = list(dict.fromkeys(port.replace(":", " port ") for _, port, _ in port_errors if port))
    again = _events(paste, "port active")
    hosts = text_list(hosts_of(paste, [line.number for line, _, _ in port_errors])[:8])
    why = (
        f"The NIC reports a port error {len(port_errors)} time{'s' if len(port_errors) > 1 else ''}: its link went down"
    )
    why += ", and came back." if again else "."
    why += " A link that comes and goes points to the cable, the transceiver or the switch port."
    yield port_error.finding(
        "error",
        ", ".join(part for part in (hosts, text_list(ports[:6])) if part),
        why,
        "Check the link on these hosts: ibstat, mlxlink -d DEVICE, ibqueryerrors, dmesg | grep -i link. "
        "Until it is repaired, leave the NIC or the host out (NCCL_IB_HCA).",
        [line for line, _, _ in [*port_errors, *again]],
    )


def _fatal_events(paste: Paste) -> Lines:
    events = _events(paste, "catastrophic", "device fatal", "CQ error", "path migration")
    return Lines([line.number for line, _, _ in events], {"event": events[0][2].strip()} if events else {})


# -- memory ------------------------------------------------------------------------------------------------------------

_REGISTER = re.compile(
    r"Call to (?P<call>ibv_(?:reg_\w+|create_(?:cq|qp|srq)\w*|alloc_pd))(?!\w)"
    r"(?: failed)?(?: with error)?:? ?(?P<text>[A-Za-z ]+)"
)
_LIMIT = re.compile(r"^\s*(?:max locked memory(?:.*?\D)??(?P<named>\d+|unlimited)\s*|(?P<alone>\d+|unlimited)\s*)$")


@rule(
    "memlock-too-small",
    "A process may not lock enough memory",
    source=(f"{_TROUBLESHOOTING}#infiniband", "https://man7.org/linux/man-pages/man2/mlock.2.html"),
    causes=("rank-died", "net-unreachable"),
)
def memlock_too_small(paste: Paste) -> Iterator[TextFinding]:
    """A call that locks memory for the NIC failed because memory cannot be allocated."""
    tried = paste.matches(_REGISTER, "Call to ibv_")
    calls = [line for line, match in tried if "Cannot allocate memory" in match["text"]]
    hints = paste.find("RLIMIT_MEMLOCK")
    if not calls and not hints:
        return
    limits = _memlock_limits(paste)
    if limits and all(value == "unlimited" for _, value in limits) and not hints:
        yield memlock_too_small.finding(
            "info",
            affected(paste, calls),
            "Memory could not be registered with the NIC, although the limit that the text shows is unlimited. "
            "The limit of the ranks may still be another one, or the NIC has no more resources.",
            "Print ulimit -l in the ranks themselves, and look at dmesg for messages of the NIC's driver.",
            [*calls, *(line for line, _ in limits)],
        )
        return
    small = next((value for _, value in limits if value != "unlimited"), None)
    limit = f" (limit {small} kB)" if small else ""
    yield memlock_too_small.finding(
        "error",
        f"{affected(paste, [*calls, *hints])}{limit}".strip(),
        "Registering memory with the NIC failed: a process may lock "
        + (f"only {small} kB." if small else "too little memory, as far as the error shows."),
        "Set memlock to unlimited in /etc/security/limits.conf and for the daemon that starts the ranks (slurmd, "
        "sshd: LimitMEMLOCK=infinity), in Docker --ulimit memlock=-1 --cap-add=IPC_LOCK. Log in again, and check "
        "ulimit -l inside mpirun or srun.",
        [*calls, *hints, *(line for line, _ in limits)],
    )


def _memlock_limits(paste: Paste) -> list[tuple[PasteLine, str]]:
    """Return the limits that ``ulimit -l`` or ``ulimit -a`` printed."""
    matches = paste.matches(_LIMIT, "max locked memory")
    limits = [(line, match["named"]) for line, match in matches if match["named"]]
    for number in paste.numbers("ulimit -l"):
        for below in range(number + 1, min(number + 4, len(paste)) + 1):
            line = paste.line(below)
            match = _LIMIT.match(line.text)
            if match and match["alone"]:
                limits.append((line, match["alone"]))
    return limits


_REJECTED = re.compile("Bad address|Invalid argument|Operation not permitted|not supported")


def _failed_registrations(paste: Paste) -> Lines:
    calls = paste.matches(_REGISTER, "Call to ibv_reg_")
    failures = [(line.number, match) for line, match in calls if _REJECTED.search(match["text"])]
    values = {name: failures[0][1][name].strip() for name in ("call", "text")} if failures else {}
    return Lines([number for number, _ in failures], values)


RDMA_RULES = rules_of(
    __name__,
    LineRule(
        code="gdr-protection-error",
        title="A NIC may not access the memory that it was given",
        looks_for="A completion has status 4 (``IBV_WC_LOC_PROT_ERR``).",
        find=_completions_with(4),
        subject=_completion_ends,
        why="Status 4 is a local protection error: the NIC may not read or write the memory of this operation. With "
        "GPU Direct RDMA, and especially in virtual machines, this comes from an IOMMU or ACS in the path between NIC "
        "and GPU, or from ATS that is turned off.",
        do="Prove it with NCCL_NET_GDR_LEVEL=LOC (no GPU Direct RDMA). If that runs: turn off ACS on the bridges, or "
        "set up ATS for the devices that are passed through, and check nvidia-peermem and the topology file of the VM.",
        source=(_VERBS, f"{_TROUBLESHOOTING}#gpu-direct", _NET_IB),
        causes=("ib-retry-exceeded", "ib-flushed", "ib-async-error", "rank-died"),
    ),
    remote_invalid_request,
    port_error,
    LineRule(
        code="ib-async-error",
        title="A NIC reports an error",
        looks_for="The NIC reports a fatal event other than a port error or an access violation.",
        find=_fatal_events,
        why="The NIC reports: {event}. After that it does not work for this process any more.",
        do="Check dmesg of this host (mlx5_core, PCIe errors), the firmware of the NIC and its slot. Drain the host "
        "if it happens again.",
        source=(_NET_IB, "https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html"),
    ),
    retry_exceeded,
    LineRule(
        code="ib-receiver-not-ready",
        title="A peer does not post receives",
        looks_for="A completion has status 13 (``IBV_WC_RNR_RETRY_EXC_ERR``).",
        find=_completions_with(13),
        subject=_completion_ends,
        why="Status 13: the peer had no receive request ready for too long. Its process hangs or is very slow, or the "
        "ranks do not agree on what they send.",
        do="Look at the peer: is the process alive, what is its stack (py-spy dump, gdb), does its host swap?",
        source=(_VERBS, _NET_IB),
    ),
    flushed,
    rails_not_connected,
    LineRule(
        code="roce-no-route",
        title="A NIC has no route to the NIC of its peer",
        looks_for="``ibv_modify_qp`` failed because the network or the host is unreachable.",
        find=_modify_failed("unreachable", "No route"),
        subject=_roce_ends,
        why="The queue pair could not be connected: the address of the peer's NIC is in a network to which this NIC "
        "has no route. Closed connections and failed receives that follow are its consequences.",
        do="Give all RoCE NICs addresses that reach each other (ip route, show_gids), or leave the wrong ones out "
        "with NCCL_IB_HCA: NICs for storage and management are the usual ones.",
        source=(_MODIFY, f"{_ENV}#nccl-ib-hca"),
        causes=("rank-died", "net-unreachable"),
    ),
    LineRule(
        code="ib-device-not-in-container",
        title="An RDMA device is visible, but its network interface is not",
        looks_for="``ibv_modify_qp`` failed because the device does not exist.",
        find=_modify_failed("No such device"),
        subject=_pair_ends,
        why="The RDMA device is visible, but its network interface is not in this network namespace, so its address "
        "cannot be used. This is typical of SR-IOV functions and containers.",
        do="Name in NCCL_IB_HCA only the devices that show_gids lists inside the container, or run the container with "
        "the network of the host.",
        source=(_MODIFY, "https://github.com/NVIDIA/nccl/issues/925"),
        causes=("rank-died", "net-unreachable", "single-nic"),
    ),
    gid_index_invalid,
    LineRule(
        code="link-layers-mixed",
        title="InfiniBand and Ethernet NICs are mixed",
        looks_for="NCCL tried to connect a NIC of one link layer with a NIC of another.",
        find=matching(_MIXED_LAYERS, "incompatible"),
        why="NCCL tried to connect an InfiniBand port with an Ethernet (RoCE) port.",
        do="Select NICs of one link layer on all hosts with NCCL_IB_HCA (ibv_devinfo names the link layer of each "
        "port).",
        source=(f"{_ENV}#nccl-ib-hca", _NET_IB),
    ),
    memlock_too_small,
    LineRule(
        code="gdr-registration-failed",
        title="Memory of a GPU cannot be registered with the NIC",
        looks_for="``ibv_reg_mr`` failed with another error than missing memory.",
        find=_failed_registrations,
        why="{call} failed ({text}): the NIC could not register a buffer, usually one in the memory of a GPU. The "
        "kernel module that makes this possible does not fit the driver, or DMA-BUF is not supported for this NIC.",
        do="Prove it with NCCL_NET_GDR_LEVEL=LOC. Then reinstall nvidia-peermem after the RDMA drivers, "
        "or use the open GPU driver with DMA-BUF; NCCL_DMABUF_ENABLE=0 chooses nvidia-peermem.",
        source=(f"{_TROUBLESHOOTING}#gpu-to-nic-communication", _NET_IB),
        causes=("rank-died",),
    ),
    LineRule(
        code="gid-table-changed",
        title="The addresses of a NIC changed during the job",
        looks_for="The NIC reports that its GID table changed.",
        find=having("GID table change"),
        level="warning",
        why="The addresses (GIDs) of a RoCE NIC changed while the job was running. Connections that use an old "
        "address fail or slow down.",
        do="Find what changes the addresses of the interface (DHCP, NetworkManager, a restart of a container network).",
        source="https://github.com/NVIDIA/nccl/issues/1819",
    ),
)
