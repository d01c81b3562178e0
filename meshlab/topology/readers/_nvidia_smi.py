"""Reader for pasted output of ``nvidia-smi topo -m`` and ``nvidia-smi topo -p2p``.

Pasted text may lack tabs, header cells, rows and line ends, and may contain colour codes. So the columns are derived
from the rows, and everything that is missing remains unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from meshlab.base._documents import LimitError
from meshlab.base._errors import ParseError, TopologyError
from meshlab.base._files import TextSource, text_of
from meshlab.base._numerals import whole
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Nic, Node
from meshlab.topology.model._links import HIDES_NVLINK, LINK_PATTERN, UNKNOWN
from meshlab.topology.model._products import Product, capability_of, find_product, models_in

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r")
_P2P = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U"))

# A table that was copied from Markdown has bars between its cells.
_CELL = rf"(?:{LINK_PATTERN}|{'|'.join(sorted(_P2P))})(?=[\s|]|$)"
# Words that lost the white space between them, as in NODENODE. X is apart from its neighbours: its cell is " X ".
_GLUED = re.compile(r"(?<![^\s|])(?:NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC){2,8}(?![^\s|])")
_GLUED_WORD = re.compile(r"(NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC)(?=\S)")
_CELLS = re.compile(rf"(?:[\s|]*{_CELL})+")
_ROW = re.compile(rf"[\s|]*((?!{_CELL})[A-Za-z][\w.:-]*)((?:[\s|]+{_CELL})+)")
_HEADER = re.compile(r"[\s|]*GPU\d")
_GPU = re.compile(r"GPU\d+")
_NIC = re.compile(r"(?:NIC|mlx|mthca|bnxt|rdma|roce|hfi|efa|irdma|erdma|mana|ib|qedr|hns|cxi)[\w.:-]*\d")
_COLUMN = re.compile(r"GPU\d+|NIC\d+|mlx\d+_(?:bond_)?\d+|[^\s|]+")
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LEGEND = re.compile(r"\b(NIC\d+)\s*:\s*([\w.:-]+)")
_HIDDEN = re.compile(r"NICs?\s+(?:were\s+|are\s+)?(?:found|detected|present)")

_GLUED_NA = re.compile(r"(\d)N/A")
_CPU_LIST = re.compile(r"[\s|]*(\d+-\d+(?:,\d+-\d+)+)(?=[\s|]|$)")

Machine = TypeVar("Machine")

_LARGEST = 4096  # columns
_LONGEST = 1 << 17  # characters of a line, enough for that many columns
_COUNTED = 8  # stop counting machines here, if the caller has to choose one


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    cells: tuple[str, ...]
    is_p2p: bool | None  # True for peer access, None if the only cell is X
    rest: str  # the text after the cells, with its white space
    end: int  # the column after the cells


@dataclass(slots=True)
class _Matrix:
    header: str
    first: int
    rows: dict[str, _Row] = field(default_factory=dict)
    last: str = ""
    is_p2p: bool | None = None

    def add(self, row: _Row) -> None:
        self.rows[row.name] = row
        self.last = row.name
        self.is_p2p = row.is_p2p if self.is_p2p is None else self.is_p2p

    def is_over(self, row: _Row) -> bool:
        """Return whether a row must belong to the next matrix."""
        return row.name in self.rows or (None not in (self.is_p2p, row.is_p2p) and self.is_p2p != row.is_p2p)


def looks_like_nvidia_smi(text: str) -> bool:
    r"""Return whether a text has a row of a matrix near its beginning.

    Examples
    --------
    >>> looks_like_nvidia_smi("GPU0\t X \t0-31"), looks_like_nvidia_smi("<system/>")
    (True, False)
    """
    lines = ANSI.sub("", text[:200_000]).splitlines()
    return any(_row(line[:_LONGEST], "") is not None for line in lines)


def read_nvidia_smi(text: TextSource, *, machine: int | str | None = None, device: str | None = None) -> Cluster:
    """Read the output of ``nvidia-smi topo -m``.

    Parameters
    ----------
    text : str, bytes or path
        The output. It may also contain the output of ``nvidia-smi topo -p2p``, or only that.
    machine : int or "all", optional
        Index of the machine, counted from 0, if the text contains several. ``"all"`` creates a cluster of all machines.
    device : str, optional
        The GPU product, such as ``"H100"``. The output does not contain it, and bandwidths are unknown without it.
        By default the names that ``nvidia-smi -L``, ``collect_env`` or ``check_env`` print beside the matrix are used.

    Returns
    -------
    Cluster
        One node per machine. If the text is truncated, missing link words are ``?``, `Node.complete` is False, and the
        notes list the missing rows.

    Raises
    ------
    ParseError
        If the text contains no matrix.
    TopologyError
        If the text contains several machines and `machine` is not given.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> cluster = ml.topology.read_nvidia_smi('''
    ...         GPU0  GPU1  CPU Affinity  NUMA Affinity
    ...  GPU0    X    NV18  0-55          0
    ...  GPU1   NV18   X    56-111        1
    ... ''', device="H100")
    >>> cluster.link_words().tolist(), cluster.device(1).numa
    ([['X', 'NV18'], ['NV18', 'X']], '1')
    """
    text, _ = text_of(text, hint="pass the part with the matrix")
    check_machine(machine)
    product = None if device is None else find_product(device)
    clean = ANSI.sub("", text)
    matrices = list(islice(_matrices(clean.splitlines()), _COUNTED if machine is None else None))
    if not matrices:
        first = next((line.strip() for line in clean.splitlines() if line.strip()), "")
        start = f"begins with {first[:60]!r}" if first else "is empty"
        raise ParseError(
            f"no output of nvidia-smi topo -m found: the text {start}",
            hint="paste rows such as 'GPU0  X  NV18  NV18  0-55  0'",
        )
    peers = [matrix for matrix in matrices if matrix.is_p2p]
    machines = [matrix for matrix in matrices if not matrix.is_p2p]
    if not machines:
        return _cluster([_p2p_node(peers[0], product)], clean)
    machines = chosen_machines(
        machines, machine, lambda matrix: (matrix.first + 1, _n_gpus(matrix)), is_counted=len(matrices) < _COUNTED
    )
    if len(machines) > 1:
        products = set(_product_names(clean).values()) if product is None else set()
        nodes = _nodes(machines, product)
        if len(products) == 1:  # the text does not relate the names to the hosts
            name = products.pop()
            named = {
                id(node): replace(node, devices=tuple(_named(gpu, name) for gpu in node.devices)) for node in nodes
            }
            nodes = [named[id(node)] for node in nodes]
        return _cluster(nodes, clean)
    p2p = next((peer for peer in peers if _n_gpus(peer) == _n_gpus(machines[0])), None)
    node = _node("node0", machines[0], p2p, _legend(clean), product)
    if product is None and (names := _product_names(clean)):
        node = replace(node, devices=tuple(_named(gpu, names.get(gpu.id)) for gpu in node.devices))
    if _legend_hides_nvlink(clean) and not node.nvlinks.any():
        node = replace(node, nvlink_known=False, notes=(*node.notes, HIDES_NVLINK))
    return _cluster([node], clean)


# As check_env of SGLang, collect_env of PyTorch and vLLM, and nvidia-smi -L print them.
PRODUCT_LINE = re.compile(r"GPU (\d+(?:, ?\d+)*): ([A-Z][\w. -]{2,60}?)[ \t]*(?:\(UUID|(?m:$))")


def _product_names(text: str) -> dict[int, str]:
    """Return the products that a text names beside the matrix, by GPU."""
    return {
        whole(number): name
        for numbers, name in PRODUCT_LINE.findall(text)
        if models_in(name)
        for number in numbers.split(",")
    }


def _named(gpu: Device, name: str | None) -> Device:
    return gpu if name is None else replace(gpu, name=name, compute_capability=capability_of(name))


def check_machine(machine: int | str | None) -> None:
    """Raise if a choice among the machines of a text is neither a number nor "all"."""
    if machine not in (None, "all") and not isinstance(machine, int):
        raise TopologyError(
            f"machine must be an integer or 'all', not {machine!r}", hint="pass a number counted from 0, or 'all'"
        )


def chosen_machines(
    machines: list[Machine],
    machine: int | str | None,
    line_and_gpus: Callable[[Machine], tuple[int, int]],
    *,
    is_counted: bool,
) -> list[Machine]:
    """Return the chosen machine of a text, or all of them."""
    if machine is None and len(machines) > 1:
        first = ", ".join(
            f"{index}: line {line}, {gpus} GPUs" for index, (line, gpus) in enumerate(map(line_and_gpus, machines[:5]))
        )
        count = f"{'' if is_counted else 'at least '}{len(machines)}"
        raise TopologyError(
            f"the text contains {count} machines ({first}{', …' * (len(machines) > 5)})",
            hint="choose one with machine=0, or pass machine='all' for a cluster of all machines",
        )
    if machine == "all":
        return machines
    index = machine if isinstance(machine, int) else 0
    if not 0 <= index < len(machines):
        raise TopologyError(f"unknown machine {index}", hint=f"choose a number from 0 to {len(machines) - 1}")
    return machines[index : index + 1]


def _nodes(machines: Sequence[_Matrix], product: Product | None) -> list[Node]:
    """Return the hosts of several matrices."""
    # A paste of thousands of identical hosts: equal lines were parsed to the same row object, so hosts are compared by
    # the identity of their rows.
    node_of: dict[tuple[object, ...], Node] = {}
    nodes: list[Node] = []
    for matrix in machines:
        key = (matrix.header, *map(id, matrix.rows.values()))
        if key not in node_of:
            node_of[key] = _node(f"node{len(nodes)}", matrix, None, {}, product)
        nodes.append(node_of[key])
    return nodes


def _legend_hides_nvlink(text: str) -> bool:
    """Return whether the output is from ``topo -mp``: its legend lacks NV#, which that of ``topo -m`` always has."""
    return "PIX  = " in text and "PXB  = " in text and "NV#  = " not in text


