"""The system tree in a log of NCCL: read back from printed machines, in all spellings, cut anywhere."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import ParseError, TopologyError
from meshlab.topology.readers._nccl_info import looks_like_nccl_info, read_nccl_info
from tests.examples import examples

CASES = Path(os.environ.get("MESHLAB_CASES", "."))

TREE = """\
a:7:8 [0] NCCL INFO === System : maxBw 48.0 totalBw 370.8 ===
a:7:8 [0] NCCL INFO CPU/0-0 (1/1/3)
a:7:8 [0] NCCL INFO + PCI[48.0] - PCI/0-15000 (1000c03010000000)
a:7:8 [0] NCCL INFO               + PCI[48.0] - GPU/0-16000 (0)
a:7:8 [0] NCCL INFO                             + NVL[370.8] - NVS/0-0
a:7:8 [0] NCCL INFO               + PCI[48.0] - NIC/0-17000
a:7:8 [0] NCCL INFO                             + NET[50.0] - NET/0-0 (0/1234/1/50.000000)
a:7:8 [0] NCCL INFO + SYS[22.0] - CPU/0-1
a:7:8 [0] NCCL INFO CPU/0-1 (1/1/3)
a:7:8 [0] NCCL INFO + PCI[48.0] - GPU/0-8a000 (1)
a:7:8 [0] NCCL INFO               + NVL[370.8] - NVS/0-0
a:7:8 [0] NCCL INFO + SYS[22.0] - CPU/0-0
a:7:8 [0] NCCL INFO ==========================================
"""


# -- machines that print themselves ------------------------------------------------------------------------------------


@dataclass
class Item:
    """A GPU, a NIC or a bridge with items below it."""

    kind: str
    bus: int
    items: list[Item] = field(default_factory=list)
    number: int = 0  # rank of a GPU, number of a network device


@dataclass
class Machine:
    """CPUs with items below them, and the total of the NVLinks of each GPU to the switch; 0 without NVLink."""

    cpus: list[list[Item]]
    nvlink: float
    old: bool  # the spelling up to NCCL 2.20

    def name(self, kind: str, number: int) -> str:
        return f"{kind}/{number:X}" if self.old else f"{kind}/0-{number:x}"

    def lines(self) -> list[str]:
        word = "maxWidth" if self.old else "maxBw"
        out = [f"=== System : {word} 48.0 {word.replace('max', 'total')} 48.0 ==="]
        for number, items in enumerate(self.cpus):
            out.append(f"{self.name('CPU', number)} (1/2/-1)")
            for item in items:
                self.print_item(item, 0, out)
        return [*out, "=" * 42]

    def print_item(self, item: Item, column: int, out: list[str]) -> None:
        head = " " * column + "+ PCI[24.0] - "
        if item.kind == "GPU":
            out.append(f"{head}{self.name('GPU', item.bus)} ({item.number})")
            if self.nvlink:
                out.append(f"{' ' * len(head)}+ NVL[{self.nvlink:2.1f}] - {self.name('NVS', 0)}")
        elif item.kind == "NIC":
            out.append(f"{head}{self.name('NIC', item.bus)}")
            facts = "(aa/1/25.000000)" if self.old else "(0/aa/1/25.000000)"
            out.append(f"{' ' * len(head)}+ NET[25.0] - {self.name('NET', item.number)} {facts}")
        else:
            out.append(f"{head}{self.name('PCI', item.bus)} (1000c01015d9)")
            for inner in item.items:
                self.print_item(inner, len(head), out)

    def ends(self) -> list[tuple[Item, int, tuple[int, ...]]]:
        """All GPUs by bus ID, then all NICs by number, each with its CPU and the bridges above it."""
        found: list[tuple[Item, int, tuple[int, ...]]] = []

        def walk(items: list[Item], cpu: int, bridges: tuple[int, ...]) -> None:
            for item in items:
                if item.kind == "PCI":
                    walk(item.items, cpu, (*bridges, item.bus))
                else:
                    found.append((item, cpu, bridges))

        for number, items in enumerate(self.cpus):
            walk(items, number, ())
        return sorted(
            found, key=lambda end: (end[0].kind == "NIC", end[0].number if end[0].kind == "NIC" else end[0].bus)
        )

    def words(self) -> tuple[tuple[str, ...], ...]:
        """The link words by definition: the bridges that two ends share decide."""
        count = {0.0: 0, 264.0: 12, 370.8: 18, 721.8: 18, 80.0: 4}[self.nvlink]

        def word(one: tuple[Item, int, tuple[int, ...]], other: tuple[Item, int, tuple[int, ...]]) -> str:
            if one is other:
                return "X"
            if one[0].kind == other[0].kind == "GPU" and count:
                return f"NV{count}"
            if one[1] != other[1]:
                return "SYS"
            if one[2] and other[2] and one[2][0] == other[2][0]:
                return "PIX" if one[2] == other[2] else "PXB"
            return "PHB"

        ends = self.ends()
        return tuple(tuple(word(one, other) for other in ends) for one in ends)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    buses = iter(range(0x1000, 0xFF000, 0x1000))
    numbers = {"GPU": iter(range(99)), "NIC": iter(range(99))}

    def item(depth: int) -> Item:
        kind = draw(st.sampled_from(["GPU", "NIC", "PCI"] if depth < 2 else ["GPU", "NIC"]))
        if kind != "PCI":
            return Item(kind, next(buses), number=next(numbers[kind]))
        bus = next(buses)
        return Item(kind, bus, [item(depth + 1) for _ in range(draw(st.integers(1, 3)))])

    cpus = [[item(0) for _ in range(draw(st.integers(1, 3)))] for _ in range(draw(st.integers(1, 2)))]
    cpus[0].append(Item("GPU", next(buses), number=next(numbers["GPU"])))
    return Machine(cpus, draw(st.sampled_from([0.0, 264.0, 370.8, 721.8, 80.0])), draw(st.booleans()))


def mixed(streams: list[list[str]], draw: st.DataObject) -> list[str]:
    """Mix the lines of several ranks, each in its order."""
    out, rest = [], [list(stream) for stream in streams if stream]
    while rest:
        stream = draw.draw(st.sampled_from(range(len(rest))))
        out.append(rest[stream].pop(0))
        rest = [lines for lines in rest if lines]
    return out


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(machines(), min_size=1, max_size=3), st.integers(1, 3), st.data())
def test_machines_are_read_back_from_the_mixed_lines_of_all_ranks(
    hosts: list[Machine], ranks: int, data: st.DataObject
) -> None:
    streams = [
        [f"[1,{rank}]<stdout>:host{h}:{h}7{rank}:{h}8{rank} [{rank}] NCCL INFO {line}" for line in machine.lines()]
        for h, machine in enumerate(hosts)
        for rank in range(ranks)
    ]
    cluster = read_nccl_info("\n".join(mixed(streams, data)))
    order = [int(name.removeprefix("host")) for name in cluster.names]
    assert sorted(order) == list(range(len(hosts)))
    for node, machine in zip(cluster.nodes, (hosts[h] for h in order), strict=True):
        assert node.words == machine.words()
        assert node.complete
        assert [device.bus_id for device in node.devices] == [
            f"0000:{item.bus >> 12:02x}:00.0" for item, _, _ in machine.ends() if item.kind == "GPU"
        ]
        assert [nic.gbits for nic in node.nics] == [200.0] * len(node.nics)
        assert [device.numa for device in node.devices] == [
            str(cpu) for item, cpu, _ in machine.ends() if item.kind == "GPU"
        ]


@settings(max_examples=examples(40), deadline=None)
@given(machines(), st.data())
def test_a_truncated_tree_never_claims_a_link_that_the_whole_tree_does_not_have(
    machine: Machine, data: st.DataObject
) -> None:
    text = "\n".join(f"a:1:2 [0] NCCL INFO {line}" for line in machine.lines())
    cut = data.draw(st.integers(0, len(text) - 1))
    try:
        node = read_nccl_info(text[:cut]).node(0)
    except ParseError:
        return  # cut before the first GPU
    whole = read_nccl_info(text).node(0)
    whole_names = [d.bus_id for d in whole.devices] + [nic.bus_id for nic in whole.nics]
    names = [d.bus_id for d in node.devices] + [nic.bus_id for nic in node.nics]
    assert set(names) <= set(whole_names)
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            real = whole.words[whole_names.index(one)][whole_names.index(other)]
            assert node.words[i][j] in ("?", real)


# -- spellings and details ---------------------------------------------------------------------------------------------


def test_a_tree_shows_links_rates_numa_nodes_and_the_cpu() -> None:
    node = read_nccl_info(TREE).node("a")
    assert node.words == (("X", "NV18", "PIX"), ("NV18", "X", "SYS"), ("PIX", "SYS", "X"))
    assert (node.nics[0].gbits, node.nics[0].bus_id, node.nics[0].numa) == (400.0, "0000:17:00.0", "0")
    assert [device.numa for device in node.devices] == ["0", "1"]
    assert node.devices[0].compute_capability == (9, 0)
    assert node.devices[0].nvlink_count == 18
    assert node.cpu_model == "Intel Sapphire Rapids"
    assert round(float(node.gbs[0, 1]), 1) == 370.8


def test_read_finds_the_tree_in_a_log_and_clusters_accept_it() -> None:
    log = f"node: unrelated\na:7:8 [0] NCCL INFO Using network IB\n{TREE}a:7:8 [0] NCCL INFO Connected all rings\n"
    assert ml.topology.read(log) == ml.topology.read_nccl_info(log)
    assert looks_like_nccl_info(log)
    assert not looks_like_nccl_info("a:7:8 [0] NCCL INFO Connected all rings\n")


def test_names_come_from_the_init_lines_and_from_the_preamble_of_nccl_tests() -> None:
    head = (
        "#  Rank  0 Group  0 Pid      7 on          a device  4 [0000:16:00] NVIDIA H200\n"
        "a:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_9:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        "a:7:8 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 4 busId 16000 commId 0x2 - Init START\n"
        "a:7:9 [1] NCCL INFO comm 0x3 rank 1 nranks 2 cudaDev 1 nvmlDev 2 busId 8a000 commId 0x2 - Init START\n"
    )
    node = read_nccl_info(head + TREE).node(0)
    assert node.ends == ("GPU2", "GPU4", "mlx5_9")  # in the order of the driver
    assert [device.name for device in node.devices] == ["GPU", "NVIDIA H200"]
    assert node.nics[0].link_layer == "InfiniBand"


def test_the_first_versions_print_whole_numbers_and_links_between_gpus() -> None:
    text = """\
