"""Reader for Slurm's ``topology.conf`` and ``topology.yaml``: which hosts hang on which switch or block.

Slurm does not say what is inside a host; give a `Node` or the name of a preset for that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshlab.errors import ParseError, TopologyError
from meshlab.topology.model.cluster import Cluster, Ints, Level
from meshlab.topology.model.hardware import Node
from meshlab.topology.model.presets import PRESETS
from meshlab.topology.readers.block_yaml import read_block_yaml
from meshlab.topology.readers.hostlists import MOST_HOSTS, expand_hosts

__all__ = ["looks_like_slurm", "read_slurm_topology"]

_PAIR = re.compile(r"(\w+) *= *(\S+)")
_CONF = re.compile(r"^\s*(?:SwitchName|BlockName)\s*=", re.IGNORECASE | re.MULTILINE)
_YAML = re.compile(r"^\s*-?\s*topology\s*:", re.MULTILINE)
_MOST_NOTES = 20
_DEEPEST = 32
_TIERS = ("leaf", "spine", "core")


@dataclass(slots=True)
class _Parsed:
    """What a file says, before it becomes arrays."""

    switches: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → host list, list of switches
    blocks: dict[str, str] = field(default_factory=dict)  # name → host list
    sizes: list[int] = field(default_factory=list)
    flat: bool = False
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep a note, but not thousands of them."""
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(text)
        elif len(self.notes) == _MOST_NOTES:
            self.notes.append("and more of this kind")


def looks_like_slurm(text: str) -> bool:
    """Whether a text is one of Slurm's topology files.

    Examples
    --------
    >>> looks_like_slurm("SwitchName=s1 Nodes=n[1-4]"), looks_like_slurm("- topology: default")
    (True, True)
    """
    return _CONF.search(text) is not None or _YAML.search(text) is not None


def read_slurm_topology(text: str, *, node: Node | str | None = None, topology: str | None = None) -> Cluster:
    """Read ``topology.conf`` or ``topology.yaml``.

    Parameters
    ----------
    text : str
        The file.
    node : Node or str, optional
        What every host holds: a `Node`, or the name of a preset such as ``"dgx-h100"``. Left out, the hosts have no
        devices, and only the network is known.
    topology : str, optional
        Which of several topologies in a ``topology.yaml``; left out, the cluster's default, or the first.

    Returns
    -------
    Cluster
        Levels are ``leaf``, ``spine``, ``core``, ``tier4``, … for a tree, ``block`` and ``block × n`` for blocks.

    Raises
    ------
    ParseError
        If it is neither file, or a host list cannot be read.
    TopologyError
        If switches form a circle, or no host is named.

    Examples
    --------
    >>> cluster = read_slurm_topology('''
    ... SwitchName=s1 Nodes=n[1-2]
    ... SwitchName=s2 Nodes=n[3-4]
    ... SwitchName=top Switches=s[1-2]
    ... ''', node="dgx-h100")
    >>> cluster.names, cluster.levels[0].of_node.tolist()
    (('n1', 'n2', 'n3', 'n4'), [0, 0, 1, 1])
    """
    if _CONF.search(text) is None and _YAML.search(text) is not None:
        parsed = _read_yaml(text, topology)
    elif _CONF.search(text) is not None:
        parsed = _read_conf(text)
    else:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        raise ParseError(
            "this is no Slurm topology: it has neither SwitchName= nor BlockName= lines nor a topology: list; "
            f"it begins with {first[:60]!r}"
        )
    names, levels = _blocks(parsed) if parsed.blocks else _tree(parsed)
    if not names:
        raise TopologyError("the Slurm topology names no host, so there is no cluster in it")
    template = node if isinstance(node, Node) else _preset_node(node)
    return Cluster(
        (template,),
        np.zeros(len(names), dtype=np.int32),
        tuple(names),
        levels=tuple(levels),
        title="Slurm topology",
        source="Slurm topology",
        notes=tuple(parsed.notes) + (() if node is not None else ("Slurm does not say what is inside a host",)),
    )


