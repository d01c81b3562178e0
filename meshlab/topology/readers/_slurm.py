"""Reader for Slurm's ``topology.conf`` and ``topology.yaml``: the switch or block of every host.

Slurm does not describe the hardware of a host. Pass a `Node` or the name of a preset for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml

from meshlab.base._documents import LimitError
from meshlab.base._errors import ParseError, TopologyError
from meshlab.base._files import TextSource, text_of
from meshlab.base._numerals import whole
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import Ints, Level
from meshlab.topology.model._presets import find_preset
from meshlab.topology.readers._hostlists import MOST_HOSTS, expand_hosts

_PAIR = re.compile(r"(?<!\w)(\w+) *= *(\S+)")
# The key of a line, in lower case. A search for a string is much faster than one for the start of each line.
_CONF = (re.compile(r"switchname[ \t]*="), re.compile(r"blockname[ \t]*="))
_YAML = re.compile(r"topology[ \t]*:")
_TAB = re.compile(r"^ *\t", re.MULTILINE)
_MOST_NOTES = 20
_MOST_SWITCHES = 100_000  # and blocks; the largest clusters have some thousands
_MOST_EVENTS = 6 * _MOST_SWITCHES  # of YAML: a switch with two keys has six
_DEEPEST = 32
_TIERS = ("leaf", "spine", "core")
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "yes", "on")

# The events of libyaml take 0.4 s for 10 MB, those of the pure Python parser 10 s.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def looks_like_slurm(text: str) -> bool:
    """Return whether a text is a topology file of Slurm.

    Examples
    --------
    >>> looks_like_slurm("SwitchName=s1 Nodes=n[1-4]"), looks_like_slurm("- topology: default")
    (True, True)
    """
    return _is_conf(text) or _is_yaml(text)


def _is_conf(text: str) -> bool:
    lower = text.lower()
    places = (match.start() for key in _CONF for match in key.finditer(lower))
    return any(_begins_line(lower, _before_blanks(lower, place)) for place in places)


def _is_yaml(text: str) -> bool:
    for match in _YAML.finditer(text):
        place = _before_blanks(text, match.start())
        if _begins_line(text, place):
            return True
        if text[place - 1] == "-" and _begins_line(text, _before_blanks(text, place - 1)):
            return True
    return False


def _before_blanks(text: str, place: int) -> int:
    """Return the position of the blanks before a position."""
    while place > 0 and text[place - 1] in " \t":
        place -= 1
    return place


def _begins_line(text: str, place: int) -> bool:
    return place == 0 or text[place - 1] == "\n"


def read_slurm_topology(text: TextSource, *, node: Node | str | None = None, topology: str | None = None) -> Cluster:
    """Read the text of a ``topology.conf`` or ``topology.yaml`` of Slurm.

    Parameters
    ----------
    text : str, bytes or path
        The text of the file.
    node : Node or str, optional
        The hardware of every host: a node, or the name of a preset such as ``"dgx-h100"``. By default the hosts have no
        devices.
    topology : str, optional
        Name of a topology in a ``topology.yaml``. By default the one with ``cluster_default``, or the first one.

    Returns
    -------
    Cluster
        The levels are ``leaf``, ``spine``, ``core``, ``tier4``, … for a tree, and ``block``, ``block × n`` for blocks.

    Raises
    ------
    ParseError
        If the text is neither of these files.
        If a host list is invalid.
        If the file defines more than 100,000 switches or blocks.
    TopologyError
        If switches form a cycle.
        If the file names no hosts, or no topology with the given name.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> cluster = ml.topology.read_slurm_topology('''
    ... SwitchName=s1 Nodes=n[1-2]
    ... SwitchName=s2 Nodes=n[3-4]
    ... SwitchName=top Switches=s[1-2]
    ... ''', node="dgx-h100")
    >>> cluster.names, cluster.levels[0].of_node.tolist()
    (('n1', 'n2', 'n3', 'n4'), [0, 0, 1, 1])
    """
    text, _ = text_of(text, hint="pass the topology.conf or topology.yaml")
    if _is_conf(text):
        parsed = _read_conf(text)
    elif _is_yaml(text):
        parsed = _read_yaml(text, topology)
    else:
        start = (text.lstrip()[:1000].splitlines() or [""])[0].rstrip()
        raise ParseError(
            f"not a Slurm topology: the text begins with {start[:60]!r}",
            hint="pass a topology.conf with SwitchName= or BlockName= lines, or a topology.yaml with a topology: list",
        )
    names, levels = _blocks(parsed) if parsed.blocks else _tree(parsed)
    if not names:
        raise TopologyError("the Slurm topology names no hosts", hint="pass a file with Nodes= or nodes: entries")
    template = node if isinstance(node, Node) else _template(node)
    return Cluster(
        (template,),
        np.zeros(len(names), dtype=np.int32),
        tuple(names),
        levels=tuple(levels),
        title="Slurm topology",
        source="Slurm topology",
        notes=tuple(parsed.notes) + (() if node is not None else ("Slurm does not describe the hardware of a host",)),
    )


def _template(preset: str | None) -> Node:
    return Node("host", nvlink_known=False) if preset is None else find_preset(preset).node()


# -- from files to names -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Parsed:
    """The contents of a file, before they become arrays."""

    switches: dict[str, tuple[str, str]] = field(default_factory=dict)  # name → host list, list of switches
    blocks: dict[str, str] = field(default_factory=dict)  # name → host list
    sizes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    n_definitions: int = 0  # of switches and blocks, also of equal names

    def add_switch(self, name: str, nodes: str, switches: str) -> None:
        """Add a switch with its host list and its list of switches."""
        self._count()
        if name in self.switches:
            self.note(f"switch {name} is defined twice; the last definition is used")
        self.switches[name] = (nodes, switches)

    def add_block(self, name: str, nodes: str) -> None:
        """Add a block with its host list."""
        self._count()
        self.blocks[name] = nodes

    def _count(self) -> None:
        self.n_definitions += 1
        if self.n_definitions > _MOST_SWITCHES:
            message = f"the Slurm topology defines more than {_MOST_SWITCHES:,} switches or blocks"
            raise LimitError(message, hint="pass the file of one cluster")

    def note(self, text: str) -> None:
        """Add a note, up to a maximum number of notes."""
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(text)
        elif len(self.notes) == _MOST_NOTES:
            self.notes.append("and more notes of this kind")


def _read_conf(text: str) -> _Parsed:
    """Return the contents of a topology.conf. As in Slurm, a backslash continues a line, and keys have any case."""
    parsed = _Parsed()
    joined = text.replace("\\\r\n", " ").replace("\\\n", " ") if "\\" in text else text
    for number, line in enumerate(joined.splitlines(), 1):
        if "#" in line:
            line = line.partition("#")[0]
        if "=" not in line:
            if line.strip():
                parsed.note(f"line {number} was skipped: {line.strip()[:60]!r}")
            continue
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        if "switchname" in pairs:
            parsed.add_switch(pairs["switchname"], pairs.get("nodes", ""), pairs.get("switches", ""))
        elif "blockname" in pairs:
            parsed.add_block(pairs["blockname"], pairs.get("nodes", ""))
        elif "blocksizes" in pairs:
            parsed.sizes = _sizes(pairs["blocksizes"].split(","))
    return parsed


def _sizes(values: Sequence[object]) -> list[int]:
    try:
        return sorted(whole(str(value)) for value in values)
    except ValueError:
        raise ParseError(
            f"block sizes must be integers, not {', '.join(map(str, values))}", hint="write them as in BlockSizes=18,36"
        ) from None


def _read_yaml(text: str, name: str | None) -> _Parsed:
    """Return the contents of the topology with a name, or of the default one."""
    document = _load_yaml(text)
    entries = document if isinstance(document, list) else []
    topologies = [item for item in entries if isinstance(item, dict) and "topology" in item]
    if not topologies:
        raise ParseError("topology.yaml must be a list", hint="start each topology with '- topology: NAME'")
    if name is not None:
        named = [item for item in topologies if item["topology"] == name]
        if not named:
            raise TopologyError(
                f"unknown topology {name!r}",
                hint=f"choose one of {', '.join(str(item['topology']) for item in topologies)}",
            )
        chosen = named[0]
    else:
        chosen = next((item for item in topologies if _is_true(item.get("cluster_default"))), topologies[0])
    parsed = _Parsed()
    if len(topologies) > 1:
        others = ", ".join(str(item["topology"]) for item in topologies if item is not chosen)
        parsed.note(f"topology {chosen['topology']} was read; the file also has {others}")
    for switch in _items(chosen, "tree", "switches"):
        parsed.add_switch(str(switch.get("switch")), str(switch.get("nodes") or ""), str(switch.get("children") or ""))
    for block in _items(chosen, "block", "blocks"):
        parsed.add_block(str(block.get("block", len(parsed.blocks))), str(block.get("nodes") or ""))
    inner = chosen.get("block")
    if isinstance(inner, dict):
        sizes = inner.get("block_sizes") or []
        parsed.sizes = _sizes(sizes if isinstance(sizes, list) else [sizes])
    if _is_true(chosen.get("flat")):
        raise TopologyError(
            f"topology {chosen['topology']} is flat, so it names no hosts",
            hint="choose a topology with a tree or blocks, with topology=",
        )
    return parsed


def _is_true(value: object) -> bool:
    return str(value).lower() in _TRUE


def _items(chosen: Mapping[str, Any], kind: str, name: str) -> list[dict[str, Any]]:
    inner = chosen.get(kind)
    items = inner.get(name) if isinstance(inner, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _load_yaml(text: str) -> Any:
    """Return one YAML document as lists, dicts and strings, from the events of PyYAML's safe parser."""
    # `yaml.safe_load` is not used, for three reasons. It follows YAML 1.1, in which the names 007, 1e3 and no are
    # numbers and booleans. It expands aliases, so that a few lines can fill the memory. It silently keeps the last of
    # two equal keys. It also takes four times as long.
    document: list[Any] = []
    open_items: list[Any] = [document]  # the lists and dicts around the current event
    open_keys: list[str | None] = [None]  # for each of them, the key whose value comes next
    try:
        for number, event in enumerate(yaml.parse(text, Loader=_LOADER)):
            if number > _MOST_EVENTS:
                raise LimitError(
                    f"the topology.yaml has more than {_MOST_EVENTS:,} lists, keys and values",
                    hint="pass the file of one cluster",
                )
            if isinstance(event, yaml.CollectionEndEvent):
                open_items.pop()
                open_keys.pop()
                continue
            if not isinstance(event, yaml.NodeEvent):
                if isinstance(event, yaml.DocumentStartEvent) and document:
                    raise _yaml_error("expected one YAML document, but found several", "keep one of them", event, text)
                continue
            value = _value(event, text)
            items = open_items[-1]
            key = open_keys[-1]
            if isinstance(items, list):
                items.append(value)
            elif key is not None:
                items[key] = value
                open_keys[-1] = None
            else:
                if not isinstance(event, yaml.ScalarEvent):
                    raise _yaml_error("a key must be a string", "write it as 'key: value'", event, text)
                if event.value in items:
                    raise _yaml_error(f"duplicate key {event.value!r}", "keep one of the two", event, text)
                open_keys[-1] = event.value
                continue
            if isinstance(value, (list, dict)):  # a union of types would take longer, on every event
                open_items.append(value)
                open_keys.append(None)
                if len(open_items) > _DEEPEST:
                    raise _yaml_error(f"more than {_DEEPEST} nested levels", "pass a topology.yaml", event, text)
    except yaml.MarkedYAMLError as error:
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        hint = "indent with spaces, not tabs" if _TAB.search(text) else ""
        raise _yaml_error(f"invalid YAML: {problem}", hint, error, text) from None
    except yaml.YAMLError as error:
        raise ParseError(f"invalid YAML: {str(error).splitlines()[0]}") from None
    except UnicodeEncodeError as error:  # the parser takes UTF-8, and half of a surrogate pair has no bytes
        message = f"invalid YAML: {error.object[error.start]!r} is not a character"
        line = 1 + text.count("\n", 0, error.start)
        raise ParseError(message, hint="remove it", line=line) from None
    return document[0] if document else None


