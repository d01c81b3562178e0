"""The device by device matrix of link words, as numbers: a whole matrix of words takes too much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.errors import TopologyError

if TYPE_CHECKING:
    from meshlab.topology.model.cluster import Cluster
    from meshlab.topology.model.hardware import Node

__all__ = ["link_codes"]

_MOST_WORDS = 2048


def link_codes(cluster: Cluster, node: int | str | None = None) -> tuple[list[str], npt.NDArray[np.int16]]:
    """The matrix of `Cluster.link_words` as the different words, and the number of the word of every pair.

    Parameters
    ----------
    cluster : Cluster
    node : int or str, optional
        One host only.

    Raises
    ------
    TopologyError
        If the whole matrix would be larger than 2,048 × 2,048.
    """
    numbers: dict[str, int] = {}
    if node is not None or cluster.n_nodes == 1:
        kind = int(cluster.kinds[cluster.node_index(0 if node is None else node)])
        codes = _template_codes(cluster.templates[kind], numbers)
        return list(numbers), codes
    if cluster.n_devices > _MOST_WORDS:
        raise TopologyError(
            f"{cluster.n_devices:,} devices make too large a matrix; name a node: link_words({cluster.names[0]!r})"
        )
    names = [*reversed(cluster.level_names[3:]), "nvlink"]
    rows = [*reversed(cluster.domains[3:]), cluster.domains[1]]
    codes = np.zeros((cluster.n_devices, cluster.n_devices), dtype=np.int16)
    for number, domain in enumerate(rows):
        np.copyto(codes, number, where=domain[:, None] == domain)
    numbers = {name: number for number, name in enumerate(names)}
    inside = [_template_codes(template, numbers) for template in cluster.templates]
    for index in range(cluster.n_nodes):
        start, stop = cluster.first_device[index : index + 2]
        codes[start:stop, start:stop] = inside[cluster.kinds[index]]
    return list(numbers), codes


def _template_codes(template: Node, numbers: dict[str, int]) -> npt.NDArray[np.int16]:
    size = len(template.devices)
    rows = [[numbers.setdefault(word, len(numbers)) for word in row[:size]] for row in template.words[:size]]
    return np.array(rows, dtype=np.int16).reshape(size, size)
