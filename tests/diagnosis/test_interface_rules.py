"""Rules for interfaces and TCP connections: what they find, and what they must not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._interfaces import INTERFACE_RULES
from tests.examples import examples


def by_code(text: str) -> dict[str, TextFinding]:
    """The findings of a text by code."""
    return {item.code: item for rule in INTERFACE_RULES for item in rule(Paste(text))}


def warn(text: str, source: str = "misc/socket.cc:483", where: str = "nodeA:30:40 [2]") -> str:
    return f"{where} {source} NCCL WARN {text}\n"


def info(text: str, where: str = "nodeA:30:40 [2]") -> str:
    return f"{where} NCCL INFO {text}\n"


TWO_HOSTS = info("Bootstrap : Using lo:127.0.0.1<0>") + info("Bootstrap : Using lo:127.0.0.1<0>", "nodeB:5:6 [0]")


def test_the_loopback_is_an_error_with_two_hosts() -> None:
    finding = by_code(TWO_HOSTS)["wrong-interface-loopback"]
    assert (finding.severity, finding.subject, finding.lines) == ("error", "nodeA and nodeB, interface lo", (1, 2))


def test_the_loopback_is_normal_on_one_host() -> None:
    start = info("comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0")
    assert "wrong-interface-loopback" not in by_code(info("Bootstrap : Using lo:127.0.0.1<0>") + start)


def test_a_variable_that_no_longer_excludes_the_loopback_is_named() -> None:
    text = info("NCCL_SOCKET_IFNAME set by environment to ^docker0") + info("Bootstrap : Using lo:127.0.0.1<0>")
    finding = by_code(text)["wrong-interface-loopback"]
    assert finding.severity == "warning"
    assert "^docker0" in finding.why


def test_another_interface_first_is_no_loopback() -> None:
    text = info("Bootstrap : Using [0]eth0:10.0.0.1<0> [1]lo:127.0.0.1<0>") + info("x", "nodeB:5:6 [0]")
    assert not by_code(text)


@pytest.mark.parametrize("interface", ["docker0:172.17.0.1", "veth75fa783:10.3.0.2", "eth0:fe80::14ad%eth0"])
def test_interfaces_that_other_hosts_do_not_reach(interface: str) -> None:
    text = info(f"Bootstrap: Using {interface}<0>") + info(f"Bootstrap: Using {interface}<0>", "nodeB:5:6 [0]")
    assert "wrong-interface-virtual" in by_code(text)


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("Call to connect to 10.0.0.2<45763> failed : Connection timed out", "nodeA GPU 2 to 10.0.0.2 port 45763"),
        ("Net : Connect to 192.168.1.9<54263> failed : No route to host", "nodeA GPU 2 to 192.168.1.9 port 54263"),
        ("Connect to 10.0.0.2<21724> failed : Connection refused", "nodeA GPU 2 to 10.0.0.2 port 21724"),
        ("socketStartConnect: Connect to 10.0.0.2<4> failed : Software caused connection abort", "10.0.0.2 port 4"),
        ("socketPollConnect: Connect to 10.0.0.2<4> returned 113(No route to host) errno 115(x)", "10.0.0.2 port 4"),
        ("socketPollConnect to 10.0.0.2<4> failed with error No route to host", "10.0.0.2 port 4"),
        ("ncclOsSocketPollConnect to node7<4> failed with error Connection timed out", "node7 port 4"),
        ("socketStartConnect: connect to fe80::1%eth0<4> failed : Network is unreachable", "fe80::1%eth0 port 4"),
        ("Call to connect timeout : Connection refused", "nodeA GPU 2"),
        ("socketStartConnect: exceeded retries (20000)", "nodeA GPU 2"),
    ],
)
def test_failed_connections_of_all_versions(text: str, subject: str) -> None:
    finding = by_code(warn(text))["net-unreachable"]
    assert finding.severity == "error"
    assert subject in finding.subject


def test_the_reason_and_the_address_are_explained() -> None:
    why = by_code(warn("Connect to 172.17.0.2<4> failed : Connection refused"))["net-unreachable"].why
    assert "Connection refused" in why
    assert "docker" in why


@pytest.mark.parametrize(
    "text",
    [
        info("Call to connect returned Connection refused, retrying"),
        info("socketPollConnect: connect to 10.0.0.2<4> returned Connection refused, retrying (1/34) after sleep"),
        warn("socketProgress: Connection closed by remote peer nodeB<57557>"),
        info("Connected all rings"),
    ],
)
def test_retries_and_closed_connections_are_not_unreachable_hosts(text: str) -> None:
    assert "net-unreachable" not in by_code(text)


@pytest.mark.parametrize(
    "text",
    [
        warn("Bootstrap : no socket interface found"),
        warn("NET/Socket : no interface found"),
        warn("Net : No interface found in the same subnet as remote address 10.0.0.1<5>"),
        "Last error:\nncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6\n",
    ],
)
def test_an_interface_that_is_not_found(text: str) -> None:
    finding = by_code(info("NCCL_SOCKET_IFNAME set by environment to eth9") + text)["interface-not-found"]
    assert "eth9" in finding.why


def test_other_faults_of_the_bootstrap() -> None:
    text = (
        warn("Bootstrap Root : mismatch in rank count from procs 4 : 8", "bootstrap.cc:102")
        + warn("Bootstrap Root : rank 3 of 8 ranks has already checked in", "bootstrap.cc:110")
        + warn("socketFinalizeAccept: wrong type 4 != 3")
        + warn("Net : error encountered when getting address info : Name or service not known")
    )
    assert set(by_code(text)) == {"world-size-mismatch", "duplicate-rank", "foreign-connection", "hostname-unresolved"}
    assert by_code(text)["duplicate-rank"].subject == "rank 3 of 8"


ONE_HOST = {
    "vLLM": "(Worker pid=9) DEBUG [parallel_state.py:1689] Detected 1 nodes in the distributed environment\n",
    "a local store": "world_size=2 rank=1 local_rank=1 distributed_init_method=tcp://127.0.0.1:5179 backend=nccl\n",
    "torchrun": "+ torchrun --standalone --nproc-per-node=4 train.py\n",
    "DeepSpeed": "[launch.py:84:main] nnodes=1, num_local_procs=2, node_rank=0\n",
}
SEVERAL_HOSTS = {
    "vLLM": "(Worker pid=9) DEBUG [parallel_state.py:1689] Detected 2 nodes in the distributed environment\n",
    "torchrun": "+ torchrun --nnodes=4 --nproc-per-node=8 train.py\n",
    "DeepSpeed": "[launch.py:84:main] nnodes=16, num_local_procs=8, node_rank=0\n",
    "another host": info("Bootstrap : Using lo:127.0.0.1<0>", "nodeB:5:6 [0]"),
}
LOOPBACK = info("NCCL_SOCKET_IFNAME set by environment to lo") + info("Bootstrap: Using lo:127.0.0.1<0>")


@pytest.mark.parametrize("source", ONE_HOST)
def test_the_loopback_is_normal_where_a_framework_counts_one_host(source: str) -> None:
    assert "wrong-interface-loopback" not in by_code(ONE_HOST[source] + LOOPBACK)
    assert "nodeA" in ml.explain(LOOPBACK + ONE_HOST[source]).facts["hosts"]


@given(st.sampled_from(sorted(SEVERAL_HOSTS)), st.booleans())
@settings(max_examples=examples(20), deadline=None)
def test_other_hosts_are_named_only_if_the_text_has_some(source: str, before: bool) -> None:
    alone = by_code(LOOPBACK)["wrong-interface-loopback"]
    assert "other hosts" not in f"{alone.title} {alone.why}".replace("does not show whether there are others", "")
    text = SEVERAL_HOSTS[source] + LOOPBACK if before else LOOPBACK + SEVERAL_HOSTS[source]
    several = by_code(text)["wrong-interface-loopback"]
    assert (several.severity, "the other hosts" in several.title) == ("error", True)


def test_traffic_between_hosts_is_certain_only_with_several() -> None:
    sockets = info("Using network Socket")
    (alone,) = [item for item in ml.explain(sockets).findings if item.code == "socket-fallback"]
    (several,) = [item for item in ml.explain(sockets + TWO_HOSTS).findings if item.code == "socket-fallback"]
    assert "if the job has several" in alone.why
    assert "if the job has several" not in several.why
