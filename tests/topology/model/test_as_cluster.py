"""Functions with a cluster argument also accept the name of a preset, and explain other arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import TopologyError
from meshlab.frames._schema import empty_results
from meshlab.topology.model import _presets as presets
from meshlab.topology.model._presets import preset
from tests.syntax_trees import tree_of

MESH = ml.DeviceMesh("dp=2, tp=4")


def title(draw: Callable[..., Any], *arguments: Any) -> str:
    return draw(*arguments, ax=Figure((12, 5)).add_subplot()).get_title(loc="left")


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "place": lambda cluster: ml.place(MESH, cluster).cluster,
    "health": lambda cluster: ml.topology.as_cluster(cluster).health(),
    "text": lambda cluster: ml.topology.text(MESH, cluster),
    "links_text": lambda cluster: ml.topology.links_text(cluster),
    "plot.topology": lambda cluster: title(ml.plot.topology, MESH, cluster),
    "plot.topology of a cluster": lambda cluster: title(ml.plot.topology, None, cluster),
    "plot.ring": lambda cluster: title(ml.plot.ring, MESH, cluster),
    "plot.links": lambda cluster: title(ml.plot.links, cluster),
    "plot.host": lambda cluster: title(ml.plot.host, cluster),
    "Report": lambda cluster: ml.Report(empty_results(), cluster=cluster).cluster,
    "Designer": lambda cluster: ml.widgets.Designer(cluster).mesh,
}
GRAPHS = ml.topology.read('<graphs version="1"><graph id="0"/></graphs>')


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_name_of_a_preset_is_accepted_as_cluster(function: Callable[[Any], Any]) -> None:
    assert function("dgx-h100") == function(preset("dgx-h100"))


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_unknown_names_and_graph_files_are_explained(function: Callable[[Any], Any]) -> None:
    message = r"^unknown preset 'dgx'; choose one of dgx-a100, .*, or read a file with ml\.topology\.read\(\)$"
    with pytest.raises(TopologyError, match=message):
        function("dgx")
    with pytest.raises(TopologyError, match=r"a graph file of NCCL: .*, not the hardware; pass the topology"):
        function(GRAPHS)


def test_other_types_are_explained() -> None:
    with pytest.raises(
        TopologyError, match=r"not DeviceMesh; create one with ml\.probe\(\), ml\.preset\(\) or ml\.topology\.read\(\)"
    ):
        ml.place(MESH, MESH)  # type: ignore[arg-type]


def test_the_model_imports_no_readers() -> None:
    for path in Path(presets.__file__).parent.glob("*.py"):
        tree = tree_of(path)
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert not [module for module in modules if module.startswith("meshlab.topology.readers")], path.name
