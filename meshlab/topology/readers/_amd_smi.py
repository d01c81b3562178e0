"""Reader for pasted output of ``rocm-smi --showtopo`` and ``amd-smi topology``, as tables, JSON or CSV.

Both tools print one table per property of a link: its type, weight, hops, accessibility and bandwidth. None lists NICs
or PCIe switches. Hops do not count links: they are 1 over XGMI, 2 over PCIe inside a NUMA node and 3 beyond. The weight
of a path over XGMI is 15 per link, and the largest bandwidth is that of all links between two GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from meshlab.base._documents import LimitError, decode_json, mapping_or_empty, objects_in
from meshlab.base._errors import ParseError
from meshlab.base._files import TextSource, text_of
from meshlab.base._numerals import whole, whole_or_none
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Node
from meshlab.topology.model._links import UNKNOWN, XGMI, XGMI_VIA
from meshlab.topology.model._products import Product, amd_product, find_product
from meshlab.topology.readers._nvidia_smi import ANSI, check_machine, chosen_machines, shortened

_LABEL = re.compile(r"GPU\d{1,4}|[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_TITLES = {
    "type": r"Link Type between two GPUs|LINK TYPE TABLE:",
    "weight": r"Weight between two GPUs|WEIGHT TABLE:",
    "hops": r"Hops between two GPUs|HOPS TABLE:",
    "access": r"Link accessibility between two GPUs|ACCESS TABLE:",
    "bandwidth": r"= Bandwidth =|NUMA BW TABLE:",
}
_TITLE = re.compile("|".join(rf"(?P<{kind}>{words})" for kind, words in _TITLES.items()))
# Tables about other properties, and sections of other options of rocm-smi.
_OTHER_TITLE = re.compile(r"\b[A-Z][A-Z -]* TABLE:|LINK STATUS:|LINK PORT STATUS:|={3,} [A-Z][\w /().-]* ={3,}")
_CELLS = {
    "type": re.compile(r"XGMI|PCI[Ee]|SELF|[01X]|XXXX|N/A|UNKNOWN"),
    "weight": re.compile(r"\d{1,6}|N/A"),
    "hops": re.compile(r"\d{1,6}|N/A"),
    "access": re.compile(r"True|False|ENABLED|DISABLED|N/A"),
    "bandwidth": re.compile(r"\d{1,9}-\d{1,9}|N/A|0"),
}
_EXPECTED = {
    "type": "XGMI, PCIE or N/A",
    "weight": "a number or N/A",
    "hops": "a number or N/A",
    "access": "True, False, ENABLED, DISABLED or N/A",
    "bandwidth": "MB/s such as 50000-100000, or N/A",
}
_NOUNS = {"type": "link types", "weight": "weights", "hops": "hops", "access": "access", "bandwidth": "bandwidths"}
_NUMA = re.compile(r"GPU ?\[?(\d{1,4})\]?\s*: \(Topology\) Numa (?:Node|Affinity): (-?\d{1,4})\b")
_PAIR = re.compile(  # a line of the JSON or the CSV of rocm-smi
    r'"\(Topology\) (Weight|Hops|Link type|Link accessibility) between DRM devices (\d{1,4}) and (\d{1,4})"\s*[:,]\s*'
    r'"([^"\n]{0,40})"'
)
_CARD = re.compile(r'"card(\d{1,4})"\s*:\s*\{|"\(Topology\) Numa (?:Node|Affinity)"\s*:\s*"(-?\d{1,4})"|"system"\s*:')
_KINDS_OF_JSON = {"Weight": "weight", "Hops": "hops", "Link type": "type", "Link accessibility": "access"}
# The keys of amd-smi, of current versions and of those before ROCm 6.2.
_KEYS = {
    "link_type": "type",
    "weight": "weight",
    "num_hops": "hops",
    "hops": "hops",
    "link_status": "access",
    "link_accessibility": "access",
    "bandwidth": "bandwidth",
    "numa_bandwidth": "bandwidth",
}
_DOCUMENT = re.compile(r"[\[{]\s*[\[{\"]")
_LINKS_OF_JSON = re.compile(r'"(?:link_type|link_status|num_hops|link_accessibility|numa_bandwidth)"\s*:\s*["{\d]')
_LOOKS = re.compile(
    "|".join(words for kind, words in _TITLES.items() if kind != "bandwidth")
    + r"|NUMA BW TABLE:|\(Topology\) (?:Weight|Hops|Link \w+) between DRM devices|\(Topology\) Numa Node"
)
_PRODUCT = re.compile(
    r"\bInstinct MI\d{2,3}[A-Z]?(?: ?/ ?MI\d{2,3}[A-Z]?)?\b"
    r"|\bRadeon (?!Graphics)[A-Z][A-Za-z]*(?: (?:[A-Z]?\d{3,4}[A-Z]{0,3}|XTX?|GRE)\b)*"
)
_PRODUCT_OF_GPU = re.compile(rf"GPU ?\[?(\d{{1,4}})\]?\s*:.*?({_PRODUCT.pattern})")

AMD_SMI_LITERALS = (
    *("between two GPUs", " TABLE:", "= Bandwidth =", "(Topology) ", '"link_type"', '"link_status"', '"num_hops"'),
    '"link_accessibility"',
)
"""Strings of which every table and every document of the tools contains one."""

AMD_SMI_LINE = re.compile(
    rf"{_TITLE.pattern.replace('?P<', '?P<_')}|^[\s|>]*(?:{_LABEL.pattern})[\s|]+\S|{_NUMA.pattern}|{_PAIR.pattern}"
    r'|"(?:gpu|bdf|weight|link_type|link_status|num_hops|bandwidth)"\s*:'
)
"""A line of a table or a document of the tools."""

MOST_GPUS = 256
"""The largest number of GPUs of a host, partitions included, and so of the rows of a table."""

_WEIGHT_OF_TWO = 30  # the weight of a path over XGMI through one other GPU: 15 per link
_WEIGHT_IN_NUMA_NODE = 40  # the weight of a path over PCIe in a NUMA node; beyond, the distance of the nodes is added
_MOST_ROWS = 50_000
_MOST_DOCUMENTS = 1000
_LONGEST = 1 << 14  # characters of a line


@dataclass(slots=True)
class _Table:
    columns: list[str] = field(default_factory=list)
    rows: dict[str, list[str]] = field(default_factory=dict)
    last: str = ""
    positions: dict[str, int] = field(default_factory=dict)

    def cell(self, source: str, target: str) -> str:
        """Return a cell, or nothing if the table does not have it."""
        if len(self.positions) != len(self.columns):
            self.positions = {name: k for k, name in enumerate(self.columns)}
        cells, position = self.rows.get(source, ()), self.positions.get(target)
        return "" if position is None or position >= len(cells) else cells[position]


@dataclass(slots=True)
class _Machine:
    """What a text contains about a host. A label is the name of a GPU, ``GPU0``, or its PCI bus ID."""

    line: int
    tables: dict[str, _Table] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)  # index of each GPU, if the text is JSON of amd-smi

    @property
    def labels(self) -> list[str]:
        """The GPUs, in the order of the columns."""
        names = [name for table in self.tables.values() for name in (*table.columns, *table.rows)]
        names = list(dict.fromkeys(names))
        return names or [f"GPU{number}" for number in sorted(self.numa)]

    def is_over(self, kind: str, label: str) -> bool:
        """Return whether a table of a kind with rows must belong to the next host."""
        labels = self.labels if self.tables else []
        is_other_tool = bool(labels) and bool(label) and (":" in labels[0]) != (":" in label)
        return (kind in self.tables and bool(self.tables[kind].rows)) or is_other_tool

    def value(self, kind: str, first: str, second: str) -> str:
        """Return a cell of a table, or of the opposite direction, or nothing."""
        table = self.tables.get(kind)
        return "" if table is None else table.cell(first, second) or table.cell(second, first)


def looks_like_amd_smi(text: str) -> bool:
    r"""Return whether a text contains links between GPUs as rocm-smi or amd-smi prints them.

    Examples
    --------
    >>> looks_like_amd_smi("=== Link Type between two GPUs ===\n     GPU0"), looks_like_amd_smi("GPU0  X  NV18")
    (True, False)
    """
    literals = ("between two GPUs", " TABLE:", "(Topology) ")  # a long log is searched in no time without them
    return (any(map(text.__contains__, literals)) and _LOOKS.search(text) is not None) or _is_json(text)


def _is_json(text: str) -> bool:
    return '"gpu"' in text and _LINKS_OF_JSON.search(text) is not None


def read_amd_smi(text: TextSource, *, machine: int | str | None = None, device: str | None = None) -> Cluster:
    """Read the output of ``rocm-smi --showtopo`` or of ``amd-smi topology``.

    Parameters
    ----------
    text : str, bytes or path
        The output, also with ``--json``, and with the output of other options around it. The links need the table of
        link types. The bandwidths of ``amd-smi topology`` and ``rocm-smi --shownodesbw`` show the number of XGMI links.
    machine : int or "all", optional
        Index of the machine, counted from 0, if the text contains several. ``"all"`` creates a cluster of all machines.
    device : str, optional
        The GPU product, such as ``"MI300X"``. By default the product that other options print into the same text, such
        as ``rocm-smi --showproductname``.

    Returns
    -------
    Cluster
        One node per machine. A pair has the word ``XGMI4`` with 4 links, ``XGMI`` with an unknown number of them, and
        ``XGMI0`` if other GPUs join it. Over PCIe it has ``NODE`` inside a NUMA node, although the GPUs may share a
        switch, which the tools do not print, and ``SYS`` beyond.

    Raises
    ------
    ParseError
        If the text contains no link types, or a table has a cell that the tools do not print.
    TopologyError
        If the text contains several machines and `machine` is not given.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> cluster = ml.topology.read_amd_smi('''
    ... =============== Link Type between two GPUs ===============
    ...        GPU0         GPU1
    ... GPU0   0            XGMI
    ... GPU1   XGMI         0
    ... ''', device="MI300X")
    >>> cluster.summary, cluster.node(0).words[0], float(cluster.node(0).gbs[0, 1])
    ('1 node, 2 × MI300X, XGMI domains of 2', ('X', 'XGMI1'), 48.0)
    """
    text, _ = text_of(text, hint="pass the part with the tables")
    check_machine(machine)
    product = None if device is None else find_product(device)
    clean = ANSI.sub("", text)
    machines = _joined(_machines(clean))
    if not machines:
        first = next((line.strip() for line in clean.splitlines() if line.strip()), "")
        start = f"begins with {first[:60]!r}" if first else "is empty"
        raise ParseError(
            f"no output of rocm-smi --showtopo or amd-smi topology found: the text {start}",
            hint="paste a table such as 'Link Type between two GPUs', with its rows",
        )
    with_links = [host for host in machines if "type" in host.tables and host.tables["type"].columns]
    if not with_links:
        raise _without_types(machines)
    chosen = chosen_machines(with_links, machine, lambda host: (host.line, len(host.labels)), is_counted=True)
    names = _product_names(clean)
    nodes = [_node(f"node{number}", host, product, names) for number, host in enumerate(chosen)]
    hosts = [node.name for node in nodes]
    notes = [f"{node.name}: {note}" for node in nodes for note in node.notes]
    is_amd_smi = any(host.ids or ":" in host.labels[0] for host in chosen)
    source = "amd-smi topology" if is_amd_smi else "rocm-smi --showtopo"
    return Cluster.from_nodes(nodes, names=hosts, source=source, notes=tuple(notes))


def _without_types(machines: Sequence[_Machine]) -> ParseError:
    """Return the error about a text that has other tables only."""
    nouns = [_NOUNS[kind] for kind in _NOUNS if any(kind in host.tables for host in machines)]
    nouns += ["NUMA nodes"] * any(host.numa for host in machines)
    cut = any(kind == "type" for host in machines for kind in host.tables)
    return ParseError(
        "the table of link types has no rows"
        if cut
        else f"the text has {' and '.join(nouns)} of AMD's GPUs, but not the types of their links",
        hint="paste the whole output of rocm-smi --showtopo or amd-smi topology",
        line=machines[0].line,
    )


# -- texts -------------------------------------------------------------------------------------------------------------


def _machines(text: str) -> list[_Machine]:
    """Return the hosts of a text in any of the formats."""
    if _is_json(text):
        return _of_json(text)
    if _PAIR.search(text) is not None:
        return _of_pairs(text)
    return list(_of_tables(text.splitlines()))


def _of_tables(lines: Sequence[str]) -> Iterator[_Machine]:
    """Iterate over the hosts of a text with tables."""
    machine, table, kind, n_rows = _Machine(0), _Table(), "", 0
    for number, line in enumerate(lines, 1):
        line = line[:_LONGEST]
        if (title := _TITLE.search(line)) is not None:
            kind, table = title.lastgroup or "", _Table()
            if machine.is_over(kind, ""):
                yield machine
                machine = _Machine(number)
            machine.tables[kind] = table
            machine.line = machine.line or number
        elif _OTHER_TITLE.search(line) is not None:
            kind = ""
        elif (numa := _NUMA.search(line)) is not None:
            gpu, node = whole(numa[1]), whole(numa[2])
            machine.line = machine.line or number
            if node >= 0 or gpu not in machine.numa:
                machine.numa[gpu] = node
        elif kind and (words := [word for word in re.split(r"[\s|]+", line) if word]):
            first = next((k for k, word in enumerate(words) if _LABEL.fullmatch(word)), None)
            if first is None:
                _continue_row(table, words, kind)
                continue
            label, cells = words[first], words[first + 1 :]
            if not table.rows and machine.is_over("", label):
                del machine.tables[kind]
                yield machine
                machine = _Machine(number, {kind: table})
            if _add_line(table, label, cells, kind, number, line):
                n_rows += 1
                if n_rows > _MOST_ROWS:
                    raise LimitError(f"the text has more than {_MOST_ROWS:,} rows of tables", hint="pass fewer hosts")
    if machine.tables or machine.numa:
        yield machine


def _add_line(table: _Table, label: str, cells: list[str], kind: str, number: int, line: str) -> bool:
    """Add a header or a row to a table. Return whether it is a row."""
    labels = [cell for cell in cells if _LABEL.fullmatch(cell)]
    if len(labels) == len(cells) and not table.rows:
        # A header that was wrapped has several lines, and that of two processes on one host is there twice.
        table.columns += [name for name in (label, *labels) if name not in table.columns]
        if len(table.columns) > MOST_GPUS:
            raise LimitError(f"a table has more than {MOST_GPUS} GPUs", hint="paste the output of one host")
        return False
    valid = [bool(_CELLS[kind].fullmatch(cell)) for cell in cells]
    if not any(valid) and len(cells) != len(table.columns):
        return False  # a sentence, or a row that was cut after its name
    if not all(valid):
        wrong = cells[valid.index(False)]
        if valid.index(False) == len(cells) - 1 < len(table.columns):
            cells = cells[:-1]  # the text may be truncated inside the cell
        else:
            raise ParseError(
                f"{wrong[:40]!r} in the {_NOUNS[kind]} is not what rocm-smi or amd-smi prints: "
                f"expected {_EXPECTED[kind]}",
                hint="paste the table as it was printed",
                text=line,
                column=line.find(wrong),
                line=number,
            )
    if table.columns and len(cells) > len(table.columns):
        raise ParseError(
            f"the row {label} of the {_NOUNS[kind]} has {len(cells)} cells, but the table has "
            f"{len(table.columns)} columns",
            hint="paste the table as it was printed",
            text=line,
            line=number,
        )
    if table.rows.get(label, cells) != cells:
        raise ParseError(
            f"the row {label} of the {_NOUNS[kind]} appears twice, with different cells",
            hint="paste the output of one host, or of several after each other",
            text=line,
            line=number,
        )
    table.rows[label], table.last = cells, label
    return True


def _continue_row(table: _Table, words: list[str], kind: str) -> None:
    """Append cells to the last row of a table, if the row was wrapped."""
    cells = table.rows.get(table.last)
    if (
        cells is not None
        and len(cells) + len(words) <= len(table.columns)
        and all(_CELLS[kind].fullmatch(word) for word in words)
    ):
        cells += words


def _of_pairs(text: str) -> list[_Machine]:
    """Return the hosts of the JSON or the CSV of rocm-smi, which has a line per pair. It may be truncated."""
    starts = [match.start() for match in re.finditer(r'"card0"\s*:\s*\{', text)]
    starts = [0, *starts[1:], len(text)]
    machines = []
    for start, end in pairwise(starts):
        part = text[start:end]
        machine = _Machine(text.count("\n", 0, start) + 1)
        values: dict[str, dict[tuple[int, int], str]] = {}
        for name, first, second, value in _PAIR.findall(part):
            values.setdefault(_KINDS_OF_JSON[name], {})[whole(first), whole(second)] = value
        card: int | None = None
        for match in _CARD.finditer(part):
            if match[1]:
                card = whole(match[1])
            elif match[2] is None:
                card = None
            elif card is not None and (whole(match[2]) >= 0 or card not in machine.numa):
                machine.numa[card] = whole(match[2])
        gpus = sorted({gpu for pairs in values.values() for pair in pairs for gpu in pair} | set(machine.numa))
        if len(gpus) > MOST_GPUS:
            raise LimitError(f"the text has more than {MOST_GPUS} GPUs", hint="paste the output of one host")
        for kind, pairs in values.items():
            symmetric = pairs | {(second, first): value for (first, second), value in pairs.items()}
            machine.tables[kind] = _table_of([f"GPU{gpu}" for gpu in gpus], gpus, symmetric)
        machines.append(machine)
    return machines


def _table_of(labels: list[str], gpus: Sequence[int], values: Mapping[tuple[int, int], str]) -> _Table:
    rows = {
        label: ["0" if first == second else values.get((first, second), "") for second in gpus]
        for label, first in zip(labels, gpus, strict=True)
    }
    return _Table(list(labels), rows)


def _of_json(text: str) -> list[_Machine]:
    """Return the hosts of the JSON of amd-smi, which may have other text around it."""
    machines: list[_Machine] = []
    problem: ParseError | None = None
    position = 0
    for _ in range(_MOST_DOCUMENTS):
        if (start := _DOCUMENT.search(text, position)) is None:
            break
        line = text.count("\n", 0, start.start()) + 1
        try:
            value, position = decode_json(text, start.start())
        except ParseError as error:
            position = start.start() + 1
            problem = problem or ParseError(
                f"the JSON of amd-smi topology is {error.message}", hint="paste the whole output", line=line
            )
            continue
        gpus = objects_in(value) or [gpu for member in mapping_or_empty(value).values() for gpu in objects_in(member)]
        if any("links" in gpu or any(isinstance(gpu.get(key), dict) for key in _KEYS) for gpu in gpus):
            machines.append(_machine_of_json(gpus[:MOST_GPUS], line))
    if problem is not None and not machines:
        raise problem
    return machines


def _machine_of_json(gpus: Sequence[Mapping[str, Any]], line: int) -> _Machine:
    """Return the host of a document of amd-smi."""
    numbers = [whole_or_none(gpu.get("gpu")) for gpu in gpus]
    ids = [number if number is not None else k for k, number in enumerate(numbers)]
    buses = [str(gpu.get("bdf", f"GPU{number}")) for gpu, number in zip(gpus, ids, strict=True)]
    values: dict[str, dict[tuple[int, int], str]] = {}
    for source, gpu in zip(ids, gpus, strict=True):
        for link in objects_in(gpu.get("links")):
            target = whole_or_none(link.get("gpu"))
            for key, kind in _KEYS.items():
                if target is not None and key in link:
                    values.setdefault(kind, {})[source, target] = str(link[key])
        for key, kind in _KEYS.items():  # of versions before ROCm 6.2
            for name, value in mapping_or_empty(gpu.get(key)).items():
                if (number := re.fullmatch(r"gpu_(\d{1,4})", name)) is not None:
                    values.setdefault(kind, {})[source, whole(number[1])] = str(value)
    tables = {kind: _table_of(buses, ids, pairs) for kind, pairs in values.items()}
    for kind, table in tables.items():
        for label, cells in table.rows.items():
            wrong = next((cell for cell in cells if cell and _CELLS[kind].fullmatch(cell) is None), None)
            if wrong is not None and kind == "type":
                raise ParseError(
                    f"{wrong[:40]!r} is not a link type that amd-smi prints (for {label}): expected {_EXPECTED[kind]}",
                    line=line,
                )
    return _Machine(line, tables, ids=dict(zip(buses, ids, strict=True)))


def _joined(machines: Iterable[_Machine]) -> list[_Machine]:
    """Join the output of both tools on one host: as many GPUs, with the same link types."""
    joined: list[_Machine] = []
    for machine in machines:
        before = joined[-1] if joined else None
        if before is None or not _is_same_host(before, machine):
            joined.append(machine)
            continue
        by_bus, other = (machine, before) if ":" in machine.labels[0] else (before, machine)
        renamed = dict(zip(other.labels, by_bus.labels, strict=True))
        for kind, table in other.tables.items():
            columns = [renamed[name] for name in table.columns]
            rows = {renamed[name]: cells for name, cells in table.rows.items()}
            by_bus.tables.setdefault(kind, _Table(columns, rows))
        by_bus.numa |= other.numa
        by_bus.ids = {renamed[name]: number for name, number in _numbers(other).items()}
        by_bus.line = before.line
        joined[-1] = by_bus
    return joined


def _is_same_host(first: _Machine, second: _Machine) -> bool:
    labels = first.labels, second.labels
    if not labels[0] or len(labels[0]) != len(labels[1]) or (":" in labels[0][0]) == (":" in labels[1][0]):
        return False
    types = [[_type(host, a, b) for a in host.labels for b in host.labels] for host in (first, second)]
    return types[0] == types[1]


# -- hosts -------------------------------------------------------------------------------------------------------------


def _numbers(machine: _Machine) -> dict[str, int]:
    """Return the index of every GPU. Both tools number the GPUs in the order of their bus IDs."""
    labels = machine.labels
    return {
        label: machine.ids.get(label, k if ":" in label else whole(label.removeprefix("GPU")))
        for k, label in enumerate(labels)
    }


def _type(machine: _Machine, first: str, second: str) -> str:
    """Return ``XGMI``, ``PCIE``, or nothing if the type of a link is unknown."""
    value = machine.value("type", first, second).upper()
    return value if value in ("XGMI", "PCIE") else ""


def _number(machine: _Machine, kind: str, first: str, second: str) -> int:
    """Return a weight or a number of hops, 0 if it is unknown."""
    value = machine.value(kind, first, second)
    return whole(value) if value.isdecimal() else 0


def _range(machine: _Machine, first: str, second: str) -> tuple[int, int]:
    """Return the bandwidth of one XGMI link and of all links of a pair in MB/s, 0 and 0 if unknown."""
    least, _, most = machine.value("bandwidth", first, second).partition("-")
    return (whole(least), whole(most)) if least.isdecimal() and most.isdecimal() else (0, 0)


def _node(name: str, machine: _Machine, product: Product | None, names: Mapping[int, str]) -> Node:
    """Return the host of a machine. What the text does not have is unknown."""
    labels, numbers = machine.labels, _numbers(machine)
    numa = {label: str(machine.numa[k]) for label, k in numbers.items() if machine.numa.get(k, -1) >= 0}
    products = {label: product or amd_product(names.get(k, "")) for label, k in numbers.items()}
    rates = {_range(machine, a, b)[0] for a in labels for b in labels if _type(machine, a, b) == "XGMI"} - {0}
    peak = min(rates) / 1000 if rates else None
    words = tuple(
        tuple("X" if a == b else _word(machine, a, b, numa, products[a], bool(rates)) for b in labels) for a in labels
    )
    devices = []
    for label, number in numbers.items():
        model = products[label]
        gpu = model.device(number) if product is not None and model is not None else Device(id=number, backend="rocm")
        devices.append(
            replace(
                gpu,
                name=gpu.name if product is not None else names.get(number, gpu.name),
                bus_id=label.lower() if ":" in label else None,
                numa=numa.get(label),
                xgmi_gbs=peak if model is None else model.xgmi_gbs,
            )
        )
    missing = _missing(machine, labels)
    return Node(
        name,
        tuple(devices),
        words=words,
        p2p=_access(machine, labels),
        complete=not missing,
        notes=(*missing, *_remarks(words, list(products.values()), peak), *_unplaced(machine, words)),
    )


def _word(
    machine: _Machine, first: str, second: str, numa: Mapping[str, str], product: Product | None, has_rates: bool
) -> str:
    """Return the link word of a pair."""
    kind = _type(machine, first, second)
    weight, hops = _number(machine, "weight", first, second), _number(machine, "hops", first, second)
    if kind == "XGMI":
        least, most = _range(machine, first, second)
        if least:
            return f"{XGMI}{max(round(most / least), 1)}"
        # "0-0" is printed for GPUs that are not connected directly, and in virtual machines for all of them.
        if weight >= _WEIGHT_OF_TWO or (has_rates and machine.value("bandwidth", first, second) == "0-0"):
            return XGMI_VIA
        return XGMI if product is None or not product.xgmi_per_pair else f"{XGMI}{product.xgmi_per_pair}"
    if kind == "PCIE":
        if hops or weight:
            return "SYS" if hops > 2 or (not hops and weight > _WEIGHT_IN_NUMA_NODE) else "NODE"
        if first in numa and second in numa:
            return "NODE" if numa[first] == numa[second] else "SYS"
    return UNKNOWN


def _access(machine: _Machine, labels: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the peer access in the notation of nvidia-smi, nothing if it is unknown."""
    if not machine.tables.get("access", _Table()).rows:
        return ()
    words = {"True": "OK", "ENABLED": "OK", "False": "NS", "DISABLED": "NS"}
    return tuple(
        tuple("X" if a == b else words.get(machine.value("access", a, b), UNKNOWN) for b in labels) for a in labels
    )


