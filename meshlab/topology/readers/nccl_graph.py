"""Reader for NCCL's graph XML (NCCL_GRAPH_DUMP_FILE): the rings and trees that NCCL really chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshlab import markup
from meshlab.errors import ParseError
from meshlab.topology.readers.xml import Element, read_document

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NcclGraph", "NcclGraphs", "read_nccl_graph"]

_PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet direct"}
_ALGORITHMS = {0: "ring", 1: "tree", 2: "collnet chain", 3: "nvls", 4: "collnet direct"}


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """One graph that NCCL's search found (the names are NVIDIA/nccl src/include/graph.h's).

    Parameters
    ----------
    algorithm : str
        What it is for: ring, tree, collnet chain, nvls or collnet direct.
    pattern : str
        The shape that was searched.
    channels : tuple of tuple of int
        The GPUs of every channel, in its order; empty when the algorithm is not possible.
    nets : tuple of tuple of int
        The network devices of every channel, in and out.
    gpu_gbs, net_gbs : float or None
        GB/s per channel inside the host and on the network.
    gpu_path, net_path : str
        The worst path type inside the host, and between GPU and NIC.
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
    """All graphs of one file; a sequence in file order.

    Examples
    --------
    >>> graphs = read_nccl_graph('<graphs version="1"><graph id="0" pattern="4" speedintra="30" typeintra="NVL">'
    ...                          '<channel><gpu dev="0"/><gpu dev="0x1"/></channel></graph></graphs>')
    >>> graphs.ring.channels, graphs.ring.gpu_gbs
    (((0, 1),), 30.0)
    """

    graphs: tuple[NcclGraph, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> NcclGraph:
        return self.graphs[index]

    def of(self, algorithm: str) -> NcclGraph | None:
        """The graph of one algorithm, None when the file has none."""
        return next((graph for graph in self.graphs if graph.algorithm == algorithm), None)

    @property
    def ring(self) -> NcclGraph | None:
        """The graph that rings follow."""
        return self.of("ring")

    @property
    def tree(self) -> NcclGraph | None:
        """The graph that trees follow."""
        return self.of("tree")

    def frame(self) -> pd.DataFrame:
        """One row per channel."""
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
        return f"<NcclGraphs: {', '.join(parts)}{', …' * (len(self) > 8)}>"

    def _repr_html_(self) -> str:
        rows: list[Sequence[object]] = [
            [g.algorithm, g.pattern, len(g.channels), _order(g), g.gpu_gbs or "–", g.gpu_path, g.net_path]
            for g in self.graphs
        ]
        header = ["algorithm", "pattern", "channels", "first order of GPUs", "GB/s per channel", "GPU path", "NIC path"]
        return markup.card("NCCL graphs", "; ".join(self.notes), markup.table(header, rows))


def _order(graph: NcclGraph) -> str:
    return " ".join(map(str, graph.channels[0])) if graph.channels else "–"


def read_nccl_graph(xml: str, *, machine: int | None = None) -> NcclGraphs:
    """Read the graphs that NCCL dumped.

    Parameters
    ----------
    xml : str
        The text of the file.
    machine : int, optional
        Which file, when the text holds several.

    Raises
    ------
    ParseError
        If it is no graph file, is hostile, or has another version.
    TopologyError
        If the text holds several and `machine` does not say which.

    Examples
    --------
    >>> graphs = read_nccl_graph('''<graphs version="1">
    ...   <graph id="0" pattern="4" speedintra="24" speedinter="48" typeintra="NVL" typeinter="PXB">
    ...     <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
    ...   </graph>
    ... </graphs>''')
    >>> print(graphs.frame()[["algorithm", "gpus", "gpu_gbs", "net_path"]].to_string(index=False))
    algorithm   gpus  gpu_gbs net_path
         ring [0, 1]     24.0      PXB
    """
    if "<system" in xml and "<graphs" not in xml:
        raise ParseError("this is a topology, not a graph file; read it with read_nccl_topology")
    root, trouble = read_document(xml, ("graphs",), machine)
    if root.get("version") != "1":
        raise ParseError(f"the graphs have version {root.get('version') or 'none'!r}; NCCL writes version '1'")
    graphs = tuple(_graph(child) for child in root.children if child.tag == "graph")
    return NcclGraphs(graphs, () if trouble is None else (trouble,))


def _graph(element: Element) -> NcclGraph:
    channels = [child for child in element.children if child.tag == "channel"]
    number, pattern = element.whole("id"), element.whole("pattern")
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
    found = [child.whole("dev") for child in channel.children if child.tag == tag]
    return tuple(number for number in found if number is not None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
