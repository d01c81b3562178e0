"""Topology as plain text."""

from __future__ import annotations

from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import TopologyError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._presets import preset


def test_mesh_without_cluster_has_a_line_per_outer_coordinate() -> None:
    assert ml.topology.text(DeviceMesh("pp=2, tp=3")) == (
        "tp (2 groups of 3) · pp=2, tp=3\npp 0  ranks 0–2  tp  0 (all 3)\npp 1  ranks 3–5  tp  1 (all 3)"
    )


def test_cluster_without_mesh_shows_its_outermost_level() -> None:
    text = ml.topology.text(preset("dgx-h100", nodes=64))
    assert text == ml.topology.text(cluster=preset("dgx-h100", nodes=64))
    assert "node0   pod  0 (all 8)" in text
    assert "node63  pod  1 (all 8)" in text
    assert "… 40 more, from node12" in text


def test_idle_devices_and_a_different_order_are_shown() -> None:
    text = ml.topology.text(DeviceMesh("dp=2"), preset("dgx-a100"), devices=[5, 1])
    assert text.splitlines()[1] == "node0  2 ranks, 0 to 1  dp  – 0 – – – 0 – –"


def test_long_hosts_wrap_at_the_width() -> None:
    lines = ml.topology.text(DeviceMesh("dp=8, tp=8"), axis="dp", width=40).splitlines()
    assert max(map(len, lines[1:])) <= 40
    wrapped = ml.topology.text(DeviceMesh("pp=2, dp=50"), axis="pp", width=60).splitlines()
    assert max(map(len, wrapped[1:])) <= 60
    assert " ".join(line[-43:] for line in wrapped).count(" 49") == 2


def test_text_of_16384_devices_fits_on_a_page() -> None:
    text = ml.topology.text(DeviceMesh("pp=16, dp=128, tp=8"), preset("tapered-h100", nodes=2048), axis="dp")
    assert len(text.splitlines()) == 26
    assert "2,024 more" in text


def test_host_without_gpus_shows_its_ranks() -> None:
    laptop = Cluster.from_nodes([Node("laptop", cpu_model="Ryzen")])
    assert ml.topology.text(DeviceMesh("dp=2, tp=2"), laptop).splitlines()[1] == "laptop  ranks 0–3  tp  0 0 1 1"


def test_invalid_arguments_are_explained() -> None:
    with pytest.raises(TopologyError, match="no mesh and no cluster given; pass a mesh, a cluster, or both"):
        ml.topology.text()
    with pytest.raises(TopologyError, match="unknown device 9 in devices=; choose numbers from 0 to 7"):
        ml.topology.text(DeviceMesh("dp=2"), preset("dgx-h100"), devices=[0, 9])
    with pytest.raises(TopologyError, match="devices must be 2 integers, one per rank"):
        ml.topology.text(DeviceMesh("dp=2"), preset("dgx-h100"), devices=[0])


def test_the_last_line_reports_what_is_not_shown() -> None:
    def last(*arguments: Any, **options: Any) -> str:
        return ml.topology.text(*arguments, **options).splitlines()[-1]

    too_large = last(DeviceMesh("dp=2, tp=8"), preset("dgx-h100"))
    assert too_large == "dp=2, tp=8 has 16 ranks, but the cluster has 8 devices: it is not placed"
    assert last("dp=2", "dgx-h100", axis="xp") == "dp=2 has no axis or group 'xp': the groups of dp are shown"
    assert last(cluster=Cluster.from_nodes([Node("laptop")])) == "the source lists no devices"
    assert last("tp=8", preset("aws-p5", nodes=2)) == "the source does not describe the network between the hosts"
