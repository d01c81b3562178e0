"""Detection of the format of a text."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshlab as ml
from meshlab.errors import ParseError, TopologyError
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.readers.nccl_graph import NcclGraphs

SMI = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-7\nGPU1\tNV12\t X \t0-7\n"
XML = '<?xml version="1.0"?>\n<system version="1"><cpu numaid="0"><pci busid="a" class="0x0302"/></cpu></system>'
GRAPH = '<graphs version="1"><graph id="0"/></graphs>'
CONF = "SwitchName=s Nodes=n[1-2]\n"
YAML = "- topology: t\n  tree:\n    switches:\n      - switch: s\n        nodes: n[1-2]\n"


@pytest.mark.parametrize(
    ("text", "source"),
    [(SMI, "nvidia-smi topo"), (XML, "NCCL topology XML"), (CONF, "Slurm topology"), (YAML, "Slurm topology")],
)
def test_formats_are_detected_in_text_bytes_and_files(text: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / "anything"
    path.write_text(text)
    for value in (text, text.encode(), path, str(path)):
        cluster = ml.topology.read(value)
        assert isinstance(cluster, Cluster)
        assert cluster.source == source


def test_graph_files_return_graphs() -> None:
    assert isinstance(ml.topology.read(GRAPH), NcclGraphs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        ("hello world", "the text begins with 'hello world'"),
        ("<html><p></html>", "XML that begins with <html>"),
        ('{"a": 1}', "looks like JSON"),
        (b"\x7fELF\0\0", "binary"),
        ("/no/such/file.txt", "begins with '/no/such/file.txt'"),
    ],
)
def test_unknown_formats_are_described(text: str | bytes, message: str) -> None:
    with pytest.raises(ParseError, match=rf"^unknown format: .*{message}.*; pass the output of nvidia-smi topo -m"):
        ml.topology.read(text)


def test_mistyped_file_names_are_recognised(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"^unknown format: no file 'nofile\.xml' exists, and the text begins with"):
        ml.topology.read("nofile.xml")
    with pytest.raises(ParseError, match="this is a folder; pass one of its files"):
        ml.topology.read(str(tmp_path))
    with pytest.raises(ParseError, match=r"^unknown format: the text begins with 'hello'"):
        ml.topology.read("hello\nworld")


def test_errors_in_a_file_contain_its_name(tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    path.write_text('<system version="9"><cpu/></system>')
    with pytest.raises(ParseError, match=r"topo\.xml: the topology has version '9'"):
        ml.topology.read(path)


def test_several_machines_need_a_choice() -> None:
    with pytest.raises(TopologyError, match="machine=0"):
        ml.topology.read(SMI + SMI)
    cluster = ml.topology.read(SMI + SMI, machine=1)
    assert isinstance(cluster, Cluster)
    assert cluster.n_devices == 2


def test_errors_in_yaml_have_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(YAML + "      - switch: [s\n")
    with pytest.raises(ParseError) as caught:
        ml.topology.read(path)
    assert (caught.value.file, caught.value.line) == (str(path), 7)
    path.write_text(YAML + "        nodes: n3\n")
    with pytest.raises(ParseError, match="duplicate key 'nodes'; keep one of the two") as caught:
        ml.topology.read(path)
    assert (caught.value.file, caught.value.line, caught.value.column) == (str(path), 6, 8)
    assert str(caught.value).endswith("\n          nodes: n3\n          ^")


def test_a_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="this is a folder; pass one of its files"):
        ml.topology.read(tmp_path)
