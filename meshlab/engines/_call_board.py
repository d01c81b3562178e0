"""Memory in which the ranks of a host post their calls, so that each can compare them before its library starts one."""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from meshlab.base._errors import CommunicatorError
from meshlab.base._locks import lock, unlock
from meshlab.comm._agreement import (
    CHECKSUM_BITS,
    check_counts,
    client_abort,
    find_signature,
    mismatch_error,
    signature,
    text_checksum,
)
from meshlab.comm._backend import Call

# The memory has the keys of the areas, the areas, and one text per rank. An area belongs to a communicator and has
# three words per member: its current call, as a number in the upper and a checksum in the lower bits; the number of the
# last call that all ranks had to compare, and that it has compared; and the number of the last call whose texts it has
# read.
_AREAS = 1024
_TEXT_BYTES = 4096
_MOST_WITH_COUNTS = 128  # ranks of a group whose counts fit into a text
_LEFT = 1 << 62  # a member that has left has passed all calls

_SPINS = 40  # polls without a pause, because ranks in a loop arrive within some µs
_SPIN_S = 0.001  # time to poll without sleeping, for ranks that arrive together
_PAUSE_S = 0.0002
_GRACE_S = 0.3  # time to wait for the calls of further ranks after a mismatch, to report the first one
_TEXT_S = 0.5  # time to wait for the text of a call


