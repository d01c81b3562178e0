"""The calls of one rank, as a file contains them, in columns that all formats share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._backends import BACKENDS, GPU_BACKENDS
from meshlab.base._collectives import COLLECTIVES, NCCL_FUNCTIONS
from meshlab.base._numerals import whole_or_none

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

PROFILE, INSPECTOR, FLIGHT_RECORDER = "profiler trace", "NCCL Inspector log", "flight recorder dump"

_TORCH_TYPES = MappingProxyType(
    {
        "float": ("float32", 4),
        "double": ("float64", 8),
        "half": ("float16", 2),
        "bfloat16": ("bfloat16", 2),
        "byte": ("uint8", 1),
        "unsignedchar": ("uint8", 1),
        "char": ("int8", 1),
        "signedchar": ("int8", 1),
        "bool": ("bool", 1),
        "short": ("int16", 2),
        "int": ("int32", 4),
        "long": ("int64", 8),
        "longint": ("int64", 8),
        "float8_e4m3fn": ("float8_e4m3fn", 1),
        "float8_e5m2": ("float8_e5m2", 1),
        "complexfloat": ("complex64", 8),
        "complexdouble": ("complex128", 16),
    }
)
"""The name in numpy and the bytes of torch's element types, by their names in C++ and Python, without spaces."""

_MOST_RANKS, _MOST_CALLS, _MOST_ELEMENTS = 1 << 22, 1 << 48, 1 << 50
LATEST_US = 1e16
"""Times beyond this are damaged: since 1970, they are at most 4e15 µs."""

_NAMES = {name.replace("_", ""): name for name in COLLECTIVES} | {
    function.name.lower(): name for name, function in NCCL_FUNCTIONS.items()
}
_SUFFIXES = re.compile(r"(?:_?(?:base|oop|coalesced|sparse|single|object)|_(?:into_)?tensors?|_out)+_?$")

MESSAGES = frozenset(name for name, facts in COLLECTIVES.items() if len(facts.peers) == 1)
"""The calls of a sender and of a receiver, which are one call."""

SENDS = frozenset(name for name in MESSAGES if COLLECTIVES[name].is_paired)
"""The messages of a sender."""

UNEVEN: Mapping[str, str] = MappingProxyType(
    {facts.like: name for name, facts in COLLECTIVES.items() if facts.counted and facts.like is not None}
)
"""The collective that a call is if its chunks have different sizes, by the one with equal chunks."""

HOST_BACKENDS = frozenset({"ucc", *BACKENDS} - {*GPU_BACKENDS})
"""The backends of torch whose calls run on the host, so that their ranges last as long as the transfer."""

COALESCED = "coalesced"
"""Calls that the program grouped, so that a single kernel runs all of them. Their sizes are not recorded."""


def collective_name(text: str) -> str | None:
    """Return a collective by its name in torch or NCCL, such as ``_allgather_base``, or None if it is unknown."""
    name = text.lower().rpartition(":")[2].strip("_ ")
    plain = _SUFFIXES.sub("", name).replace("_", "")
    return _NAMES.get(plain) or (COALESCED if COALESCED in name else None)


def element_type(text: object) -> tuple[str | None, int | None]:
    """Return the name and the bytes of one of torch's element types, both None if it is unknown."""
    name = str(text or "").removeprefix("c10::").removeprefix("torch.").replace(" ", "").lower()
    plain = {"float32": "float", "float64": "double", "float16": "half", "int64": "long", "int32": "int"}.get(
        name, name
    )
    plain = {"uint8": "byte", "int8": "char", "int16": "short"}.get(plain, plain)
    return _TORCH_TYPES.get(plain, (None, None))


def rank_number(value: object) -> int | None:
    """Return a value of a document as a rank or a number of ranks, None if it cannot be either."""
    number = whole_or_none(value)
    return number if number is not None and 0 <= number <= _MOST_RANKS else None


def sequence_number(value: object) -> int:
    """Return a value of a document as the number of a call, -1 if it is not one."""
    number = whole_or_none(value)
    return number if number is not None and 0 <= number < _MOST_CALLS else -1


def key_of(value: object) -> int | str:
    """Return the number or the name of a thread or an event, which can be a key."""
    return value if isinstance(value, (int, str)) else str(value)


def size_in_bytes(
    collective: str | None, inputs: int | None, outputs: int | None, itemsize: int | None, n: int | None
) -> float:
    """Return the size S of a call as nccl-tests counts it, NaN if the numbers of elements do not determine it."""
    # `inputs` and `outputs` are elements of this rank. A rank that is not the root has only the smaller buffer of a
    # gather or a scatter, and the sizes of all ranks together are that of the larger one.
    facts = COLLECTIVES.get(collective or "")
    if facts is None or not facts.has_size or not itemsize:
        return np.nan
    if not facts.has_total_size:
        elements = inputs if facts.sends != "nothing" else outputs
    elif facts.sends == "count x n":
        elements = inputs if facts.only_root is None else _times(outputs, n)
    else:
        elements = outputs if facts.only_root is None and outputs else _times(inputs, n)
    return float(elements * itemsize) if elements and 0 < elements < _MOST_ELEMENTS else np.nan


