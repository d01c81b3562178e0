"""Topology files and host lists of Slurm."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshlabError, ParseError, TopologyError
from meshlab.topology.model._hardware import Node
from meshlab.topology.readers import _slurm as slurm
from meshlab.topology.readers._hostlists import expand_hosts
from meshlab.topology.readers._slurm import read_slurm_topology
from tests.examples import examples


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
def test_host_lists_are_expanded(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-", "not closed"),
        ("n]1", "do not match"),
        ("n[[1]]", "do not match"),
        ("n[3-1]", "ends before it begins"),
        ("n[a-c]", "neither a number nor a range"),
        ("n[0-99999999]", "more than 1,048,576 hosts"),
        ("a[0-9999]b[0-9999]", "more than 1,048,576 hosts"),
    ],
)
def test_invalid_host_lists_are_rejected(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        expand_hosts(text)


@settings(deadline=None, max_examples=examples(80))
@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 30)), min_size=1, max_size=5), st.integers(1, 5))
def test_ranges_contain_their_numbers(ranges: list[tuple[int, int]], width: int) -> None:
    text = "n[" + ",".join(f"{first:0{width}d}-{first + more}" for first, more in ranges) + "]"
    expected = [f"n{number:0{width}d}" for first, more in ranges for number in range(first, first + more + 1)]
    assert expand_hosts(text) == expected


TREE = """# the network
SwitchName=leaf1 Nodes=n[1-2]   # two hosts
SwitchName=leaf2 Nodes=n[3-4] LinkSpeed=400
SWITCHNAME=leaf3 NODES=n5 \\
   LinkSpeed=400
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=core Switches=spine1,leaf3
"""


def test_tree_has_one_level_per_tier() -> None:
    cluster = read_slurm_topology(TREE, node="dgx-a100")
    assert cluster.names == ("n1", "n2", "n3", "n4", "n5")
    assert {level.name: level.of_node.tolist() for level in cluster.levels} == {
        "leaf": [0, 0, 1, 1, 2],
        "spine": [0, 0, 0, 0, 1],
        "core": [0, 0, 0, 0, 0],
    }
    assert cluster.n_devices == 40
    assert cluster.domain("leaf")[[0, 16, 32]].tolist() == [0, 1, 2]


def test_hosts_have_no_devices_unless_a_node_is_passed() -> None:
    cluster = read_slurm_topology(TREE)
    assert cluster.n_devices == 0
    assert cluster.notes == ("Slurm does not describe the hardware of a host",)
    assert read_slurm_topology(TREE, node=Node("x", memory_bytes=1)).node(2).memory_bytes == 1
    with pytest.raises(TopologyError, match="unknown preset 'dgx'; choose one of dgx-a100"):
        read_slurm_topology(TREE, node="dgx")


def test_level_that_joins_several_trees_is_added() -> None:
    cluster = read_slurm_topology("SwitchName=a Nodes=x,y\nSwitchName=b Nodes=z")
    assert [level.name for level in cluster.levels] == ["leaf", "cluster"]


def test_blocks_and_their_sizes() -> None:
    text = "BlockName=b1 Nodes=t[01-18]\nBlockName=b2 Nodes=t[19-36]\nBlockName=b3 Nodes=t[37-40]\nBlockName=spare\n"
    cluster = read_slurm_topology(text + "BlockSizes=18,36,100", node="gb200-nvl72")
    assert [level.name for level in cluster.levels] == ["block", "block × 2", "cluster"]
    assert cluster.levels[0].of_node.tolist() == [0] * 18 + [1] * 18 + [2] * 4
    assert cluster.levels[1].of_node.tolist() == [0] * 36 + [1] * 4
    assert cluster.notes == (
        "1 block has no hosts yet: spare",
        "block size 100 was ignored, because it is not a multiple of 18",
    )


def test_doubtful_lines_are_noted() -> None:
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
        "line 5 was skipped: 'what is this'",
        "switch c, below top, is not defined",
        "switch a is below both top and up; the first one is used",
        "some hosts are below several switches; the first one is used",
    )


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "SwitchName=a Nodes=x\nSwitchName=b Switches=a,c\nSwitchName=c Switches=b",
            TopologyError,
            "the switches above b form a cycle: b → c → b",
        ),
        ("SwitchName=a", TopologyError, "names no hosts; pass a file with Nodes="),
        ("BlockName=a", TopologyError, "names no hosts"),
        ("BlockName=a Nodes=x\nBlockName=b Nodes=x", TopologyError, "host 'x' is listed in blocks a and b; list it"),
        ("BlockName=a Nodes=x\nBlockSizes=a,b", ParseError, "block sizes must be integers, not a, b"),
        ("NodeName=n1 CPUs=4", ParseError, "^not a Slurm topology: .* 'NodeName=n1 CPUs=4'"),
        ("SwitchName=a Nodes=n[1-9", ParseError, "not closed"),
        ("SwitchName=a Nodes=n[1-1000000]\nSwitchName=b Nodes=m[1-1000000]", ParseError, "more than 1,048,576 hosts"),
        ("- topology: a\n  flat: true", TopologyError, "topology a is flat, so it names no hosts"),
        ("topology: a\n", ParseError, "must be a list; start each topology with '- topology: NAME'"),
    ],
)
def test_invalid_topologies_are_rejected(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_slurm_topology(text)


def test_number_of_notes_is_limited() -> None:
    assert len(read_slurm_topology("SwitchName=a Nodes=x\n" + "strange\n" * 1000).notes) == 22


@pytest.fixture(params=["libyaml", "python"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """PyYAML is also installed without libyaml."""
    monkeypatch.setattr(slurm, "_LOADER", yaml.SafeLoader if request.param == "python" else yaml.CSafeLoader)
    return slurm._LOADER


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
- topology: new  # the default
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


def test_yaml_uses_the_default_topology_and_notes_the_others(loader: type) -> None:
    cluster = read_slurm_topology(YAML)
    assert cluster.names == ("n1", "n2", "n3", "n4")
    assert cluster.levels[0].of_node.tolist() == [0, 0, 1, 1]
    assert cluster.notes[0] == "topology new was read; the file also has old"
    blocks = read_slurm_topology(YAML, topology="old")
    assert [level.name for level in blocks.levels] == ["block", "block × 2"]
    with pytest.raises(TopologyError, match="unknown topology 'middle'; choose one of old, new"):
        read_slurm_topology(YAML, topology="middle")


def test_names_remain_strings(loader: type) -> None:
    text = "- topology: on\n  tree:\n    switches:\n"
    text += "".join(f"      - {{switch: {name}, nodes: {host}}}\n" for name, host in [("no", "0012"), ("1e3", "12:30")])
    cluster = read_slurm_topology(text)
    assert cluster.names == ("0012", "12:30")
    assert read_slurm_topology(text, topology="on").notes == cluster.notes


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
VALUES = st.from_regex(r"[a-z0-9]([a-z0-9\[\],: #_-]{0,8}[a-z0-9\]])?", fullmatch=True).filter(
    lambda text: text != "null"
)
TREES = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(NAMES, inner, min_size=1, max_size=3),
)


@settings(deadline=None, max_examples=examples(120))
@given(st.dictionaries(NAMES, TREES, min_size=1, max_size=3), st.booleans())
def test_yaml_round_trips(tree: dict[str, object], flow: bool) -> None:
    text = yaml.dump([tree], Dumper=yaml.SafeDumper, default_flow_style=flow)
    assert slurm._load_yaml(text) == [tree]


def test_yaml_nulls_and_multi_line_strings(loader: type) -> None:
    assert slurm._load_yaml("a:\nb: ~\nc: null\nd: 'null'\ne: |\n  x\n  y\n") == {
        "a": None,
        "b": None,
        "c": None,
        "d": "null",
        "e": "x\ny\n",
    }
    assert slurm._load_yaml("") is None


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("- a: &x b", "YAML aliases are not supported; repeat the value instead", 1, 5),
        ("a: 1\nb: *x", "YAML aliases are not supported", 2, 3),
        ("a: !!python/object:os.system b", "the YAML tag .*os.system is not supported; remove it", 1, 3),
        ("a: b\nc: d\na: e", "duplicate key 'a'; keep one of the two", 3, 0),
        ("? [a]\n: b", "a key must be a string; write it as 'key: value'", 1, 2),
        ("- a\n---\n- b", "expected one YAML document, but found several; keep one of them", 2, 0),
        ("[" * 100 + "]" * 100, "more than 32 nested levels", 1, 31),
        ("a:\n\t- b", "invalid YAML: .*; indent with spaces, not tabs", 2, 0),
        ("a: b\n- c", "invalid YAML: while parsing a block mapping", 2, 0),
        ("a: [b", "invalid YAML: while parsing a flow sequence", None, None),
    ],
)
def test_unsupported_yaml_is_rejected_with_its_position(
    loader: type, text: str, message: str, line: int | None, column: int | None
) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        slurm._load_yaml(text)
    assert caught.value.line is not None
    assert caught.value.column is not None
    if line is not None:
        assert (caught.value.line, caught.value.column) == (line, column)
        assert text.splitlines()[line - 1].startswith(caught.value.excerpt)


def test_half_of_a_surrogate_pair_is_no_yaml(loader: type) -> None:
    with pytest.raises(ParseError, match="invalid YAML: "):
        slurm._load_yaml("a: b\nc: \udfff")


def test_bomb_of_aliases_is_rejected_before_it_expands(loader: type) -> None:
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    with pytest.raises(ParseError, match="YAML aliases are not supported"):
        slurm._load_yaml("\n".join(["a0: &a0 [x]", *levels]))


def test_error_in_a_long_line_shows_the_part_around_it(loader: type) -> None:
    with pytest.raises(ParseError, match="duplicate key 'b'") as caught:
        slurm._load_yaml("{a: " + "x" * 5000 + ", b: 1, b: 2}")
    column = caught.value.column
    assert column is not None
    assert caught.value.excerpt[column:].startswith("b: 2")


def test_control_characters_are_rejected(loader: type) -> None:
    with pytest.raises(ParseError, match="invalid YAML: "):
        slurm._load_yaml("a: b\0")


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(
        st.sampled_from(["topology", ": ", "- ", "\n", "  ", "[", "]", "{", "}", "&a ", "*a", "|", "'", '"', "a", "?"])
    )
)
def test_random_pieces_of_yaml_return_a_cluster_or_raise_a_meshlab_error(pieces: list[str]) -> None:
    try:
        cluster = read_slurm_topology("- topology: t\n  " + "".join(pieces))
    except MeshlabError:
        return
    assert cluster.n_nodes