a:7:8 [0] NCCL INFO === System : maxWidth 42 maxSpeed 42 ===
a:7:8 [0] NCCL INFO CPU/0
a:7:8 [0] NCCL INFO + PCI[12] - GPU/6000 (0)
a:7:8 [0] NCCL INFO             + NVL[42] - GPU/7000
a:7:8 [0] NCCL INFO + PCI[12] - GPU/7000 (1)
a:7:8 [0] NCCL INFO             + NVL[42] - GPU/6000
a:7:8 [0] NCCL INFO + PCI[12] - GPU/8000 (2)
a:7:8 [0] NCCL INFO ==========================================
"""
    assert read_nccl_info(text).node(0).words == (("X", "NV2", "PHB"), ("NV2", "X", "PHB"), ("PHB", "PHB", "X"))


def test_paths_alone_give_the_links_of_the_gpus_that_print_them() -> None:
    text = (
        "a:1:2 [0] NCCL INFO GPU/8F000 :GPU/16000 (2/264.000000/NVL) GPU/8F000 (0/5000.000000/LOC) "
        "CPU/0 (4/9.000000/SYS) CPU/1 (3/24.000000/PHB) NET/0 (7/9.000000/SYS) NET/4 (4/24.000000/PXB)\n"
    )
    node = read_nccl_info(text).node(0)
    assert node.words[1] == ("NV12", "X", "SYS", "PXB")
    assert node.words[0][2:] == ("?", "?")  # the other GPU printed nothing
    assert node.devices[1].numa == "1"
    assert not node.complete


def test_gpus_of_several_dumps_of_one_host_are_joined() -> None:
    other = TREE.replace("8a000 (1)", "9b000 (1)").replace("a:7:8", "a:9:9")
    cluster = read_nccl_info(TREE + other)
    assert cluster.names == ("a",)
    assert [device.bus_id for device in cluster.devices] == ["0000:16:00.0", "0000:8a:00.0", "0000:9b:00.0"]


def test_systems_of_one_tree_are_hosts_that_share_an_nvlink_domain() -> None:
    text = TREE.replace("CPU/0-1", "CPU/1-0").replace("GPU/0-8a000", "GPU/1-8a000")
    cluster = read_nccl_info(text)
    assert cluster.n_nodes == 2
    assert len(set(cluster.domain("nvlink").tolist())) == 1


def test_without_white_space_links_inside_a_numa_node_are_unknown() -> None:
    lines = []
    for line in TREE.splitlines():
        head, mark, message = line.partition("NCCL INFO ")
        lines.append(head + mark + message.lstrip())
    node = read_nccl_info("\n".join(lines)).node(0)
    assert node.words == (("X", "NV18", "?"), ("NV18", "X", "SYS"), ("?", "SYS", "X"))
    assert "indentation" in node.notes[0]


def test_the_tree_without_the_frame_of_the_lines_is_read() -> None:
    bare = "\n".join(line.partition("NCCL INFO ")[2] for line in TREE.splitlines())
    assert read_nccl_info(bare).node(0).words == read_nccl_info(TREE).node(0).words


def test_a_pcie_path_that_a_virtual_machine_hides_is_a_finding_of_health() -> None:
    text = TREE.replace("+ PCI[48.0] - PCI/0-15000", "+ PCI[0.2] - PCI/0-15000")
    (finding,) = [item for item in read_nccl_info(text).health() if item.code == "pcie-speed-hidden"]
    assert "0.2 GB/s" in finding.message
    assert "GPU0 " in finding.message
    assert "GPU1" not in finding.message
    assert "pcie-speed-hidden" not in read_nccl_info(TREE).health().codes


def test_errors_say_what_is_missing() -> None:
    with pytest.raises(ParseError, match="no system tree"):
        read_nccl_info("a:7:8 [0] NCCL INFO === System : maxBw 24.0 totalBw 24.0 ===\n")
    with pytest.raises(TopologyError, match="unknown machine 1"):
        read_nccl_info(TREE, machine=1)


def test_a_bandwidth_with_two_points_is_damaged() -> None:
    text = "=== System : maxBw 2.5 totalBw 2.5 ===\nCPU/0 (1/1/2)\n+ PCI[2.54.0] - GPU/9 (0)\n"
    with pytest.raises(ParseError):
        read_nccl_info(text)


@pytest.mark.skipif(not (CASES / "public").is_dir(), reason="MESHLAB_CASES is not set")
def test_real_logs() -> None:
    virtual = ml.topology.read(CASES / "public" / "case_18_nccl_info_system_tree.txt")
    assert virtual.summary == "1 node, 2 × GPU, NVLink domains of 2"
    assert [nic.gbits for nic in virtual.node(0).nics] == [400.0, 400.0]
    assert virtual.node(0).gbs[0, 1] == pytest.approx(370.8)
    assert virtual.node(0).near_nics.tolist() == [[True, False], [False, True]]
    assert "pcie-speed-hidden" in virtual.health().codes
    recorded = ml.topology.read(CASES / "own_gpu" / "nccl_info_tuning_h200x2.txt")
    assert recorded.link_words().tolist() == [["X", "NV18"], ["NV18", "X"]]
    assert recorded.models == {"NVIDIA H200": 2}
    assert recorded.node(0).complete