def _legend(text: str) -> dict[str, str]:
    return dict(_LEGEND.findall(text)) if "NIC" in text else {}


def _cluster(nodes: Sequence[Node], text: str) -> Cluster:
    names = [f"node{number}" for number in range(len(nodes))]
    notes = [f"{name}: {note}" for name, node in zip(names, nodes, strict=True) for note in node.notes]
    hidden = _HIDDEN.search(text)
    if hidden is not None:
        number = re.search(r"(?<!\d)(\d+)\s*$", text[max(0, hidden.start() - 20) : hidden.start()])
        if number is not None and whole(number[1]) > len(nodes[0].nics):
            notes.append(f"nvidia-smi found {number[1]} NICs, but lists only {len(nodes[0].nics)}")
    return Cluster.from_nodes(nodes, names=names, source="nvidia-smi topo", notes=tuple(notes))


_MOST_ROWS = 50_000


def _matrices(lines: Sequence[str]) -> Iterator[_Matrix]:
    """Iterate over the matrices of a text: a header, which may be wrapped or missing, and rows up to the next one."""
    matrix: _Matrix | None = None
    rows: dict[tuple[str, str], _Row | None] = {}  # equal lines become one object
    n_rows = 0
    for number, line in enumerate(lines):
        if not line or line.isspace():
            continue
        line = line[:_LONGEST]
        header = "" if matrix is None else matrix.header
        if (line, header) not in rows:
            rows[line, header] = _row(line, header)
        row = rows[line, header]
        if row is not None:
            n_rows += 1
            if n_rows > _MOST_ROWS:
                raise LimitError(f"the text has more than {_MOST_ROWS:,} rows of matrices", hint="pass fewer hosts")
            if matrix is None or matrix.is_over(row):
                if matrix is not None and matrix.rows:
                    yield matrix
                matrix = _Matrix("", number)
            matrix.add(row)
        elif _HEADER.match(line) is not None and "=" not in line:
            if matrix is None or matrix.rows:
                if matrix is not None:
                    yield matrix
                matrix = _Matrix(line, number)
            else:
                matrix.header += f" {line}"  # the header was wrapped
        elif matrix is not None and "=" not in line:
            if not matrix.rows and ("Affinity" in line or _NIC.match(line.strip())):
                matrix.header += f" {line}"  # the header was wrapped
            elif matrix.rows:
                _continue_row(matrix, line)
    if matrix is not None and matrix.rows:
        yield matrix


