"""Plain text for terminals and screen readers: the topology figure, and the link matrix of a host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from meshlab.mesh._mesh import MeshLike
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import Ints
from meshlab.topology.model._presets import ClusterLike, as_node
from meshlab.topology.placement._placement import Placement
from meshlab.topology.placement._view import View, make_view

_IDLE = "–"


def text(
    mesh: MeshLike | Placement | ClusterLike | None = None,
    cluster: ClusterLike | None = None,
    *,
    axis: str | Sequence[str] | None = None,
    devices: Sequence[int] | Ints | None = None,
    width: int = 100,
    rows: int = 24,
) -> str:
    """Return the group of every device, host by host, as plain text.

    If the mesh does not fit the cluster, or does not have the axis, the machine is listed, and a last line reports it.

    Parameters
    ----------
    mesh : DeviceMesh, str, Placement or Cluster, optional
        A mesh, text such as ``"dp=2, tp=4"``, or a placement. If `cluster` is omitted, also a cluster or the name of a
        preset.
    cluster : Cluster or str, optional
        A cluster, or the name of a preset. By default the ranks are shown without hardware.
    axis : str or sequence of str, optional
        An axis such as ``"tp"``, several such as ``"dp-cp"``, the name of a group, or a level of the cluster such as
        ``"leaf"``. By default the fastest axis.
    devices : sequence of int, optional
        The device of every rank. By default rank r uses device r.
    width : int, default 100
        Number of columns of the terminal.
    rows : int, default 24
        Maximum number of hosts to show. A note replaces the hosts in the middle.

    Raises
    ------
    TopologyError
        If neither a mesh nor a cluster is given.
        If `devices` does not contain one existing device per rank.

    Examples
    --------
    >>> import meshlab as ml
    >>> print(ml.topology.text("dp=2, tp=8", ml.preset("dgx-h100", nodes=2), axis="dp"))
    dp (8 groups of 2) · 2 nodes, 16 × H100 80GB, NVLink domains of 8
    node0  ranks 0–7   dp  0 1 2 3 4 5 6 7
    node1  ranks 8–15  dp  0 1 2 3 4 5 6 7
    """
    view = make_view(mesh, cluster, axis, devices)
    # Sort the cells by block once, so that each block is a slice.
    order = np.lexsort((view.slot_of, view.block_of))
    starts = np.searchsorted(view.block_of[order], np.arange(len(view.blocks) + 1))
    visible, hidden = _visible_blocks(len(view.blocks), rows)
    label_width = max(len(view.blocks[block]) for block in visible)
    lines = []
    for block in visible:
        cells = order[starts[block] : starts[block + 1]].astype(np.int32)
        lines.append((view.blocks[block].ljust(label_width), _ranks(view.rank_of[cells]), _groups(view, cells)))
    rank_width = max(len(ranks) for _, ranks, _ in lines)
    digits = len(str(max(view.n_groups - 1, 0)))
    text = [view.title]
    for index, (label, ranks, groups) in enumerate(lines):
        if hidden and index == len(visible) // 2:
            text.append(f"… {hidden:,} more, from {view.blocks[visible[index - 1] + 1]}")
        head = f"{label}  {ranks.ljust(rank_width)}  " if rank_width else f"{label}  "
        text += _wrap(f"{head}{view.word}  ", groups, digits, width)
    return "\n".join([*text, *dict.fromkeys([*view.notes, *view.scene.notes])])


def _visible_blocks(blocks: int, rows: int) -> tuple[list[int], int]:
    """Return the numbers of the first and the last blocks that fit `rows`, and the number of hidden ones."""
    if blocks <= rows:
        return list(range(blocks)), 0
    half = max(1, rows // 2)
    return [*range(half), *range(blocks - half, blocks)], blocks - 2 * half


def _ranks(ranks: Ints) -> str:
    placed = ranks[ranks >= 0]
    if not placed.size:
        return ""
    if placed.size == 1:
        return f"rank {placed[0]}"
    if np.all(np.diff(placed) == 1):
        return f"ranks {placed[0]}–{placed[-1]}"
    return f"{placed.size} ranks, {placed.min()} to {placed.max()}"


def _groups(view: View, cells: Ints) -> list[str]:
    return [_IDLE if number < 0 else str(number) for number in view.group_of[cells].tolist()]


def _wrap(head: str, groups: list[str], digits: int, width: int) -> list[str]:
    if len(groups) > 1 and len(set(groups)) == 1:
        return [f"{head}{groups[0]} (all {len(groups)})"]
    room = max(1, (width - len(head) + 1) // (digits + 1))
    lines = []
    for start in range(0, len(groups), room):
        cells = " ".join(group.rjust(digits) for group in groups[start : start + room])
        lines.append((head if start == 0 else " " * len(head)) + cells)
    return lines


def links_text(cluster: ClusterLike | Node, node: int | str = 0) -> str:
    r"""Return the link matrix of a host in the format of ``nvidia-smi topo -m``, which `read_nvidia_smi` reads.

    The links between GPUs of AMD have words such as ``XGMI4``, which nvidia-smi does not print and no reader reads.

    Parameters
    ----------
    cluster : Cluster, Node or str
        A cluster, the name of a preset, or a host.
    node : int or str, default 0
        The host, by index or name.

    Returns
    -------
    str
        Tab-separated cells, with the names of the NICs below.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.topology.links_text("gb200-nvl72").splitlines()[1].split("\t")
    ['GPU0', ' X ', 'NV18', 'NV18', 'NV18', 'PHB', 'NODE', 'SYS', 'SYS', '0-71', '0']
    """
    host = as_node(cluster, node)
    nics = [f"NIC{number}" for number in range(len(host.nics))]
    names = [*host.ends[: len(host.devices)], *nics]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    for name, row, device in zip_longest(names, host.words, host.devices):
        affinity = ["", ""] if device is None else [device.cpus or "N/A", device.numa or "N/A"]
        lines.append("\t".join([name, *(" X " if word == "X" else word for word in row), *affinity]))
    legend = [f"  {name}: {nic.name}" for name, nic in zip(nics, host.nics, strict=True)]
    return "\n".join([*lines, *(["", "NIC Legend:", "", *legend] if legend else []), ""])
