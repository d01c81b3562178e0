"""XML of NCCL: topologies, graphs, and malicious files."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshlabError, ParseError, TopologyError
from meshlab.topology.readers._nccl_graph import read_nccl_graph
from meshlab.topology.readers._nccl_xml import read_nccl_topology
from tests.examples import examples

SWITCH = "".join(
    f'<nvlink target="0000:1{end}:00.0" count="{n}" tclass="0x068000"/>' for end, n in (("a", 5), ("b", 4))
)
DUMP = f"""<system version="1">
  <cpu numaid="0" affinity="00000000,0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x060400">
      <pci busid="0000:02:00.0" class="0x060400">
        <pci busid="0000:03:00.0" class="0x030200" vendor="0x10de" device="0x2330"
             link_speed="32.0 GT/s PCIe" link_width="16">
          <gpu dev="0" sm="90" rank="0" gdr="1">{SWITCH}</gpu>
        </pci>
      </pci>
      <pci busid="0000:04:00.0" class="0x020700">
        <nic>
          <net name="mlx5_1" dev="1" speed="200000" port="2" guid="0x1"/>
          <net name="mlx5_0" dev="0" speed="-1" port="1" guid="0x1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000,00000000" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:05:00.0" class="0x030200" link_speed="" link_width="0">
      <gpu dev="1" sm="90" rank="1" gdr="1">{SWITCH}</gpu>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000"/></nic>
  </cpu>
</system>
"""
HINT = """<!-- a <system> in a comment is none -->
<system version="1"><cpu numaid="3"><pci busid="ffff:ff:01.0" class="0x060400">
  <pci busid="0000:40:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
  <pci busid="0000:0f:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
  <pci busid="0000:41:00.0" class="0x020000" link_speed="16 GT/s" link_width="8"/>
  <pci busid="0000:42:00.0"/>