def _row(line: str, header: str) -> _Row | None:
    """Return the row in a line: the name of an endpoint, and link words or peer access."""
    match = _ROW.match(line)
    # A row ends before a word that lost its white space. To look for one in a complete row takes as long as to read it.
    if _GLUED.search(line, 0 if match is None else match.end()) is not None:
        line = _GLUED.sub(lambda glued: _GLUED_WORD.sub(r"\1 ", glued[0]), line)
        match = _ROW.match(line)
    if match is None:
        return None
    name, cells = match[1], tuple(match[2].replace("|", " ").split())
    first = next((cell for cell in cells if cell != "X"), None)
    is_p2p = None if first is None else first in _P2P
    if not name.startswith("GPU") and (is_p2p or (_NIC.fullmatch(name) is None and name not in header)):
        return None
    return _Row(name, cells, is_p2p, line[match.end() :], match.end())


def _continue_row(matrix: _Matrix, line: str) -> None:
    """Append the link words at the start of a line to the last row, if the row was wrapped."""
    row = matrix.rows[matrix.last]
    match = _CELLS.match(line)
    if match is not None and not row.rest.strip() and len(row.cells) < _announced(matrix):
        cells = (*row.cells, *match[0].replace("|", " ").split())
        matrix.rows[row.name] = replace(row, cells=cells, rest=line[match.end() :], end=match.end())


