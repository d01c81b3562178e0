"""Starts of PyTorch jobs that fail: names, the store, Gloo, and ranks that do not come."""

from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._rendezvous import RENDEZVOUS_RULES

FAMILY = (
    "[W socket.cpp:558] [c10d] The IPv{} network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - "
    "Name or service not known)."
)
NO_ADDRESS = (
    "[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (head-0, 29500)."
)
TIMED_OUT = (
    "[E616 02:08:15.931416442 socket.cpp:1023] [c10d] The client socket has timed out after 600000ms while trying to "
    "connect to ({}, 50437)."
)
FALLBACK = (
    "[rank9]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback "
    "address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())"
)
MESH = (
    "[rank8]:[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/"
    "pair.cc:144] no error"
)
REFUSED = (
    "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed "
    "out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:14215"
)


def findings(*lines: str) -> list[TextFinding]:
    return [item for rule in RENDEZVOUS_RULES for item in rule(Paste("\n".join(lines)))]


def summaries(*lines: str) -> list[tuple[str, str, str]]:
    return [(item.severity, item.code, item.subject) for item in findings(*lines)]


def test_a_name_without_an_address_is_found_with_the_host_that_lacks_it() -> None:
    ray = "(CommandActor pid=369, ip=10.0.0.134) "
    assert summaries(*(ray + line for line in (FAMILY.format(6), FAMILY.format(4), NO_ADDRESS))) == [
        ("error", "hostname-unresolved", "10.0.0.134, name head-0")
    ]


def test_a_name_without_an_ipv6_address_is_normal() -> None:
    assert summaries(FAMILY.format(6)) == [("normal", "hostname-unresolved", "head-0")]


def test_a_client_without_a_name_is_normal() -> None:
    text = "[W socket.cpp:464] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    assert [severity for severity, _, _ in summaries(text)] == ["normal"]


@pytest.mark.parametrize(
    ("address", "note"), [("172.17.0.9", "Docker"), ("127.0.0.1", "loopback"), ("10.1.2.3", ""), ("head-0", "")]
)
def test_a_store_that_does_not_answer_is_found_and_odd_addresses_are_named(address: str, note: str) -> None:
    (finding,) = findings(TIMED_OUT.format(address))
    assert (finding.code, finding.subject) == ("net-unreachable", f"TCPStore master {address} port 50437")
    assert "600 s" in finding.why
    assert note in finding.why
    assert ("Docker" in finding.why) == (note == "Docker")


def test_an_address_that_a_terminal_wraps_is_read() -> None:
    line = (
        "[E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to (172.17.0.2"
    )
    assert findings(line, ", 44737).")[0].subject == "TCPStore master 172.17.0.2 port 44737"


def test_a_refused_attempt_is_normal_and_a_failure_is_not() -> None:
    retry = (
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111 - Connection "
        "refused)."
    )
    assert [severity for severity, _, _ in summaries(retry)] == ["normal"]
    failed = (
        "[E socket.cpp:719] [c10d] The client socket has failed to connect to any network address of (node0, 29500)."
    )
    assert summaries(retry, failed) == [("error", "net-unreachable", "TCPStore master node0 port 29500")]


def test_gloo_on_the_loopback_address_is_an_error_only_if_it_failed() -> None:
    assert summaries(FALLBACK) == [("info", "wrong-interface-loopback", "rank 9")]
    assert summaries(FALLBACK, MESH) == [("error", "wrong-interface-loopback", "rank 9")]
    assert [code for _, code, _ in summaries(REFUSED)] == ["wrong-interface-loopback"]
    works = "[Gloo] Rank 0 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7"
    assert [severity for severity, _, _ in summaries(FALLBACK, works)] == ["normal"]


def test_gloo_that_cannot_connect_is_found() -> None:
    assert summaries(MESH) == [("error", "net-unreachable", "Gloo, rank 8")]
    assert "store" not in findings(MESH)[0].title


def test_ranks_that_did_not_come_are_counted() -> None:
    text = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined."
    assert summaries(text) == [("error", "rendezvous-incomplete", "1 of 4 ranks")]


def test_other_lines_about_sockets_give_nothing() -> None:
    assert (
        summaries("[I socket.cpp:452] [c10d] The server socket is listening on [::]:29500.", "Gloo backend ready") == []
    )


def test_a_store_that_closed_is_not_gloo() -> None:
    line = "[c10d] sendBytes failed on SocketImpl(fd=85, addr=[node1]:51772, remote=[127.0.0.1]:29500): Broken pipe"
    assert summaries(line) == []


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        (TIMED_OUT.format("10.0.0.9").replace("600000ms", "900s"), "TCPStore master 10.0.0.9 port 50437"),
        ("RuntimeError: connect() timed out. Original timeout was 1800000 ms.", "the host that prints it"),
    ],
)
def test_an_unreachable_store_in_the_words_of_older_versions(line: str, subject: str) -> None:
    (finding,) = findings(line)
    assert (finding.severity, finding.code, finding.subject) == ("error", "net-unreachable", subject)
    assert "900 s" in finding.why or "900s" not in line