def _value(event: Any, text: str) -> Any:
    """Return the value of a scalar, or an empty list or dict for the events that follow."""
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _yaml_error("YAML aliases are not supported", "repeat the value instead", event, text)
    if event.tag is not None:
        raise _yaml_error(f"the YAML tag {event.tag} is not supported", "remove it", event, text)
    if isinstance(event, yaml.ScalarEvent):
        is_plain = event.implicit[0]
        return None if is_plain and event.value in _NULLS else event.value
    return [] if isinstance(event, yaml.SequenceStartEvent) else {}


def _yaml_error(message: str, hint: str, source: Any, text: str) -> ParseError:
    """Return an error that points at an event, or at the problem of a PyYAML error."""
    mark = source.problem_mark or source.context_mark if isinstance(source, yaml.MarkedYAMLError) else source.start_mark
    if mark is None:
        return ParseError(message, hint=hint)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    # An excerpt has 200 characters, so in a long line it begins shortly before the problem.
    start = max(0, mark.column - 60) if mark.column > 150 else 0
    return ParseError(message, hint=hint, text=line[start:], column=mark.column - start, line=mark.line + 1)


# -- from names to levels ----------------------------------------------------------------------------------------------


def _tree(parsed: _Parsed) -> tuple[list[str], list[Level]]:
    """Return the hosts below all switches, and a level for each tier of switches."""
    parents: dict[str, str] = {}
    n_children = 0
    for name, (_, switches) in parsed.switches.items():
        children = expand_hosts(switches) if switches else ()
        n_children += len(children)
        if n_children > MOST_HOSTS:
            raise LimitError(f"the switches list more than {MOST_HOSTS:,} other switches", hint="check their ranges")
        for child in children:
            if child in parents and parents[child] != name:
                parsed.note(f"switch {child} is below both {parents[child]} and {name}; the first one is used")
            if child not in parsed.switches:
                parsed.note(f"switch {child}, below {name}, is not defined")
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
                raise ParseError(f"the topology names more than {MOST_HOSTS:,} hosts", hint="check its ranges")
    if len(set(names)) != len(names):
        parsed.note("some hosts are below several switches; the first one is used")
        first = dict(zip(reversed(names), reversed(leaf_of), strict=True))
        names = list(dict.fromkeys(names))
        leaf_of = [first[name] for name in names]
    leaf = np.array(leaf_of, dtype=np.int32)
    table = _above(leaves, parents)
    return names, [Level(_tier(tier), _compact(column[leaf])) for tier, column in enumerate(table)] if names else []


