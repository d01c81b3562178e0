"""Pasted output of nvidia-smi topo, complete and damaged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshlabError, ParseError, TopologyError
from meshlab.diagnosis._explain import explain
from meshlab.topology._render import links_text
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Nic, Node
from meshlab.topology.placement._placement import place
from meshlab.topology.readers._nvidia_smi import read_nvidia_smi
from tests.examples import examples

FOUR = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tPIX\tSYS\t0-15\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tPIX\t16-31\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t
NIC1\tSYS\tPIX\tSYS\t X \t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_3
"""
WORDS = (
    ("X", "NV12", "PIX", "SYS"),
    ("NV12", "X", "SYS", "PIX"),
    ("PIX", "SYS", "X", "SYS"),
    ("SYS", "PIX", "SYS", "X"),
)


def spaced(text: str) -> str:
    """Return the table with spaces instead of tabs."""
    rows = [[cell.strip() for cell in line.split("\t")] for line in text.splitlines()[:5]]
    return "\n".join("".join(f"{cell:<16}" for cell in row).rstrip() for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        FOUR,
        spaced(FOUR),
        FOUR.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1").replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m"),
        FOUR.replace("\n", "\r\n"),
        "\n".join(f"    {line}" for line in FOUR.splitlines()),
        "$ nvidia-smi topo -m\n" + FOUR + "$ exit\n",
        "\n".join(f"| {line} |" for line in FOUR.splitlines()),
        FOUR.replace("NIC1\tCPU Affinity", "NIC1CPU Affinity").replace("NIC0\tNIC1CPU", "NIC0NIC1CPU"),
    ],
    ids=["tabs", "spaces", "ansi", "crlf", "indented", "shell", "table", "glued"],
)
def test_changed_white_space_does_not_matter(text: str) -> None:
    cluster = read_nvidia_smi(text)
    node = cluster.node(0)
    assert node.words == WORDS
    assert [device.cpus for device in node.devices] == ["0-15", "16-31"]
    assert [device.numa for device in node.devices] == ["0", "1"]
    assert node.complete
    assert cluster.notes == ()


def test_names_of_nics_are_in_the_legend() -> None:
    assert [nic.name for nic in read_nvidia_smi(FOUR).node(0).nics] == ["mlx5_0", "mlx5_3"]


def test_old_drivers_have_nic_names_in_the_header_and_soc() -> None:
    text = "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tSOC\tPIX\t0-7\nGPU1\tSOC\t X \tSOC\t8-15\n"
    text += "mlx5_0\tPIX\tSOC\t X \t\n"
    node = read_nvidia_smi(text).node(0)
    assert node.words[0] == ("X", "SYS", "PIX")
    assert node.nics[0].name == "mlx5_0"
    assert node.complete
    assert [device.numa for device in node.devices] == [None, None]


def test_empty_cells_do_not_shift_columns() -> None:
    tabs = read_nvidia_smi("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\t3\t\tN/A\n").device(0)
    assert (tabs.cpus, tabs.numa) == (None, "3")
    spaces = read_nvidia_smi("      GPU0  CPU Affinity  NUMA Affinity\nGPU0   X                  3\n").device(0)
    assert (spaces.cpus, spaces.numa) == (None, "3")


def test_columns_are_derived_from_rows_without_a_header() -> None:
    with_nics = "\n".join(FOUR.splitlines()[1:5])
    assert read_nvidia_smi(with_nics).node(0).words == WORDS
    without_nic_rows = read_nvidia_smi("\n".join(FOUR.splitlines()[1:3])).node(0)
    assert (len(without_nic_rows.devices), len(without_nic_rows.nics)) == (2, 2)


def test_wrapped_headers_and_rows_are_joined() -> None:
    lines = FOUR.splitlines()
    head = lines[0].replace("\tNIC0", "\n\tNIC0")
    rows = [line.replace("\tSYS\t0-15", "\n\tSYS\t0-15") for line in lines[1:5]]
    node = read_nvidia_smi("\n".join([head, *rows])).node(0)
    assert node.words == WORDS
    assert node.devices[0].cpus == "0-15"


def test_number_at_the_end_of_a_truncated_text_is_ignored() -> None:
    text = "\n".join(FOUR.splitlines()[:2]) + "\nGPU1\tNV1"
    node = read_nvidia_smi(text).node(0)
    assert node.words[1] == ("NV12", "X", "?", "?")  # from the other direction
    assert node.nvlinks[1, 0] == 12
    assert not node.complete
    assert node.notes == ("the text is truncated: missing NIC0, NIC1, incomplete GPU1",)


