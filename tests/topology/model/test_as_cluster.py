"""A cluster may be given as the name of a preset wherever one is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.errors import TopologyError
from meshlab.frames.schema import empty_results
from meshlab.topology.model.presets import preset
from meshlab.topology.render import links_text

MESH = ml.DeviceMesh("dp=2, tp=4")
TAKERS: dict[str, Callable[[Any], Any]] = {
    "place": lambda cluster: ml.place(MESH, cluster).cluster,
    "health": lambda cluster: ml.topology.health(cluster),
    "topology_text": lambda cluster: ml.topology.text(MESH, cluster),
    "links_text": lambda cluster: links_text(cluster),
    "plot_topology": lambda cluster: ml.plot.topology(MESH, cluster, ax=Figure().add_subplot()).get_title(loc="left"),
    "plot_links": lambda cluster: ml.plot.links(cluster, ax=Figure().add_subplot()).get_title(loc="left"),
    "plot_host": lambda cluster: ml.plot.host(cluster, ax=Figure((12, 5)).add_subplot()).get_title(loc="left"),
    "drop_device": lambda cluster: ml.drop_device(cluster, 0),
    "drop_link": lambda cluster: ml.drop_link(cluster, 0),
    "drop_nic": lambda cluster: ml.drop_nic(cluster, 0, 0),
    "add_nodes": lambda cluster: ml.add_nodes(cluster, 1),
    "set_nvlink_domain": lambda cluster: ml.set_nvlink_domain(cluster, 4),
    "set_taper": lambda cluster: ml.set_taper(ml.add_nodes(cluster, 1), 2),
    "Report": lambda cluster: ml.Report(empty_results(), cluster=cluster).cluster,
    "Designer": lambda cluster: ml.widgets.Designer(cluster).mesh,
}
GRAPHS = ml.topology.read('<graphs version="1"><graph id="0"/></graphs>')


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS.keys())
def test_the_name_of_a_preset_is_taken_as_its_cluster(take: Callable[[Any], Any]) -> None:
    assert take("dgx-h100") == take(preset("dgx-h100"))


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS.keys())
def test_another_text_and_a_graph_file_are_refused_with_what_to_do(take: Callable[[Any], Any]) -> None:
    with pytest.raises(
        TopologyError, match=r"'dgx' is the name of no preset; there are dgx-a100.*ml.topology.read\(\)"
    ):
        take("dgx")
    with pytest.raises(TopologyError, match=r"a graph file of NCCL.*not what the machine is; give the topology"):
        take(GRAPHS)


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"not DeviceMesh; probe\(\), preset\(\) and ml.topology.read\(\) give one"):
        ml.place(MESH, MESH)  # type: ignore[arg-type]
