"""Reader for any description of hardware: it detects the format and calls the reader for it."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from meshlab.errors import ParseError
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.readers.nccl_graph import NcclGraphs, read_nccl_graph
from meshlab.topology.readers.nccl_info import looks_like_nccl_info, read_nccl_info
from meshlab.topology.readers.nccl_xml import read_nccl_topology
from meshlab.topology.readers.nvidia_smi import looks_like_nvidia_smi, read_nvidia_smi
from meshlab.topology.readers.slurm import looks_like_slurm, read_slurm_topology

__all__ = ["read"]

_LARGEST_FILE = 256 << 20
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
        ``-p2p``, a topology XML of NCCL, a log of NCCL with its system tree (``NCCL_DEBUG_SUBSYS=GRAPH``), and a
        ``topology.conf`` or ``topology.yaml`` of Slurm.

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
    text, file = _text(source)
    try:
        is_perhaps_name = isinstance(source, str) and file is None and len(text.strip().splitlines()) == 1
        return _read(text, machine, is_perhaps_name=is_perhaps_name)
    except ParseError as error:
        if file is None or error.file is not None:
            raise
        raise ParseError(
            error.message, hint=error.hint, text=error.excerpt, column=error.column, file=file, line=error.line
        ) from None


def _text(source: str | bytes | Path) -> tuple[str, str | None]:
    if isinstance(source, bytes):
        return source.decode(errors="replace"), None
    if isinstance(source, str):
        if "\n" in source or len(source) > 4096 or "<" in source or "\0" in source or not Path(source).is_file():
            return source, None
        source = Path(source)
    if source.is_dir():
        raise ParseError("this is a folder", hint="pass one of its files", file=str(source))
    if source.stat().st_size > _LARGEST_FILE:
        raise ParseError(
            f"the file is larger than {_LARGEST_FILE >> 20} MiB", hint="pass a topology file", file=str(source)
        )
    return source.read_text(errors="replace"), str(source)


def _read(text: str, machine: int | None, *, is_perhaps_name: bool) -> Cluster | NcclGraphs:
    roots = set(_ROOT.findall(text[:1_000_000])) if "<" in text else set()
    if "system" in roots:
        return read_nccl_topology(text, machine=machine)
    if "graphs" in roots:
        return read_nccl_graph(text, machine=machine)
    if looks_like_nvidia_smi(text):
        return read_nvidia_smi(text, machine=machine)
    if looks_like_nccl_info(text):
        return read_nccl_info(text, machine=machine)
    if looks_like_slurm(text):
        return read_slurm_topology(text)
    content = _describe(text)
    # A single line is probably the mistyped name of a file.
    if is_perhaps_name and content.startswith("the text begins"):
        content = f"{_why_no_file(text.strip())}, and {content}"
    raise ParseError(
        f"unknown format: {content}",
        hint="pass the output of nvidia-smi topo -m or -p2p, a topology or graph XML of NCCL, a log of NCCL with its "
        "system tree (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,GRAPH), or a topology.conf or topology.yaml of Slurm",
    )


def _why_no_file(name: str) -> str:
    shown = name if len(name) <= 60 else f"{name[:60]}…"
    with contextlib.suppress(OSError, ValueError):  # the name is too long, or contains a null character
        if Path(name).is_dir():
            return f"{shown!r} is a folder"
    return f"no file {shown!r} exists"


def _describe(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), None)
    if first is None:
        return "the text is empty"
    if "\0" in text[:4096]:
        return "the file is binary"
    root = _ROOT.search(text[:100_000]) if first.startswith("<") else None
    if root is not None:
        return f"the text is XML that begins with <{root[1]}>"
    if first[0] in "{[":
        return "the text looks like JSON"
    return f"the text begins with {first[:60]!r}"
