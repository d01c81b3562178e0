"""Read a description of hardware without saying which kind it is."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from meshlab.errors import ParseError
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.readers.nccl_graph import NcclGraphs, read_nccl_graph
from meshlab.topology.readers.nccl_xml import read_nccl_topology
from meshlab.topology.readers.nvidia_smi import looks_like_nvidia_smi, read_nvidia_smi
from meshlab.topology.readers.slurm import looks_like_slurm, read_slurm_topology

__all__ = ["read"]

_LARGEST_FILE = 256 << 20
_ROOT = re.compile(r"<(?!\?|!)([A-Za-z_][\w.:-]*)")


def read(source: str | bytes | Path, *, machine: int | None = None) -> Cluster | NcclGraphs:
    """Find out what a text or file is, and read it.

    Parameters
    ----------
    source : str, bytes or pathlib.Path
        The text itself, or the path of a file. A text of one line that names an existing file counts as its path.
    machine : int, optional
        Which machine, when there are several in it.

    Returns
    -------
    Cluster or NcclGraphs
        Graphs for a file of NCCL_GRAPH_DUMP_FILE; a cluster for ``nvidia-smi topo``, NCCL's topology XML, and Slurm's
        ``topology.conf`` and ``topology.yaml``.

    Raises
    ------
    ParseError
        If it is none of these; the message says what was seen.
    TopologyError
        If there are several machines and `machine` does not say which.
    OSError
        If a `pathlib.Path` cannot be read.

    Examples
    --------
    >>> read("SwitchName=s1 Nodes=n[1-4]").names
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
    if source.stat().st_size > _LARGEST_FILE:
        raise ParseError(f"the file is larger than {_LARGEST_FILE >> 20} MiB; no topology is", file=str(source))
    return source.read_text(errors="replace"), str(source)


def _read(text: str, machine: int | None, *, is_perhaps_name: bool) -> Cluster | NcclGraphs:
    roots = set(_ROOT.findall(text[:1_000_000])) if "<" in text else set()
    if "system" in roots:
        return read_nccl_topology(text, machine=machine)
    if "graphs" in roots:
        return read_nccl_graph(text, machine=machine)
    if looks_like_nvidia_smi(text):
        return read_nvidia_smi(text, machine=machine)
    if looks_like_slurm(text):
        return read_slurm_topology(text)
    seen = _seen(text)
    # A name that was mistyped is one line too, and says nothing as a text.
    if is_perhaps_name and seen.startswith("the text begins"):
        seen = f"{_why_no_file(text.strip())}, and {seen}"
    raise ParseError(
        f"{seen}; that is none of what can be read: nvidia-smi topo -m or -p2p, NCCL topology or graph XML, "
        "Slurm topology.conf or topology.yaml"
    )


def _why_no_file(name: str) -> str:
    shown = name if len(name) <= 60 else f"{name[:60]}…"
    with contextlib.suppress(OSError, ValueError):  # a name that is too long, or holds a zero, is no folder either
        if Path(name).is_dir():
            return f"{shown!r} is a folder, not a file"
    return f"there is no file {shown!r}"


def _seen(text: str) -> str:
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
