"""The last call that each rank entered, in memory that the client can read while the rank is blocked."""

from __future__ import annotations

import hashlib
import mmap
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from meshlab.comm._agreement import CHECKSUM_BITS, WINDOW, find_signature
from meshlab.comm._catalog import CATALOG
from meshlab.comm._monitor import MESSAGES
from meshlab.engines._call_board import BoardComparer, CallBoard

_NAMES = ("", *CATALOG, "batch", "split", WINDOW.collective.name, MESSAGES)
_CODES = {name: code for code, name in enumerate(_NAMES)}
_UNCOUNTED = frozenset([MESSAGES, *(name for name, row in CATALOG.items() if row.peers)])

# Memory of a rank, in words of 8 bytes: the current call, the number of collectives in each communicator, and the names
# of the communicators. The current call is 256 * slot + code, and negative if the call has returned.
_SLOTS = 64
_NAME_BYTES = 48
_CURRENT, _COUNTS, _NAME = 0, 1, 1 + _SLOTS
_WORDS = _NAME + _SLOTS * _NAME_BYTES // 8

_ONE_CALL = 1 << CHECKSUM_BITS
_MOST_RECENT, _FOLDED = 8192, 4096  # calls that a history keeps at most, and that it folds together


@dataclass(frozen=True, slots=True)
class Position:
    """The last call that a rank entered."""

    calls: int = -1  # collectives that the rank has entered, over all communicators, or -1 if that is unknown
    group: str = ""  # the name of the communicator, empty if the rank has entered no call
    call: str = ""  # the name of the collective, or "batch", "split" or "window"
    number: int = 0  # of the collective in its communicator, from 1, or 0 for a message
    is_inside: bool = False  # the call has not returned
    slot: int = field(default=0, repr=False)
    counts: tuple[int, ...] = field(default=(), repr=False)
    names: bytes = field(default=b"", repr=False, compare=False)  # of the communicators that the rank has opened

    def has_opened(self, group: str) -> bool:
        """Return True if the rank has opened a communicator of this name. It may have closed it again."""
        name = _padded(group)
        return any(self.names[i : i + _NAME_BYTES] == name for i in range(0, len(self.names), _NAME_BYTES))

    def since(self, before: Position) -> Position:
        """Return the position with numbers that count from an earlier one."""
        if min(self.calls, before.calls) < 0:
            return Position()
        number = self.number - before.counts[self.slot] if self.number else 0
        return replace(self, calls=self.calls - before.calls, number=number)

    def to_document(self) -> dict[str, Any]:
        """Return the position as plain data."""
        return {**asdict(self), "names": self.names.decode("latin-1")}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Position:
        """Return the position that `to_document` described."""
        texts = {"counts": tuple(document["counts"]), "names": document["names"].encode("latin-1")}
        return cls(**{**document, **texts})

    def __str__(self) -> str:
        return f"{self.call}{f' (call {self.number})' if self.number else ''} of {self.group}"


class Positions:
    """The positions of all ranks. Ranks in processes and their client map the same file into memory."""

    def __init__(self, size: int, path: str | Path | None = None) -> None:
        self.size = size
        n_bytes = _n_bytes(size)
        if path is None:
            memory = memoryview(bytearray(n_bytes))
        else:
            with Path(path).open("r+b") as file:
                memory = memoryview(mmap.mmap(file.fileno(), n_bytes))
        self._bytes = memory
        self._words = memory.cast("q")

    @staticmethod
    def create_file(path: Path, size: int) -> None:
        """Write the file for a number of ranks."""
        path.write_bytes(bytes(_n_bytes(size)))

    def writer(self, rank: int, board: CallBoard | None = None) -> PositionWriter:
        """Return the object with which a rank records its calls, and posts them on a board."""
        first = rank * _WORDS
        return PositionWriter(self._words[first : first + _WORDS], self._bytes[8 * first : 8 * (first + _WORDS)], board)

    def read(self) -> list[Position]:
        """Return the positions of all ranks."""
        # A rank may write at the same time. Its position is then inconsistent, but only blocked ranks are reported.
        parts = range(0, self.size * _WORDS, _WORDS)
        return [_read(self._words[first : first + _WORDS], self._bytes[8 * first :]) for first in parts]

    def abort(self) -> None:
        """Make ranks that are blocked in NCCL abort."""
        self._words[-1] = 1

    def should_abort(self) -> bool:
        """Return whether the client has called `abort`."""
        return bool(self._words[-1])


class PositionWriter:
    """Records the calls of one rank."""

    def __init__(self, words: memoryview, memory: memoryview, board: CallBoard | None = None) -> None:
        self.words = words
        self.board = board
        self._memory = memory
        self.histories: dict[int, CallHistory] = {}  # of the current task, by the key of the communicator
        # The last slot is shared by communicators for which there is no other one.
        self.free = list(range(_SLOTS - 1))[::-1]
        self._name(_SLOTS - 1, "another communicator")

    def position(self) -> Position:
        """Return the position of this rank."""
        return _read(self.words, self._memory)

    @property
    def calls(self) -> int:
        """The number of collectives entered."""
        return sum(self.words[_COUNTS:_NAME].tolist())

    def monitor(self, group: str, origin: str = "") -> CommunicatorMonitor:
        """Return the monitor of a new communicator. `origin` is a text that identifies it on all its ranks."""
        slot = self.free.pop() if self.free else _SLOTS - 1
        if slot != _SLOTS - 1:
            self._name(slot, group)
        digest = hashlib.blake2s((origin or group).encode(), digest_size=7).digest()
        key = int.from_bytes(digest, "big") or 1
        return CommunicatorMonitor(self, slot, group, key, self.histories)

    def start_task(self) -> None:
        """Remove the calls of earlier tasks."""
        for history in list(self.histories.values()):
            history.clear()
        self.histories = {key: history for key, history in self.histories.items() if history.is_open}

    def _name(self, slot: int, group: str) -> None:
        first = 8 * _NAME + slot * _NAME_BYTES
        self._memory[first : first + _NAME_BYTES] = _padded(group)


