"""What a pasted text shows, apart from any judgement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from meshlab.diagnosis._paste import Paste

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.topology.model._cluster import Cluster

_K = TypeVar("_K")
_V = TypeVar("_V")
_GAP = 3  # lines of another kind between two lines of one span


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive lines of one format, possibly with a few other lines between them."""

    kind: str  # name of the format, such as "NCCL log"
    first: int  # number of a line, from 1
    last: int
    n_lines: int


@dataclass(frozen=True)
class Seen:
    """What the lines of one format show. Values that the text does not contain are empty."""

    # Facts for people, by name: {"NCCL": "2.28.9+cuda13.0", "ranks": "16 on 2 hosts", "network": "IB"}.
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Tables by name, each built when it is called: communicators, channels, rings, trees, calls, ports, links.
    frames: Mapping[str, Callable[[], pd.DataFrame]] = field(default_factory=lambda: MappingProxyType({}))
    cluster: Cluster | None = None  # the hardware, if the text describes it
    mesh: DeviceMesh | None = None  # the mesh, if the text defines one


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A kind of text that is recognised."""

    kind: str  # its name, such as "NCCL log"
    # Returns the numbers of the lines of a paste in this format. Paste.numbers finds them quickly.
    find: Callable[[Paste], Sequence[int]]
    see: Callable[[Paste], Seen]  # reads a paste that has such lines
    example: str  # for the message if nothing is recognised: "the output of nvidia-smi topo -m"


def frame_of(items: Iterable[object], *names: str) -> pd.DataFrame:
    """Return attributes of some items as the columns of a table."""
    import pandas as pd

    return pd.DataFrame([[getattr(item, name) for name in names] for item in items], columns=list(names))


def unique(items: Iterable[_V], key: Callable[[_V], object]) -> tuple[_V, ...]:
    """Return the first item of each key."""
    first: dict[object, _V] = {}
    for item in items:
        first.setdefault(key(item), item)
    return tuple(first.values())


def grouped(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    """Return the values of each key, in order."""
    groups: dict[_K, list[_V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def spans_of(kind: str, numbers: Sequence[int]) -> list[Span]:
    """Group the numbers of lines into spans."""
    ordered = np.sort(np.array(numbers, dtype=np.int64))  # np.unique takes ten times as long
    ordered = ordered[np.diff(ordered, prepend=-1) > 0]
    starts = np.flatnonzero(np.diff(ordered, prepend=-_GAP - 1) > _GAP + 1)
    ends = np.append(starts[1:], len(ordered))[: len(starts)]
    rows = zip(ordered[starts].tolist(), ordered[ends - 1].tolist(), (ends - starts).tolist(), strict=True)
    return [Span(kind, *row) for row in rows]