def _above(leaves: Sequence[str], parents: Mapping[str, str]) -> Ints:
    """Return the switch above every leaf at every tier; int32 of shape (tiers, leaves)."""
    numbers = {name: number for number, name in enumerate(leaves)}
    chains: dict[str, list[int]] = {}
    rows = []
    for number, leaf in enumerate(leaves):
        parent = parents.get(leaf)
        if parent is not None and parent not in chains:
            chains[parent] = [numbers.setdefault(name, len(numbers)) for name in _chain(parent, parents)]
        rows.append((number, *chains[parent]) if parent is not None else (number,))
    depth = max(map(len, rows), default=1)
    # A leaf with a shorter path to the top remains in its topmost switch, because every level needs a domain.
    full = [row if len(row) == depth else row + row[-1:] * (depth - len(row)) for row in rows]
    return np.array(full, dtype=np.int32).reshape(-1, depth).T


def _chain(name: str, parents: Mapping[str, str]) -> list[str]:
    chain = [name]
    while chain[-1] in parents:
        chain.append(parents[chain[-1]])
        if len(chain) > _DEEPEST:
            raise TopologyError(
                f"the switches above {name} form a cycle: {' → '.join(chain[:5])} → …",
                hint="list each switch below one other switch only",
            )
    return chain


def _tier(tier: int) -> str:
    return _TIERS[tier] if tier < len(_TIERS) else f"tier{tier + 1}"


