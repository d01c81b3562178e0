"""Reader for any description of hardware: it detects the format and calls the reader for it."""

from __future__ import annotations

import re
from pathlib import Path

from meshlab.base._errors import ParseError
from meshlab.base._files import describe_text, text_of
from meshlab.base._other_tools import name_of, other_tool
from meshlab.base._prefixes import lines_by_source
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.readers._amd_smi import looks_like_amd_smi, read_amd_smi
from meshlab.topology.readers._nccl_graph import NcclGraphs, read_nccl_graph
from meshlab.topology.readers._nccl_info import looks_like_nccl_info, read_nccl_info
from meshlab.topology.readers._nccl_xml import read_nccl_topology
from meshlab.topology.readers._nvidia_smi import looks_like_nvidia_smi, read_nvidia_smi
from meshlab.topology.readers._slurm import looks_like_slurm, read_slurm_topology

_ROOT = re.compile(r"<(?!\?|!)([A-Za-z_][\w.:-]*)")


def read(source: str | bytes | Path, *, machine: int | None = None) -> Cluster | NcclGraphs:
    """Read a description of hardware in any supported format.

    Parameters
    ----------
    source : str, bytes or pathlib.Path
        The text, or the path of a file. A single line that names an existing file is a path.
    machine : int, optional
        Index of the machine, counted from 0, if the text contains several.

    Returns
    -------
    Cluster or NcclGraphs
        Graphs for a file written with NCCL_GRAPH_DUMP_FILE. A cluster for the output of ``nvidia-smi topo -m`` or
        ``-p2p``, ``rocm-smi --showtopo`` and ``amd-smi topology``, a topology XML of NCCL, a log of NCCL with its
        system tree (``NCCL_DEBUG_SUBSYS=GRAPH``), and a ``topology.conf`` or ``topology.yaml`` of Slurm.

    Raises
    ------
    ParseError
        If the text has none of these formats.
    TopologyError
        If the text contains several machines and `machine` is not given.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.topology.read("SwitchName=s1 Nodes=n[1-4]").names
    ('n1', 'n2', 'n3', 'n4')
    """
    text, file = text_of(source, hint="pass a topology file")
    try:
        return _read(text, machine, may_be_name=isinstance(source, str) and file is None)
    except ParseError as error:
        if file is None or error.file is not None:
            raise
        raise ParseError(
            error.message, hint=error.hint, text=error.excerpt, column=error.column, file=file, line=error.line
        ) from None


_LARGEST_PREFIXED = 8 << 20  # characters of a text in which prefixes are looked for

# Tools that meshlab reads, and that show no links between GPUs, with strings that only they print.
_WITHOUT_LINKS = (
    (
        "nvidia-smi nvlink, which says nothing about which GPUs are connected",
        ("nvidia-smi nvlink", "<inactive>", "GB/s\n\t Link 1:", "Link 0: "),
        "pass the output of nvidia-smi topo -m as well; ml.explain() reads both",
    ),
    (
        "nvidia-smi without topo -m, which shows GPUs, but not how they are connected",
        ("| NVIDIA-SMI ", "Bus-Id          Disp.A", "Bus-Id        Disp.A"),
        "pass the output of nvidia-smi topo -m as well; ml.explain() reads both",
    ),
)


def _read(text: str, machine: int | None, *, may_be_name: bool) -> Cluster | NcclGraphs:
    """Detect the format by its root element or its first lines, the cheapest test first, and read it."""
    roots = set(_ROOT.findall(text[:1_000_000])) if "<" in text else set()
    if "system" in roots:
        return read_nccl_topology(text, machine=machine)
    if "graphs" in roots:
        return read_nccl_graph(text, machine=machine)
    if looks_like_amd_smi(text):
        return read_amd_smi(lines_by_source(text) if len(text) <= _LARGEST_PREFIXED else text, machine=machine)
    if looks_like_nvidia_smi(text):
        return read_nvidia_smi(text, machine=machine)
    bare = lines_by_source(text) if len(text) <= _LARGEST_PREFIXED else text
    if bare != text and looks_like_nvidia_smi(bare):  # printed by a job, after the prefix of its launcher
        return read_nvidia_smi(bare, machine=machine)
    if looks_like_nccl_info(text):
        return read_nccl_info(text, machine=machine)
    if looks_like_slurm(text):
        return read_slurm_topology(text)
    if (tool := other_tool(text)) is not None:
        raise ParseError(f"this is {name_of(tool, text)}; {tool.reason}", hint=tool.instead)
    for what, marks, instead in _WITHOUT_LINKS:
        if any(mark in text for mark in marks):
            raise ParseError(f"this is the output of {what}", hint=instead)
    raise ParseError(
        f"unknown format: {describe_text(text, may_be_name=may_be_name)}",
        hint="pass the output of nvidia-smi topo -m or -p2p, rocm-smi --showtopo or amd-smi topology, "
        "a topology or graph XML of NCCL, "
        "a log of NCCL with its system tree (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,GRAPH), "
        "or a topology.conf or topology.yaml of Slurm",
    )