def _times(count: int | None, n: int | None) -> int | None:
    return None if count is None or n is None else count * n


class ProcessGroup(NamedTuple):
    """A process group of torch or a communicator of NCCL. Ranks are global, and empty if the file lacks them."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    size: int | None = None
    backend: str = ""
    position: int | None = None  # of this rank in the group, for a format that has no global ranks

    @property
    def n_ranks(self) -> int | None:
        """Number of ranks, None if it is unknown."""
        return len(self.ranks) or self.size

    @property
    def is_on_host(self) -> bool:
        """True if the group may use a backend whose calls run on the host, such as Gloo."""
        return not self.backend or any(name in self.backend for name in HOST_BACKENDS)


NO_GROUP = ProcessGroup("")
"""The group of a call whose file does not name it."""

COLUMNS: Mapping[str, Any] = MappingProxyType(
    {
        "collective": object,  # None if the file does not contain it
        "kernel": object,  # name of the GPU kernel, None without one
        "group": np.int64,  # index in `groups`
        "dtype": object,
        "size_bytes": np.float64,
        "sequence": np.int64,  # -1 if the file does not contain it
        "start_us": np.float64,
        "duration_us": np.float64,
        "launch_us": np.float64,  # time of the call on the host
        "step": np.int64,  # -1 outside all steps
        "source": np.int64,  # global rank of the sender of a message, -1 for other calls
        "destination": np.int64,
        "worker": np.int64,  # thread that runs a call on the host, in the order of their creation, -1 for kernels
        "input_bytes": np.float64,  # of this rank, for a call whose group is not known yet
    }
)
"""The columns of `RankTrace.calls`, with their types. Times of a file have its own zero."""

NO_INTERVALS: Floats = np.empty((0, 2))


class OtherKernels(NamedTuple):
    """Kernels of another library that communicate. The file contains neither their group nor their size."""

    library: str
    n: int
    time_us: float


@dataclass(frozen=True, eq=False)
class RankTrace:
    """The calls of one rank in a file, and the busy times next to them."""

    file: str
    kind: str
    rank: int | None
    world_size: int | None
    groups: tuple[ProcessGroup, ...]
    calls: Mapping[str, Column]
    host: str = ""
    gpu: str = ""
    zero_ns: int | None = None  # of the times, since 1970; None if the file does not contain it
    is_cpu: bool = False  # whether the calls are measured on the host, as those of Gloo
    has_starts: bool = True  # whether the starts of calls are those of the transfer, and comparable within the file
    compute: Floats | None = None  # sorted disjoint intervals in which a kernel computes; None if it is unknown
    idle: Floats = field(default_factory=lambda: NO_INTERVALS)  # in which the host runs no operation
    n_groups: int | None = None  # of the program, of which the file may list some
    others: tuple[OtherKernels, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def n_calls(self) -> int:
        """Number of calls."""
        return len(self.calls["start_us"])


class CallRows:
    """Rows of calls under construction."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add(
        self,
        collective: str | None,
        start_us: float,
        duration_us: float,
        *,
        kernel: str | None = None,
        group: int = -1,
        dtype: str | None = None,
        size_bytes: float = np.nan,
        sequence: int = -1,
        launch_us: float = np.nan,
        step: int = -1,
        peers: tuple[int, int] = (-1, -1),
        worker: int = -1,
        input_bytes: float = np.nan,
    ) -> None:
        """Add a call. Its peers are the global ranks of the sender and the receiver of a message."""
        row = (collective, kernel, group, dtype, size_bytes, sequence, start_us, duration_us, launch_us, step)
        self._rows.append((*row, *peers, worker, input_bytes))

    def columns(self) -> dict[str, Column]:
        """Return the calls as columns, in the order of their starts."""
        values = list(zip(*self._rows, strict=True)) or [()] * len(COLUMNS)
        columns = {}
        for (name, kind), column in zip(COLUMNS.items(), values, strict=True):
            array = np.empty(len(column), dtype=kind)
            array[:] = column
            columns[name] = array
        time = np.where(np.isnan(columns["start_us"]), columns["launch_us"], columns["start_us"])
        order = np.argsort(time, kind="stable")
        return {name: column[order] for name, column in columns.items()}


def merged(intervals: Sequence[tuple[float, float]] | Floats) -> Floats:
    """Return the union of intervals as sorted disjoint ones, of shape (n, 2)."""
    array = np.asarray(intervals, dtype=np.float64).reshape(-1, 2)
    array = array[array[:, 1] > array[:, 0]]
    if not len(array):
        return NO_INTERVALS
    array = array[np.argsort(array[:, 0], kind="stable")]
    ends = np.maximum.accumulate(array[:, 1])
    is_first = np.concatenate([[True], array[1:, 0] > ends[:-1]])
    starts = np.flatnonzero(is_first)
    return np.column_stack([array[starts, 0], ends[np.append(starts[1:], len(array)) - 1]])


def gaps(intervals: Floats, least: float) -> Floats:
    """Return the gaps between sorted disjoint intervals that are at least this long, of shape (n, 2)."""
    between = np.column_stack([intervals[:-1, 1], intervals[1:, 0]])
    return between[between[:, 1] - between[:, 0] >= least]
