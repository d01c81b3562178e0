"""Files of real machines, in the folder of the environment variable MESHLAB_CASES. Skipped without it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.readers._nccl_graph import NcclGraphs, read_nccl_graph
from meshlab.topology.readers._nccl_xml import read_nccl_topology
from meshlab.topology.readers._nvidia_smi import read_nvidia_smi

FOLDER = os.environ.get("MESHLAB_CASES")


def cases(kind: str) -> list[Any]:
    if FOLDER is None:
        return [pytest.param("", {}, marks=pytest.mark.skip(reason="MESHLAB_CASES is not set"))]
    expected = json.loads((Path(FOLDER) / "expected.json").read_text())[kind]
    return [pytest.param(name, facts, id=name) for name, facts in expected.items()]


def text_of(folder: str, name: str) -> str:
    return (Path(FOLDER or "") / "topo" / folder / name).read_text()


@pytest.mark.parametrize(("name", "facts"), cases("smi"))
def test_real_nvidia_smi_output(name: str, facts: dict[str, Any]) -> None:
    cluster = read_nvidia_smi(text_of("smi", name))
    node = cluster.node(0)
    assert (len(node.devices), len(node.nics)) == (facts["n_gpus"], facts["n_nics"])
    assert [device.numa for device in node.devices] == facts["numa_affinity"]
    assert [device.cpus for device in node.devices] == facts["cpu_affinity"]
    assert node.complete is not facts["truncated"]
    words = cluster.link_words().tolist()
    if facts["links"] is not None:
        assert words == facts["links"]
    else:
        known = facts["links_known_rows"]
        rows = {f"GPU{i}": row for i, row in enumerate(words) if "?" not in row}
        assert {name: row for name, row in rows.items() if name in known} == known
        # Links are symmetric, so the column of a GPU stands for a row that was cut.
        assert all(row == [other[int(name[3:])] for other in words] for name, row in rows.items())
    assert [list(row) for row in node.p2p] == facts.get("p2p", [])
    assert ml.topology.read(text_of("smi", name)) == cluster


@pytest.mark.parametrize(("name", "facts"), cases("xml"))
def test_real_nccl_files(name: str, facts: dict[str, Any]) -> None:
    text = text_of("nccl_xml", name)
    if facts["root"] == "graphs":
        graphs = read_nccl_graph(text)
        assert [len(graph.channels) for graph in graphs] == [graph["channels"] for graph in facts["graphs"]]
        assert [graph.gpu_path for graph in graphs] == [graph["typeintra"] for graph in facts["graphs"]]
        assert [sorted({len(c) for c in graph.channels}) for graph in graphs] == [
            graph["gpus_per_channel"] for graph in facts["graphs"]
        ]
        assert isinstance(ml.topology.read(text), NcclGraphs)
        with pytest.raises(ParseError, match="graph file"):
            read_nccl_topology(text)
        return
    cluster = read_nccl_topology(text)
    node = cluster.node(0)
    assert cluster.n_nodes == 1
    assert len(node.devices) == max(facts["n_gpus"], facts["n_gpus_by_class"])
    assert len(node.nics) == (facts["n_nets"] or facts["n_nics_by_class"])
    assert len(node.numa) == facts["n_cpus"]
    counts = {str(device.id): device.nvlink_count for device in node.devices}
    if facts["nvlinks_per_gpu"] is None:
        assert set(counts.values()) <= {None}
    else:
        assert counts == facts["nvlinks_per_gpu"]
    assert node.nvlink_known is (facts["nvlink_elements"] > 0)
    assert node.complete
    assert ml.topology.read(text) == cluster


def read(folder: str, name: str) -> Cluster:
    if FOLDER is None:
        pytest.skip("MESHLAB_CASES is not set")
    cluster = ml.topology.read(text_of(folder, name))
    assert isinstance(cluster, Cluster)
    return cluster


def test_broken_b200_has_one_gpu_without_nvlink() -> None:
    cluster = read("smi", "partial_vllm-16336_b200_gpu2_without_nvlink.txt")
    assert cluster.domain("nvlink").tolist() == [0, 0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["aws_p4d_a100_40g.xml", "aws_p5_48xl_h100.xml", "nebius_h100_v1.xml"])
def test_health_notes_files_that_omit_nvlink(name: str) -> None:
    found = read("nccl_xml", name).health()
    assert found.codes == ("nvlink-unknown",)
    assert found[0].severity == "note"


def test_azure_ndv4_orders_gpus_by_bus_id_not_by_numa_node() -> None:
    node = read("nccl_xml", "azure_ndv4_a100.xml").node(0)
    assert [device.numa for device in node.devices] == ["1", "1", "0", "0", "3", "3", "2", "2"]


def test_nebius_numbers_nics_from_the_second_socket() -> None:
    node = read("nccl_xml", "nebius_h100_v1.xml").node(0)
    assert [nic.name for nic in node.nics] == [f"mlx5_{k}" for k in range(8)]
    assert [nic.numa for nic in node.nics] == ["1"] * 4 + ["0"] * 4


def test_oracle_has_two_ports_per_card_and_four_switches() -> None:
    node = read("nccl_xml", "oracle_bm_gpu_h100.xml").node(0)
    assert len({nic.bus_id for nic in node.nics}) == 8
    assert node.near_nics.sum(axis=1).tolist() == [2] * 8
    assert node.words[0][:2] == ("X", "NV18")


def test_dgx_a100_has_two_nics_per_pair_of_gpus_and_two_unused() -> None:
    node = read("smi", "readme_dgx_a100_10nic_full.txt").node(0)
    assert node.nic_groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert node.near_nics.any(axis=0).tolist() == [True] * 8 + [False] * 2
    assert node.nics[9].name == "mlx5_9"