def _preset_node(name: str | None) -> Node:
    if name is None:
        return Node("host", nvlink_known=False)
    if name not in PRESETS:
        raise TopologyError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name].node()


# -- files to names ----------------------------------------------------------------------------------------------------


def _read_conf(text: str) -> _Parsed:
    parsed = _Parsed()
    joined = text.replace("\\\r\n", " ").replace("\\\n", " ") if "\\" in text else text
    for number, line in enumerate(joined.splitlines(), 1):
        if "#" in line:
            line = line.partition("#")[0]
        if "=" not in line:
            if line.strip():
                parsed.note(f"line {number} was not understood: {line.strip()[:60]!r}")
            continue
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        if "switchname" in pairs:
            _add_switch(parsed, pairs["switchname"], pairs.get("nodes", ""), pairs.get("switches", ""))
        elif "blockname" in pairs:
            parsed.blocks[pairs["blockname"]] = pairs.get("nodes", "")
        elif "blocksizes" in pairs:
            parsed.sizes = _sizes(pairs["blocksizes"].split(","))
    return parsed


def _add_switch(parsed: _Parsed, name: str, nodes: str, switches: str) -> None:
    if name in parsed.switches:
        parsed.note(f"switch {name} is described twice; the last one counts")
    parsed.switches[name] = (nodes, switches)


def _sizes(values: Sequence[object]) -> list[int]:
    try:
        return sorted(int(str(value)) for value in values)
    except ValueError:
        raise ParseError(f"the block sizes {', '.join(map(str, values))} are not whole numbers") from None


def _read_yaml(text: str, wanted: str | None) -> _Parsed:
    document = read_block_yaml(text)
    found = (
        [item for item in document if isinstance(item, dict) and "topology" in item]
        if isinstance(document, list)
        else []
    )
    if not found:
        raise ParseError("topology.yaml must be a list of items with a topology: name, and this text is not")
    if wanted is not None:
        named = [item for item in found if item["topology"] == wanted]
        if not named:
            raise TopologyError(
                f"there is no topology {wanted!r}; there are {', '.join(str(i['topology']) for i in found)}"
            )
        chosen = named[0]
    else:
        chosen = next((item for item in found if str(item.get("cluster_default")).lower() == "true"), found[0])
    parsed = _Parsed()
    if len(found) > 1:
        others = ", ".join(str(item["topology"]) for item in found if item is not chosen)
        parsed.note(f"topology {chosen['topology']} was read; the file also has {others}")
    for switch in _items(chosen, "tree", "switches"):
        _add_switch(
            parsed, str(switch.get("switch")), str(switch.get("nodes") or ""), str(switch.get("children") or "")
        )
    for block in _items(chosen, "block", "blocks"):
        parsed.blocks[str(block.get("block", len(parsed.blocks)))] = str(block.get("nodes") or "")
    inner = chosen.get("block")
    if isinstance(inner, dict):
        sizes = inner.get("block_sizes") or []
        parsed.sizes = _sizes(sizes if isinstance(sizes, list) else [sizes])
    parsed.flat = str(chosen.get("flat")).lower() == "true"
    if parsed.flat:
        raise TopologyError(f"topology {chosen['topology']} is flat: it names no hosts, so there is no cluster in it")
    return parsed


