"""Rules for the start of a PyTorch job: names, the store, Gloo, and ranks that do not come."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Rule, TextFinding, first_names, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._host_names import UnknownHost, read_unknown_hosts
from meshlab.diagnosis.formats._nccl_lines import is_one_host
from meshlab.diagnosis.formats._torch_lines import find_all, last_rank_prefix

_SOCKET = "pytorch/torch/csrc/distributed/c10d/socket.cpp"
_GLOO = "pytorch/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"

_UNRESOLVED = re.compile(
    r"The (?P<family>IPv4|IPv6) network addresses of \((?P<name>[^,)]+), (?P<port>\d+)\) cannot be retrieved"
    r"(?: \(gai error: (?P<code>-?\d+))?"
)


def _hosts(lines: Sequence[PasteLine]) -> str:
    """Return the hosts or ranks that the prefixes name."""
    hosts = dict.fromkeys(line.host for line in lines if line.host)
    ranks = {rank for line in lines if (rank := last_rank_prefix(line, len(line.raw))) is not None}
    return ", ".join(str(host) for host in hosts) or (rank_list(ranks) if ranks else "")


_Lookup = tuple[PasteLine, str | None]
"""A line about a name, and the error code of getaddrinfo."""

_TRY_AGAIN = "-3"  # EAI_AGAIN: no name server answered. -2 is an answer: the name does not exist


def _unresolved(paste: Paste) -> dict[tuple[str, str], dict[str, list[_Lookup]]]:
    """Return the lines about each name and port, by family of addresses."""
    names: dict[tuple[str, str], dict[str, list[_Lookup]]] = {}
    for line, match in other_lines(paste).matches(_UNRESOLVED, "network addresses of ("):
        lookups = names.setdefault((match["name"], match["port"]), {}).setdefault(match["family"], [])
        lookups.append((line, match["code"]))
    return names


@rule(
    "hostname-unresolved",
    "A host name cannot be resolved",
    source=_SOCKET,
    causes=("net-unreachable", "launcher-failed"),
)
def hostname_unresolved(paste: Paste) -> Iterator[TextFinding]:
    """Look for names without an address. A name without an IPv6 address is normal as long as IPv4 works."""
    for (name, port), families in _unresolved(paste).items():
        lookups = [lookup for family in families.values() for lookup in family]
        lines = [line for line, _ in lookups]
        where = _hosts(lines)
        no_answer = any(code == _TRY_AGAIN for _, code in lookups)
        is_failed = "IPv4" in families
        if not is_failed and not no_answer and not name.startswith("["):
            yield hostname_unresolved.finding(
                "normal",
                name,
                f"{name} has no IPv6 address. PyTorch then tries IPv4, so this line alone is harmless.",
                lines=lines,
            )
            continue
        who = where or "The host that prints this"
        if name.startswith("["):
            why = f"{who} looks up {name} with its brackets, which no name server resolves."
        elif no_answer:
            why = (
                f"{who} got no answer about the name {name} from a name server (error -3, a temporary failure), and "
                "each attempt waits for it."
            )
        else:
            why = f"{who} cannot resolve the name {name} (port {port}): no such name is known there."
        yield hostname_unresolved.finding(
            "error" if is_failed else "warning",
            (f"{where}, name {name}" if where else f"name {name}"),
            why
            + (
                " So the rendezvous never starts."
                if is_failed
                else " PyTorch then tries IPv4, and the text does not show that it worked."
            ),
            _lookup_do(name, no_answer=no_answer),
            lines,
        )
    if not _unresolved(paste) and (hosts := paste.once(read_unknown_hosts)):
        yield _unknown_hosts(paste, hosts)
    if silent := other_lines(paste).matches(_CLIENT_NAME, "The hostname of the client socket cannot be retrieved"):
        no_answer = any(match["code"] == _TRY_AGAIN for _, match in silent)
        yield hostname_unresolved.finding(
            "normal",
            "the name of a client",
            "PyTorch looks up the name of a connected host for its messages only, and goes on without it."
            + (" Error -3 is a name server that does not answer, so each lookup may wait for it." if no_answer else ""),
            lines=[line for line, _ in silent],
        )


def _lookup_do(name: str, *, no_answer: bool) -> str:
    if name.startswith("["):
        return "Set MASTER_ADDR or --rdzv-endpoint to the address without brackets, or to a name that resolves to it."
    server = "Check the name server of that host (/etc/resolv.conf), and add its own name to /etc/hosts. "
    return (server if no_answer else "") + (
        f"Set MASTER_ADDR or --rdzv-endpoint to an IP address, or make {name} resolve on every host (DNS, "
        f"/etc/hosts). Check it with: getent hosts {name}"
    )


_CLIENT_NAME = re.compile(r"hostname of the client socket cannot be retrieved(?:\. err=(?P<code>-?\d+))?")


def _unknown_hosts(paste: Paste, hosts: Sequence[UnknownHost]) -> TextFinding:
    """Return the finding about names that ssh, a launcher or Python could not resolve, and what failed by it."""
    names = list(dict.fromkeys(host.name for host in hosts if host.name))
    lines = [host.line for host in hosts]
    where = _hosts(lines)
    subject = first_names(names)
    failed = other_lines(paste).find(
        "was unable to reliably start", "daemon has unexpectedly failed", "unable to connect to server"
    )
    why = (
        f"The name {names[0]} has no address"
        if len(names) == 1
        else f"{len(names)} names have no address"
        if names
        else f"A host name has no address ({hosts[0].text})"
    )
    why += " for the host that prints this" if not where else f" on {where}"
    if any(host.is_temporary for host in hosts):
        why += ": the name server did not answer (a temporary failure), so the name may exist"
    why += ". " + ("Therefore the launcher could not start its processes there. " if failed else "")
    slots = [host for host in hosts if host.has_slots]
    if slots:
        why += f"The launcher took {slots[0].name}, with the number of slots, for a name."
    slots_do = (
        "Use a launcher that reads HOST:SLOTS (mpirun of Open MPI 1.10 or newer), or pass the slots in a host file. "
        if slots
        else ""
    )
    return hostname_unresolved.finding(
        "error",
        ", ".join(part for part in (where, subject) if part) or "the host that prints it",
        why.strip(),
        slots_do
        + "Use IP addresses, or make the name known on every host (DNS, /etc/hosts; in Kubernetes, wait until the "
        f"service and the pods are ready). Check it with: getent hosts {names[0] if names and not slots else 'NAME'}",
        [*lines, *failed],
    )


_TIMED_OUT = re.compile(
    r"The client socket has timed out after (?P<time>\d+) ?(?P<unit>m?s) while trying to connect to "
    r"\((?P<host>[^,)]+), (?P<port>\d+)\)"
)
_FAILED = re.compile(
    r"\[E.*The client socket has failed to connect to (?:any network address of )?"
    r"(?:\[(?P<any>[^\]]+)\]:(?P<any_port>\d+)|\((?P<host>[^,)]+), (?P<port>\d+)\))"
    r"|TCP client failed to connect/validate to host (?P<tcp>\S+?):(?P<tcp_port>\d+) - (?!timed out)"
)
_RETRY = re.compile(
    r"\[W.*The client socket has failed to connect to \[?(?P<host>[^\]\s]+?)\]?:(?P<port>\d+) \(errno: (?P<errno>\d+)"
)
_RDZV = re.compile(
    r"RendezvousConnectionError: The connection to the C10d store has failed"
    r"|RuntimeError: connect\(\) timed out\. Original timeout was \d+ ms"  # before PyTorch 1.11
    r"|\[(?:Errno )?(?:110|113|101|111)\] (?:Connection timed out|No route to host|Network is unreachable|Connection "
    r"refused)"
)


@rule("net-unreachable", "The TCP store cannot be reached", source=_SOCKET, causes=("rank-died", "worker-exited"))
def store_unreachable(paste: Paste) -> Iterator[TextFinding]:
    """Look for ranks that could not connect to the store of rank 0. Single refused attempts are normal at the start."""
    unresolved = {name for (name, _), families in _unresolved(paste).items() if "IPv4" in families}
    targets: dict[tuple[str, str], list[PasteLine]] = {}
    waited: dict[tuple[str, str], int] = {}
    for line, match in find_all(paste, _TIMED_OUT, "The client socket has timed out after"):
        key = match["host"], match["port"]
        targets.setdefault(key, []).append(line)
        waited[key] = whole(match["time"]) * (1 if match["unit"] == "ms" else 1000)  # seconds before PyTorch 2.6
    for line, match in other_lines(paste).matches(_FAILED, "has failed to connect to", "TCP client failed to connect"):
        pairs = ((match["any"], match["any_port"]), (match["host"], match["port"]), (match["tcp"], match["tcp_port"]))
        key = next((host, port) for host, port in pairs if host is not None)
        targets.setdefault(key, []).append(line)
    for (host, port), lines in targets.items():
        if host in unresolved:
            continue
        seconds = waited.get((host, port))
        who = _hosts(lines)
        tried = f"A rank tried for {seconds // 1000} s" if seconds else "A rank tried"
        outcome = f"{_outcome(paste, lines, port)}.{_about(host)}"
        yield store_unreachable.finding(
            "error",
            f"TCPStore master {host} port {port}" + (f", from {who}" if who else ""),
            f"{tried} to reach the store of rank 0 at {host}, port {port}, and {outcome}",
            _do(host, port),
            lines,
        )
    if not targets:
        matches = other_lines(paste).matches(_RDZV, "RendezvousConnectionError", "connect() timed out")
        if matches and other_lines(paste).numbers("in _call_store", "in get_state", "in num_nodes_waiting"):
            yield store_unreachable.finding(
                "error",
                _hosts([line for line, _ in matches]) or "the host that prints it",
                "The agent of torchrun lost the store, which it had reached before: the agent that hosts it ended, on "
                "the host of --rdzv-endpoint, or the network between them broke.",
                "Read the log of torchrun on the host of --rdzv-endpoint: it ended before, because its job was done or "
                "had failed. If several jobs share one endpoint, give each of them a port of its own.",
                [line for line, _ in matches],
                title="The TCP store was lost",
            )
        elif matches:
            yield store_unreachable.finding(
                "error",
                _hosts([line for line, _ in matches]) or "the host that prints it",
                "The rendezvous could not connect to its store.",
                "Check that --rdzv-endpoint (or MASTER_ADDR and MASTER_PORT) is the same on all hosts, that its host "
                "runs already, and that its port is open: nc -vz HOST PORT",
                [line for line, _ in matches],
            )
        if retries := other_lines(paste).matches(_RETRY, "has failed to connect to"):
            yield store_unreachable.finding(
                "normal",
                ", ".join(dict.fromkeys(match["host"] for _, match in retries)),
                "PyTorch repeats a refused connection until the store of rank 0 listens. Without an error after it, "
                "this is normal at the start.",
                lines=[line for line, _ in retries],
            )
    yield from _gloo_unreachable(paste)


def _outcome(paste: Paste, lines: Sequence[PasteLine], port: str) -> str:
    """Return what the attempts met, as far as these lines and those of earlier attempts at the same port show it."""
    attempts = other_lines(paste).find("has failed to connect to")
    earlier = [line for line in attempts if f":{port} " in line.text or f", {port})" in line.text]
    texts = [line.text for line in (*lines, *earlier)]
    if any("errno: 111" in text or "Connection refused" in text for text in texts):
        return "the host refused it: nothing listened on this port there at that time"
    if any("errno: 113" in text or "No route to host" in text for text in texts):
        return "there is no route to it, or a firewall rejects it"
    return "got no answer" if any("timed out" in text for text in texts) else "could not connect"


def _about(host: str) -> str:
    """Return what is special about an address, as a sentence."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if address.is_loopback:
        return " This is the loopback address, which each host has for itself."
    if address in ipaddress.ip_network("172.16.0.0/12") and str(address).startswith(("172.17.", "172.18.")):
        return " 172.17.0.0/16 is Docker's default bridge, which other hosts cannot reach."
    return ""