def _blocks(parsed: _Parsed) -> tuple[list[str], list[Level]]:
    """Return the hosts of all blocks, and a level for blocks and for each larger block size."""
    block_of: dict[str, str] = {}
    of_host: list[int] = []
    empty = []
    for number, (block, nodes) in enumerate(parsed.blocks.items()):
        hosts = list(dict.fromkeys(expand_hosts(nodes)))
        if not hosts:
            empty.append(block)
        for host in hosts:
            if block_of.setdefault(host, block) != block:
                raise TopologyError(
                    f"host {host!r} is listed in blocks {block_of[host]} and {block}", hint="list it in only one"
                )
        of_host += [number] * len(hosts)
        if len(of_host) > MOST_HOSTS:
            raise ParseError(f"the topology names more than {MOST_HOSTS:,} hosts", hint="check its ranges")
    if empty:
        names = f"{', '.join(empty[:4])}{', …' * (len(empty) > 4)}"
        parsed.note(f"{len(empty)} block{'s have' if len(empty) > 1 else ' has'} no hosts yet: {names}")
    numbers = np.array(of_host, dtype=np.int32)
    levels = [Level("block", _compact(numbers))]
    base = parsed.sizes[0] if parsed.sizes else 0
    for size in parsed.sizes[1:]:
        if base and size % base == 0:
            levels.append(Level(f"block × {size // base}", _compact(numbers // min(size // base, MOST_HOSTS))))
        else:
            parsed.note(f"block size {size} was ignored, because it is not a multiple of {base}")
    return list(block_of), levels


def _compact(numbers: Ints) -> Ints:
    return np.unique(numbers, return_inverse=True)[1].astype(np.int32).reshape(-1)