@settings(deadline=None, max_examples=examples(80))
@given(st.integers(0, len(FOUR.partition("Legend")[0])))
def test_truncated_text_is_read_up_to_its_end(length: int) -> None:
    text = FOUR[:length]
    try:
        node = read_nvidia_smi(text).node(0)
    except ParseError:
        assert "GPU0\t X" not in text
        return
    assert len(node.devices) in (1, 2)
    for i, row in enumerate(node.words[: len(node.devices)]):
        for j, word in enumerate(row[: len(node.devices)]):
            assert word in (WORDS[i][j], "?")
    if length < text.find("NIC1\tSYS\tPIX\tSYS\t X") or length < 60:
        assert not node.complete


def test_unlisted_nics_are_noted() -> None:
    cluster = read_nvidia_smi("Note: 76 NICs found, the first 2 are displayed\n" + FOUR)
    assert cluster.notes == ("nvidia-smi found 76 NICs, but lists only 2",)


def test_peer_access_with_and_without_links() -> None:
    peers = " \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tNS\t\n GPU1\tCNS\tX\t\n\nLegend:\n\n  OK   = Status Ok\n"
    both = read_nvidia_smi(FOUR + peers).node(0)
    assert both.p2p == (("X", "NS"), ("CNS", "X"))
    alone = read_nvidia_smi(peers)
    assert alone.node(0).p2p == both.p2p
    assert not alone.node(0).nvlink_known
    assert "the text contains peer access only" in alone.notes[0]


def test_several_machines_need_a_choice() -> None:
    with pytest.raises(TopologyError, match=r"2 machines \(0: line 1, 2 GPUs, 1: line 17, 2 GPUs\); choose one"):
        read_nvidia_smi(FOUR + FOUR)
    assert read_nvidia_smi(FOUR + FOUR.replace("NV12", "NV4"), machine=1).link_words()[0, 1] == "NV4"
    both = read_nvidia_smi(FOUR + FOUR, machine="all")
    assert (both.n_nodes, len(both.templates), both.names) == (2, 1, ("node0", "node1"))
    with pytest.raises(TopologyError, match="unknown machine 2; choose a number from 0 to 1"):
        read_nvidia_smi(FOUR + FOUR, machine=2)
    with pytest.raises(TopologyError, match="machine must be an integer or 'all', not 'both'"):
        read_nvidia_smi(FOUR, machine="both")


