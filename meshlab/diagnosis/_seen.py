"""What a pasted text shows, apart from any judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from meshlab.diagnosis._paste import Paste

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.topology.model._cluster import Cluster


_GAP = 3  # lines of another kind between two lines of one span


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive lines of one format, possibly with a few other lines between them.

    Parameters
    ----------
    kind : str
        Name of the format, such as ``"NCCL log"``.
    first, last : int
        Numbers of the first and the last line, from 1.
    n_lines : int
        Number of lines of this format.
    """

    kind: str
    first: int
    last: int
    n_lines: int


@dataclass(frozen=True)
class Seen:
    """What the lines of one format show. Values that the text does not contain are empty.

    Parameters
    ----------
    facts : mapping of str to str
        Facts for people, by name: ``{"NCCL": "2.28.9+cuda13.0", "ranks": "16 on 2 hosts", "network": "IB"}``.
    frames : mapping of str to callable
        Tables by name, each built when it is asked for: ``communicators``, ``channels``, ``rings``, ``trees``,
        ``calls`` (collectives under way), ``ports``, ``links``.
    cluster : Cluster or None
        The hardware, if the text describes it.
    mesh : DeviceMesh or None
        The mesh, if the text defines one.
    """

    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    frames: Mapping[str, Callable[[], pd.DataFrame]] = field(default_factory=lambda: MappingProxyType({}))
    cluster: Cluster | None = None
    mesh: DeviceMesh | None = None


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A kind of text that is recognised.

    Parameters
    ----------
    kind : str
        Its name, such as ``"NCCL log"``.
    find : callable
        Takes a `Paste` and returns the numbers of its lines in this format. `Paste.numbers` finds them quickly.
    see : callable
        Takes a `Paste` that has such lines and returns what they show.
    example : str
        How to get such a text, for the message if nothing is recognised: ``"the output of nvidia-smi topo -m"``.
    """

    kind: str
    find: Callable[[Paste], Sequence[int]]
    see: Callable[[Paste], Seen]
    example: str


def spans_of(kind: str, numbers: Sequence[int]) -> list[Span]:
    """Group the numbers of lines into spans.

    Examples
    --------
    >>> spans_of("dmesg", [4, 5, 7, 40])
    [Span(kind='dmesg', first=4, last=7, n_lines=3), Span(kind='dmesg', first=40, last=40, n_lines=1)]
    """
    ordered = np.unique(np.array(numbers, dtype=np.int64))
    starts = np.flatnonzero(np.diff(ordered, prepend=-_GAP - 1) > _GAP + 1)
    ends = np.append(starts[1:], len(ordered))[: len(starts)]
    rows = zip(ordered[starts].tolist(), ordered[ends - 1].tolist(), (ends - starts).tolist(), strict=True)
    return [Span(kind, *row) for row in rows]
