"""NCCL's own output as oracle: logged tables, logged times, and the sizes at which NCCL changes its choice."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import meshlab as ml
from meshlab.prediction._constants import ALGORITHMS, PROTOCOLS, VERSIONS
from meshlab.prediction._costs import cost, prices
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._published_errors import no_errors
from meshlab.prediction._tuner import Graphs, NcclSettings, enabled, search_graphs, tune

FOLDER = os.environ.get("MESHLAB_CASES")

TREE, RING = ALGORITHMS.index("tree"), ALGORITHMS.index("ring")
LL, LL128, SIMPLE = range(3)

# What NCCL 2.28.9 logged for two H200 without NVLS: latency and bandwidth of LL, LL128 and Simple.
LOGGED = {
    ("broadcast", "ring"): ((7.2, 141.0), (15.9, 331.2), (11.8, 360.0)),
    ("reduce", "ring"): ((7.2, 141.0), (15.9, 331.2), (11.8, 360.0)),
    ("all_gather", "ring"): ((7.2, 282.0), (15.9, 662.4), (11.8, 720.0)),
    ("all_gather", "collnet_direct"): ((0.8, 0.0), (0.8, 0.0), (39.2, 0.0)),
    ("reduce_scatter", "ring"): ((7.2, 282.0), (15.9, 662.4), (11.8, 720.0)),
    ("reduce_scatter", "collnet_direct"): ((0.8, 0.0), (0.8, 0.0), (39.2, 0.0)),
    ("all_reduce", "tree"): ((8.0, 61.1), (16.5, 180.6), (16.4, 232.2)),
    ("all_reduce", "ring"): ((7.8, 141.0), (17.8, 331.2), (15.2, 360.0)),
    ("all_reduce", "collnet_direct"): ((0.8, 0.0), (0.8, 0.0), (39.2, 0.0)),
    ("all_reduce", "collnet_chain"): ((0.0, 0.0), (0.0, 0.0), (35.6, 0.0)),
}
NO_NVLS = NcclSettings(nvls=False, version="2.28.9")


def links_of(mesh: str, preset: str, nodes: int = 1, axis: str | None = None) -> GroupLinks:
    layout = ml.DeviceMesh(mesh)
    return GroupLinks.of(ml.place(layout, ml.preset(preset, nodes=nodes)), axis or layout.axis_names[0])[0]


def table(links: GroupLinks, collective: str, settings: NcclSettings) -> tuple[np.ndarray, np.ndarray]:
    constants = VERSIONS[settings.version]
    tuning = tune(links, search_graphs(links, constants, nvls=settings.nvls), collective, constants)
    return tuning.latency_us[0], (tuning.gbs * enabled(links, collective, settings))[0]


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"])
def test_the_table_that_nccl_logged_for_two_h200(collective: str) -> None:
    latency, gbs = table(links_of("tp=2", "dgx-h200"), collective, NO_NVLS)
    for a, algorithm in enumerate(ALGORITHMS[:-1]):
        expected = LOGGED.get((collective, algorithm), ((0.0, 0.0),) * 3)
        for p in range(3):
            found = (f"{latency[a, p]:.1f}", f"{gbs[a, p]:.1f}")
            assert found == tuple(f"{value:.1f}" for value in expected[p]), (algorithm, PROTOCOLS[p])


@pytest.mark.skipif(not FOLDER, reason="MESHLAB_CASES is not set")
def test_the_complete_table_in_the_log_of_two_h200() -> None:
    text = (Path(str(FOLDER)) / "own_gpu" / "nccl_info_tuning_h200x2.txt").read_text()
    names = {"Broadcast": "broadcast", "Reduce": "reduce", "AllReduce": "all_reduce"}
    names |= {"AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}
    links = links_of("tp=2", "dgx-h200")
    blocks, compared = -1, 0
    for row in text.splitlines():
        blocks += "Algorithm   |" in row
        found = re.search(r"INFO +(\w+) \|((?: *[\d.]+/ *[\d.]+ \|)+)", row)
        if not found:
            continue
        latency, gbs = table(links, names[found[1]], NO_NVLS)
        for index, cell in enumerate(re.findall(r"([\d.]+)/ *([\d.]+)", found[2])):
            a, p = 3 * blocks + index // 3, index % 3
            if a < len(ALGORITHMS) - 1:  # NCCL prints empty columns after the last algorithm
                assert (f"{latency[a, p]:.1f}", f"{gbs[a, p]:.1f}") == cell, (row, a, p)
                compared += 1
    assert compared == 5 * 7 * 3


def graphs_with(channels: int, gbs: float) -> Graphs:
    """Channels of a single group, where a log gives them and not the machine."""
    values: dict[str, object] = {item.name: np.array([gbs]) for item in fields(Graphs)}
    values |= {"channels": np.array([channels]), "all_channels": np.array([2 * channels]), "heads": np.array([0])}
    return Graphs(**{**values, "is_plain_tree": np.array([False]), "same_channels": np.array([False])})  # type: ignore[arg-type]


def test_the_broadcast_over_1024_ranks_that_nccl_logged() -> None:
    """NVIDIA/nccl#1304: 24 bytes, ring, LL: 2771.401 µs."""
    answer = cost(links_of("dp=1024", "dgx-a100", 128), "broadcast", [24], settings=NcclSettings(protocols=("ll",)))
    assert answer.time_us[0, 0] == pytest.approx(2771.401, abs=0.01)


