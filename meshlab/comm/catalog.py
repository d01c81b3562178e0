"""One row per collective: its buffers, its bus-bandwidth factor, and the right answer.

The whole system reads this table: the communicator checks calls against it, the benchmark takes sizes and factors from
it, and the correctness check takes the right answer from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from meshlab.comm import correctness as answers
from meshlab.comm.correctness import Answer, Case, Index, encode
from meshlab.comm.elements import DTYPES, OPS, ReduceOp, find_dtype, find_op
from meshlab.errors import CommunicatorError

__all__ = [
    "CATALOG",
    "DTYPES",
    "OPS",
    "Collective",
    "Direction",
    "ReduceOp",
    "encode",
    "find_collective",
    "find_dtype",
    "find_op",
]

Direction = Literal["sends", "receives"]
Elements = Literal["count", "count x n", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What one collective does.

    Parameters
    ----------
    name : str
        In snake case.
    sends, receives : {"count", "count x n", "nothing"}
        How many elements the input and the output have, in terms of the call's count.
    only_root : {"sends", "receives"}, optional
        The side that the root alone has.
    reduces : bool
        True when it takes a reduce operation.
    rooted : bool
        True when it takes a root.
    peers : tuple of str
        Which ranks it names beside itself: ``"dest"``, ``"source"``. Such calls concern those ranks alone.
    counted : bool
        True when every part has a count of its own; ``sends`` and ``receives`` then hold for equal counts.
    in_place : bool
        True when input and output may share memory: the smaller one is the rank's own part of the larger one.
    bus_factor : callable
        busbw / algbw for n ranks, from nccl-tests' PERFORMANCE.md.
    answer : callable or None
        ``answer(case, index)``: the right output of one member at the places `index`.
    text : str
        One sentence.
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
    answer: Callable[[Case, Index], Answer] | None
    text: str

    @property
    def is_measurable(self) -> bool:
        """True when one call alone moves data in and out, so that it has sizes and a bandwidth."""
        return self.sends != "nothing" and self.receives != "nothing"

    def has(self, side: Direction, is_root: bool = True) -> bool:
        """Whether a rank has an input or an output at all."""
        kind = self.sends if side == "sends" else self.receives
        return kind != "nothing" and (is_root or side != self.only_root)

    def elements(self, side: Direction, count: int, n: int) -> int:
        """How many elements the input or the output of one rank has."""
        kind = self.sends if side == "sends" else self.receives
        return count if kind == "count" else count * n if kind == "count x n" else 0

    def count_for(self, size_bytes: int, itemsize: int, n: int) -> int:
        """The call's count for a wanted size S, rounded down to whole elements, at least 1.

        S is the total for gather-like collectives, as in nccl-tests.

        Examples
        --------
        >>> CATALOG["all_gather"].count_for(1024, 4, 4), CATALOG["all_reduce"].count_for(1024, 4, 4)
        (64, 256)
        """
        return max(1, size_bytes // (itemsize * self._ranks_in_size(n)))

    def size_bytes(self, count: int, itemsize: int, n: int) -> int:
        """The size S of a call, in bytes; the inverse of `count_for`."""
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
                answer=answers.reduced,
                text="Every rank gets the reduction of all inputs.",
            ),
            Collective(
                name="all_gather",
                sends="count",
                receives="count x n",
                in_place=True,
                bus_factor=_others,
                answer=answers.gathered,
                text="Every rank gets all inputs, one behind the other.",
            ),
            Collective(
                name="reduce_scatter",
                sends="count x n",
                receives="count",
                reduces=True,
                in_place=True,
                bus_factor=_others,
                answer=answers.reduced_part,
                text="Every rank gets its own part of the reduction of all inputs.",
            ),
            Collective(
                name="all_to_all",
                sends="count x n",
                receives="count x n",
                bus_factor=_others,
                answer=answers.exchanged,
                text="Every rank gets its own part of every input, one behind the other.",
            ),
            Collective(
                name="all_to_all_v",
                sends="count x n",
                receives="count x n",
                counted=True,
                bus_factor=_others,  # of the busiest rank's bytes
                answer=answers.exchanged_by_counts,
                text="As all_to_all, but every part has a size of its own.",
            ),
            Collective(
                name="broadcast",
                sends="count",
                receives="count",
                rooted=True,
                in_place=True,
                bus_factor=_one,
                answer=answers.roots_input,
                text="Every rank gets the root's input.",
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
                answer=answers.reduced,
                text="The root gets the reduction of all inputs.",
            ),
            Collective(
                name="gather",
                sends="count",
                receives="count x n",
                only_root="receives",
                rooted=True,
                in_place=True,
                bus_factor=_others,
                answer=answers.gathered,
                text="The root gets all inputs, one behind the other.",
            ),
            Collective(
                name="scatter",
                sends="count x n",
                receives="count",
                only_root="sends",
                rooted=True,
                in_place=True,
                bus_factor=_others,
                answer=answers.roots_part,
                text="Every rank gets its own part of the root's input.",
            ),
            Collective(
                name="send",
                sends="count",
                receives="nothing",
                peers=("dest",),
                bus_factor=_one,
                answer=None,
                text="One rank gives its input to another, which receives it.",
            ),
            Collective(
                name="recv",
                sends="nothing",
                receives="count",
                peers=("source",),
                bus_factor=_one,
                answer=answers.sources_input,
                text="One rank gets the input of another, which sends it.",
            ),
            Collective(
                name="send_recv",
                sends="count",
                receives="count",
                peers=("dest", "source"),
                bus_factor=_one,
                answer=answers.sources_input,
                text="A rank gives its input to one rank, and gets the input of another.",
            ),
            Collective(
                name="barrier",
                sends="nothing",
                receives="nothing",
                bus_factor=_none,
                answer=None,
                text="No rank leaves before every rank has come.",
            ),
        )
    }
)
"""The collectives, by name."""


def find_collective(name: str) -> Collective:
    """Look a collective up by name.

    Raises
    ------
    CommunicatorError
        If there is none; the message lists what there is.
    """
    try:
        return CATALOG[name]
    except (KeyError, TypeError):
        raise CommunicatorError(f"there is no collective {name!r}; there are {', '.join(CATALOG)}") from None