def test_bandwidth_needs_the_product() -> None:
    assert read_nvidia_smi(FOUR, device="A100").node(0).gbs[0, 1] == 240
    assert str(read_nvidia_smi(FOUR).node(0).gbs[0, 1]) == "nan"


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(1, 5), st.integers(0, 4), st.data())
def test_links_text_round_trips(gpus: int, nics: int, data: st.DataObject) -> None:
    words = st.sampled_from(["NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
    ends = gpus + nics
    matrix = [["X" if i == j else data.draw(words) for j in range(ends)] for i in range(ends)]
    affinity = st.sampled_from([None, "0-55,112-167", "3"])
    devices = tuple(Device(id=i, numa=data.draw(affinity), cpus=data.draw(affinity)) for i in range(gpus))
    ports = tuple(Nic(name=f"mlx5_{7 * k}") for k in range(nics))
    node = Node("node0", devices, ports, words=tuple(map(tuple, matrix)))
    written = links_text(Cluster.from_nodes([node]))
    assert read_nvidia_smi(written).node(0) == node


@pytest.mark.parametrize("text", ["", "\n\n", "hello", "X = Self", "GPU0 is fast", "SYS NODE PIX"])
def test_text_without_a_matrix_is_rejected(text: str) -> None:
    with pytest.raises(
        ParseError,
        match=r"^no output of nvidia-smi topo -m found: the text (begins with '|is empty).*; paste rows",
    ):
        read_nvidia_smi(text)


def test_row_of_a_million_words_is_rejected() -> None:
    with pytest.raises(ParseError, match=r"at most 4,096"):
        read_nvidia_smi("GPU0 " + "NV18 " * 1_000_000)


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(
        st.sampled_from(
            ["GPU0", "GPU1", "NIC0", " X ", "NV18", "SYS", "OK", "\t", "\n", "  ", "0-15", "N/A", "CPU Affinity"]
        )
    )
)
def test_random_pieces_return_a_cluster_or_raise_a_meshlab_error(pieces: list[str]) -> None:
    try:
        cluster = read_nvidia_smi(" ".join(pieces))
    except MeshlabError:
        return
    node = cluster.node(0)
    assert len(node.words) == len(node.devices) + len(node.nics)


@pytest.mark.parametrize(
    ("rest", "cpus", "numa"),
    [
        ("0-55,112-167 0N/A", "0-55,112-167", "0"),
        ("0-55,112-1670N/A", "0-55,112-167", "0"),
        ("56-111,168-2231               N/A", "56-111,168-223", "1"),
        ("48-95,144-19112   N/A", "48-95,144-191", "12"),
        ("56-111,168-223  1  N/A", "56-111,168-223", "1"),
        ("0-15,20-99   N/A", "0-15,20-99", None),  # ranges of two sizes, as in a cpuset, are no evidence
        ("0-311", "0-311", None),
    ],
)
def test_affinities_without_white_space_are_separated_where_the_ranges_tell(
    rest: str, cpus: str, numa: str | None
) -> None:
    device = read_nvidia_smi(f"GPU0  X  NV18  {rest}\nGPU1  NV18  X  {rest}").nodes[0].devices[0]
    assert (device.cpus, device.numa) == (cpus, numa)


CUT = """
      GPU0  GPU1  GPU2  NIC0  NIC1  NIC2
GPU0   X    NV18  NV18  PIX   SYS   SYS
GPU1  NV18   X    NV18  SYS   PIX   SYS
GPU2  NV18  NV18   X    SYS   SYS
"""


def test_what_was_cut_is_unknown_and_no_fault() -> None:
    assert read_nvidia_smi(CUT).health().codes == ("incomplete",)
    whole = CUT.rstrip() + "   SYS\n"
    assert "GPU2 has no NIC closer than SYS" in str(read_nvidia_smi(whole).health())


def test_gpus_without_a_near_nic_are_listed_by_their_distance() -> None:
    text = """
      GPU0  GPU1  GPU2  NIC0
GPU0   X    NV18  NV18  PIX
GPU1  NV18   X    NV18  SYS
GPU2  NV18  NV18   X    NODE
"""
    found = [item.message for item in read_nvidia_smi(text).health() if item.code == "no-near-nic"]
    assert [message.split(",")[0] for message in found] == [
        "GPU2 has no NIC closer than NODE",
        "GPU1 has no NIC closer than SYS",
    ]


SIX = """
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV18    NV18    NV18    NV18    SYS     PIX     NODE    0-31    0
GPU1    NV18     X      NV18    NV18    NV18    SYS     NODE    PIX     0-31    0
GPU2    NV18    NV18     X      NV18    NV18    SYS     NODE    NODE    0-31    0
GPU3    NV18    NV18    NV18     X      NV18    SYS     SYS     SYS     32-63   1
GPU4    NV18    NV18    NV18    NV18     X      SYS     SYS     SYS     32-63   1
GPU5    SYS     SYS     SYS     SYS     SYS      X      SYS     SYS     32-63   1
NIC0    PIX     NODE    NODE    SYS     SYS     SYS      X      NODE
NIC1    NODE    PIX     NODE    SYS     SYS     SYS     NODE     X
"""
SIX_NODE = read_nvidia_smi(SIX).node(0)


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(SIX.index("GPU1    NV18"), len(SIX)))
def test_a_matrix_that_is_cut_anywhere_has_no_wrong_link(length: int) -> None:
    cluster = read_nvidia_smi(SIX[:length])
    node = cluster.node(0)
    for i, row in enumerate(node.words):
        for j, word in enumerate(row):
            assert word in (SIX_NODE.words[i][j], "?")
            assert word == node.words[j][i]
    unknown = any("?" in row[:6] for row in node.words[:6])
    assert ("domains of at least" in cluster.summary) == unknown
    if "?" in node.words[2][6:8]:  # GPU2 alone has no NIC that is known to be near
        assert not node.near_nics[2].any()
    said = str(cluster.health())
    assert "NVLink" not in said or not unknown
    for axis in ("tp=6", "dp=2, tp=3", "tp=3, dp=2"):
        text = place(axis, cluster).explain()
        assert "?" not in text
        assert not ("leaves NVLink" in text and "SYS" not in text)


