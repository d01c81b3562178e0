"""Rules for the connections by which NCCL's processes find each other: interfaces, addresses, sockets."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterator

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Level, TextFinding, rule
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._nccl_lines import (
    affected,
    hosts_of,
    is_one_host,
    message_of,
    read_bootstrap,
    read_variables,
    text_list,
)
from meshlab.diagnosis.rules._line_rules import LineRule, having, matching, rules_of

_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLESHOOTING = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

_VIRTUAL = re.compile(
    r"(docker|veth|virbr|br-|cni|flannel|cali|tunl|kube-|podman|lxc|vnet|tun|tailscale|CloudflareWARP)"
)


@rule(
    "wrong-interface-loopback",
    "NCCL waits for the other hosts on the loopback interface",
    source=(f"{_ENV}#nccl-socket-ifname", "NCCL src/bootstrap.cc, src/misc/socket.cc (2.2 to 2.30)"),
    causes=("net-unreachable", "rank-died"),
)
def loopback_interface(paste: Paste) -> Iterator[TextFinding]:
    """The interface of the bootstrap is ``lo``, or an address of 127.0.0.0/8, in a job with several hosts."""
    loopbacks = [
        item
        for item in paste.once(read_bootstrap)
        if item.interface == "lo" or item.address.startswith(("127.", "::1"))
    ]
    if not loopbacks or is_one_host(paste) is True:
        return
    names = [item for item in paste.once(read_variables) if item.name == "NCCL_SOCKET_IFNAME"]
    lets_in = next(
        (item for item in names if item.value.startswith("^") and "lo" not in item.value[1:].split(",")), None
    )
    chosen = next((item for item in names if item.value.lstrip("=").startswith("lo")), None)
    several = is_one_host(paste) is False
    severity: Level = "error" if several else "warning" if lets_in or chosen else "info"
    hosts = text_list(hosts_of(paste, (item.line for item in loopbacks)))
    why = f"NCCL chose the loopback interface ({loopbacks[0].interface}, {loopbacks[0].address}) to talk to the other "
    why += "processes. "
    if several:
        why += "A loopback address leads every host to itself, so ranks of other hosts cannot connect."
    else:
        why += "That works within one host only, and the text does not show whether there are others."
    if lets_in:
        why += f" NCCL_SOCKET_IFNAME={lets_in.value} replaces the default ^lo,docker, so it no longer excludes lo."
    others = sorted({name for item in loopbacks for name in _other_interfaces(paste, item.host)})
    name = others[0] if others else "the interface that leads to the other hosts, such as eth0"
    do = (
        f"Set NCCL_SOCKET_IFNAME={name} on every rank" if others else f"Set NCCL_SOCKET_IFNAME to {name}, on every rank"
    )
    do += ", or exclude lo as well: NCCL_SOCKET_IFNAME=^lo,docker."
    lines = [item.line for item in loopbacks] + [item.line for item in (lets_in, chosen) if item]
    yield loopback_interface.finding(
        severity,
        f"{hosts}, interface {loopbacks[0].interface}".lstrip(", "),
        why,
        do,
        lines,
        title="" if several else "NCCL chose the loopback interface",
    )


def _other_interfaces(paste: Paste, host: str | None) -> set[str]:
    """Return the interfaces that NCCL lists on a host, except the loopback and virtual ones."""
    matches = paste.matches(
        re.compile(r"(?:\]|interface )([^\s:\[\]]+):[\d.]+<\d+>"), "Using interface", "NET/Socket : Using"
    )
    names = {match[1] for line, match in matches if message_of(line).host == host}
    return {name for name in names if name != "lo" and not _VIRTUAL.match(name)}


@rule(
    "wrong-interface-virtual",
    "NCCL waits for the other hosts on an interface of a bridge or a tunnel",
    source=f"{_ENV}#nccl-socket-ifname",
    causes=("net-unreachable", "rank-died"),
)
def virtual_interface(paste: Paste) -> Iterator[TextFinding]:
    """The interface of the bootstrap belongs to docker, a virtual machine or a tunnel, in a job with several hosts."""
    chosen = paste.once(read_bootstrap)
    virtual = {name for name in {item.interface for item in chosen} if _VIRTUAL.match(name)}
    unreachable = [item for item in chosen if item.interface in virtual or item.address[:4].lower() == "fe80"]
    if unreachable and is_one_host(paste) is False:
        hosts = text_list(hosts_of(paste, (item.line for item in unreachable)))
        yield virtual_interface.finding(
            "warning",
            f"{hosts}, interface {unreachable[0].interface}".lstrip(", "),
            f"NCCL chose {unreachable[0].interface} ({unreachable[0].address}) to talk to the other processes. "
            "Interfaces of this kind are usually not reachable from other hosts.",
            "Set NCCL_SOCKET_IFNAME to the interface that leads to the other hosts, on every rank.",
            [item.line for item in unreachable],
        )


@rule(
    "interface-not-found",
    "NCCL found no network interface",
    source=(f"{_ENV}#nccl-socket-ifname", "NCCL src/bootstrap.cc, src/misc/socket.cc"),
    causes=("net-unreachable", "rank-died"),
)
def interface_not_found(paste: Paste) -> Iterator[TextFinding]:
    """NCCL found no interface, or none with the name in ``NCCL_SOCKET_IFNAME``."""
    lines = [
        *paste.find(
            "no socket interface found",
            "NET/Socket : no interface found",
            "No usable listening interface found",
            "NET/IB : No IP interface found",
            "No interface found in the same subnet",
        ),
        *(line for line in paste.find("no device found matching", "no device found after") if "OOB" in line.text),
        # 2.27 reads an address that was never written.
        *(line for line in paste.find("connecting to address ") if "is neither AF_INET" in line.text),
    ]
    if not lines:
        return
    names = [item for item in paste.once(read_variables) if item.name in ("NCCL_SOCKET_IFNAME", "NCCL_COMM_ID")]
    subnet = any("same subnet" in line.text for line in lines)
    why = (
        "No interface of this host is in the subnet of the address that it should connect to."
        if subnet
        else "NCCL found no network interface that it may use, so the process cannot join the others."
    )
    if names:
        why += f" {names[0].name} is {names[0].value}: probably no interface with this name exists on this host."
    else:
        why += " The text does not show NCCL_SOCKET_IFNAME."
    yield interface_not_found.finding(
        "error",
        affected(paste, lines),
        why,
        "Compare NCCL_SOCKET_IFNAME with the output of ip -brief address on each host. If the names differ between "
        "hosts, list them all (NCCL_SOCKET_IFNAME=eth0,eno1), give their common prefix, or set the variable in "
        "/etc/nccl.conf on each host.",
        [*lines, *(item.line for item in names)],
    )


_PEER = r"(?P<peer>\[?[\w.:%-]+\]?<\d+>)"
_CONNECT = re.compile(
    rf"(?:Call to connect(?: to {_PEER})? (?:failed|timeout) ?: "
    rf"|[Cc]onnect to {_PEER.replace('peer', 'peer2')} failed ?: "
    rf"|[Cc]onnect to {_PEER.replace('peer', 'peer3')} returned (?:\d+\()?"
    rf"|PollConnect to {_PEER.replace('peer', 'peer4')} failed with error )(?P<reason>[A-Z][a-zA-Z ]+)"
)
_RETRIES = re.compile(
    r"(?:socketStartConnect|socketPollConnect|ncclSocket\w*): exceeded (retries|timeouts|error retry)"
)

_REASONS = {
    "Connection refused": "the other host answered that nothing listens on this port: the address leads to another "
    "host or network namespace, a firewall rejects it, or the process there had already ended",
    "No route to host": "there is no route to this address, or a firewall rejects the connection",
    "Network is unreachable": "this host has no route to the network of this address",
    "Connection timed out": "nothing answered: a firewall drops the packets, or the address is not reachable from here",
    "Software caused connection abort": "the connection was cut while it was being made, as firewalls do",
    "Connection reset by peer": "the other side closed the connection while it was being made",
    "Address family not supported": "one side uses IPv6 and the other does not",
}


def _failed_connections(paste: Paste) -> list[tuple[PasteLine, str | None, str]]:
    """Return the lines that report a failed connection, with the address and the reason."""
    failures: list[tuple[PasteLine, str | None, str]] = []
    for line, match in paste.matches(_CONNECT, "onnect to ", "Call to connect failed", "Call to connect timeout"):
        if "retrying" in line.text and "exceeded" not in line.text:
            continue  # normal while the other ranks start
        groups = match.groupdict()
        peer = next((groups[name] for name in groups if name.startswith("peer") and groups[name]), None)
        failures.append((line, peer, groups["reason"].strip()))
    failures += [(line, None, "Connection timed out") for line, _ in paste.matches(_RETRIES, ": exceeded ")]
    return failures


@rule(
    "net-unreachable",
    "A TCP connection between two processes could not be made",
    source=(f"{_TROUBLESHOOTING}#networking-issues", "NCCL src/misc/socket.cc, include/socket.h (2.2 to 2.30)"),
    causes=("rank-died",),
)
def connection_failed(paste: Paste) -> Iterator[TextFinding]:
    """A warning of NCCL reports that a connection failed, with the reason of the operating system."""
    by_reason: dict[str, list[tuple[PasteLine, str | None]]] = defaultdict(list)
    for line, peer, reason in _failed_connections(paste):
        by_reason[next((meaning for meaning in _REASONS if reason.startswith(meaning)), reason)].append((line, peer))
    for reason, failures in by_reason.items():
        if reason == "Too many open files":
            continue
        peers = list(dict.fromkeys(_spell_peer(peer) for _, peer in failures if peer))
        lines = [line for line, _ in failures]
        to = f" to {text_list(peers[:4])}" + (f" and {len(peers) - 4} more" if len(peers) > 4 else "") if peers else ""
        meaning = _REASONS.get(reason, "see the text of the operating system")
        why = f"A TCP connection{to} could not be made ({reason}): {meaning}."
        addresses = {peer.partition("<")[0].strip("[]") for _, peer in failures if peer}
        why += _address_hint(addresses)
        first = next((peer.partition("<")[0] for _, peer in failures if peer), "ADDRESS")
        port = next((peer.partition("<")[2].rstrip(">") for _, peer in failures if peer), "PORT")
        do = (
            f"Test the path from that host: nc -vz {first} {port} while the job waits, or any free port with nc -l on "
            "the other side. Open the ports between the hosts (to test this, stop the firewall: systemctl stop "
            "firewalld, ufw disable), and set NCCL_SOCKET_IFNAME to an interface that all hosts reach."
        )
        yield connection_failed.finding("error", f"{affected(paste, lines)}{to}".strip(), why, do, lines)


def _spell_peer(peer: str) -> str:
    address, _, port = peer.partition("<")
    return f"{address} port {port.rstrip('>')}"


def _address_hint(addresses: set[str]) -> str:
    """Return what the address itself shows, as a sentence."""
    for text in sorted(addresses):
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            continue
        if address.is_loopback:
            return f" {text} is a loopback address, so the process tried to connect to its own host."
        if address.is_link_local:
            return f" {text} is a link-local address, which is valid on one link only."
        if address.version == 4 and address in ipaddress.ip_network("172.17.0.0/16"):
            return f" {text} is in the default range of docker's bridge, which other hosts do not reach."
    return ""


_COUNTS = re.compile(r"mismatch in (?:rank count|info) from procs")
_FOREIGN = re.compile(r"wrong (magic|type) \w+ != \w+")


@rule("duplicate-rank", "Two processes have the same rank", source="NCCL src/bootstrap.cc")
def duplicate_rank(paste: Paste) -> Iterator[TextFinding]:
    """The root of the bootstrap saw one rank twice."""
    matches = paste.matches(re.compile(r"rank (\d+) of (\d+) ranks has already checked in"), "has already checked in")
    if matches:
        ranks = sorted({whole(match[1]) for _, match in matches})
        yield duplicate_rank.finding(
            "error",
            f"rank {text_list([str(rank) for rank in ranks])} of {matches[0][1][2]}",
            "Two processes joined the communicator with the same rank, so another rank will never join.",
            "Check how the ranks are set (RANK, node_rank of torchrun, the rank passed to ncclCommInitRank), and that "
            "no process of an earlier run uses the same address.",
            [line for line, _ in matches],
        )


INTERFACE_RULES = rules_of(
    __name__,
    loopback_interface,
    virtual_interface,
    interface_not_found,
    connection_failed,
    LineRule(
        code="hostname-unresolved",
        title="A host name cannot be resolved",
        looks_for="NCCL could not turn the host in ``NCCL_COMM_ID`` into an address.",
        find=having("Net : error encountered when getting address info"),
        why="The name of the host in NCCL_COMM_ID cannot be turned into an address on this host.",
        do="Give NCCL_COMM_ID an IP address (NCCL_COMM_ID=10.0.0.1:23456), or add the name to DNS or /etc/hosts.",
        source=(f"{_ENV}#nccl-comm-id", "NCCL src/misc/socket.cc"),
    ),
    LineRule(
        code="world-size-mismatch",
        title="Processes with different numbers of ranks try to form one communicator",
        looks_for="The root of the bootstrap received different numbers of ranks.",
        find=matching(_COUNTS, "mismatch in "),
        why="Processes with the same unique id passed different numbers of ranks: their world sizes differ, or "
        "processes of an earlier run are still alive and use the same address.",
        do="Start all processes with the same world size, and end the processes of earlier runs on every host first.",
        source="NCCL src/bootstrap.cc",
    ),
    duplicate_rank,
    LineRule(
        code="foreign-connection",
        title="A process that is not part of the communicator connected",
        looks_for="A connection has the wrong magic number or the wrong type.",
        find=matching(_FOREIGN, "wrong magic", "wrong type"),
        level="warning",
        why="A connection arrived that does not belong to this communicator: from a process of another job or of an "
        "older start, from a port scanner, or from a rank with another version of NCCL.",
        do="End old processes on every host, use the same NCCL everywhere, and keep scanners away from these ports.",
        source="NCCL src/misc/socket.cc",
    ),
)