def _announced(matrix: _Matrix) -> int:
    gpus, nics = _header_names(matrix.header)
    return max(len(gpus) + len(nics), max(len(row.cells) for row in matrix.rows.values()))


def _header_names(header: str) -> tuple[list[str], list[str]]:
    """Return the GPU and NIC columns of a header, even if the white space between them was lost."""
    columns = header.partition("CPU Affinity")[0].partition("NUMA Affinity")[0]
    names = _COLUMN.findall(columns)
    gpus = [name for name in names if _GPU.fullmatch(name)]
    return gpus, [name for name in names[len(gpus) :] if not _GPU.fullmatch(name)] if gpus else []


def _n_gpus(matrix: _Matrix) -> int:
    return len(_columns(matrix)[0])


def _columns(matrix: _Matrix) -> tuple[list[str], list[str]]:
    """Return the names of the GPU and NIC columns, from the header, or from the rows if there is no header."""
    gpus, nics = _header_names(matrix.header)
    width = max(len(row.cells) for row in matrix.rows.values())
    gpu_rows = [name for name in matrix.rows if _GPU.fullmatch(name)]
    nic_rows = [name for name in matrix.rows if not _GPU.fullmatch(name)]
    if not gpus:
        count = max((whole(name[3:]) + 1 for name in gpu_rows), default=0)
        if nic_rows and "X" in matrix.rows[nic_rows[0]].cells:
            # The first NIC has its X on the diagonal, right after the GPU columns.
            count = matrix.rows[nic_rows[0]].cells.index("X")
        else:
            # Only GPUs have NVLink, so there are at least as many GPU columns as the last NVLink word shows.
            linked = [i for name in gpu_rows for i, cell in enumerate(matrix.rows[name].cells) if cell.startswith("NV")]
            count = max(count, max(linked, default=-1) + 1)
        gpus = [f"GPU{number}" for number in range(min(count, width) if width else count)]
    missing = width - len(gpus) - len(nics)
    if missing > 0:
        numbered = nics + [f"NIC{len(nics) + k}" for k in range(missing)]
        nics = nic_rows if len(nic_rows) == len(numbered) else numbered
    if len(gpus) + len(nics) > _LARGEST:
        raise ParseError(
            f"the matrix has {len(gpus) + len(nics):,} columns, but a host can have at most {_LARGEST:,}",
            hint="paste the output of one host",
        )
    return gpus, nics


def _node(name: str, matrix: _Matrix, p2p: _Matrix | None, legend: dict[str, str], product: Product | None) -> Node:
    """Return the host of a matrix. Cells that the text does not have are unknown."""
    gpus, nics = _columns(matrix)
    ends = [*gpus, *nics]
    words: list[list[str]] = []
    missing: list[str] = []
    truncated: list[str] = []
    for index, end in enumerate(ends):
        row = matrix.rows.get(end)
        cells = list(row.cells) if row is not None else []
        if row is None:
            missing.append(end)
        elif len(cells) < len(ends) or (end == matrix.last and _may_be_cut(row, matrix)):
            truncated.append(end)
            if cells and cells[-1].startswith("NV") and not row.rest.strip():
                cells.pop()  # the text may be truncated inside the number: NV1 of NV18
        cells = (cells + [UNKNOWN] * len(ends))[: len(ends)]
        cells[index] = "X"
        words.append(cells if "SOC" not in cells else ["SYS" if cell == "SOC" else cell for cell in cells])
    if missing or truncated:  # links are symmetric, so the rows of the text have cells of the others
        columns = list(zip(*words, strict=True))
        words = [
            [other if cell == UNKNOWN else cell for cell, other in zip(row, column, strict=True)]
            for row, column in zip(words, columns, strict=True)
        ]
    complete = {end: matrix.rows[end] for end in gpus if end in matrix.rows and end not in truncated}
    devices = []
    for number, end in enumerate(gpus):
        cpus, numa = _affinities(complete[end], matrix.header) if end in complete else (None, None)
        number = whole(end[3:]) if len(set(gpus)) == len(gpus) else number
        devices.append(_device(number, product, numa, cpus))
    notes = []
    if missing or truncated:
        rows = ", ".join(shortened("missing", missing) + shortened("incomplete", truncated))
        notes.append(f"the text is truncated: {rows}")
    return Node(
        name,
        tuple(devices),
        tuple(Nic(name=legend.get(nic, nic)) for nic in nics),
        words=tuple(map(tuple, words)),
        p2p=_p2p_words(p2p, gpus) if p2p is not None else (),
        complete=not notes,
        notes=tuple(notes),
    )


