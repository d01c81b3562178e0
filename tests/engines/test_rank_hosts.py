"""Labels and rows of ranks on several hosts."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

import psutil
import pytest

import meshlab as ml
from meshlab.base._backends import BACKENDS
from meshlab.engines._rank_hosts import missing_interface, network_choice, network_interfaces, rank_rows, ranks_label
from meshlab.engines._rounds import RankInfo
from meshlab.frames._schema import RANKS, ranks_frame

ETH0 = ("eth0", "10.77.0.{}/255.255.255.0")
DOCKER = ("docker0", "172.17.0.1/255.255.0.0")
IB0 = ("ib0", "192.168.1.{}/255.255.255.0")


def ranks_on(
    hosts: str, *interfaces: tuple[str, str], backend: str = "mpi", gpus: Sequence[int] = (), network: str = ""
) -> list[RankInfo]:
    where = "H200 · NCCL 2.32.3" if gpus else BACKENDS[backend].where
    ranks = []
    for rank, host in enumerate(hosts):
        facts = {"device number": str(gpus[rank])} if gpus else {}
        can = ml.comm.Capabilities(backend, "library", "", where, (), (), (), (), True, facts)
        of_host = tuple((name, text.format(11 + ord(host) - ord("a"))) for name, text in interfaces)
        ranks.append(
            RankInfo(rank, len(hosts), f"node-{host}", 1000 + rank, 1, "3.12", "0.1", can, (), of_host, network)
        )
    return ranks


@pytest.mark.parametrize(
    ("ranks", "label"),
    [
        (ranks_on("aaaa", ETH0), "4 ranks · MPI on this CPU"),
        (ranks_on("aabb", ETH0), "4 ranks on 2 hosts · MPI over eth0"),
        (ranks_on("aabb", ETH0, DOCKER), "4 ranks on 2 hosts · MPI over eth0"),
        (ranks_on("abc", ETH0, IB0), "3 ranks on 3 hosts · MPI over the network"),
        (ranks_on("abc", ETH0, IB0, network="ib0"), "3 ranks on 3 hosts · MPI over ib0"),
        (ranks_on("ab", ETH0, ("mlx5_0", "")), "2 ranks on 2 hosts · MPI over the network"),
        (ranks_on("ab"), "2 ranks on 2 hosts · MPI over the network"),
        (ranks_on("ab", ETH0, backend="gloo"), "2 ranks on 2 hosts · Gloo over eth0"),
        (ranks_on("aabb", ETH0, backend="nccl", gpus=[0, 1, 0, 1]), "4 × H200 on 2 hosts · NCCL 2.32.3"),
        (ranks_on("aabb", ETH0, backend="nccl", gpus=[0, 0, 0, 0]), "4 ranks on 2 × H200 on 2 hosts · NCCL 2.32.3"),
    ],
)
def test_the_label_names_the_hosts_and_the_network_between_them(ranks: list[RankInfo], label: str) -> None:
    assert ranks_label(ranks) == label


def test_gpus_that_are_the_only_ones_of_their_processes_are_told_apart() -> None:
    first, second = (replace(info, host="node-a") for info in ranks_on("ab", backend="nccl", gpus=[0, 0]))

    def at(info: RankInfo, address: str) -> RankInfo:
        can = info.capabilities
        return replace(info, capabilities=replace(can, facts={**can.facts, "PCI address": address}))

    assert ranks_label([at(first, "00:1a"), at(second, "00:3c")]) == "2 × H200 · NCCL 2.32.3"
    assert ranks_label([at(first, "00:1a"), at(second, "00:1a")]) == "2 ranks on 1 × H200 · NCCL 2.32.3"


def test_rows_of_ranks_have_the_index_on_the_host_and_the_gpu() -> None:
    frame = ranks_frame("id", rank_rows(ranks_on("abab", backend="nccl", gpus=[0, 0, 3, 1])))
    assert list(frame.columns) == [column.name for column in RANKS]
    assert frame["local_rank"].tolist() == [0, 0, 1, 1]
    assert frame["device"].tolist() == [0, 0, 3, 1]
    assert frame["host"].tolist() == ["node-a", "node-b", "node-a", "node-b"]
    assert ranks_frame("id", rank_rows(ranks_on("ab")))["device"].isna().all()


def test_the_interfaces_of_this_host_have_addresses_and_no_loopback() -> None:
    assert all(not address.startswith("127.") for _, address in network_interfaces())


def test_a_variable_of_the_library_names_the_network() -> None:
    assert network_choice("mpi", {"UCX_NET_DEVICES": "mlx5_0:1"}) == "mlx5_0:1"
    assert network_choice("gloo", {"UCX_NET_DEVICES": "mlx5_0:1"}) == ""
    assert network_choice("nccl", {}) == ""


@pytest.mark.parametrize(
    ("backend", "variable", "value", "is_missing"),
    [
        ("mpi", "FI_TCP_IFACE", "eth9", True),
        ("mpi", "UCX_NET_DEVICES", "eth0:1", False),
        ("mpi", "UCX_NET_DEVICES", "all", False),
        ("mpi", "OMPI_MCA_btl_tcp_if_include", "10.0.0.0/8", False),
        ("gloo", "GLOO_SOCKET_IFNAME", "eth9,eth0", False),
        ("nccl", "NCCL_SOCKET_IFNAME", "eth", False),
        ("nccl", "NCCL_SOCKET_IFNAME", "=eth", True),
        ("nccl", "NCCL_SOCKET_IFNAME", "^docker", False),
        ("nccl", "FI_TCP_IFACE", "eth9", False),
    ],
)
def test_a_variable_with_an_interface_that_does_not_exist_is_named(
    monkeypatch: pytest.MonkeyPatch, backend: str, variable: str, value: str, is_missing: bool
) -> None:
    monkeypatch.setattr("meshlab.engines._rank_hosts._interface_names", lambda: ["eth0"])
    text = f"{socket.gethostname()} has no network interface {value}, which {variable} names"
    assert missing_interface(backend, {variable: value}) == (text if is_missing else "")


def test_an_interface_that_leads_to_no_other_host_exists() -> None:
    loopback = next(name for name in psutil.net_if_addrs() if name.startswith("lo"))
    assert missing_interface("gloo", {"GLOO_SOCKET_IFNAME": loopback}) == ""