def _do(host: str, port: str) -> str:
    if _about(host):
        return (
            "Set MASTER_ADDR (vLLM: VLLM_HOST_IP) to the address of a real interface of the first host, or start the "
            f"containers with --network host; then check the port from another host: nc -vz ADDRESS {port}"
        )
    return (
        f"Check from that host that rank 0 listens and that the port is open: nc -vz {host} {port}. If it is refused, "
        "rank 0 has not started or has ended; if it times out, a firewall or a wrong interface is in the way."
    )


_MESH = re.compile(r"Gloo connectFullMesh failed with (?P<what>.*)|gloo::(?:EnforceNotMet|IoException).*")
_REMOTE = re.compile(r"remote=\[(?P<remote>[^\]]+)\]|connect \[(?P<address>[^\]]+)\]:\d+: Connection refused")
_LOOPBACK = ("127.", "::1", "localhost")


def _gloo_failures(paste: Paste) -> tuple[list[PasteLine], list[PasteLine]]:
    """Return the lines about failed connections of Gloo, and those of them that go to the loopback address."""
    failed = [line for line, _ in other_lines(paste).matches(_MESH, "connectFullMesh failed", "gloo::")]
    remote = other_lines(paste).matches(_REMOTE, "remote=[", "connect [")
    remote = [pair for pair in remote if re.search(r"SO_ERROR|gloo", pair[0].text, re.IGNORECASE)]
    loopbacks = [line for line, match in remote if (match["remote"] or match["address"]).startswith(_LOOPBACK)]
    return [*failed, *(line for line, _ in remote if line not in failed)], loopbacks


