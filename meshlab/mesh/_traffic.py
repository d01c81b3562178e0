"""Uneven traffic: the bytes that every rank of a group sends to every other one in an all-to-all."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import Direction
from meshlab.base._errors import MeshError, ParseError, printable
from meshlab.base._files import describe_text, text_of, write_file
from meshlab.base._forwarding import implementation
from meshlab.base._typed_values import typed_fields
from meshlab.base._units import format_number, format_size, parse_size
from meshlab.mesh._axes import as_integer, short

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Bytes = npt.NDArray[np.int64]

ALIGNMENT_BYTES = 16
"""Chunks of a pattern, and of a matrix of nccl-tests, are aligned down to this number of bytes."""

_MOST_RANKS = 16384  # whose matrix has 2 GiB
_FRACTIONS = 1 << 16  # of a token, in the shares of a router with averages
_MOST_BYTES = 1 << 60  # in one call, so that no sum overflows
_SHORT_RANKS = 8  # up to which a repr contains the matrix
_LONGEST_NAME = 60


class _Rule:
    """A rule for the bytes of a group of any size: the pattern of a `Traffic`."""

    name: str

    def chunks(self, n: int, size_bytes: int) -> npt.NDArray[np.float64]:
        """Return the bytes from row to column, before they are aligned."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Even(_Rule):
    """The same number of bytes for every rank."""

    name = "even"

    def chunks(self, n: int, size_bytes: int) -> npt.NDArray[np.float64]:
        return np.full((n, n), float(size_bytes // n))

    def __str__(self) -> str:
        return "even()"


@dataclass(frozen=True, slots=True)
class _Zipf(_Rule):
    """The share of the k-th most popular rank is proportional to 1 / k^exponent."""

    exponent: float
    seed: int

    def __post_init__(self) -> None:
        if not (_is_number(self.exponent) and 0 <= self.exponent <= 100):
            raise MeshError(f"exponent of a Zipf traffic must be from 0 to 100, not {short(self.exponent)}")
        if not 0 <= (-1 if (seed := as_integer(self.seed)) is None else seed) < 1 << 63:
            raise MeshError(f"seed of a Zipf traffic must be an integer of at least 0, not {short(self.seed)}")

    @property
    def name(self) -> str:  # type: ignore[override]  # a class attribute of the others
        return f"zipf {self.exponent:g}" + (f" seed {self.seed}" if self.seed else "")

    def chunks(self, n: int, size_bytes: int) -> npt.NDArray[np.float64]:
        popularity = np.arange(1, n + 1) ** -float(self.exponent)
        shares = np.empty(n)
        shares[np.random.default_rng(self.seed).permutation(n)] = popularity / popularity.sum()
        return np.broadcast_to(shares * size_bytes, (n, n))

    def __str__(self) -> str:
        return f"zipf({self.exponent!r}, seed={self.seed})"


@dataclass(frozen=True, slots=True)
class _Spread(_Rule):
    """The distance-weighted rule of nccl-tests, operation by operation."""

    factor: float

    def __post_init__(self) -> None:
        if not (_is_number(self.factor) and 0 <= self.factor <= 1):
            raise MeshError(f"factor of a spread traffic must be from 0 to 1, not {short(self.factor)}")

    @property
    def name(self) -> str:  # type: ignore[override]  # a class attribute of the others
        return f"spread {self.factor:g}"

    def chunks(self, n: int, size_bytes: int) -> npt.NDArray[np.float64]:
        if n == 1:
            return np.full((1, 1), float(size_bytes))
        distance = (np.arange(n) - np.arange(n)[:, None]) % n
        uniform = size_bytes / n
        by_distance = distance * float(size_bytes) / (n * (n - 1) // 2)
        return np.asarray((1.0 - self.factor) * uniform + self.factor * by_distance)

    def __str__(self) -> str:
        return f"spread({self.factor!r})"


class BusiestRank(NamedTuple):
    """The rank with the largest sum of a traffic, which decides its size and its time.

    Parameters
    ----------
    rank : int
        The rank, within the group.
    direction : {"sends", "receives"}
        The direction of the sum.
    n_bytes : int
        The sum, in bytes.
    """

    rank: int
    direction: Direction
    n_bytes: int


@dataclass(frozen=True, eq=False, repr=False)
class Traffic:
    """The bytes that every rank of a group sends to every other one in an uneven all-to-all.

    A traffic is either a matrix of bytes for a group of one size (`matrix`, `routing`), or a pattern (`even`, `zipf`,
    `spread`), which `of` turns into a matrix for a number of ranks and the bytes that a rank sends on average. Where a
    benchmark or a prediction has a group and a size, both kinds can be passed: patterns are scaled to every size, and
    a matrix of bytes is used as it is. `pattern` makes a matrix scale, too. Bytes to oneself are part of all sums.

    Create a traffic with one of the methods below. It is immutable, and compared by its content.

    Parameters
    ----------
    name : str
        The label in results and figures.
    rule : object, optional
        The rule of a pattern. None for a matrix of bytes.
    transposed : bool, default False
        Whether senders and receivers of the rule are exchanged.
    bytes : numpy.ndarray, optional
        int64 of shape (n, n): the bytes from row to column, read-only. None for a rule.
    is_scaled : bool, default False
        Whether a matrix is a pattern, too: its bytes are shares, whose sum has no meaning.

    Examples
    --------
    >>> import meshlab as ml
    >>> pattern = ml.Traffic.zipf(1.2, seed=0)
    >>> traffic = pattern.of(4, "64M")
    >>> traffic.imbalance.__round__(2), traffic.busiest
    (2.11, BusiestRank(rank=2, direction='receives', n_bytes=141855168))
    >>> ml.Traffic.matrix([[0, 100], [16, 0]]).array.tolist()
    [[0, 96], [16, 0]]
    """

    name: str
    rule: _Rule | None = None
    transposed: bool = False
    bytes: Bytes | None = None
    is_scaled: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or (self.rule is None) == (self.bytes is None):
            raise MeshError(
                f"a traffic cannot be made from {short(self.name)} alone",
                hint="for the bytes from each rank to each other rank use Traffic.matrix, or else even, zipf or spread",
            )

    @classmethod
    def even(cls) -> Traffic:
        """Return the pattern with the same number of bytes for every rank, as in ``all_to_all``.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Traffic.even().of(2, 64).array.tolist()
        [[32, 32], [32, 32]]
        """
        return cls("even", _Even())

    @classmethod
    def zipf(cls, exponent: float, *, seed: int = 0) -> Traffic:
        """Return the pattern in which some ranks are more popular than others, as experts of a router are.

        Every rank sends the same number of bytes, and the k-th most popular rank receives a share of them that is
        proportional to ``1 / k**exponent``. Chunks are aligned down to 16 bytes.

        Parameters
        ----------
        exponent : float
            The skew. With 0, all ranks are equally popular.
        seed : int, default 0
            Seed of the random order of popularity.

        Raises
        ------
        MeshError
            If the exponent or the seed is out of range.
        """
        rule = _Zipf(exponent, seed)
        return cls(rule.name, rule)

    @classmethod
    def spread(cls, factor: float = 1.0) -> Traffic:
        """Return the pattern of nccl-tests' ``alltoallv_perf``, with the same bytes between all ranks.

        Rank i sends to rank j a share that grows with the distance ``(j - i) % n``, and all ranks send and receive the
        same number of bytes. Chunks are aligned down to 16 bytes.

        Parameters
        ----------
        factor : float, default 1.0
            ``NCCL_TESTS_ALLTOALLV_SPREAD``: 0 for equal chunks, and 1, the default of nccl-tests, for chunks that are
            proportional to the distance, with nothing to oneself.

        Raises
        ------
        MeshError
            If the factor is out of range.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Traffic.spread(1.0).of(4, 960).array[0].tolist()
        [0, 160, 320, 480]
        """
        rule = _Spread(factor)
        return cls(rule.name, rule)

    @classmethod
    def matrix(cls, source: npt.ArrayLike | str | PathLike[str], *, alignment_bytes: int = ALIGNMENT_BYTES) -> Traffic:
        r"""Return the traffic of a matrix of bytes, or of a file with one.

        Parameters
        ----------
        source : array_like of float, str or path
            The bytes from row to column, or the name of a file as in ``NCCL_TESTS_ALLTOALLV_MATRIX_FILE``: one row per
            line, separated by white space.
        alignment_bytes : int, default 16
            Bytes are aligned down to multiples of this number, as in nccl-tests.

        Raises
        ------
        MeshError
            If the matrix is not square, has a negative value, or is too large.
        ParseError
            If the file has no matrix of numbers.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Traffic.matrix("0 40\n20 0").array.tolist()
        [[0, 32], [16, 0]]
        """
        name, values = "matrix", source
        if isinstance(source, (str, PathLike)):
            values, file = _read_matrix(source)
            name = name if file is None else printable(Path(file).stem)[:_LONGEST_NAME] or name
        if as_integer(alignment_bytes) is None or not 1 <= alignment_bytes <= 1 << 20:
            raise MeshError(f"alignment_bytes must be an integer from 1 to 1 MiB, not {short(alignment_bytes)}")
        return cls._of_bytes(name, _square(values, "the matrix of a traffic"), alignment_bytes)

    @classmethod
    def routing(
        cls,
        counts: npt.ArrayLike,
        placement: Sequence[int | Sequence[int]] | None = None,
        *,
        token_bytes: int | None = None,
    ) -> Traffic:
        """Return the traffic of the tokens of a router: dispatch. Its transpose is the combine.

        Parameters
        ----------
        counts : array_like of float
            Tokens per rank (rows) and expert (columns): the histogram of the router on every rank.
        placement : sequence of int or of sequence of int, optional
            The rank of each expert, or the ranks of its replicas, between which the tokens of every rank are divided.
            By default contiguous blocks of experts.
        token_bytes : int, optional
            Bytes of a token. By default the traffic is a pattern, which is scaled to any size.

        Raises
        ------
        MeshError
            If the counts are not a table of positive numbers, or the placement has other experts or ranks.

        Examples
        --------
        >>> import meshlab as ml
        >>> counts = [[6, 1, 1, 0], [2, 2, 2, 2]]
        >>> ml.Traffic.routing(counts, token_bytes=16).array.tolist()
        [[112, 16], [64, 64]]
        >>> ml.Traffic.routing(counts, [(0, 1), 0, 1, 1], token_bytes=16).array.tolist()
        [[64, 64], [48, 80]]
        """
        tokens = _routed(_numbers(counts, "the counts of a router"), placement)
        if token_bytes is None:
            tokens = tokens if np.array_equal(tokens, np.floor(tokens)) else np.rint(tokens * _FRACTIONS)
            return cls._of_bytes("routing", tokens, 1).pattern()
        if as_integer(token_bytes) is None or token_bytes < 1:
            raise MeshError(f"token_bytes must be an integer of at least 1, not {short(token_bytes)}")
        return cls._of_bytes("routing", tokens * float(token_bytes), 1)

    @classmethod
    def _of_bytes(cls, name: str, values: npt.NDArray[np.float64], alignment: int) -> Traffic:
        total = float(values.sum())
        if total > _MOST_BYTES:
            raise MeshError(f"a traffic of {total:.4g} bytes is larger than the largest one, {_MOST_BYTES:.4g} bytes")
        array = values.astype(np.int64)
        if alignment > 1:
            array -= array % alignment
        array.flags.writeable = False
        return cls(name, None, bytes=array)

    @property
    def n_ranks(self) -> int | None:
        """The number of ranks, None for a pattern for groups of any size."""
        return None if self.bytes is None else len(self.bytes)

    @property
    def is_pattern(self) -> bool:
        """True if the traffic is scaled to the size of a call. A matrix of bytes is not."""
        return self.bytes is None or self.is_scaled

    def of(self, n_ranks: int, size: int | str | None = None) -> Traffic:
        """Return the matrix of bytes for a group.

        Parameters
        ----------
        n_ranks : int
            Number of ranks of the group.
        size : int or str, optional
            Bytes that a rank sends on average, such as ``"64M"``. A matrix of bytes ignores it.

        Raises
        ------
        MeshError
            If the traffic has a different number of ranks, or a pattern has no size.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Traffic.zipf(1.0).of(2, "1K").array.tolist()
        [[672, 336], [672, 336]]
        """
        count = as_integer(n_ranks)
        if count is None or count < 1:
            raise MeshError(f"n_ranks must be an integer of at least 1, not {short(n_ranks)}")
        if self.n_ranks not in (None, count):
            raise MeshError(f"traffic {self.name!r} is for {self.n_ranks} ranks, but the group has {count}")
        if self.bytes is not None and not self.is_scaled:
            return self
        if count > _MOST_RANKS:
            raise MeshError(f"a traffic of {count:,} ranks is larger than the largest one, of {_MOST_RANKS:,} ranks")
        if size is None:
            raise MeshError(f"traffic {self.name!r} is a pattern without a size", hint='pass a size such as "64M"')
        n_bytes = 0 if size == 0 else parse_size(size)
        if self.bytes is not None:
            chunks = np.multiply(self.bytes, n_bytes * count / max(float(self.bytes.sum()), 1.0), dtype=np.float64)
        else:
            assert self.rule is not None
            chunks = self.rule.chunks(count, n_bytes)
        alignment = 1 if isinstance(self.rule, _Even) else ALIGNMENT_BYTES
        return self._of_bytes(self.name, np.asarray(chunks.T if self.transposed else chunks), alignment)

    def pattern(self) -> Traffic:
        """Return the traffic without its scale, so that a benchmark scales it to every size."""
        return self if self.bytes is None else replace(self, is_scaled=True)

    def transpose(self) -> Traffic:
        """Return the traffic with senders and receivers exchanged, such as the combine after a dispatch.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Traffic.matrix([[0, 32], [16, 0]]).transpose().array.tolist()
        [[0, 16], [32, 0]]
        """
        suffix = " transposed"
        name = self.name.removesuffix(suffix) if self.name.endswith(suffix) else self.name + suffix
        if self.bytes is None:
            return replace(self, name=name, transposed=not self.transposed)
        array = np.ascontiguousarray(self.bytes.T)
        array.flags.writeable = False
        return replace(self, name=name, bytes=array)

    def named(self, name: str) -> Traffic:
        """Return the same traffic with a different label."""
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise MeshError(f"name of a traffic must be a line of 1 to {_LONGEST_NAME} characters, not {short(name)}")
        return replace(self, name=name)

    @property
    def array(self) -> Bytes:
        """The bytes from row to column: int64 of shape (n, n), read-only. A pattern raises a `MeshError`."""
        if self.bytes is None or self.is_scaled:
            raise MeshError(
                f"traffic {self.name!r} is a pattern, which has no bytes yet",
                hint=f'call .of({self.n_ranks or 8}, "64M") for the bytes of a group',
            )
        return self.bytes

    @cached_property
    def sent_bytes(self) -> Bytes:
        """The bytes that each rank sends, also to itself: int64 of shape (n,)."""
        return np.asarray(self.array.sum(axis=1))

    @cached_property
    def received_bytes(self) -> Bytes:
        """The bytes that each rank receives, also from itself: int64 of shape (n,)."""
        return np.asarray(self.array.sum(axis=0))

    @property
    def self_bytes(self) -> Bytes:
        """The bytes that each rank sends to itself: int64 of shape (n,)."""
        return np.diagonal(self.array)

    @property
    def total_bytes(self) -> int:
        """The bytes of all ranks."""
        return int(self.sent_bytes.sum())

    @property
    def mean_bytes(self) -> float:
        """The bytes that a rank sends on average, which are also those that it receives."""
        return self.total_bytes / len(self.array)

    @property
    def busiest(self) -> BusiestRank:
        """The rank with the largest sum in one direction."""
        sender, receiver = int(self.sent_bytes.argmax()), int(self.received_bytes.argmax())
        if self.sent_bytes[sender] >= self.received_bytes[receiver]:
            return BusiestRank(sender, "sends", int(self.sent_bytes[sender]))
        return BusiestRank(receiver, "receives", int(self.received_bytes[receiver]))

    @property
    def size_bytes(self) -> int:
        """The largest sum of a rank in one direction: the size of a call in nccl-tests."""
        return self.busiest.n_bytes

    @property
    def imbalance(self) -> float:
        """The largest sum of a rank, of a row or of a column, divided by the mean. 1 if nothing is sent."""
        traffic = self if self.bytes is None else replace(self, is_scaled=False)  # which does not depend on the scale
        return traffic.size_bytes / traffic.mean_bytes if traffic.total_bytes else 1.0

    @property
    def largest_pair(self) -> tuple[int, int]:
        """The two different ranks, sender and receiver, with the most bytes between them. (0, 0) for one rank."""
        between = np.where(np.eye(len(self.array), dtype=bool), -1, self.array)
        sender, receiver = divmod(int(between.argmax()), len(between))
        return sender, receiver

    def per_node(self, nodes: int | Sequence[Hashable] | npt.NDArray[Any]) -> Traffic:
        """Return the traffic between nodes. Bytes within a node are those of the node to itself.

        Parameters
        ----------
        nodes : int or sequence
            Number of ranks per node, in order, or the node of each rank, by number or name.

        Raises
        ------
        MeshError
            If there is not one node per rank.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Traffic.even().of(4, 64).per_node(2).array.tolist()
        [[64, 64], [64, 64]]
        """
        names = _nodes(nodes, len(self.array))
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        node = np.array([numbers[name] for name in names])
        order = np.argsort(node, kind="stable")
        starts = np.searchsorted(node[order], np.arange(len(numbers)))
        rows = np.add.reduceat(self.array[order], starts, axis=0)
        array = np.add.reduceat(rows[:, order], starts, axis=1)
        array.flags.writeable = False
        return Traffic(self.name, bytes=array)

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per rank.

        Returns
        -------
        pandas.DataFrame
            ``rank`` within the group, ``sent_bytes``, ``received_bytes``, and ``self_bytes``, which are part of both.
        """
        import pandas as pd

        return pd.DataFrame(
            {
                "rank": np.arange(len(self.array)),
                "sent_bytes": self.sent_bytes,
                "received_bytes": self.received_bytes,
                "self_bytes": self.self_bytes,
            }
        )

    def write(self, path: str | Path) -> Path:
        """Write the matrix to a file that nccl-tests reads with ``NCCL_TESTS_ALLTOALLV_MATRIX_FILE``.

        Parameters
        ----------
        path : str or Path
            The file. It is replaced if it exists.
        """
        return write_file(path, "".join(" ".join(map(str, row)) + "\n" for row in self.array.tolist()))

    def plot(self, *, hosts: int | Sequence[Hashable] | npt.NDArray[Any] | None = None, ax: Axes | None = None) -> Axes:
        """Draw the bytes between ranks, or between hosts, with the sums of each. See `meshlab.plots.traffic`."""
        return implementation(Traffic.plot)(self, hosts=hosts, ax=ax)

    def _repr_html_(self) -> str | None:
        return self._figure_html() or None

    def _figure_html(self) -> str:
        return implementation(Traffic._figure_html)(self)

    @property
    def headline(self) -> str:
        """The bytes and the imbalance in a sentence."""
        if self.is_pattern:
            n = "any number of" if self.n_ranks is None else f"{self.n_ranks}"
            return f"{self.name}: a pattern for {n} ranks"
        busiest, share = self.busiest, self.self_bytes.sum() / (self.total_bytes or 1)
        return (
            f"{self.name}: {format_size(self.mean_bytes)} per rank on average. Rank {busiest.rank} {busiest.direction} "
            f"{format_size(busiest.n_bytes)}, {format_number(self.imbalance)} times the mean. "
            f"{100 * share:.0f} % stays on its rank"
        )

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        if self.bytes is None:
            text, name = f"Traffic.{self.rule}", getattr(self.rule, "name", "")
        elif len(self.bytes) > _SHORT_RANKS:
            size = "a pattern" if self.is_scaled else format_size(self.total_bytes)
            return f"<Traffic {self.name!r}: {len(self.bytes)} ranks, {size}>"
        else:
            is_aligned = not (self.bytes % ALIGNMENT_BYTES).any()
            alignment = "" if is_aligned else ", alignment_bytes=1"
            text, name = f"Traffic.matrix({self.bytes.tolist()}{alignment})", "matrix"
            text += ".pattern()" if self.is_scaled else ""
        if self.transposed:
            text, name = f"{text}.transpose()", f"{name} transposed"
        return text if self.name == name else f"{text}.named({self.name!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Traffic):
            return NotImplemented
        if self is other:
            return True
        if self._facts != other._facts:
            return False
        if self.bytes is None or other.bytes is None:
            return self.bytes is other.bytes
        return np.array_equal(self.bytes, other.bytes)

    @property
    def _facts(self) -> tuple[object, ...]:
        return (self.name, self.rule, self.transposed, self.is_scaled)

    @cached_property
    def _hash(self) -> int:
        return hash((*self._facts, None if self.bytes is None else self.bytes.tobytes()))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached values: hashes of strings differ between processes.
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.bytes is not None:
            self.bytes.flags.writeable = False


TrafficLike = Traffic | str | PathLike[str] | npt.NDArray[Any]
"""A traffic, its text such as ``"zipf:1.2"``, the name of a file, or a matrix of bytes."""


def as_traffics(values: TrafficLike | Sequence[TrafficLike | None] | None) -> tuple[Traffic | None, ...]:
    """Return one traffic or several. A list of rows of numbers is one matrix."""
    if isinstance(values, str):
        values = [part for part in values.split(",") if part.strip()]
    is_single = values is None or isinstance(values, (Traffic, PathLike, np.ndarray))
    is_table = isinstance(values, (list, tuple)) and bool(values) and isinstance(values[0], (list, tuple))
    if is_single or is_table or not isinstance(values, Iterable):
        values = [values]  # type: ignore[list-item]  # which `as_traffic` checks
    return tuple(None if value is None else as_traffic(value) for value in values)


_RULES = {"even": 0, "zipf": 1, "spread": 1}  # with the number of their arguments


def as_traffic(value: TrafficLike) -> Traffic:
    """Return a traffic for a value that describes one."""
    if isinstance(value, Traffic):
        return value
    if isinstance(value, (PathLike, np.ndarray, list, tuple)):
        return Traffic.matrix(value)
    if not isinstance(value, str):
        raise MeshError(f"traffic must be a Traffic, a matrix, or text such as 'zipf:1.2', not {short(value)}")
    kind, _, text = value.strip().partition(":")
    arguments = [part.strip() for part in text.split(":")] if text else []
    if kind not in _RULES:
        return Traffic.matrix(value)
    try:
        if kind == "zipf" and len(arguments) == 2:
            return Traffic.zipf(float(arguments[0]), seed=int(arguments[1]))
        if len(arguments) <= _RULES[kind] and (arguments or kind != "zipf"):
            traffic: Traffic = getattr(Traffic, kind)(*map(float, arguments))
            return traffic
    except ValueError as error:
        if isinstance(error, MeshError):
            raise
    raise MeshError(f"unknown traffic {value!r}; write even, zipf:1.2, zipf:1.2:SEED, spread:0.5 or the name of a file")


def traffic_to_document(traffic: Traffic) -> dict[str, Any]:
    """Return a traffic as plain data."""
    rule = traffic.rule
    document: dict[str, Any] = {"name": traffic.name, "transposed": traffic.transposed}
    if isinstance(rule, _Zipf):
        return document | {"kind": "zipf", "exponent": float(rule.exponent), "seed": int(rule.seed)}
    if isinstance(rule, _Spread):
        return document | {"kind": "spread", "factor": float(rule.factor)}
    if traffic.bytes is None:
        return document | {"kind": "even"}
    return document | {"kind": "shares" if traffic.is_scaled else "bytes", "rows": traffic.bytes.tolist()}


_FIELDS = {
    "name": str,
    "transposed": bool,
    "kind": str,
    "exponent": float,
    "seed": int,
    "factor": float,
    "rows": list[list[int]],
}


def traffic_from_document(values: object, *, file: str | None = None) -> Traffic:
    """Build a traffic from the data that `traffic_to_document` returned. `file` is for errors."""
    facts: Mapping[str, Any] = typed_fields(
        values, _FIELDS, "traffic", optional=_FIELDS.keys() - {"name", "kind"}, file=file
    )
    try:
        if facts["kind"] in ("bytes", "shares"):
            traffic = Traffic.matrix(facts["rows"], alignment_bytes=1)
            traffic = traffic.pattern() if facts["kind"] == "shares" else traffic
        elif facts["kind"] == "zipf":
            traffic = Traffic.zipf(facts["exponent"], seed=facts["seed"])
        else:
            traffic = Traffic.spread(facts["factor"]) if facts["kind"] == "spread" else Traffic.even()
        return replace(traffic.named(facts["name"]), transposed=facts.get("transposed", False))
    except (KeyError, MeshError) as error:
        raise ParseError(f"invalid traffic: {error}", hint="copy the file again", file=file) from error


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and math.isfinite(value)


def _read_matrix(source: str | PathLike[str]) -> tuple[npt.NDArray[np.float64], str | None]:
    """Return the matrix of a text or a file of nccl-tests, and the name of the file."""
    text, file = text_of(source, hint=f"pass a matrix of at most {_MOST_RANKS:,} ranks")
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if not rows:
        raise ParseError("the matrix of a traffic is empty", file=file)
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ParseError(
                f"row {number} of the matrix has {len(row)} columns, but the first row has {len(rows[0])}", file=file
            )
    try:
        return np.array([word for row in rows for word in row], dtype=np.float64).reshape(len(rows), -1), file
    except ValueError:
        raise ParseError(
            f"this is not a matrix of numbers: {describe_text(text, may_be_name=True)}",
            hint="write one row of bytes per line, or even, zipf:1.2 or spread:0.5",
            file=file,
        ) from None


def _numbers(values: Any, what: str) -> npt.NDArray[np.float64]:
    """Return a table of numbers that are finite and not negative."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise MeshError(f"{what} must be a table of numbers, not {short(values)}") from None
    if array.ndim != 2 or not array.size:
        raise MeshError(f"{what} must have rows and columns, but has the shape {array.shape}")
    invalid = np.argwhere(~(np.isfinite(array) & (array >= 0)))
    if len(invalid):
        row, column = invalid[0].tolist()
        raise MeshError(f"{what} has {array[row, column]:g} in row {row}, column {column}, but must not be negative")
    return array


def _square(values: Any, what: str) -> npt.NDArray[np.float64]:
    array = _numbers(values, what)
    if array.shape[0] != array.shape[1]:
        raise MeshError(f"{what} must be square, but has {array.shape[0]} rows and {array.shape[1]} columns")
    if len(array) > _MOST_RANKS:
        raise MeshError(f"{what} has {len(array):,} ranks, but at most {_MOST_RANKS:,} are supported")
    return array


def _routed(
    counts: npt.NDArray[np.float64], placement: Sequence[int | Sequence[int]] | None
) -> npt.NDArray[np.float64]:
    """Return the tokens from rank to rank."""
    n, n_experts = counts.shape
    if placement is None:
        placement = [expert * n // n_experts for expert in range(n_experts)]
    if len(placement) != n_experts:
        raise MeshError(f"the placement has {len(placement)} experts, but the counts have {n_experts}")
    tokens = np.zeros((n, n))
    sources = np.arange(n)
    for expert, ranks in enumerate(placement):
        members = list(ranks) if isinstance(ranks, Iterable) else [ranks]
        replicas = [rank for rank in map(as_integer, members) if rank is not None and 0 <= rank < n]
        if not members or len(replicas) < len(members):
            raise MeshError(f"expert {expert} is on {short(ranks)}, but must be on ranks from 0 to {n - 1}")
        share, rest = np.divmod(counts[:, expert], len(replicas))
        for index, rank in enumerate(replicas):
            # The remainders of the ranks start at different replicas, so that none of them gets all.
            turn = (index - sources) % len(replicas)
            tokens[:, rank] += share + np.clip(rest - turn, 0, 1)
    return tokens


def _nodes(nodes: Any, n: int) -> list[Hashable]:
    """Return the node of each rank."""
    per_node = as_integer(nodes)
    if per_node is not None:
        if per_node < 1:
            raise MeshError(f"nodes must be at least 1 rank per node, not {per_node}")
        return [rank // per_node for rank in range(n)]
    names = nodes.tolist() if isinstance(nodes, np.ndarray) else list(nodes)
    if len(names) != n:
        raise MeshError(f"nodes has {len(names)} entries, but the traffic has {n} ranks", hint="pass one per rank")
    return [printable(name) if isinstance(name, str) else name for name in names]
