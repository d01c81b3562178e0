"""The catalog of collectives: buffers, bandwidth factor and expected output of each.

All of meshlab reads this table. The communicator checks calls against it, benchmarks take sizes and factors from it,
and the correctness check takes the expected output from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from meshlab.base._errors import CommunicatorError, did_you_mean
from meshlab.comm import _correctness as correctness
from meshlab.comm._correctness import Case, Expected, Index

Direction = Literal["sends", "receives"]
Elements = Literal["count", "count x n", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Description of a collective.

    Parameters
    ----------
    name : str
        The name, in snake case.
    sends, receives : {"count", "count x n", "nothing"}
        The number of elements of the input and of the output, in terms of the call's count and the group size n.
    only_root : {"sends", "receives"}, optional
        The buffer that only the root has.
    reduces : bool, default False
        True if the collective takes a reduce operation.
    rooted : bool, default False
        True if the collective takes a root.
    peers : tuple of str, default ()
        The arguments that name other ranks: ``"dest"``, ``"source"``. Only these ranks take part in the call.
    counted : bool, default False
        True if every chunk has its own count. ``sends`` and ``receives`` then apply to equal counts.
    in_place : bool, default False
        True if input and output may share memory, with the smaller one at this rank's chunk of the larger one.
    bus_factor : callable
        Returns busbw / algbw for n ranks, as defined in nccl-tests' PERFORMANCE.md.
    expected : callable or None
        ``expected(case, index)`` returns the expected output of a member at the positions `index`. None if the
        collective has no output.
    summary : str
        Short description.
    """

    name: str
    sends: Elements
    receives: Elements
    only_root: Direction | None = None
    reduces: bool = False
    rooted: bool = False
    peers: tuple[str, ...] = ()
    counted: bool = False
    in_place: bool = False
    bus_factor: Callable[[int], float]
    expected: Callable[[Case, Index], Expected] | None
    summary: str

    @property
    def is_configurable(self) -> bool:
        """True if NCCL has a configuration for the call. It runs the others as messages."""
        return not self.peers and not self.counted and self.is_measurable

    @property
    def is_measurable(self) -> bool:
        """True if a single call moves data in and out, so that it has a size and a bandwidth."""
        return self.sends != "nothing" and self.receives != "nothing"

    @property
    def has_size(self) -> bool:
        """True if the call moves data, on one side or on both. A barrier does not."""
        return self.sends != "nothing" or self.receives != "nothing"

    def has(self, side: Direction, is_root: bool = True) -> bool:
        """Return True if a rank has an input (``"sends"``) or an output (``"receives"``)."""
        kind = self.sends if side == "sends" else self.receives
        return kind != "nothing" and (is_root or side != self.only_root)

    def elements(self, side: Direction, count: int, n: int) -> int:
        """Return the number of elements of a rank's input (``"sends"``) or output (``"receives"``)."""
        kind = self.sends if side == "sends" else self.receives
        return count if kind == "count" else count * n if kind == "count x n" else 0

    def count_for(self, size_bytes: int, itemsize: int, n: int) -> int:
        """Return the call's count for a size S in bytes, rounded down to complete elements, but at least 1.

        S is the total size for gather-like collectives, as in nccl-tests.

        Examples
        --------
        >>> CATALOG["all_gather"].count_for(1024, 4, 4), CATALOG["all_reduce"].count_for(1024, 4, 4)
        (64, 256)
        """
        return max(1, size_bytes // (itemsize * self._ranks_in_size(n)))

    def size_bytes(self, count: int, itemsize: int, n: int) -> int:
        """Return the size S of a call, in bytes. The inverse of `count_for`."""
        return count * itemsize * self._ranks_in_size(n)

    def _ranks_in_size(self, n: int) -> int:
        return n if "count x n" in (self.sends, self.receives) else 1


def _others(n: int) -> float:
    return (n - 1) / n


def _one(n: int) -> float:
    return 1.0


def _none(n: int) -> float:
    return float("nan")


CATALOG: Mapping[str, Collective] = MappingProxyType(
    {
        collective.name: collective
        for collective in (
            Collective(
                name="all_reduce",
                sends="count",
                receives="count",
                reduces=True,
                in_place=True,
                bus_factor=lambda n: 2 * (n - 1) / n,
                expected=correctness.reduced,
                summary="Reduces the inputs of all ranks. Every rank receives the result.",
            ),
            Collective(
                name="all_gather",
                sends="count",
                receives="count x n",
                in_place=True,
                bus_factor=_others,
                expected=correctness.gathered,
                summary="Concatenates the inputs of all ranks on every rank.",
            ),
            Collective(
                name="reduce_scatter",
                sends="count x n",
                receives="count",
                reduces=True,
                in_place=True,
                bus_factor=_others,
                expected=correctness.reduced_chunk,
                summary="Reduces the inputs of all ranks. Rank i receives chunk i of the result.",
            ),
            Collective(
                name="all_to_all",
                sends="count x n",
                receives="count x n",
                bus_factor=_others,
                expected=correctness.exchanged,
                summary="Sends chunk i of the input to rank i and receives one chunk from every rank.",
            ),
            Collective(
                name="all_to_all_v",
                sends="count x n",
                receives="count x n",
                counted=True,
                bus_factor=_others,  # for the bytes of the busiest rank
                expected=correctness.exchanged_by_counts,
                summary="Like all_to_all, with a separate size for every chunk.",
            ),
            Collective(
                name="broadcast",
                sends="count",
                receives="count",
                rooted=True,
                in_place=True,
                bus_factor=_one,
                expected=correctness.root_input,
                summary="Copies the root's input to every rank.",
            ),
            Collective(
                name="reduce",
                sends="count",
                receives="count",
                only_root="receives",
                reduces=True,
                rooted=True,
                in_place=True,
                bus_factor=_one,
                expected=correctness.reduced,
                summary="Reduces the inputs of all ranks. The root receives the result.",
            ),
            Collective(
                name="gather",
                sends="count",
                receives="count x n",
                only_root="receives",
                rooted=True,
                in_place=True,
                bus_factor=_others,
                expected=correctness.gathered,
                summary="Concatenates the inputs of all ranks on the root.",
            ),
            Collective(
                name="scatter",
                sends="count x n",
                receives="count",
                only_root="sends",
                rooted=True,
                in_place=True,
                bus_factor=_others,
                expected=correctness.root_chunk,
                summary="Sends chunk i of the root's input to rank i.",
            ),
            Collective(
                name="send",
                sends="count",
                receives="nothing",
                peers=("dest",),
                bus_factor=_one,
                expected=None,
                summary="Sends the input to one rank, which must receive it.",
            ),
            Collective(
                name="recv",
                sends="nothing",
                receives="count",
                peers=("source",),
                bus_factor=_one,
                expected=correctness.source_input,
                summary="Receives the input of one rank, which must send it.",
            ),
            Collective(
                name="send_recv",
                sends="count",
                receives="count",
                peers=("dest", "source"),
                bus_factor=_one,
                expected=correctness.source_input,
                summary="Sends the input to one rank and receives the input of another rank simultaneously.",
            ),
            Collective(
                name="barrier",
                sends="nothing",
                receives="nothing",
                bus_factor=_none,
                expected=None,
                summary="Blocks every rank until all ranks have entered.",
            ),
        )
    }
)
"""The collectives, by name."""


def find_collective(name: str) -> Collective:
    """Return the collective with a name.

    Raises
    ------
    CommunicatorError
        If the name is unknown. The message lists the known ones.
    """
    try:
        return CATALOG[name]
    except (KeyError, TypeError):
        raise CommunicatorError(
            f"unknown collective {name!r}{did_you_mean(name, CATALOG)}; choose one of {', '.join(CATALOG)}"
        ) from None
