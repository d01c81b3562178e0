"""Reader for the graph XML of NCCL (NCCL_GRAPH_DUMP_FILE): the rings and trees that NCCL chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from meshlab.base import _markup as markup
from meshlab.base._errors import ParseError
from meshlab.base._files import TextSource, text_of
from meshlab.topology.readers._xml import Element, read_document

if TYPE_CHECKING:
    import pandas as pd


_PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet direct"}
_ALGORITHMS = {0: "ring", 1: "tree", 2: "collnet chain", 3: "nvls", 4: "collnet direct"}


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """A graph that NCCL's search found (names as in NVIDIA/nccl src/include/graph.h).

    Parameters
    ----------
    algorithm : str
        The algorithm: ring, tree, collnet chain, nvls or collnet direct.
    pattern : str
        The pattern of the search.
    channels : tuple of tuple of int
        The GPUs of every channel, in the order of the channel. Empty if the algorithm is not available.
    nets : tuple of tuple of int
        The network devices of every channel, first inbound, then outbound.
    gpu_gbs, net_gbs : float or None
        GB/s per channel inside the host and over the network.
    gpu_path, net_path : str
        The worst path type between GPUs, and between GPU and NIC.
    """

    algorithm: str
    pattern: str
    channels: tuple[tuple[int, ...], ...]
    nets: tuple[tuple[int, ...], ...]
    gpu_gbs: float | None
    net_gbs: float | None
    gpu_path: str
    net_path: str


@dataclass(frozen=True, repr=False)
class NcclGraphs:
    """All graphs of a file, as a sequence in the order of the file.

    Parameters
    ----------
    graphs : tuple of NcclGraph
        The graphs.
    notes : tuple of str, default ()
        Remarks on missing data.

    Examples
    --------
    >>> import meshlab as ml
    >>> graphs = ml.topology.read('<graphs version="1"><graph id="0" pattern="4" speedintra="30" typeintra="NVL">'
    ...                           '<channel><gpu dev="0"/><gpu dev="0x1"/></channel></graph></graphs>')
    >>> graphs.ring.channels, graphs.ring.gpu_gbs
    (((0, 1),), 30.0)
    """

    why_no_cluster: ClassVar[str] = (
        "this is a graph file of NCCL: it contains the rings and trees that NCCL chose, not the hardware; "
        "pass the topology, which NCCL writes to NCCL_TOPO_DUMP_FILE"
    )
    """The message of functions that need a cluster, see `meshlab.topology.as_cluster`."""

    graphs: tuple[NcclGraph, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> NcclGraph:
        return self.graphs[index]

    def of(self, algorithm: str) -> NcclGraph | None:
        """Return the graph of an algorithm, or None if the file has none."""
        return next((graph for graph in self.graphs if graph.algorithm == algorithm), None)

    @property
    def ring(self) -> NcclGraph | None:
        """The graph of the ring algorithm."""
        return self.of("ring")

    @property
    def tree(self) -> NcclGraph | None:
        """The graph of the tree algorithm."""
        return self.of("tree")

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per channel.

        Returns
        -------
        pandas.DataFrame
            ``algorithm``, ``pattern``, ``channel`` (its number), ``gpus`` and ``nets`` (lists in the order of the
            channel), ``gpu_gbs`` and ``net_gbs`` (GB/s per channel), ``gpu_path`` and ``net_path`` (worst path types).
        """
        import pandas as pd

        rows = [
            (g.algorithm, g.pattern, number, list(gpus), list(nets), g.gpu_gbs, g.net_gbs, g.gpu_path, g.net_path)
            for g in self.graphs
            for number, (gpus, nets) in enumerate(zip(g.channels, g.nets, strict=True))
        ]
        names = ["algorithm", "pattern", "channel", "gpus", "nets", "gpu_gbs", "net_gbs", "gpu_path", "net_path"]
        return pd.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        parts = [f"{graph.algorithm} × {len(graph.channels)} channels ({graph.gpu_path})" for graph in self.graphs[:8]]
        return f"<NcclGraphs: {', '.join(parts)}{', …' * (len(self) > 8)}; next: .frame()>"

    def _repr_html_(self) -> str:
        rows: list[Sequence[object]] = [
            [g.algorithm, g.pattern, len(g.channels), _order(g), g.gpu_gbs or "–", g.gpu_path, g.net_path]
            for g in self.graphs
        ]
        columns = "algorithm, pattern, channels, GPUs of the first channel, GB/s per channel, GPU path, NIC path"
        return markup.card("NCCL graphs", "; ".join(self.notes), markup.table(columns.split(", "), rows))


def _order(graph: NcclGraph) -> str:
    return " ".join(map(str, graph.channels[0])) if graph.channels else "–"


def read_nccl_graph(xml: TextSource, *, machine: int | None = None) -> NcclGraphs:
    """Read the text of a graph file of NCCL.

    Parameters
    ----------
    xml : str, bytes or path
        The text of the file.
    machine : int, optional
        Index of the document, counted from 0, if the text contains several.

    Raises
    ------
    ParseError
        If the text is not a graph file.
        If the XML declares entities, or is too large.
        If the file has a different version.
    TopologyError
        If the text contains several documents and `machine` is not given.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> graphs = ml.topology.read_nccl_graph('''<graphs version="1">
    ...   <graph id="0" pattern="4" speedintra="24" speedinter="48" typeintra="NVL" typeinter="PXB">
    ...     <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
    ...   </graph>
    ... </graphs>''')
    >>> print(graphs.frame()[["algorithm", "gpus", "gpu_gbs", "net_path"]].to_string(index=False))
    algorithm   gpus  gpu_gbs net_path
         ring [0, 1]     24.0      PXB
    """
    xml, _ = text_of(xml, hint="pass one graph file")
    if "<system" in xml and "<graphs" not in xml:
        raise ParseError("this is a topology, not a graph file", hint="read it with ml.topology.read()")
    root, trouble = read_document(xml, ("graphs",), machine)
    if root.get("version") != "1":
        raise ParseError(
            f"the graphs have version {root.get('version') or 'none'!r}, but version '1' is expected",
            hint="dump them with NCCL",
        )
    graphs = tuple(_graph(child) for child in root.children if child.tag == "graph")
    return NcclGraphs(graphs, () if trouble is None else (trouble,))


def _graph(element: Element) -> NcclGraph:
    channels = [child for child in element.children if child.tag == "channel"]
    # The numbers are enumerations of NCCL, which adds values in new versions. Unknown ones are kept as text.
    number, pattern = element.integer("id"), element.integer("pattern")
    return NcclGraph(
        algorithm=_ALGORITHMS.get(-1 if number is None else number, f"graph {element.get('id')}"),
        pattern=_PATTERNS.get(pattern or 0, f"pattern {element.get('pattern')}"),
        channels=tuple(_numbers(channel, "gpu") for channel in channels),
        nets=tuple(_numbers(channel, "net") for channel in channels),
        gpu_gbs=_number(element.get("speedintra")),
        net_gbs=_number(element.get("speedinter")),
        gpu_path=element.get("typeintra", "?"),
        net_path=element.get("typeinter", "?"),
    )


def _numbers(channel: Element, tag: str) -> tuple[int, ...]:
    numbers = [child.integer("dev") for child in channel.children if child.tag == tag]
    return tuple(number for number in numbers if number is not None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