class CallBoard:
    """The calls of all ranks of a host. Every rank opens the same file, which `create_file` has written."""

    def __init__(
        self,
        size: int,
        path: str | Path,
        rank: int,
        should_abort: Callable[[], bool] | None = None,
        progress: Callable[[], object] | None = None,
    ) -> None:
        self.rank = rank
        # Both are called while the rank waits: the library may move data only while the process calls it, and the wait
        # raises when `should_abort` returns True.
        self.progress = progress or (lambda: None)
        self.should_abort = should_abort or (lambda: False)
        self._size = size
        # The descriptor stays open for its lock, which ends with the process, so that no rank waits for a dead one.
        self._file = os.open(path, os.O_RDWR)
        self._close = weakref.finalize(self, os.close, self._file)
        memory = memoryview(mmap.mmap(self._file, _n_bytes(size)))
        self._keys = memory[: 8 * _AREAS].cast("q")
        self._areas = memory[8 * _AREAS : -_TEXT_BYTES * size].cast("q")
        self._texts = memory[-_TEXT_BYTES * size :]

    @staticmethod
    def create_file(path: Path, size: int) -> None:
        """Write the file for a number of ranks."""
        with path.open("wb") as file:
            file.truncate(_n_bytes(size))  # its blocks are allocated when they are used

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock(self._file)
        try:
            yield
        finally:
            unlock(self._file)

    def join(self, key: int, ranks: Sequence[int]) -> BoardComparer:
        """Return the comparer of a communicator. All its ranks pass the same positive `key`."""
        with self._locked():
            keys = self._keys.tolist()
            try:
                number = keys.index(key if key in keys else 0)
            except ValueError:
                raise CommunicatorError(
                    f"{_AREAS} communicators are open on this host, too many to compare their calls; close some of "
                    "them, or start the engines with checks='off'"
                ) from None
            self._keys[number] = key
        n, first = len(ranks), 3 * self._size * number
        return BoardComparer(self, number, ranks, self._areas[first : first + 3 * n])

    def leave(self, number: int, words: memoryview, index: int) -> None:
        """Leave an area. The last member frees it."""
        if not self._close.alive:  # the garbage collector finalises a board and its communicators in any order
            words[index] = _LEFT
            return
        with self._locked():
            words[index] = _LEFT
            if set(words[: len(words) // 3].tolist()) == {_LEFT}:
                words[:] = memoryview(bytes(words.nbytes)).cast("q")
                self._keys[number] = 0

    def write_text(self, text: str) -> None:
        """Replace this rank's text."""
        data = text.encode()[: _TEXT_BYTES - 1] + b"\0"
        first = self.rank * _TEXT_BYTES
        self._texts[first : first + len(data)] = data

    def read_text(self, rank: int) -> str:
        """Return the text of a rank. It is inconsistent while the rank replaces it."""
        first = rank * _TEXT_BYTES
        return bytes(self._texts[first : first + _TEXT_BYTES]).partition(b"\0")[0].decode(errors="replace")


class BoardComparer:
    """Compares the calls of one communicator, whose monitor posts each of them in `area` before."""

    def __init__(self, board: CallBoard, number: int, ranks: Sequence[int], words: memoryview) -> None:
        n = len(ranks)
        self.area = words[:n]
        self.index = list(ranks).index(board.rank)
        self._board = board
        self._number = number
        self._ranks = tuple(ranks)
        self._words, self._done, self._read = words, words[n : 2 * n], words[2 * n :]
        self._size = n

    def compare(self, calls: Sequence[Call], by_all: bool) -> None:
        """Wait until all ranks have posted a call with the same number, and raise unless all are the same."""
        area, size = self.area, self._size
        word = area[self.index]
        first = word >> CHECKSUM_BITS << CHECKSUM_BITS
        for _ in range(_SPINS):
            others = area.tolist()
            if others.count(word) == size or (min(others) >= first and not self._wrong(others, word, by_all)):
                break
        else:
            self._wait(word, first, calls, by_all)
        if by_all:
            self._done[self.index] = word >> CHECKSUM_BITS

    def _wait(self, word: int, first: int, calls: Sequence[Call], by_all: bool) -> None:
        for _ in self._polls():
            others = self.area.tolist()
            wrong = self._wrong(others, word, by_all)
            if not wrong and min(others) >= first:  # a rank with a higher number has passed this call
                return
            if wrong:
                # Stores of other ranks may arrive in any order, so look again before raising.
                time.sleep(_PAUSE_S)
                if self._wrong(self.area.tolist(), word, by_all):
                    self._board.write_text(signature(calls))
                    raise self._mismatch(word)

    def _wrong(self, others: Sequence[int], word: int, by_all: bool) -> list[int]:
        """Return the members whose call with this number is a different one."""
        number = word >> CHECKSUM_BITS
        wrong = [index for index, other in enumerate(others) if other >> CHECKSUM_BITS == number and other != word]
        if by_all:
            # A rank that agrees compares the call too, because all ranks do. One that has passed this number
            # without a comparison has issued a call that it knew.
            wrong += [i for i, other in enumerate(others) if other >> CHECKSUM_BITS > number and self._done[i] < number]
        return wrong

    def _mismatch(self, word: int) -> CommunicatorError:
        """Return the error that names the first rank and the first one that differs from it."""
        number = word >> CHECKSUM_BITS
        deadline = time.monotonic() + _GRACE_S
        while min(self.area.tolist()) >> CHECKSUM_BITS < number and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        words = {index: other for index, other in enumerate(self.area.tolist()) if other >> CHECKSUM_BITS == number}
        words[self.index] = word
        first = min(words)
        other = next((index for index in words if words[index] != words[first]), None)
        if other is not None:
            return mismatch_error(first, self._text(first, words[first]), other, self._text(other, words[other]))
        # No rank has posted another call with this number, so one has passed it without a comparison.
        passed = next((index for index in self._wrong(self.area.tolist(), word, True)), self.index)
        latest = self.area[passed]
        place = f"call {latest >> CHECKSUM_BITS}, {self._text(passed, latest)}" if latest != _LEFT else "the end"
        return CommunicatorError(
            f"ranks disagree: rank {self.index} of the group calls {self._text(self.index, word)} as call {number}, "
            f"but rank {passed} called something else and has reached {place}; issue the same calls on every rank"
        )

    def _text(self, index: int, word: int) -> str:
        """Return the signature of a call that a rank has posted."""
        checksum = word & ((1 << CHECKSUM_BITS) - 1)
        deadline = time.monotonic() + _TEXT_S
        text = find_signature(checksum)
        while not text and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            posted = self._board.read_text(self._ranks[index])
            text = posted if text_checksum(posted) == checksum else ""
        return text or "something else"

    def compare_counts(self, calls: Sequence[Call]) -> None:
        if self._size > _MOST_WITH_COUNTS:
            return
        number = self.area[self.index] >> CHECKSUM_BITS
        header = f"{self._number} {number}:"
        self._board.write_text(_counts_text(header, calls))
        # Counts do not fit into the word of a call, and differ between ranks even if they match.
        texts: dict[int, str] = {}
        for _ in self._polls():
            for index in range(self._size):
                if index in texts:
                    continue
                text, _, checksum = self._board.read_text(self._ranks[index]).rpartition("#")
                # A rank may be replacing its text, so that its end is still that of the call before.
                if text.startswith(header) and checksum == str(text_checksum(text)):
                    texts[index] = text.removeprefix(header)
            if len(texts) == self._size:
                break
        # No rank replaces its text before all have read it.
        self._read[self.index] = number
        for _ in self._polls():
            if min(self._read.tolist()) >= number:
                break
        # Of many calls, a rank with long counts has posted fewer than the others.
        for of_call in zip(*(texts[index].split(";")[:-1] for index in range(self._size)), strict=False):
            counts = [[[int(count) for count in part.split(",")] for part in text.split("|")] for text in of_call]
            check_counts(*zip(*counts, strict=True))

    def _polls(self) -> Iterator[None]:
        """Yield at increasing intervals, until the client makes the rank abort."""
        begin = time.monotonic()
        while True:
            yield
            # Another rank may be unable to arrive before this one has moved the rest of its last messages.
            self._board.progress()
            if time.monotonic() - begin < _SPIN_S:
                os.sched_yield()
                continue
            if self._board.should_abort():
                raise client_abort()
            time.sleep(_PAUSE_S)

    def leave(self) -> None:
        """Leave the group when the communicator is gone."""
        self._board.leave(self._number, self._words, self.index)


def _counts_text(header: str, calls: Sequence[Call]) -> str:
    """Return the counts of as many calls as fit into the text of a rank, each with a semicolon, and a checksum."""
    text = header
    for call in calls:
        counts = "|".join(_numbers(counts) for counts in (call.send_counts, call.recv_counts))
        if len(text) + len(counts) > _TEXT_BYTES - 32:
            break
        text += f"{counts};"
    return f"{text}#{text_checksum(text)}"


def _numbers(counts: Sequence[int] | None) -> str:
    return ",".join(map(str, counts or ()))


def _n_bytes(size: int) -> int:
    return 8 * _AREAS * (1 + 3 * size) + _TEXT_BYTES * size
