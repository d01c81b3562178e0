"""Detection of the format of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError, TopologyError
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.readers._nccl_graph import NcclGraphs

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


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (ml.topology.read_nvidia_smi, SMI),
        (ml.topology.read_nccl_topology, XML),
        (ml.topology.read_nccl_graph, GRAPH),
        (ml.topology.read_slurm_topology, CONF),
    ],
)
def test_the_reader_of_one_format_takes_the_same_sources(read: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "anything"
    path.write_text(text)
    assert read(text) == read(text.encode()) == read(path) == read(str(path))
    with pytest.raises(ParseError, match="a NoneType is neither text nor a file"):
        read(None)
    with pytest.raises(ParseError, match="a float is neither text nor a file"):
        ml.topology.read_nccl_info(1.5)  # type: ignore[arg-type]


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
        ("/no/such/file.txt", "no file '/no/such/file.txt' exists"),
    ],
)
def test_unknown_formats_are_described(text: str | bytes, message: str) -> None:
    with pytest.raises(ParseError, match=rf"^unknown format: .*{message}.*; pass the output of nvidia-smi topo -m"):
        ml.topology.read(text)


def test_mistyped_file_names_are_recognised(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"^unknown format: no file 'nofile\.xml' exists"):
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


MATRIX = """      GPU0  GPU1  CPU Affinity  NUMA Affinity
GPU0   X    NV18  0-55          0
GPU1  NV18   X    56-111        1"""


@pytest.mark.parametrize(
    "prefix", ["[1,3]<stdout>: ", "(head, rank=0, pid=17266) ", "(worker1, rank=1, pid=3, ip=10.0.0.2) "]
)
def test_prefixes_of_launchers_are_removed(prefix: str) -> None:
    text = "\n".join(f"{prefix}{line}" for line in MATRIX.splitlines())
    cluster = ml.topology.read(f"Starting the job\n{text}")
    assert cluster.link_words().tolist() == [["X", "NV18"], ["NV18", "X"]]
    assert [device.numa for device in cluster.devices] == ["0", "1"]


def test_matrices_of_two_hosts_that_are_mixed_are_two_machines() -> None:
    lines = [f"(node{host}, rank={host}, pid=1) {line}" for line in MATRIX.splitlines() for host in (0, 1)]
    with pytest.raises(TopologyError, match="2 machines"):
        ml.topology.read("\n".join(lines))
    assert ml.topology.read("\n".join(lines), machine=1).n_devices == 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("=== ROCm System Management Interface ===\n=== Concise Info ===\nDevice  Temp\n0  43.0C", "rocm-smi"),
        ("+---+\n| AMD-SMI 26.2.0  ROCm version: 7.1 |\n", "amd-smi"),
        ("DMA TABLE:\n       0000:05:00.0\n0000:05:00.0 SELF", "amd-smi"),
        ("GPU 0: Tesla V100\n\t Link 0: 25.781 GB/s\n\t Link 1: <inactive>", "nvidia-smi nvlink"),
    ],
)
def test_other_tools_are_refused_by_their_name(text: str, name: str) -> None:
    with pytest.raises(ParseError, match=f"this is the output of {name}"):
        ml.topology.read(text)
