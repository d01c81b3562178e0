"""Rules for the network that NCCL chose: what they find, and what they must not."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._network import NETWORK_RULES


def by_code(text: str) -> dict[str, TextFinding]:
    """The findings of a text by code."""
    return {item.code: item for rule in NETWORK_RULES for item in rule(Paste(text))}


def info(text: str, host: str = "nodeA", pid: int = 30) -> str:
    return f"{host}:{pid}:40 [2] NCCL INFO {text}\n"


NO_DEVICE = info("NET/IB : No device found.") + info("Using network Socket")
ONE_HOST = info("comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0")
MANY_HOSTS = info("comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0")


def test_tcp_without_rdma_devices_is_worth_knowing() -> None:
    assert by_code(NO_DEVICE)["socket-fallback"].severity == "info"


@pytest.mark.parametrize(
    "setting", ["$ mpirun -x FI_PROVIDER=efa ./all_reduce_perf\n", info("NCCL_IB_HCA set by environment to mlx5")]
)
def test_tcp_is_a_warning_if_rdma_is_wanted(setting: str) -> None:
    finding = by_code(NO_DEVICE + setting)["socket-fallback"]
    assert (finding.severity, finding.subject) == ("warning", "nodeA")


@pytest.mark.parametrize(
    "text",
    [
        NO_DEVICE + ONE_HOST,
        NO_DEVICE + info("NCCL_NET set by environment to Socket"),
        NO_DEVICE + info("NCCL_IB_DISABLE set by environment to 1."),
        info("Using network IB"),
        info("NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"),
        info("NET/IB : No device found."),
    ],
)
def test_tcp_is_not_mentioned_if_it_is_meant_or_not_used(text: str) -> None:
    assert "socket-fallback" not in by_code(text)


@pytest.mark.parametrize(
    "line",
    [
        "NET/OFI Selected Provider is tcp (found 1 nics)",
        "NET/OFI Selected Provider is sockets",
        "NET/OFI Selected provider is tcp;ofi_rxm, fabric is 10.0.0.0/24 (found 1 nics)",
        "NET/OFI Couldn't find any optimal provider",
        "NET/OFI Only EFA provider is supported",
    ],
)
def test_efa_is_missing(line: str) -> None:
    assert by_code(info(line))["efa-missing"].severity == "error"


@pytest.mark.parametrize("provider", ["efa (found 4 nics)", "cxi (found 4 nics)", "efa;ofi_rxr"])
def test_efa_and_cxi_are_providers_for_rdma(provider: str) -> None:
    assert not by_code(info(f"NET/OFI Selected Provider is {provider}"))


def test_ib_disable_has_no_effect_on_a_plugin() -> None:
    disable = info("NCCL_IB_DISABLE set by environment to 1.")
    assert "IBext_v8" in by_code(disable + info("Using network IBext_v8"))["ib-disable-without-effect"].subject
    assert "ib-disable-without-effect" not in by_code(disable + info("Using network Socket"))


def test_an_old_plugin_is_not_used() -> None:
    line = info(
        "NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). ncclNetPlugin symbols v4 and lower are not supported."
    )
    assert "net-plugin-too-old" in by_code(line)
    assert "net-plugin-too-old" not in by_code(line + info("NET/Plugin: Loaded net plugin AWS Libfabric (v6)"))
    assert "net-plugin-too-old" not in by_code(line.replace("ncclNetPlugin", "ncclCollNetPlugin"))


PLUGIN = "Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"
NO_PLUGIN = "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."


@pytest.mark.parametrize(
    "text",
    [
        info(PLUGIN) + info(NO_PLUGIN, "nodeB"),
        info("Using network IBext") + info("Using network IB", "nodeB"),
        info("Using network IB") + info("Using network Socket", "nodeB"),
        info("NET/Plugin: Loaded net plugin AWS Libfabric (v6)") + info(NO_PLUGIN, "nodeB"),
    ],
)
def test_hosts_with_different_plugins(text: str) -> None:
    finding = by_code(text)["net-plugin-differs"]
    assert "nodeA" in finding.subject
    assert "nodeB" in finding.subject


@pytest.mark.parametrize(
    "text",
    [
        info(PLUGIN) + info(PLUGIN, "nodeB"),
        info(NO_PLUGIN) + info(NO_PLUGIN, "nodeB"),
        info(PLUGIN) + info(NO_PLUGIN) + info("Using network IB") + info("Using network IB", "nodeB"),
        info("NET/Plugin: Loaded collnet plugin SHARP (v6)") + info(NO_PLUGIN, "nodeB"),
    ],
)
def test_hosts_with_the_same_plugins(text: str) -> None:
    assert "net-plugin-differs" not in by_code(text)


def using(ports: str, host: str = "nodeA") -> str:
    return info(f"NET/IB : Using {ports} [RO]; OOB eth0:10.0.0.1<0>", host)


def channels(host: str, *devices: int) -> str:
    return "".join(
        info(f"Channel 0{n}/0 : 1[0] -> 0[0] [receive] via NET/IB/{device}/GDRDMA", host)
        for n, device in enumerate(devices)
    )


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (using("[0]mlx5_0:1/IB [1]mlx5_1:1/IB") + using("[0]mlx5_0:1/IB", "nodeB"), "warning"),
        (
            channels("nodeA", 0, 1, 0, 1)
            + channels("nodeB", 0, 0)
            + "nodeB:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Unable to open device erdma_1\n",
            "error",
        ),
        (
            "a:1:2 [0] init.cc:9 NCCL WARN Detected mixed local Net device counts across ranks (min 1, max 2). Set "
            "NCCL_IGNORE_NET_MISMATCH=1 to ignore\na:1:2 [0] NCCL INFO Rank 1 has 1 local Net devices (max 2).\n",
            "error",
        ),
    ],
)
def test_ranks_with_different_nics(text: str, severity: str) -> None:
    assert by_code(text)["nic-sets-differ"].severity == severity


def test_the_rank_with_fewer_nics_is_named() -> None:
    text = "a:1:2 [0] NCCL INFO Rank 1 has 1 local Net devices (max 2).\n"
    assert by_code(text)["nic-sets-differ"].subject == "rank 1 has 1 of 2 NICs"


@pytest.mark.parametrize(
    "text",
    [
        using("[0]mlx5_0:1/IB [1]mlx5_1:1/IB") + using("[0]mlx5_2:1/IB [1]mlx5_3:1/IB", "nodeB"),
        channels("nodeA", 0, 1) + channels("nodeB", 2, 3),
        "a:1:2 [0] NCCL INFO Rank 1 has 2 local Net devices (max 2).\n",
    ],
)
def test_ranks_with_the_same_number_of_nics(text: str) -> None:
    assert "nic-sets-differ" not in by_code(text)


def test_a_device_that_cannot_be_opened() -> None:
    finding = by_code("nodeB:1:2 [0] net_ib.cc:9 NCCL WARN NET/IB : Unable to open device mlx5_1\n")[
        "ib-device-unusable"
    ]
    assert finding.subject == "nodeB GPU 0, mlx5_1"


def test_one_nic_for_several_gpus() -> None:
    assert by_code(using("[0]mlx5_0:1/IB") + MANY_HOSTS)["single-nic"].severity == "warning"


@pytest.mark.parametrize(
    "text",
    [
        using("[0]mlx5_0:1/IB") + ONE_HOST,
        using("[0]mlx5_0:1/IB [1]mlx5_1:1/IB") + MANY_HOSTS,
        using("[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}") + MANY_HOSTS,
        using("[0]mlx5_0:1/IB") + info("comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"),
    ],
)
def test_one_nic_is_enough_or_not_the_only_one(text: str) -> None:
    assert "single-nic" not in by_code(text)


DISABLED = info("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'") + info(
    "NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'"
)


def test_gpu_direct_rdma_is_off() -> None:
    finding = by_code(DISABLED + channels("nodeA", 0))["gdr-disabled"]
    assert (finding.severity, finding.subject) == ("warning", "nodeA, mlx5_0 and mlx5_1")


@pytest.mark.parametrize(
    "text",
    [
        info("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"),
        info("NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'"),
        info("GPU Direct RDMA Disabled for GPU 81000 / HCA 0 (distance 6 > 5)"),
        DISABLED + ONE_HOST,
    ],
)
def test_gpu_direct_rdma_is_on_or_not_needed(text: str) -> None:
    assert "gdr-disabled" not in by_code(text)


def test_channels_without_gpu_direct_rdma() -> None:
    without = info("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0")
    assert "NET/IB/0" in by_code(without)["gdr-not-used"].subject
    assert "gdr-not-used" not in by_code(without + channels("nodeA", 0))
    assert "gdr-not-used" not in by_code(without.replace("IB", "Socket"))


def pattern(number: int, n_channels: int, speed: float, chain: str = "NET/0 GPU/0 GPU/1 NET/0") -> str:
    line = f"Pattern {number}, crossNic 0, nChannels {n_channels}, bw {speed:f}/{speed:f}, type NVL/PIX, sameChannels 1"
    return info(line) + info(f" 0 : {chain}")


def test_a_slow_network() -> None:
    assert "1.2 GB/s" in by_code(pattern(4, 2, 1.2))["slow-network"].why


@pytest.mark.parametrize(
    "text", [pattern(4, 2, 12.0), pattern(3, 0, 0.0), pattern(4, 2, 1.2, "GPU/0 GPU/1"), pattern(5, 2, 1.2)]
)
def test_a_network_that_is_fast_or_not_used(text: str) -> None:
    assert "slow-network" not in by_code(text)


def test_the_same_channels_over_one_nic_and_over_two() -> None:
    assert "NIC 0, 1" in by_code(channels("nodeA", 0, 1) + channels("nodeB", 0, 0))["nic-sets-differ"].subject
    assert "nic-sets-differ" not in by_code(channels("nodeA", 0, 1) + channels("nodeB", 0))


def test_infiniband_on_one_host_only_before_networks_were_named() -> None:
    text = using("[0]mlx5_0:1/IB") + info("NET/IB : No device found.", "nodeB")
    assert by_code(text)["net-plugin-differs"].subject == "nodeA: InfiniBand or RoCE; nodeB: no RDMA device"