def _gloo_unreachable(paste: Paste) -> Iterator[TextFinding]:
    failed, loopbacks = _gloo_failures(paste)
    is_local = is_one_host(paste) is True  # where the loopback address is no cause
    if (
        failed
        and (is_local or not loopbacks)
        and not other_lines(paste).numbers("Using the loopback address as fallback")
    ):
        yield store_unreachable.finding(
            "error",
            f"Gloo, {_hosts(failed) or 'the rank that prints it'}",
            "Gloo, which connects the CPUs of the ranks, could not connect all ranks with each other. "
            + (
                "The ranks are on one host, so usually one of them ended before."
                if is_local
                else "Usually a host chose an interface that the others cannot reach, or its name resolves to a wrong "
                "address. An exit of another rank looks the same."
            ),
            "Read the logs of the other ranks before this time: the first error in them is the cause."
            if is_local
            else "Set GLOO_SOCKET_IFNAME to the interface that connects the hosts (ip -br addr), on every host, and "
            "check that hostname -i returns its address and not 127.0.1.1.",
            failed,
            title="Gloo could not connect the ranks",
        )


@rule(
    "wrong-interface-loopback",
    "Gloo chose the loopback interface",
    source=_GLOO,
    causes=("net-unreachable", "rank-died", "worker-exited"),
)
def gloo_loopback(paste: Paste) -> Iterator[TextFinding]:
    """Look for Gloo on the loopback address, which works within one host only."""
    fallback = other_lines(paste).find("Using the loopback address as fallback")
    failed, loopbacks = _gloo_failures(paste)
    if not (lines := [*fallback, *loopbacks]) or (is_one_host(paste) is True and not fallback):
        return
    if (failed or loopbacks) and is_one_host(paste) is not True:
        yield gloo_loopback.finding(
            "error",
            _hosts(lines) or "the ranks that print it",
            "Gloo could not find the address of its host and chose the loopback address, so ranks on other hosts "
            "connect to themselves, and the connection fails.",
            "Set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) on every host to the interface that connects the hosts "
            "(ip -br addr), or make the host name resolve to its address instead of 127.0.0.1 or 127.0.1.1.",
            [*lines, *failed],
        )
    elif is_one_host(paste) is not True and not other_lines(paste).numbers(
        "Expected number of connected peer ranks is"
    ):
        yield gloo_loopback.finding(
            "info",
            _hosts(lines) or "the ranks that print it",
            "Gloo chose the loopback address because the host name has none. Within one host this works; with several "
            "hosts the ranks cannot connect.",
            "With several hosts, set GLOO_SOCKET_IFNAME on every host to the interface that connects them.",
            lines,
        )
    else:
        yield gloo_loopback.finding(
            "normal",
            _hosts(lines) or "Gloo",
            "Gloo uses the loopback address, which connects the ranks of one host.",
            lines=lines,
        )