def _missing(machine: _Machine, labels: Sequence[str]) -> list[str]:
    """Return a note about rows that a truncated text does not have."""
    parts = []
    for kind in ("type", "weight", "hops", "bandwidth"):
        table = machine.tables.get(kind)
        if table is None:
            continue
        sizes = {label: sum(map(bool, table.rows[label])) for label in labels if label in table.rows}
        absent = [label for label in labels if label not in sizes]
        incomplete = [label for label, size in sizes.items() if size < len(labels)]
        names = ", ".join(shortened("missing", absent) + shortened("incomplete", incomplete))
        parts += [f"{names} of the {_NOUNS[kind]}"] if names else []
    return [f"the text is truncated: {'; '.join(parts)}"] if parts else []


def _remarks(words: Sequence[Sequence[str]], products: Sequence[Product | None], peak: float | None) -> list[str]:
    """Return notes on what the rates and the links between GPUs rest on, and on what is unknown."""
    kinds = {word for row in words for word in row} - {"X"}
    notes = []
    models = list(dict.fromkeys(product for product in products if product is not None))
    has_xgmi = any(word.startswith(XGMI) for word in kinds)
    if has_xgmi and None not in products and len(models) == 1:
        product = models[0]
        notes.append(f"{product.xgmi_gbs:g} GB/s per XGMI link and direction, as RCCL assumes for {product.name}")
        if product.xgmi_per_pair and peak is None:
            notes.append(f"the text does not show how many XGMI links a pair has; two {product.name} of a board have 1")
    elif has_xgmi and None in products:
        notes.append(
            f"{peak:g} GB/s per XGMI link and direction is the peak that the driver reports"
            if peak is not None
            else "the text does not name the product, so the rates of XGMI are unknown; pass device='MI300X' or another"
        )
    if XGMI in kinds:
        notes.append("the text does not show how many XGMI links a pair has; amd-smi topology prints bandwidths")
    if XGMI_VIA in kinds:
        notes.append("some pairs have no XGMI link of their own: other GPUs pass on their data (XGMI0)")
    if "NODE" in kinds:
        notes.append("pairs over PCIe in a NUMA node are NODE, because the tools do not print PCIe switches")
    return notes


def _unplaced(machine: _Machine, words: Sequence[Sequence[str]]) -> list[str]:
    """Return a note about pairs over PCIe of which the text does not show whether they are in one NUMA node."""
    labels = machine.labels
    pairs = [(i, j) for i in range(len(labels)) for j in range(i)]
    if any(words[i][j] == UNKNOWN and _type(machine, labels[i], labels[j]) == "PCIE" for i, j in pairs):
        return ["the text does not show whether pairs over PCIe are in one NUMA node; the table of hops does"]
    return []


def _product_names(text: str) -> dict[int, str]:
    """Return the products that a text names, by GPU: those of each GPU, or the only one for all."""
    if len(products := dict.fromkeys(_PRODUCT.findall(text))) == 1:
        return dict.fromkeys(range(MOST_GPUS), f"AMD {next(iter(products))}")
    return {whole(number): f"AMD {name}" for number, name in _PRODUCT_OF_GPU.findall(text)}