class CommunicatorMonitor:
    """Records the calls of one communicator. Implements `meshlab.comm._monitor.Monitor`."""

    # It runs for every call of a function, so it stores only a few words, and its attributes are the objects that it
    # needs for that.

    def __init__(
        self, writer: PositionWriter, slot: int, group: str, key: int, histories: dict[int, CallHistory]
    ) -> None:
        self._writer = writer
        self._words = writer.words
        self._slot = slot
        self._count = _COUNTS + slot
        self._key = key
        self._number = 0  # of the last call, in the upper bits of a word
        self._comparer: BoardComparer | None = None
        self._area, self._index = memoryview(bytearray(8)).cast("q"), 0
        self._history = histories[key] = CallHistory(group)
        self._recent = self._history.recent

    def code(self, call: str) -> int:
        return 256 * self._slot + _CODES[call]

    def enter(self, code: int, checksum: int) -> None:
        words = self._words
        words[self._count] += 1
        words[_CURRENT] = code
        # The next number in the upper bits, the checksum in the lower bits: one store, which other ranks see as one.
        self._number = number = self._number + _ONE_CALL
        self._area[self._index] = number + checksum
        recent = self._recent
        recent.append(checksum)
        if len(recent) > _MOST_RECENT:
            self._history.fold()

    def enter_message(self, code: int, checksum: int) -> None:
        self._words[_CURRENT] = code

    def leave(self, code: int) -> None:
        self._words[_CURRENT] = -code

    def child(self, group: str, color: int) -> CommunicatorMonitor:
        return self._writer.monitor(group, f"{self._key} {self._number >> CHECKSUM_BITS} {color}")

    def comparer(self, ranks: Sequence[int]) -> BoardComparer | None:
        """Return the comparer of the calls on the board, or None if the ranks have no board."""
        if self._writer.board is None or len(ranks) < 2:
            return None
        self._comparer = comparer = self._writer.board.join(self._key, ranks)
        self._area, self._index = comparer.area, comparer.index
        return comparer

    def __del__(self) -> None:
        # The history stays until the next task begins: the client compares it when the function has returned.
        self._history.is_open = False
        if self._comparer is not None:
            self._comparer.leave()
        if self._slot != _SLOTS - 1:
            self._writer.free.append(self._slot)


class CallHistory:
    """The collectives of one communicator in the current task."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.recent: list[int] = []
        self.is_open = True
        self._n_folded = 0
        self._digest = 0

    def fold(self) -> None:
        """Reduce the oldest calls to a number and a digest."""
        # crc32 continues from a digest, so the digest of all calls does not depend on how they were folded.
        old = self.recent[:_FOLDED]
        del self.recent[:_FOLDED]
        self._digest = zlib.crc32(struct.pack(f"<{len(old)}I", *old), self._digest)
        self._n_folded += len(old)

    def clear(self) -> None:
        """Remove all calls."""
        self.recent.clear()
        self._n_folded = self._digest = 0

    def summary(self) -> CallSummary:
        """Return the calls in a form that can be compared between ranks."""
        digest = zlib.crc32(struct.pack(f"<{len(self.recent)}I", *self.recent), self._digest)
        return CallSummary(self.group, self._n_folded + len(self.recent), digest)

    def tail(self) -> tuple[int, list[str]]:
        """Return the number of calls that were folded, and the signatures of the later ones."""
        return self._n_folded, [find_signature(checksum) or "an unknown call" for checksum in self.recent]


@dataclass(frozen=True, slots=True)
class CallSummary:
    """The name of a group, and the number and the digest of the collectives that a rank called on it in a task."""

    group: str
    n: int
    digest: int


def _read(words: memoryview, memory: memoryview) -> Position:
    """Return the position in the memory of a rank, which is passed as words and as bytes."""
    current = words[_CURRENT]
    counts = tuple(words[_COUNTS:_NAME].tolist())
    slot, code = divmod(abs(current), 256)
    names = bytes(memory[8 * _NAME : 8 * _WORDS])
    name = names[slot * _NAME_BYTES : (slot + 1) * _NAME_BYTES].rstrip(b"\0").decode(errors="replace")
    call = _NAMES[code]
    number = 0 if call in _UNCOUNTED else counts[slot]
    return Position(sum(counts), name, call, number, current > 0, slot, counts, names)


def _padded(group: str) -> bytes:
    return group.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")


def _n_bytes(size: int) -> int:
    return 8 * (size * _WORDS + 1)  # the last word is the flag of `abort`