_JOINED = re.compile(r"Timed out after (?P<s>\d+) seconds waiting for clients\. (?P<n>\d+)/(?P<of>\d+) clients joined")
_RDZV_TIMEOUT = re.compile(r"RendezvousTimeoutError|RendezvousClosedError|rendezvous.{0,80}tim(?:ed|e) ?out", re.I)


@rule(
    "rendezvous-incomplete",
    "Some ranks did not join the rendezvous",
    source="pytorch/torch/csrc/distributed/c10d/TCPStore.cpp",
    causes=("worker-exited",),
)
def rendezvous_incomplete(paste: Paste) -> Iterator[TextFinding]:
    """Look for a store that waited for more ranks than came."""
    if matches := other_lines(paste).matches(_JOINED, "clients joined"):
        line, match = matches[-1]
        n, total = whole(match["n"]), whole(match["of"])
        yield rendezvous_incomplete.finding(
            "error",
            f"{total - n} of {total} ranks",
            f"Rank 0 waited {match['s']} s, and only {n} of {total} ranks arrived. The others did not start, use "
            "another address or port, or cannot reach this host.",
            "Check that every host was started with the same MASTER_ADDR, MASTER_PORT and world size, and read the "
            "first lines of the ranks that are missing.",
            [line],
        )
    elif late := other_lines(paste).matches(_RDZV_TIMEOUT, "RendezvousTimeoutError", "RendezvousClosedError"):
        is_closed = not other_lines(paste).numbers("RendezvousTimeoutError")
        yield rendezvous_incomplete.finding(
            "error",
            "the hosts of this job",
            "The rendezvous of torchrun was closed: the job had ended, or failed on another host, when this one came."
            if is_closed
            else "The rendezvous of torchrun ended before all hosts had come.",
            "Read the log of the other hosts first. Start all hosts within the timeout, with the same --rdzv-id, "
            "--rdzv-endpoint and --nnodes.",
            [line for line, _ in late],
        )