def test_the_small_all_reduce_over_three_nodes_that_nccl_logged() -> None:
    """NVIDIA/nccl#1453: 24 H100, tree, LL, 8 bytes: 25.200924 µs."""
    answer = cost(links_of("dp=24", "dgx-h100", 3), "all_reduce", [8], evidence=no_errors())
    assert ALGORITHMS[answer.algorithm[0, 0]], PROTOCOLS[answer.protocol[0, 0]] == ("tree", "ll")
    assert answer.time_us[0, 0] == pytest.approx(25.200924, rel=1e-5)


def test_the_large_all_reduce_over_three_nodes_that_nccl_logged() -> None:
    """NVIDIA/nccl#1453: 24 H100, ring, Simple, 8 GiB: 86069.97 µs, on 16 channels of 12 GB/s and AMD CPUs."""
    links = links_of("dp=24", "aws-p5", 3)
    tuning = tune(
        links, graphs_with(16, 12.0), "all_reduce", VERSIONS["2.30.7"], network_latency_us=np.zeros(len(links))
    )
    time = tuning.latency_us[0, RING, SIMPLE] + (8 << 30) / (1000 * tuning.gbs[0, RING, SIMPLE])
    assert time == pytest.approx(86069.97, rel=1e-4)


def test_the_bandwidth_of_ll128_between_two_b200() -> None:
    """NVIDIA/nccl pull request 2343: NCCL's model gives 640 GB/s."""
    settings = NcclSettings(nvls=False)
    _, gbs = table(links_of("tp=2", "dgx-b200"), "all_reduce", settings)
    assert gbs[RING, LL128] == pytest.approx(640)
    older = table(links_of("tp=2", "dgx-b200"), "all_reduce", NO_NVLS)
    assert older[1][RING, LL128] == pytest.approx(0.92 * 720)


@pytest.mark.parametrize(
    ("mesh", "preset", "nodes", "channels", "ring"),
    [
        ("tp=8", "dgx-h100", 1, 12, 30),  # six of 60, each split
        ("tp=8", "dgx-a100", 1, 12, 20),
        ("tp=8", "dgx-b200", 1, 16, 45),
        ("dp=16", "dgx-h100", 2, 8, 48),  # one per NIC of 400 Gb/s
        ("dp=16", "dgx-a100", 2, 8, 24),
        ("dp=16", "aws-p5", 2, 8, 48),  # the plugin joins four NICs of 100 Gb/s
        ("dp=16", "aws-p4d", 2, 4, 12),
        ("tp=4", "alps-gh200", 1, 12, 30),  # three peers with six NVLinks each
    ],
)
def test_channels_of_known_machines(mesh: str, preset: str, nodes: int, channels: int, ring: float) -> None:
    graphs = search_graphs(links_of(mesh, preset, nodes), VERSIONS["2.30.7"])
    assert (graphs.channels.tolist(), graphs.ring.tolist()) == ([channels], [ring])


def test_switches_between_protocols_on_two_h200() -> None:
    """Measured: all_reduce, broadcast and reduce leave LL above 1 MiB, all_gather and reduce_scatter above 2 MiB."""
    links = links_of("tp=2", "dgx-h200")
    sizes = 1 << np.arange(3, 31)
    for collective, last in (
        ("all_reduce", 1 << 20),
        ("broadcast", 1 << 20),
        ("reduce", 1 << 20),
        ("all_gather", 2 << 20),
        ("reduce_scatter", 2 << 20),
    ):
        answer = cost(links, collective, sizes, settings=NO_NVLS)
        protocol = answer.protocol[0]
        assert (answer.algorithm == RING).all()
        assert sizes[protocol == LL].max() == last, collective
        assert (protocol[sizes > last] == SIMPLE).all()


