"""Finding out what a text is."""

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
def test_every_kind_is_found_in_text_bytes_and_files(text: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / "anything"
    path.write_text(text)
    for given in (text, text.encode(), path, str(path)):
        cluster = ml.topology.read(given)
        assert isinstance(cluster, Cluster)
        assert cluster.source == source


def test_a_graph_file_gives_graphs() -> None:
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
def test_what_is_none_of_these_is_named_as_such_with_what_was_seen(text: str | bytes, message: str) -> None:
    with pytest.raises(ParseError, match=rf"{message}.*; that is none of what can be read: nvidia-smi"):
        ml.topology.read(text)


def test_a_name_that_is_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"^there is no file 'nofile\.xml', and the text begins with"):
        ml.topology.read("nofile.xml")
    with pytest.raises(ParseError, match="is a folder, not a file, and the text begins with"):
        ml.topology.read(str(tmp_path))
    with pytest.raises(ParseError, match=r"^the text begins with 'hello'"):
        ml.topology.read("hello\nworld")


def test_errors_in_a_file_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    path.write_text('<system version="9"><cpu/></system>')
    with pytest.raises(ParseError, match=r"topo\.xml: the topology has version '9'"):
        ml.topology.read(path)


def test_two_machines_are_asked_about_here_too() -> None:
    with pytest.raises(TopologyError, match="machine=0"):
        ml.topology.read(SMI + SMI)
    cluster = ml.topology.read(SMI + SMI, machine=1)
    assert isinstance(cluster, Cluster)
    assert cluster.n_devices == 2
