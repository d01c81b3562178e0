"""Slurm's topology files and host lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.errors import ParseError, TopologyError
from meshlab.topology.model.hardware import Node
from meshlab.topology.readers.block_yaml import read_block_yaml
from meshlab.topology.readers.hostlists import expand_hosts
from meshlab.topology.readers.slurm import read_slurm_topology


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b c", ["a", "b", "c"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-11]x", ["n08x", "n09x", "n10x", "n11x"]),
        ("r[1-2]n[1-2],z", ["r1n1", "r1n2", "r2n1", "r2n2", "z"]),
        ("a,n[1-2],b", ["a", "n1", "n2", "b"]),
        ("", []),
    ],
)
def test_host_lists_are_written_out(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-", "not closed"),
        ("n]1", "do not match"),
        ("n[[1]]", "do not match"),
        ("n[3-1]", "ends before it begins"),
        ("n[a-c]", "no number and no range"),
        ("n[0-99999999]", "more than 1,048,576 hosts"),
        ("a[0-9999]b[0-9999]", "more than 1,048,576 hosts"),
    ],
)
def test_host_lists_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        expand_hosts(text)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 30)), min_size=1, max_size=5), st.integers(1, 5))
def test_ranges_give_the_numbers_they_name(ranges: list[tuple[int, int]], width: int) -> None:
    text = "n[" + ",".join(f"{first:0{width}d}-{first + more}" for first, more in ranges) + "]"
    want = [f"n{number:0{width}d}" for first, more in ranges for number in range(first, first + more + 1)]
    assert expand_hosts(text) == want


TREE = """# the network
SwitchName=leaf1 Nodes=n[1-2]   # two hosts
SwitchName=leaf2 Nodes=n[3-4] LinkSpeed=400
SWITCHNAME=leaf3 NODES=n5 \\
   LinkSpeed=400
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=core Switches=spine1,leaf3
"""


def test_a_tree_becomes_one_level_per_tier() -> None:
    cluster = read_slurm_topology(TREE, node="dgx-a100")
    assert cluster.names == ("n1", "n2", "n3", "n4", "n5")
    assert {level.name: level.of_node.tolist() for level in cluster.levels} == {
        "leaf": [0, 0, 1, 1, 2],
        "spine": [0, 0, 0, 0, 1],
        "core": [0, 0, 0, 0, 0],
    }
    assert cluster.n_devices == 40
    assert cluster.domain("leaf")[[0, 16, 32]].tolist() == [0, 1, 2]


def test_hosts_without_contents_have_a_network_and_no_devices() -> None:
    cluster = read_slurm_topology(TREE)
    assert cluster.n_devices == 0
    assert cluster.notes == ("Slurm does not say what is inside a host",)
    assert read_slurm_topology(TREE, node=Node("x", memory_bytes=1)).node(2).memory_bytes == 1


def test_several_trees_are_joined_by_a_level_of_ours() -> None:
    cluster = read_slurm_topology("SwitchName=a Nodes=x,y\nSwitchName=b Nodes=z")
    assert [level.name for level in cluster.levels] == ["leaf", "cluster"]


def test_blocks_and_their_sizes() -> None:
    text = "BlockName=b1 Nodes=t[01-18]\nBlockName=b2 Nodes=t[19-36]\nBlockName=b3 Nodes=t[37-40]\nBlockName=spare\n"
    cluster = read_slurm_topology(text + "BlockSizes=18,36,100", node="gb200-nvl72")
    assert [level.name for level in cluster.levels] == ["block", "block × 2", "cluster"]
    assert cluster.levels[0].of_node.tolist() == [0] * 18 + [1] * 18 + [2] * 4
    assert cluster.levels[1].of_node.tolist() == [0] * 36 + [1] * 4
    assert cluster.notes == (
        "1 blocks have no hosts yet: spare",
        "block size 100 is no multiple of 18; it was left out",
    )


def test_doubtful_lines_are_noted_and_what_is_clear_counts() -> None:
    lines = [
        "SwitchName=a Nodes=x,y",
        "SwitchName=b Nodes=y,z",
        "SwitchName=top Switches=a,b,c",
        "SwitchName=up Switches=a",
    ]
    cluster = read_slurm_topology("\n".join([*lines, "what is this"]))
    assert cluster.names == ("x", "y", "z")
    assert cluster.levels[0].of_node.tolist() == [0, 0, 1]
    assert cluster.notes[:-1] == (
        "line 5 was not understood: 'what is this'",
        "switch c is named by top and described nowhere",
        "switch a hangs on top and up; the first one counts",
        "a host hangs on several switches; the first one counts",
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("SwitchName=a Nodes=x\nSwitchName=b Switches=a,c\nSwitchName=c Switches=b", TopologyError, "form a circle"),
        ("SwitchName=a", TopologyError, "names no host"),
        ("BlockName=a", TopologyError, "names no host"),
        ("BlockName=a Nodes=x\nBlockName=b Nodes=x", TopologyError, "two blocks"),
        ("BlockName=a Nodes=x\nBlockSizes=a,b", ParseError, "not whole numbers"),
        ("NodeName=n1 CPUs=4", ParseError, "begins with 'NodeName=n1 CPUs=4'"),
        ("SwitchName=a Nodes=n[1-9", ParseError, "not closed"),
        ("SwitchName=a Nodes=n[1-1000000]\nSwitchName=b Nodes=m[1-1000000]", ParseError, "more than 1,048,576 hosts"),
        ("- topology: a\n  flat: true", TopologyError, "is flat"),
        ("topology: a\n", ParseError, "must be a list"),
    ],
)
def test_what_is_no_topology_is_refused(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_slurm_topology(text)


def test_a_thousand_strange_lines_leave_a_short_note() -> None:
    assert len(read_slurm_topology("SwitchName=a Nodes=x\n" + "strange\n" * 1000).notes) == 22


YAML = """---
- topology: old
  cluster_default: false
  block:
    block_sizes: [2, 4]
    blocks:
      - block: b1
        nodes: a[1-2]
      - block: b2
        nodes: "a[3-4]"