def test_settings_restrict_the_choice() -> None:
    links = links_of("dp=16", "dgx-h100", 2)
    sizes = 1 << np.arange(3, 34)
    only = cost(links, "all_reduce", sizes, settings=NcclSettings(algorithms=("ring",), protocols=("ll", "simple")))
    assert {ALGORITHMS[a] for a in only.algorithm.ravel()} == {"ring"}
    assert {PROTOCOLS[p] for p in only.protocol.ravel()} == {"ll", "simple"}
    assert (only.time_us > 0).all()
    free = cost(links, "all_reduce", sizes)
    assert {ALGORITHMS[a] for a in free.algorithm.ravel()} == {"tree", "nvls_tree"}
    with pytest.raises(ml.MeshlabError, match="no algorithm for groups of 16 ranks with algorithms=\\('pat',\\)"):
        cost(links, "all_reduce", sizes, settings=NcclSettings(algorithms=("pat",)))


def test_fp8_avoids_long_rings() -> None:
    links = links_of("dp=80", "dgx-h100", 10)
    assert ALGORITHMS[cost(links, "all_reduce", [1 << 34]).algorithm[0, 0]] == "ring"
    assert ALGORITHMS[cost(links, "all_reduce", [1 << 34], dtype="float8_e4m3fn").algorithm[0, 0]] == "tree"


def test_settings_of_the_environment() -> None:
    environment = {"NCCL_ALGO": "^NVLS,CollNetDirect;allreduce:Tree", "NCCL_NVLS_ENABLE": "0"}
    of_all = NcclSettings.of_environment(environment)
    assert of_all.algorithms == ("tree", "ring", "collnet_chain", "nvls_tree", "pat")
    assert not of_all.nvls
    assert NcclSettings.of_environment(environment, collective="all_reduce").algorithms == ("tree",)
    assert NcclSettings.of_environment({}) == NcclSettings()
    with pytest.raises(ml.MeshlabError, match=r"unknown name 'rng'.*did you mean"):
        NcclSettings.of_environment({"NCCL_ALGO": "rng"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"algorithms": ("rings",)}, "unknown algorithm 'rings'"),
        ({"algorithms": "ring"}, "algorithms must be a sequence of names, not 'ring'"),
        ({"protocols": 3}, "protocols must be a sequence of names, not 3"),
        ({"sharp": 1}, "sharp must be True or False, not 1"),
        ({"plugin_latency_us": -1}, "plugin_latency_us must be a number of microseconds, not -1"),
        ({"protocols": ("LL",)}, "unknown protocol 'LL'"),
        ({"mode": "eager"}, "unknown timing mode 'eager'"),
        ({"version": "1.0"}, "unknown NCCL version '1.0'"),
    ],
)
def test_wrong_settings_are_rejected(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ml.MeshlabError, match=message):
        NcclSettings(**wrong)  # type: ignore[arg-type]


def test_timing_modes_shift_the_latency() -> None:
    links = links_of("tp=8", "dgx-h100")
    time = {
        mode: cost(links, "all_reduce", [8], settings=NcclSettings(mode=mode)).time_us[0, 0]  # type: ignore[arg-type]
        for mode in ("graph", "pipelined", "isolated")
    }
    assert time["graph"] < time["pipelined"] < time["isolated"]


def test_versions_differ_for_blackwell_only() -> None:
    sizes = 1 << np.arange(3, 34)
    for preset, differs in (("dgx-h100", False), ("dgx-a100", False), ("dgx-b200", True)):
        links = links_of("dp=24", preset, 3)
        times = [cost(links, "all_reduce", sizes, settings=NcclSettings(version=v)).time_us for v in VERSIONS]
        assert np.array_equal(*times) != differs, preset


def test_prices_of_single_calls_are_those_of_cost() -> None:
    table = GroupLinks.by_stride(ml.preset("dgx-h100", nodes=8))
    sizes = np.array([8, 1000, 1 << 20, 77 << 20, 1 << 32])
    for collective in ml.prediction.COLLECTIVES:
        expected = cost(table.links, collective, sizes).time_us
        rows = np.arange(len(table.links))[::-1]
        found = prices(table.links, collective).time_us(np.repeat(rows, len(sizes)), np.tile(sizes, len(rows)))
        assert np.array_equal(found.reshape(-1, len(sizes)), expected[::-1])
