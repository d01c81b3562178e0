"""Comparison of the calls of different ranks, which must agree on collective, count, dtype, op and root."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import BARRIER, Call, Comparer
from meshlab.comm._catalog import Collective

Checks = Literal["first", "all", "off"]

CHECKS: Mapping[Checks, str] = MappingProxyType(
    {
        "first": "compare the ranks before the first run of each call, and all calls of a function afterwards",
        "all": "compare the ranks before every run, except repetitions in measure() and in graphs",
        "off": "do not compare the ranks",
    }
)
"""The choices of ``launch(checks=…)``.

With ``"first"``, a prepared call is compared when it runs for the first time. If calls block, as with MPI, all others
are compared too. NCCL enqueues calls, and a comparison would delay them, so each kind of call is compared once: a
collective with its count, dtype, op and root.
"""

CHECKSUM_BITS = 24
"""Few enough that a 64-bit word has room for a checksum and the number of a call."""

WINDOW = BARRIER._replace(
    collective=Collective(
        name="window",
        sends="nothing",
        receives="nothing",
        bus_factor=lambda n: float("nan"),
        expected=None,
        summary="Registers memory of all ranks as a symmetric window.",
    )
)
"""The registration of a window, to compare it between ranks. It is not a collective that a user can call by name."""


def signature(calls: Sequence[Call]) -> str:
    """Return what all ranks must agree on, such as "all_reduce count=8 dtype=float32 op=sum". No calls mean a split."""
    if not calls:
        return "split"
    # Messages involve only two ranks, and the scalar of pre_mul_sum may differ between ranks.
    return ", ".join([_text(*_agreed(call)) for call in calls if not call.collective.peers])


def checksum(calls: Sequence[Call]) -> int:
    """Return a checksum of the signature, with `CHECKSUM_BITS` bits, which is fast to compare between ranks."""
    if len(calls) == 1:
        return _cached_checksum(*_agreed(calls[0]))
    return _named_checksum(signature(calls))


def text_checksum(text: str) -> int:
    """Return the checksum of a signature."""
    return zlib.crc32(text.encode()) & ((1 << CHECKSUM_BITS) - 1)


def find_signature(checksum: int) -> str:
    """Return the signature with a checksum, or an empty string if this process has not issued such a call."""
    return _signatures.get(checksum, "")


class MismatchError(CommunicatorError):
    """Two ranks of a group issue different calls."""

    calls: Mapping[int, str] = MappingProxyType({})
    """Their calls, by rank."""

    def in_group(self, name: str, ranks: Sequence[int]) -> MismatchError:
        """Return the same error with global ranks and the name of the group, if the ranks have other numbers in it."""
        if not self.calls or all(ranks[rank] == rank for rank in self.calls):
            return self
        return _mismatch({ranks[rank]: text for rank, text in self.calls.items()}, name)


def mismatch_error(rank: int, signature: str, other: int, other_signature: str) -> MismatchError:
    """Return the error for two ranks of a group that issue different calls."""
    return _mismatch({rank: signature, other: other_signature}, "")


def message_mismatch(call: Call, message: str) -> CommunicatorError:
    """Return the error for a receive whose message, such as "3 elements of int8", has another count or dtype."""
    tag = f" with tag {call.tag}" if call.tag else ""
    return CommunicatorError(
        f"ranks disagree: rank {call.source} of the group sends {message}{tag}, but this rank receives {call.count} of "
        f"{call.dtype}; pass the same count and dtype on both",
        collective=call.collective.name,
    )


def check_counts(send_counts: Sequence[Sequence[int]], recv_counts: Sequence[Sequence[int]]) -> None:
    """Raise unless each rank expects what the others send, given the counts of each rank to and from all ranks."""
    for sender, of_sender in enumerate(send_counts):
        for receiver, sent in enumerate(of_sender):
            if sent != recv_counts[receiver][sender]:
                raise counts_mismatch(sender, receiver, sent, recv_counts[receiver][sender])


def counts_mismatch(sender: int, receiver: int, sent: int, expected: int) -> CommunicatorError:
    """Return the error for two ranks whose counts of an all_to_all_v differ."""
    return CommunicatorError(
        f"ranks disagree: rank {sender} of the group sends {sent} elements to rank {receiver}, which expects {expected}"
    )


def client_abort() -> CommunicatorError:
    """Return the error of a rank that the client has released, because another rank does not respond."""
    return CommunicatorError(
        "aborted by the client because another rank stopped responding; see the EngineError of the client, then call "
        "engines.restart()"
    )


def _mismatch(calls: Mapping[int, str], group: str) -> MismatchError:
    (rank, text), (other, other_text) = sorted(calls.items())
    where = f"in {group}, rank {rank}" if group else f"rank {rank} of the group"
    error = MismatchError(
        f"ranks disagree: {where} calls {text}, but rank {other} calls {other_text}; issue the same calls on every "
        "rank",
        group=group or None,
    )
    error.calls = dict(calls)
    return error


def _agreed(call: Call) -> tuple[Any, ...]:
    row, dtype = call.collective, call.dtype
    return row.name, None if dtype is None or row.counted else call.count, dtype, call.op, call.root


def _text(name: str, count: int | None, dtype: Any, op: str | None, root: int | None) -> str:
    arguments = {"count": count, "dtype": dtype, "op": op, "root": root}
    return " ".join([name, *(f"{key}={value}" for key, value in arguments.items() if value is not None)])


@lru_cache(maxsize=1024)  # a sweep repeats few different calls, and formatting costs more than the comparison
def _cached_checksum(*agreed: Any) -> int:
    return _named_checksum(_text(*agreed))


_MOST_SIGNATURES = 10_000
_signatures: dict[int, str] = {}  # by checksum, for messages


def _named_checksum(text: str) -> int:
    if len(_signatures) >= _MOST_SIGNATURES:
        del _signatures[next(iter(_signatures))]
    number = text_checksum(text)
    _signatures[number] = text
    return number


class Agreement:
    """Decides which calls of a communicator are compared between its ranks. Errors name `group` and global `ranks`."""

    def __init__(
        self, comparer: Comparer, checks: Checks, blocks: bool, group: str = "", ranks: Sequence[int] = ()
    ) -> None:
        self.compares_all = checks == "all"
        self.compares_repeated = blocks or self.compares_all
        self._group, self._ranks = group, ranks
        self._comparer = comparer
        self._kinds: set[int] = set()

    def compare(self, calls: Sequence[Call], by_all: bool) -> None:
        """Compare calls. An error has global ranks and the name of the group."""
        try:
            self._comparer.compare(calls, by_all)
        except MismatchError as error:
            raise error.in_group(self._group, self._ranks) if self._ranks else error from None

    def check(self, calls: Sequence[Call], checksum: int) -> bool:
        """Compare a call, or several. Return whether the same calls need no comparison when they run again."""
        # As long as the ranks agree, they have compared the same kinds. So if one of them compares a kind for the first
        # time, all do. Counts per rank and splits are not part of a kind, and always compared.
        is_new = checksum not in self._kinds
        counted = [call for call in calls if call.collective.counted]
        if is_new or self.compares_repeated or not calls or counted:
            self.compare(calls, is_new or self.compares_all or not calls)
            if counted:
                self._comparer.compare_counts(counted)
            self._kinds.add(checksum)
        return not self.compares_all