BIND = "socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."


def test_a_port_that_is_taken_is_found() -> None:
    failed = "[E socket.cpp:462] [c10d] The server socket has failed to listen on any local network address."
    assert summaries(f"[W {BIND}", failed) == [("error", "port-in-use", "port 29500")]


def test_one_address_that_is_taken_is_no_fault() -> None:
    assert summaries(f"[W {BIND}") == []
    assert summaries("OSError: [Errno 98] Address already in use: dashboard") == []


NO_DAEMON = "ORTE was unable to reliably start one or more daemons."


@pytest.mark.parametrize(
    ("lines", "subject", "part"),
    [
        (
            ["ssh: Could not resolve hostname w-3.jobs.svc: Name or service not known", NO_DAEMON],
            "w-3.jobs.svc",
            "launcher",
        ),
        (
            ["ssh: Could not resolve hostname w-3: Temporary failure in name resolution", NO_DAEMON],
            "w-3",
            "the name may exist",
        ),
        (
            ["ssh: Could not resolve hostname w-0: x", "ssh: Could not resolve hostname w-1: x", NO_DAEMON],
            "w-0, w-1",
            "2 names have no address",
        ),
        (["ssh: Could not resolve hostname localhost:4: Name or service not known"], "localhost:4", "number of slots"),
        (
            [
                "HYDU_sock_connect (sock.c:145): unable to get host address for Main (4)",
                "[proxy:0:0@n1] main (pmip.c:183): unable to connect to server Main at port 7 (check for firewalls!)",
            ],
            "Main",
            "could not start its processes",
        ),
        (["ValueError: host not found: Name or service not known"], "the host that prints it", "host not found"),
    ],
)
def test_a_name_without_an_address_and_the_launch_that_failed_by_it_are_one_error(
    lines: list[str], subject: str, part: str
) -> None:
    errors = [item for item in ml.explain("\n".join([*lines, ""])).findings if item.severity == "error"]
    assert [(item.code, item.subject) for item in errors] == [("hostname-unresolved", subject)]
    assert part in errors[0].why


def test_a_name_server_that_does_not_answer_differs_from_a_name_without_an_ipv6_address() -> None:
    unknown = FAMILY.format(6)
    silent = unknown.replace("-2 - Name or service not known", "-3 - Temporary failure in name resolution")
    assert [item.severity for item in findings(unknown)] == ["normal"]
    (finding,) = findings(silent)
    assert (finding.severity, finding.subject) == ("warning", "name head-0")
    assert "-3" in finding.why
    assert "harmless" not in finding.why


def test_an_address_in_brackets_is_no_name() -> None:
    (finding,) = findings(FAMILY.format(6).replace("head-0", "[fd00::17]"))
    assert (finding.severity, "without brackets" in finding.do) == ("warning", True)


def test_the_loopback_address_of_gloo_is_no_fault_within_one_host() -> None:
    one_host = "(Worker pid=8) DEBUG [parallel_state.py:16] Detected 1 nodes in the distributed environment"
    assert any(item.severity == "error" for item in findings(FALLBACK, REFUSED))
    local = findings(FALLBACK, REFUSED, one_host)
    assert not [item for item in local if item.code == "wrong-interface-loopback" and item.severity != "normal"]


def test_ranks_of_one_host_need_no_other_interface_of_gloo() -> None:
    one_host = "(Worker pid=8) DEBUG [parallel_state.py:16] Detected 1 nodes in the distributed environment"
    (finding,) = [item for item in findings(REFUSED, one_host) if item.code == "net-unreachable"]
    assert "GLOO_SOCKET_IFNAME" not in finding.do
    assert "logs of the other ranks" in finding.do


def test_a_refused_attempt_at_another_port_says_nothing_about_a_timeout() -> None:
    refused = (
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node8]:{} (errno: 111 - Connection "
        "refused)."
    )
    timeout = "The client socket has timed out after 900s while trying to connect to (node7, 29500)."
    (other,) = [item for item in findings(refused.format(29400), timeout) if item.severity == "error"]
    (same,) = [item for item in findings(refused.format(29500), timeout) if item.severity == "error"]
    assert "got no answer" in other.why
    assert "refused" in same.why


def test_a_store_that_was_reached_before_is_lost_and_not_unreachable() -> None:
    error = (
        "torch.distributed.elastic.rendezvous.RendezvousConnectionError: The connection to the C10d store has failed."
    )
    (finding,) = findings('  File "c10d_rendezvous_backend.py", line 119, in _call_store', error)
    assert (finding.code, finding.title) == ("net-unreachable", "The TCP store was lost")
    assert "could not connect" in findings(error)[0].why