def _may_be_cut(row: _Row, matrix: _Matrix) -> bool:
    """Return whether the text may end inside the last cell of a row: the other rows and the header have more."""
    has_more = "Affinity" in matrix.header or any(other.rest.strip() for other in matrix.rows.values())
    return has_more and bool(row.cells) and row.cells[-1].startswith("NV") and not row.rest.strip()


def shortened(state: str, names: list[str]) -> list[str]:
    """Return a state with the first names that are in it, or nothing without names."""
    if not names:
        return []
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return [f"{state} {', '.join(names[:4])}{more}"]


def _device(number: int, product: Product | None, numa: str | None, cpus: str | None) -> Device:
    if product is None:
        return Device(id=number, numa=numa, cpus=cpus)
    return product.device(number, numa=numa, cpus=cpus)


def _affinities(row: _Row, header: str) -> tuple[str | None, str | None]:
    """Return the CPU and NUMA affinity of a row as printed, or None for an empty cell or N/A."""
    columns = [name for name in _AFFINITIES if name in header] or list(_AFFINITIES)
    # Tabs separate the cells, also empty ones. If the paste replaced them by spaces, an empty cell is only a gap, and a
    # value belongs to the nearest header above it.
    if "\t" in row.rest:
        values = [cell.strip() for cell in row.rest.split("\t")[1:]]
    else:
        matches = list(re.finditer(r"[^\s|]+", _separated(row.rest, len(columns))))
        if len(matches) >= len(columns) or not header:
            values = [match[0] for match in matches]
        else:
            values = [""] * len(columns)
            starts = [header.find(name) for name in columns]
            for match in matches:
                position = row.end + match.start()
                nearest = min(range(len(columns)), key=lambda k: abs(starts[k] - position))
                values[nearest] = match[0]
    by_name = dict(zip(columns, values, strict=False))
    cpus, numa = (by_name.get(name) for name in _AFFINITIES[:2])
    return None if cpus in ("", "N/A") else cpus, None if numa in ("", "N/A") else numa


def _separated(rest: str, n: int) -> str:
    """Insert the white space that was lost between the values of up to `n` affinity columns."""
    # A paste may lose tabs: `0-55,112-167`, `0`, `N/A` become `0-55,112-167 0N/A`; `56-111,168-223`, `1` become
    # `56-111,168-2231`.
    rest = _GLUED_NA.sub(r"\1 N/A", rest)
    match = _CPU_LIST.match(rest)
    if match is None or len(rest.split()) >= n:
        return rest
    ranges = [tuple(map(whole, part.split("-"))) for part in match[1].split(",")]
    sizes = {last - first for first, last in ranges[:-1]}
    first, last = ranges[-1][0], str(ranges[-1][1])
    # With two threads per core, all ranges of a NUMA node have one size, which shows where the digits of the next
    # column begin. A single range has no such evidence.
    if len(sizes) != 1 or whole(last) - first in sizes:
        return rest
    for digits in (1, 2):
        if last[:-digits] and whole(last[:-digits]) - first in sizes:
            return f"{rest[: match.end() - digits]} {rest[match.end() - digits :]}"
    return rest


def _p2p_words(matrix: _Matrix, gpus: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    rows = [matrix.rows[gpu].cells if gpu in matrix.rows else () for gpu in gpus]
    return tuple((cells + (UNKNOWN,) * len(gpus))[: len(gpus)] for cells in rows)


def _p2p_node(matrix: _Matrix, product: Product | None) -> Node:
    gpus, _ = _columns(matrix)
    devices = tuple(_device(number, product, None, None) for number in range(len(gpus)))
    complete = all(len(matrix.rows[gpu].cells) == len(gpus) if gpu in matrix.rows else False for gpu in gpus)
    note = "the text contains peer access only; nvidia-smi topo -m prints the links"
    return Node("node0", devices, p2p=_p2p_words(matrix, gpus), nvlink_known=False, complete=complete, notes=(note,))