_IN_USE = re.compile(
    r"server socket has failed to (?:bind to|listen on) .*?:(?P<port>\d+)\b.*Address already in use"
    r"|server socket has failed to listen on any local network address"
    r"|(?:RuntimeError|DistNetworkError): .*Address already in use"
)


@rule("port-in-use", "The port of the rendezvous is taken", source=_SOCKET, causes=("net-unreachable", "worker-exited"))
def port_in_use(paste: Paste) -> Iterator[TextFinding]:
    """Look for a store that could not listen. A single address that fails is normal if another one works."""
    matches = other_lines(paste).matches(_IN_USE, "Address already in use", "any local network address")
    final = [line for line, match in matches if not re.match(r"\[W", line.text)]
    if final and paste.numbers("Address already in use", "EADDRINUSE"):
        port = next((match["port"] for _, match in matches if match["port"]), "")
        yield port_in_use.finding(
            "error",
            ", ".join(part for part in (_hosts(final), f"port {port}" if port else "") if part)
            or "the rank that prints it",
            "The store of rank 0 cannot listen, because another process has this port: another job on this host, or "
            "one that did not end.",
            "Use another port (--master-port, MASTER_PORT, or --rdzv-endpoint HOST:0 on one host), or end the process "
            f"that has it: ss -ltnp | grep {port or 'PORT'}",
            [line for line, _ in matches],
        )


RENDEZVOUS_RULES: tuple[Rule, ...] = (
    hostname_unresolved,
    gloo_loopback,
    store_unreachable,
    rendezvous_incomplete,
    port_in_use,
)