def test_known_links_of_a_cut_matrix_are_named_and_the_others_are_not_bad() -> None:
    cluster = read_nvidia_smi(SIX[: SIX.index("GPU1    NV18")])
    assert cluster.summary == "1 node, 6 × GPU, NVLink domains of at least 2, links of 5 unknown"
    four = place("tp=4", cluster)
    known = "tp stays inside the host: its known links are NV18, and the source does not list the others"
    assert four.explain() == known
    assert "leaves NVLink: its worst known link is SYS" in place("tp=6", cluster).explain()
    assert "PCIe or unknown links, per device" in [link.label for link in four.loads("tp").links]
    no_link = read_nvidia_smi("      GPU0  GPU1  GPU2  GPU3\nGPU0  X  NV4\nGPU1  NV4  X")
    assert "dp stays inside the host, and the source does not list its" in place("dp=2, tp=2", no_link).explain()


def test_a_number_at_the_end_of_the_last_column_may_be_cut() -> None:
    text = "      GPU0  GPU1  CPU Affinity\nGPU0   X    NV18  0-31\nGPU1  NV18   X    32-63\n"
    cut = text[: text.index("18  0-31") + 1]
    assert read_nvidia_smi(cut).link_words().tolist() == [["X", "?"], ["?", "X"]]


@pytest.mark.parametrize(
    "lines",
    [
        "GPU 0,1,2,3,4,5: NVIDIA B200",
        "GPU models and configuration: GPU 0: NVIDIA B200\n" + "".join(f"GPU {k}: NVIDIA B200\n" for k in range(1, 6)),
        "".join(f"GPU {k}: NVIDIA B200 (UUID: GPU-12ab-{k})\n" for k in range(6)),
    ],
)
def test_the_products_beside_a_matrix_name_the_gpus(lines: str) -> None:
    cluster = read_nvidia_smi(f"{lines}\nGPU 0,1 Compute Capability: 10.0\n{SIX}")
    assert cluster.models == {"NVIDIA B200": 6}
    assert cluster.node(0).gbs[0, 1] == pytest.approx(18 * 40.1)
    assert read_nvidia_smi(f"{lines}\n{SIX}", device="H100").models == {"H100 80GB": 6}
    assert explain(f"{lines}\nother\nlines\nbetween\n{SIX}").facts["hardware"].startswith("1 node, 6 × NVIDIA B200")


def test_unknown_links_are_no_domain_of_their_own() -> None:
    text = "\n".join(["GPU0  X  NV4  NV4", "GPU1  NV4  X  NV4", "GPU2"])
    assert read_nvidia_smi(text).summary == "1 node, 3 × GPU, NVLink domains of 3"  # links are symmetric
    text = "\n".join(["      GPU0  GPU1  GPU2  GPU3", "GPU0  X  NV4", "GPU1  NV4  X"])
    assert "domains of 1" not in read_nvidia_smi(text).summary
    assert "links unknown" in read_nvidia_smi(text).summary


def test_link_words_without_white_space_are_separated() -> None:
    text = """
        GPU0    GPU1    NIC0    NIC1    NIC2        NIC3    CPU Affinity    NUMA Affinity
GPU0     X      NV18    PIX     NODE    NODESYS     0-55,112-167    0
GPU1    NV18     X      NODE    PIX     NODESYS     0-55,112-167    0
NIC0    PIXNODE  X      NODE    NODESYS
NIC1    NODE    PIX     NODE     X      NODESYS
NIC2    NODENODENODE    NODE     X SYS
NIC3    SYS     SYS     SYS     SYS     SYS X
"""
    cluster = read_nvidia_smi(text)
    node = cluster.node(0)
    assert node.complete
    assert node.words[0] == ("X", "NV18", "PIX", "NODE", "NODE", "SYS")
    assert node.words[2] == ("PIX", "NODE", "X", "NODE", "NODE", "SYS")
    assert node.words[4] == ("NODE", "NODE", "NODE", "NODE", "X", "SYS")
    assert [(device.cpus, device.numa) for device in node.devices] == [("0-55,112-167", "0")] * 2


@pytest.mark.parametrize("cell", ["NODES", "SYSTEM", "XPIX", "NV18PI", "PIXnode"])
def test_other_words_are_not_separated(cell: str) -> None:
    node = read_nvidia_smi(f"      GPU0  GPU1  NIC0  NIC1\nGPU0   X   NV18  {cell}\nGPU1  NV18   X   PIX  SYS").node(0)
    assert node.words[0] == ("X", "NV18", "?", "?")
    assert not node.complete