- topology: new  # the one in force
  cluster_default: true
  tree:
    switches:
    - switch: s1
      nodes: n[1-2]
    - switch: s2
      nodes: n[3-4]
    - switch: top
      children: s[1-2]
"""


def test_yaml_takes_the_default_topology_and_names_the_others() -> None:
    cluster = read_slurm_topology(YAML)
    assert cluster.names == ("n1", "n2", "n3", "n4")
    assert cluster.levels[0].of_node.tolist() == [0, 0, 1, 1]
    assert cluster.notes[0] == "topology new was read; the file also has old"
    blocks = read_slurm_topology(YAML, topology="old")
    assert [level.name for level in blocks.levels] == ["block", "block × 2"]
    with pytest.raises(TopologyError, match="there are old, new"):
        read_slurm_topology(YAML, topology="middle")


def test_block_yaml_reads_what_pyyaml_reads() -> None:
    yaml = pytest.importorskip("yaml")
    assert read_block_yaml(YAML) == yaml.load(YAML.replace("[2, 4]", "['2', '4']"), yaml.BaseLoader)


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
VALUES = st.from_regex(r"[a-z0-9]([a-z0-9\[\],_-]{0,8}[a-z0-9\]])?", fullmatch=True)
TREES = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(NAMES, inner, min_size=1, max_size=3),
)


@settings(deadline=None, max_examples=120)
@given(st.dictionaries(NAMES, TREES, min_size=1, max_size=3), st.booleans())
def test_whatever_pyyaml_writes_is_read_back(tree: dict[str, object], indent: bool) -> None:
    yaml = pytest.importorskip("yaml")
    text = yaml.dump([tree, tree], Dumper=yaml.SafeDumper, default_flow_style=False, width=1000)
    if "? " in text or any(line.strip() == "-" for line in text.splitlines()) or "&" in text or "- - " in text:
        text = yaml.dump([{"a": "b"}], default_flow_style=False)
    assert read_block_yaml(text) == yaml.load(text, yaml.BaseLoader)


@pytest.mark.parametrize(
    "text", ["a: &x b", "a: *x", "a: !!python/object:os.system b", "a: |\n  b", "- a: {b: c}", "\ta: b", "a: b\n- c"]
)
def test_yaml_that_can_surprise_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        read_block_yaml(text)