</pci></cpu></system>"""


def test_dump_has_gpus_nics_links_and_processors() -> None:
    cluster = read_nccl_topology(DUMP)
    node = cluster.node(0)
    assert node.ends == ("GPU0", "GPU1", "mlx5_0", "mlx5_1", "eth0")
    assert node.words == (
        ("X", "NV9", "PXB", "PXB", "SYS"),
        ("NV9", "X", "SYS", "SYS", "PHB"),
        ("PXB", "SYS", "X", "PIX", "SYS"),
        ("PXB", "SYS", "PIX", "X", "SYS"),
        ("SYS", "PHB", "SYS", "SYS", "X"),
    )
    assert [nic.gbits for nic in node.nics] == [10.0, 200.0, 10.0]
    assert node.devices[0].name == "H100 80GB"
    assert node.devices[1].name == "GPU"
    assert node.devices[1].compute_capability == (9, 0)
    assert [device.nvlink_count for device in node.devices] == [9, 9]
    assert [device.cpus for device in node.devices] == ["0-15", "48-63"]
    assert (node.cpu_model, node.cpu_count) == ("Intel Sapphire Rapids", 32)
    assert (node.devices[0].pcie_generation, node.devices[0].pcie_width) == (5, 16)
    assert (node.devices[1].pcie_generation, node.devices[1].pcie_width) == (None, None)
    assert node.nvlink_known
    assert cluster.notes == ()


def test_file_without_gpu_elements_uses_pci_classes_and_omits_nvlink() -> None:
    node = read_nccl_topology(HINT).node(0)
    assert [device.bus_id for device in node.devices] == ["0000:0f:00.0", "0000:40:00.0"]
    assert node.words[0] == ("X", "PIX", "PIX")
    assert not node.nvlink_known
    assert node.devices[0].nvlink_count is None
    assert node.devices[0].pcie_generation == 4
    assert node.notes == (
        "1 PCI device without a class may be GPUs or NICs and were ignored",
        "the file does not list NVLink; NCCL queries the driver for it",
    )


def test_direct_nvlink_needs_its_remote_gpu() -> None:
    link = '<nvlink target="b" count="12" tclass="0x030200"/>'
    gpus = [
        f'<pci busid="{bus}" class="0x030200"><gpu dev="{i}" sm="80">{link}</gpu></pci>' for i, bus in enumerate("ab")
    ]
    node = read_nccl_topology(f'<system version="1"><cpu numaid="-1">{"".join(gpus)}</cpu></system>').node(0)
    assert (node.words[0][1], node.words[1][0]) == ("NV12", "PHB")
    assert "NVLinks connect a GPU to itself" in node.notes[0]
    assert node.devices[0].numa is None


def test_dump_of_several_hosts_is_one_nvlink_domain() -> None:
    hosts = "".join(
        f'<cpu numaid="0" host_hash="0x{h}"><pci busid="0000:0{h}:00.0" class="0x030200">'
        f'<gpu dev="{h}" sm="100">{SWITCH}</gpu></pci></cpu>'
        for h in range(3)
    )
    cluster = read_nccl_topology(f'<system version="1">{hosts}</system>')
    assert cluster.n_nodes == 3
    assert cluster.domain("nvlink").tolist() == [0, 0, 0]


def test_several_documents_need_a_choice() -> None:
    with pytest.raises(TopologyError, match="contains 2 documents; choose one with machine=0 to machine=1"):
        read_nccl_topology(DUMP + HINT)
    assert read_nccl_topology("$ cat topo.xml\n" + DUMP + HINT + "$ exit", machine=1).n_devices == 2
    with pytest.raises(TopologyError, match="unknown machine 2; choose a number from 0 to 1"):
        read_nccl_topology(DUMP + HINT, machine=2)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(len('<system version="1">'), len(DUMP) - 12))
def test_truncated_dump_is_read_up_to_its_end(length: int) -> None:
    text = DUMP[:length]
    if "<cpu " not in text or not text.partition("<cpu ")[2].count(">"):
        with pytest.raises(ParseError, match="no <cpu>"):
            read_nccl_topology(text)
        return
    cluster = read_nccl_topology(text)
    assert not cluster.node(0).complete
    assert "the XML is truncated at line" in cluster.notes[0]
    assert cluster.n_devices <= 2


def test_mismatched_tag_is_noted_with_its_line() -> None:
    cluster = read_nccl_topology(DUMP.replace("</nic>\n      </pci>", "</nic>\n      </cpu>", 1))
    assert "the XML is invalid (mismatched tag) at line 15" in cluster.notes[0]
    assert cluster.n_devices == 1


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>' + DUMP


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "declares a document type or entities"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd">' + DUMP, "declares a document type"),
        ('<system version="1"><cpu>' + "<pci>" * 100, "more than 64 nested elements"),
        ('<system version="1"><cpu>' + "<pci/>" * 200_001, "more than 200,000 elements"),
        (
            '<system version="1"><cpu>' + '<pci class="0x0302"/>' * 1_100,
            "1,100 GPUs .* at most 1,024",
        ),
        ("<system>" + " " * (65 << 20), "characters, but at most 67,108,864 are supported"),
        ('<system version="1"/>', "contains no <cpu>"),
        ('<system version="2"><cpu/></system>', "RCCL"),
        ("<system><cpu/></system>", "version 'none'"),
        ("<html><body/></html>", "it begins with <html>"),
        ("nothing", "it begins with 'nothing'"),
        ("<system version=1>", "invalid XML"),
        ('<graphs version="1"/>', r"read it with ml\.topology\.read\(\)"),
    ],
    ids=range(13),
)
def test_malicious_and_unrelated_files_are_rejected(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        read_nccl_topology(text)


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(
        st.sampled_from(
            [
                "<cpu>",
                "</cpu>",
                "<pci class='0x0302'>",
                "</pci>",
                "<gpu dev='0'/>",
                "<net dev='x' speed='1e9'/>",
                "<nic>",
                "&amp;",
                "&x;",
                "<",
                ">",
                "a",
            ]
        )
    )
)
def test_random_pieces_return_a_cluster_or_raise_a_meshlab_error(pieces: list[str]) -> None:
    try:
        cluster = read_nccl_topology('<system version="1"><cpu>' + "".join(pieces))
    except MeshlabError:
        return
    assert cluster.n_nodes >= 1


GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" nchannels="2" speedintra="20" speedinter="12" typeintra="NVL" typeinter="PIX">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="0x1"/><gpu dev="0xa"/><net dev="1"/></channel>
    <channel><net dev="1"/><gpu dev="0xa"/><gpu dev="0x1"/><gpu dev="0"/><net dev="0"/></channel>
  </graph>
  <graph id="1" pattern="1" speedintra="x"><channel><gpu dev="0"/></channel></graph>
  <graph id="3" pattern="5"/>
</graphs>"""


def test_graphs_have_the_chosen_rings_and_trees() -> None:
    graphs = read_nccl_graph(GRAPHS)
    assert graphs.ring is not None
    assert graphs.ring.channels == ((0, 1, 10), (10, 1, 0))
    assert graphs.ring.nets == ((0, 1), (1, 0))
    assert (graphs.ring.gpu_gbs, graphs.ring.net_gbs, graphs.ring.gpu_path) == (20.0, 12.0, "NVL")
    assert graphs.tree is not None
    assert (graphs.tree.pattern, graphs.tree.gpu_gbs) == ("balanced tree", None)
    nvls = graphs.of("nvls")
    assert nvls is not None
    assert nvls.channels == ()
    assert graphs.of("collnet chain") is None
    assert graphs.frame().shape == (3, 9)
    assert repr(graphs).startswith("<NcclGraphs: ring × 2 channels (NVL), tree × 1")
    assert "0 1 10" in graphs._repr_html_()


def test_graph_reader_rejects_topologies_and_notes_truncation() -> None:
    with pytest.raises(ParseError, match=r"not a graph file; read it with ml\.topology\.read\(\)"):
        read_nccl_graph(DUMP)
    with pytest.raises(ParseError, match="version 'none'"):
        read_nccl_graph("<graphs/>")
    cut = read_nccl_graph(GRAPHS[:400])
    assert cut.notes == ("the XML is truncated at line 6",)
    assert [graph.algorithm for graph in cut] == ["ring", "tree"]
