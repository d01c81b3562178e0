"""The hardware of this host: a host without GPUs, a copy of sysfs, and drivers that reject some queries."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from meshlab.base._errors import TopologyError
from meshlab.benchmark._host_record import loads_between
from meshlab.benchmark.on_ranks._host_counters import HostCounters
from meshlab.runs._host_loads import loads_of
from meshlab.topology.readers import _nvml as nvml
from meshlab.topology.readers._hosts import cluster_from_hosts, probe
from meshlab.topology.readers._nvml import ClockReader, LiveReader, read_devices, read_host, sample
from meshlab.topology.readers._sysfs import (
    normal_bus_id,
    pci_path,
    pci_word,
    read_nic_bytes,
    read_nics,
    read_processors,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host of two sockets: a PCIe switch with a GPU and an RDMA NIC, a second GPU far away, and an Ethernet NIC."""
    places = {
        "0000:03:00.0": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
        "0000:04:00.0": "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0",
        "0000:05:00.0": "pci0000:00/0000:00:02.0/0000:05:00.0",
        "0000:81:00.0": "pci0000:80/0000:80:01.0/0000:81:00.0",
    }
    links = tmp_path / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    for bus_id, place in places.items():
        write(tmp_path / "sys/devices" / place / "numa_node", "1" if place.startswith("pci0000:80") else "0")
        (links / bus_id).symlink_to(tmp_path / "sys/devices" / place)
    card = tmp_path / "sys/class/infiniband/mlx5_0"
    write(card / "ports/1/rate", "400 Gb/sec (4X NDR)")
    write(card / "ports/1/link_layer", "InfiniBand")
    write(card / "ports/1/state", "4: ACTIVE")
    (card / "device").symlink_to(links / "0000:04:00.0")
    for name, bus_id, speed in (("ib0", "0000:04:00.0", "400000"), ("eth0", "0000:05:00.0", "25000")):
        write(tmp_path / f"sys/class/net/{name}/speed", speed)
        (tmp_path / f"sys/class/net/{name}/device").symlink_to(links / bus_id)
    write(tmp_path / "sys/class/net/lo/operstate", "unknown")
    for node, cpus in ((0, "0-1"), (1, "2-3")):
        write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", cpus)
        write(tmp_path / f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:  1048576 kB")
    write(tmp_path / "proc/meminfo", "MemTotal:        2097152 kB")
    cpus = [f"processor\t: {i}\nmodel name\t: Test CPU\nphysical id\t: {i // 2}" for i in range(4)]
    write(tmp_path / "proc/cpuinfo", "\n\n".join(cpus))
    return tmp_path


def test_processors_memory_and_numa_nodes(root: Path) -> None:
    assert read_processors(root) == {
        "cpu_model": "Test CPU",
        "cpu_count": 4,
        "sockets": 2,
        "memory_bytes": 2**31,
        "numa": [(0, "0-1", 2**30), (1, "2-3", 2**30)],
    }


def test_roce_card_is_listed_once(root: Path) -> None:
    nics = read_nics(root)
    assert [(nic["name"], nic["gbits"], nic["numa"], nic["state"]) for nic in nics] == [
        ("mlx5_0", 400.0, "0", "ACTIVE"),
        ("eth0", 25.0, "0", None),
    ]


def test_empty_sysfs_has_no_hardware(tmp_path: Path) -> None:
    assert read_nics(tmp_path) == []
    assert read_processors(tmp_path)["numa"] == []
    assert pci_path("0000:03:00.0", tmp_path) == ()


@pytest.mark.parametrize(
    ("one", "other", "word"),
    [
        ("0000:03:00.0", "0000:04:00.0", "PIX"),
        ("0000:03:00.0", "0000:05:00.0", "PHB"),
        ("0000:03:00.0", "0000:81:00.0", "SYS"),
    ],
)
def test_link_words_follow_the_pci_tree(root: Path, one: str, other: str, word: str) -> None:
    numas = tuple("1" if bus_id == "0000:81:00.0" else "0" for bus_id in (one, other))
    paths = pci_path(one, root), pci_path(other, root)
    assert pci_word(*paths, numas) == pci_word(*reversed(paths), numas[::-1]) == word  # type: ignore[arg-type]


def test_pxb_below_two_switches_and_node_between_roots_of_a_numa_node() -> None:
    top = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    assert pci_word((*top, "a", "b", "c", "d"), (*top, "e", "f"), ("0", "0")) == "PXB"
    assert pci_word(("pci0000:00", "a"), ("pci0000:40", "b"), ("0", "0")) == "NODE"
    assert pci_word((), ("pci0000:40", "b"), (None, "0")) == "?"


def test_bus_ids_of_the_driver_and_of_linux_are_equal() -> None:
    assert normal_bus_id("00000000:0F:00.0") == normal_bus_id("0000:0f:00.0") == "0000:0f:00.0"


class Driver:
    """A stand-in for pynvml: two GPUs on NVSwitch, and any query can be rejected."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_NVLINK_MAX_LINKS = 18
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_GPU_FABRIC_STATE_COMPLETED = 3
    c_nvmlGpuFabricInfoV_t = pynvml.c_nvmlGpuFabricInfoV_t  # noqa: N815

    def __init__(self, refused: Callable[[str], bool] = lambda name: False, **changed: Any) -> None:
        self.refused = refused
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlSystemGetDriverVersion": lambda: "570.1",
            "nvmlSystemGetCudaDriverVersion": lambda: 12080,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: b"NVIDIA H100",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:0{handle}:00.0"),
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlDeviceGetNumGpuCores": lambda handle: 16896,
            "nvmlDeviceGetEccMode": lambda handle: [1, 1],
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 0,
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
            "nvmlDeviceGetMaxClockInfo": lambda handle, clock: 1980,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 1,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda handle: 5,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda handle: 16,
            "nvmlDeviceGetCpuAffinity": lambda handle, words: [0xF, 0x1],
            "nvmlDeviceGetMemoryAffinity": lambda handle, words, scope: [1],
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 << 30, used=1 << 30),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=7),
            "nvmlDeviceGetTemperature": lambda handle, sensor: 31,
            "nvmlDeviceGetPowerUsage": lambda handle: 71_500,
            "nvmlDeviceGetClockInfo": lambda handle, clock: 345,
            "nvmlDeviceGetMigMode": lambda handle: [0, 0],
            "nvmlDeviceGetNvLinkState": lambda handle, link: 1,
            "nvmlDeviceGetNvLinkRemoteDeviceType": lambda handle, link: 2,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, link: SimpleNamespace(busId=b"FFFFFFFF:FF:FF.0"),
            "nvmlDeviceGetGpuFabricInfoV": self.fabric,
            "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: 40,
            "nvmlDeviceGetP2PStatus": lambda one, other, what: 0,
            **changed,
        }

    @staticmethod
    def fabric(handle: int, reference: Any) -> None:
        info = reference._obj
        info.clusterUuid[0], info.cliqueId, info.state = 0xAB, 4, 3

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.__dict__["answers"]:
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            if self.refused(name):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self.answers[name](*arguments)

        return answer


def seen(driver: Driver) -> tuple[list[dict[str, Any]], list[list[str]], list[list[str]]]:
    return read_devices(driver)  # type: ignore[arg-type]


def test_complete_results_fill_every_field() -> None:
    devices, words, p2p = seen(Driver())
    assert words == [["X", "NV18"], ["NV18", "X"]]
    assert p2p == [["X", "OK"], ["OK", "X"]]
    assert devices[1] == {
        "id": 1,
        "name": "NVIDIA H100",
        "uuid": "GPU-1",
        "bus_id": "0000:01:00.0",
        "compute_capability": (9, 0),
        "sm_count": 132,
        "ecc": True,
        "ecc_uncorrected": 0,
        "power_limit_w": 700.0,
        "clock_sm_max_mhz": 1980,
        "pcie_generation": 1,
        "pcie_width": 16,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "cpus": "0-3,64",
        "numa": "0",
        "memory_bytes": 80 << 30,
        "memory_used_bytes": 1 << 30,
        "utilisation_percent": 7.0,
        "temperature_c": 31.0,
        "power_w": 71.5,
        "clock_sm_mhz": 345,
        "clock_memory_mhz": 345,
        "mig": "",
        "nvlink_count": 18,
        "nvlink_remotes": (("switch", "ffffffff:ff:ff.0", 18),),
        "fabric": "ab" + "00" * 15 + "/4",
        "driver_version": "570.1",
        "cuda_version": "12.8",
        "unknown": {},
    }


def test_driver_that_rejects_every_second_query() -> None:
    names = sorted(Driver().answers)
    refused = {
        name
        for i, name in enumerate(names)
        if i % 2 and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
    }
    devices, words, p2p = seen(Driver(refused.__contains__))
    host = read_host() | {"devices": devices, "nics": [], "words": words, "p2p": p2p}
    cluster = cluster_from_hosts([host])
    assert cluster.n_devices == 2
    reasons = cluster.device(0).unknown
    assert len(reasons) >= 8
    assert set(reasons.values()) == {"Not Supported"}
    assert all(getattr(cluster.device(0), name) is None for name in reasons if name not in ("nvlink_remotes", "name"))


def test_driver_that_rejects_everything() -> None:
    assert seen(Driver(lambda name: True)) == ([], [], [])


def test_lost_gpu_does_not_hide_the_others() -> None:
    def handle(index: int) -> int:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    devices, words, _ = seen(Driver(nvmlDeviceGetHandleByIndex=handle))
    assert devices[0]["unknown"]["name"] == "GPU is lost"
    assert devices[1]["name"] == "NVIDIA H100"
    assert words == [["X", "?"], ["?", "X"]]


def test_nvlink_without_peer_access_is_not_a_link() -> None:
    _, words, p2p = seen(Driver(nvmlDeviceGetP2PStatus=lambda one, other, what: 5))
    assert words[0][1] == "NODE"
    assert p2p[0][1] == "NS"


def test_direct_links_count_for_their_remote_gpu_only() -> None:
    def remote(handle: int, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:0{1 - handle}:00.0" if link < 2 else "00000000:09:00.0")

    kinds = {"nvmlDeviceGetNvLinkRemoteDeviceType": lambda handle, link: 0}
    up = {"nvmlDeviceGetNvLinkState": lambda handle, link: int(link < 3)}
    devices, words, _ = seen(Driver(nvmlDeviceGetNvLinkRemotePciInfo=remote, **kinds, **up))
    assert words[0][1] == "NV2"
    assert devices[0]["nvlink_count"] == 3


def test_mig_partitions_are_counted_by_profile() -> None:
    mig = {
        "nvmlDeviceGetMigMode": lambda handle: [1, 1],
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 3,
        "nvmlDeviceGetMigDeviceHandleByIndex": lambda handle, index: index,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H100 MIG 1g.10gb",
    }
    devices, _, _ = seen(Driver(**mig))
    assert devices[0]["mig"] == "3 × 1g.10gb"
    devices, _, _ = seen(Driver(lambda name: name == "nvmlDeviceGetMigMode"))
    assert devices[0]["mig"] == ""


@pytest.mark.parametrize(
    ("capability", "cores", "count"),
    [((7, 0), 5120, 80), ((8, 0), 6912, 108), ((8, 9), 18176, 142), ((10, 0), 18944, 148), ((3, 0), 1536, None)],
)
def test_multiprocessors_of_architectures_with_a_published_number_of_cores(
    capability: tuple[int, int], cores: int, count: int | None
) -> None:
    driver = Driver(
        nvmlDeviceGetCudaComputeCapability=lambda handle: capability, nvmlDeviceGetNumGpuCores=lambda handle: cores
    )
    assert seen(driver)[0][0].get("sm_count") == count


def test_fabric_that_is_not_ready() -> None:
    def waiting(handle: int, reference: Any) -> None:
        reference._obj.state = 2

    devices, _, _ = seen(Driver(nvmlDeviceGetGpuFabricInfoV=waiting))
    assert devices[0]["unknown"]["fabric"] == "the NVLink fabric is in progress"


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has NVIDIA GPUs")
def test_host_without_gpus_has_the_reason_and_its_cpus() -> None:
    cluster = probe()
    assert cluster.n_devices == 0
    assert any("no GPU found: " in note for note in cluster.notes)
    assert cluster.node(0).cpu_count
    assert sample() == []


def test_description_of_a_host_can_be_pickled() -> None:
    host = read_host()
    assert pickle.loads(pickle.dumps(host)) == host


def test_description_of_a_host_survives_json() -> None:
    devices, words, p2p = seen(Driver())
    host = read_host() | {"devices": devices, "nics": [], "words": words, "p2p": p2p}
    assert cluster_from_hosts([json.loads(json.dumps(host))]).device(1) == cluster_from_hosts([host]).device(1)


def test_invalid_descriptions_are_rejected() -> None:
    with pytest.raises(TopologyError, match="no hosts given; pass at least one result"):
        cluster_from_hosts([])
    with pytest.raises(TopologyError, match=r"host 'a' is invalid \(incomplete: devices is missing\); pass"):
        cluster_from_hosts([{"name": "a"}])


def counters(per_link: dict[int, int], *, has_sum: bool) -> Callable[..., Any]:
    """Answer queries of NVLink counters, in KiB. The received data is twice the sent data."""

    def answer(handle: int, fields: Any) -> Any:
        values = []
        for field, link in fields:
            known = sum(per_link.values()) if link > 100 and has_sum else per_link.get(link)
            factor = 2 if field == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX else 1
            values.append(
                SimpleNamespace(nvmlReturn=known is None, value=SimpleNamespace(ullVal=factor * (known or 0)))
            )
        return values

    return answer


@pytest.mark.parametrize("has_sum", [True, False])
def test_traffic_is_the_difference_of_two_readings(monkeypatch: pytest.MonkeyPatch, has_sum: bool) -> None:
    links = {0: 1000, 1: 500}
    clock = [100.0]
    driver = Driver(
        nvmlDeviceGetFieldValues=counters(links, has_sum=has_sum),
        nvmlDeviceGetPcieThroughput=lambda handle, counter: 3_000_000 * (1 + counter),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x44,
    )
    monkeypatch.setattr(nvml, "_start", lambda: (driver, ""))
    monkeypatch.setattr(nvml.time, "monotonic", lambda: clock[0])
    reader = LiveReader()
    assert "nvlink_tx_gbs" not in reader.read()[0]
    links[1] += 10**7
    clock[0] += 2
    first, second = reader.read()
    assert first["nvlink_tx_gbs"] == second["nvlink_tx_gbs"] == pytest.approx(10**7 * 1024 / 2 / 1e9)
    assert first["nvlink_rx_gbs"] == pytest.approx(2 * first["nvlink_tx_gbs"])
    assert (first["pcie_tx_gbs"], first["pcie_rx_gbs"]) == (3.0, 6.0)
    assert (first["throttle"], first["power_w"], first["power_limit_w"]) == (
        "power cap, hardware thermal slowdown",
        71.5,
        700,
    )


def test_the_record_of_a_run_reads_the_load_of_gpus_but_not_the_slow_counters_of_pcie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = dict.fromkeys(range(18), 0)
    clock = [100.0]
    pcie: list[int] = []
    driver = Driver(
        nvmlDeviceGetFieldValues=counters(links, has_sum=True),
        nvmlDeviceGetPcieThroughput=lambda handle, counter: pcie.append(counter),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
    )
    monkeypatch.setattr(nvml, "_start", lambda: (driver, ""))
    monkeypatch.setattr(nvml.time, "monotonic", lambda: clock[0])
    reader = ClockReader()
    reader.read()
    links[1] += 10**7
    clock[0] += 2
    first = HostCounters(10.0, 50.0, 1.0, 100.0, core_s=[(5.0, 10.0)], nic_bytes={"mlx5_0": (0, 0)})
    second = replace(
        first, at_s=12.0, gpus=reader.read(), core_s=[(6.0, 12.0)], nic_bytes={"mlx5_0": (4 * 10**9, 10**9)}
    )
    loads = {load["device"]: load for load in loads_of({"loads": loads_between(first, second, 7.0)})}
    assert list(loads) == ["core 0", "GPU 0", "GPU 1", "mlx5_0"]
    assert loads["core 0"]["use_percent"] == 50.0
    assert (loads["mlx5_0"]["tx_gbs"], loads["mlx5_0"]["rx_gbs"]) == (2.0, 0.5)
    gpu = loads["GPU 1"]
    assert gpu["tx_gbs"] == pytest.approx(10**7 * 1024 / 2 / 1e9, rel=1e-4)
    assert (gpu["use_percent"], gpu["memory_used_gib"], gpu["temperature_c"]) == (7.0, 1.0, 31.0)
    assert (gpu["clock_mhz"], gpu["power_w"], gpu["throttle"]) == (345.0, 71.5, "power cap")
    assert pcie == []


def test_the_traffic_of_network_cards_is_counted_in_bytes(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    port = "sys/class/infiniband/mlx5_0/ports/1"
    write(f"{port}/rate", "400 Gb/sec (4X NDR)")
    write(f"{port}/counters/port_xmit_data", "1000\n")
    write(f"{port}/counters/port_rcv_data", "250\n")
    assert read_nic_bytes(tmp_path) == {"mlx5_0": (4000, 1000)}  # the port counts words of four bytes
    (tmp_path / port / "counters" / "port_rcv_data").unlink()
    assert read_nic_bytes(tmp_path) == {}
    assert read_nic_bytes(tmp_path / "none") == {}


def test_a_gpu_without_counters_has_the_other_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(lambda name: name in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPcieThroughput"))
    monkeypatch.setattr(nvml, "_start", lambda: (driver, ""))
    reader = LiveReader()
    reader.read()
    assert {key for key in reader.read()[0] if "gbs" in key} == set()
    assert reader.read()[0]["utilisation_percent"] == 7.0