def _items(chosen: Mapping[str, Any], kind: str, what: str) -> list[dict[str, Any]]:
    inner = chosen.get(kind)
    items = inner.get(what) if isinstance(inner, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


# -- names to levels ---------------------------------------------------------------------------------------------------


def _tree(parsed: _Parsed) -> tuple[list[str], list[Level]]:
    parents: dict[str, str] = {}
    for name, (_, switches) in parsed.switches.items():
        for child in expand_hosts(switches) if switches else ():
            if child in parents and parents[child] != name:
                parsed.note(f"switch {child} hangs on {parents[child]} and {name}; the first one counts")
            if child not in parsed.switches:
                parsed.note(f"switch {child} is named by {name} and described nowhere")
            parents.setdefault(child, name)
    names: list[str] = []
    leaf_of: list[int] = []
    leaves: list[str] = []
    for name, (nodes, _) in parsed.switches.items():
        if nodes:
            members = expand_hosts(nodes)
            names += members
            leaf_of += [len(leaves)] * len(members)
            leaves.append(name)
            if len(names) > MOST_HOSTS:
                raise ParseError(f"the topology names more than {MOST_HOSTS:,} hosts")
    if len(set(names)) != len(names):
        parsed.note("a host hangs on several switches; the first one counts")
        first = dict(zip(reversed(names), reversed(leaf_of), strict=True))
        names = list(dict.fromkeys(names))
        leaf_of = [first[name] for name in names]
    leaf = np.array(leaf_of, dtype=np.int32)
    table = _above(leaves, parents)
    return names, [Level(_tier(tier), _compact(column[leaf])) for tier, column in enumerate(table)] if names else []


def _above(leaves: Sequence[str], parents: Mapping[str, str]) -> Ints:
    """For every tier the switch over every leaf; int32 of shape (tiers, leaves)."""
    numbers = {name: number for number, name in enumerate(leaves)}
    chains: dict[str, list[int]] = {}
    rows = []
    for number, leaf in enumerate(leaves):
        parent = parents.get(leaf)
        if parent is not None and parent not in chains:
            chains[parent] = [numbers.setdefault(name, len(numbers)) for name in _chain(parent, parents)]
        rows.append((number, *chains[parent]) if parent is not None else (number,))
    depth = max(map(len, rows), default=1)
    # A leaf with a shorter way to the top stays in its topmost switch.
    full = [row if len(row) == depth else row + row[-1:] * (depth - len(row)) for row in rows]
    return np.array(full, dtype=np.int32).reshape(-1, depth).T


def _chain(name: str, parents: Mapping[str, str]) -> list[str]:
    chain = [name]
    while chain[-1] in parents:
        chain.append(parents[chain[-1]])
        if len(chain) > _DEEPEST:
            raise TopologyError(f"the switches above {name} form a circle: {' → '.join(chain[:5])} → …")
    return chain


def _tier(tier: int) -> str:
    return _TIERS[tier] if tier < len(_TIERS) else f"tier{tier + 1}"


def _blocks(parsed: _Parsed) -> tuple[list[str], list[Level]]:
    names: list[str] = []
    of_host: list[int] = []
    empty = []
    for number, (block, nodes) in enumerate(parsed.blocks.items()):
        hosts = expand_hosts(nodes)
        if not hosts:
            empty.append(block)
        names += hosts
        of_host += [number] * len(hosts)
        if len(names) > MOST_HOSTS:
            raise ParseError(f"the topology names more than {MOST_HOSTS:,} hosts")
    if len(set(names)) != len(names):
        raise TopologyError("a host stands in two blocks; every host belongs to one")
    if empty:
        parsed.note(f"{len(empty)} blocks have no hosts yet: {', '.join(empty[:4])}{', …' * (len(empty) > 4)}")
    numbers = np.array(of_host, dtype=np.int32)
    levels = [Level("block", _compact(numbers))]
    base = parsed.sizes[0] if parsed.sizes else 0
    for size in parsed.sizes[1:]:
        if base and size % base == 0:
            levels.append(Level(f"block × {size // base}", _compact(numbers // (size // base))))
        else:
            parsed.note(f"block size {size} is no multiple of {base}; it was left out")
    return names, levels


def _compact(numbers: Ints) -> Ints:
    return np.unique(numbers, return_inverse=True)[1].astype(np.int32).reshape(-1)
