"""Passes inputs to entry points, and keeps a small input of each place that raises what it should not."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import pickle
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, seed, settings

import meshlab
from meshlab.base._errors import MeshlabError
from meshlab.diagnosis import _explain as explaining
from tests.fuzz.entries import ENTRIES, Entry

__all__ = ["Campaign", "Failure", "check"]

PACKAGE = str(Path(meshlab.__file__).parent)

LONGEST_MESSAGE = 1_000
"""Characters of an error with its hint, its excerpt and its position. A message is cut long before."""

SLOW_S, STOP_S = 5.0, 20.0
"""Seconds of CPU time after which an input is reported, and after which it is stopped."""

MEMORY = 8 << 30


class TooSlowError(BaseException):
    """The input was stopped. No handler of exceptions catches it."""


class RuleFailedError(Exception):
    """A rule or a format of `explain` raised, which `explain` only reports as a finding of the code rule-failed."""


@dataclass
class Failure:
    """A place that raised.

    Parameters
    ----------
    entry : str
        The entry point.
    kind : str
        Type of the exception, or "long message" or "slow".
    place : str
        File and function of the innermost frame in meshlab.
    message : str
        The first line of the message.
    example : object
        The smallest input so far.
    count : int
        How many inputs failed there.
    trace : str
        The traceback of the first of them.
    """

    entry: str
    kind: str
    place: str
    message: str
    example: Any
    count: int = 1
    trace: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.place


def check(entry: Entry, value: Any, kept: Path, *, is_repeated: bool = False) -> Failure | None:
    """Pass one input to an entry point. Return what is wrong with its answer, or None."""
    folder = Path(tempfile.mkdtemp(dir=kept.parent))
    started = time.process_time()
    caught: BaseException | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            entry.call(value, folder)
    except MeshlabError as error:
        caught = error
        text = str(error)
        if len(text) > LONGEST_MESSAGE:
            return _failure(entry, "long message", error, value)
        try:
            text.encode()
        except UnicodeEncodeError:
            return _failure(entry, "message that cannot be printed", error, value)
    except TooSlowError as error:
        return _failure(entry, "slow", error, value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not isinstance(error, entry.may_fail):
            return _failure(entry, type(error).__name__, error, value)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if caught is not None:
            caught.__traceback__ = None
    spent = time.process_time() - started
    if spent > SLOW_S and not is_repeated:  # the first inputs import modules
        return check(entry, value, kept, is_repeated=True)
    if spent > SLOW_S:
        return Failure(entry.name, "slow", entry.name, f"{spent:.1f} s", value)
    return None


def _failure(entry: Entry, kind: str, error: BaseException, value: Any) -> Failure:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
    place = f"{frames[-1].filename[len(PACKAGE) + 1 :]}:{frames[-1].name}" if frames else entry.name
    message = f"{error}".strip().splitlines()[0][:200] if f"{error}".strip() else ""
    trace = "".join(traceback.format_exception(error, limit=-8))[-4000:]
    return Failure(entry.name, kind, place, message, value, trace=trace)


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """Let `explain` raise if one of its rules raises, and stop inputs that take too long or too much memory."""

    def stop(number: int, frame: Any) -> None:
        raise TooSlowError(f"stopped after {STOP_S:.0f} s of CPU time")

    def reraise(error: Exception) -> str:
        # Of a type that no entry point may raise, and with the place where the rule raised.
        raise RuleFailedError(repr(error)).with_traceback(error.__traceback__) from error

    before = signal.signal(signal.SIGPROF, stop)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, limits[1]))
    try:
        with mock.patch.object(explaining, "_name", reraise):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, before)


@dataclass
class Campaign:
    """A series of inputs.

    Parameters
    ----------
    first : int
        The seed. Batches of inputs are numbered from 0, and each depends only on the seed and its number.
    names : tuple of str
        Entry points, by default all.
    current : Path, optional
        A file that gets each input before it is passed on, for crashes of the interpreter.
    """

    first: int = 0
    names: tuple[str, ...] = tuple(ENTRIES)
    current: Path | None = None
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)

    def run(self, go_on: Callable[[], bool] = lambda: True, *, batch: int = 50, rounds: int = 1 << 30) -> None:
        """Run batches of all entry points in turn, until `go_on` returns False or after a number of rounds."""
        with tempfile.TemporaryDirectory(prefix="meshlab-fuzz-") as folder, _guarded():
            kept = Path(folder) / "kept"
            kept.mkdir()
            for number in range(rounds):
                # Cheap entry points get more inputs: each gets about the same time, at least one batch of each kind.
                for name in self.names:
                    if not go_on():
                        return
                    if number < 2 or self.seconds[name] <= 1.5 * min(self.seconds[one] for one in self.names) + 1.0:
                        self._batch(ENTRIES[name], number, batch, kept, go_on)

    def _batch(self, entry: Entry, number: int, size: int, kept: Path, go_on: Callable[[], bool]) -> None:
        started = time.process_time()
        if entry.make is not None and (entry.strategy is None or number % 2 == 0):
            for index in range(size):
                rng = random.Random(f"{self.first} {entry.name} {number} {index}")
                self._try(entry, entry.make(rng, kept), kept)
                if index % 8 == 0 and not go_on():
                    break
        else:
            self._drawn(entry, number, size, kept)
        self.seconds[entry.name] += time.process_time() - started

    def _drawn(self, entry: Entry, number: int, size: int, kept: Path) -> None:
        assert entry.strategy is not None

        @seed(f"{self.first} {entry.name} {number}")
        @settings(
            max_examples=size,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(entry.strategy)
        def each(value: Any) -> None:
            self._try(entry, value, kept)

        each()

    def _try(self, entry: Entry, value: Any, kept: Path) -> None:
        if self.current is not None:
            self.current.write_bytes(pickle.dumps((entry.name, value)))
        self.counts[entry.name] += 1
        failure = self._check(entry, value, kept)
        if failure is None:
            return
        known = self.failures.get(failure.key)
        if known is None:
            if failure.kind not in ("slow", "long message"):
                failure.example = self._smaller(entry, failure, kept)
            self.failures[failure.key] = failure
        else:
            known.count += 1

    def _check(self, entry: Entry, value: Any, kept: Path) -> Failure | None:
        signal.setitimer(signal.ITIMER_PROF, STOP_S)
        try:
            return check(entry, value, kept)
        except TooSlowError:  # between the end of the call and the end of `check`
            return None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _smaller(self, entry: Entry, failure: Failure, kept: Path) -> Any:
        """Return the smallest part of an input that fails in the same way, as far as some seconds suffice."""
        end = time.process_time() + 3.0

        def fails(value: Any) -> bool:
            if time.process_time() > end:
                return False
            found = self._check(entry, value, kept)
            return found is not None and found.key == failure.key

        return _shrunk(failure.example, fails)


def _shrunk(value: Any, fails: Callable[[Any], bool]) -> Any:
    if isinstance(value, (str, bytes)):
        size = len(value) // 2
        while size >= 1:
            at = 0
            while at < len(value):
                shorter = value[:at] + value[at + size :]
                if fails(shorter):
                    value = shorter
                else:
                    at += size
            size //= 2
        return value
    if isinstance(value, dict):
        for key in list(value):
            rest = {name: one for name, one in value.items() if name != key}
            if fails(rest):
                value = rest
        return value
    if isinstance(value, tuple):
        for index in range(len(value)):
            value = _shrunk_at(index, value, fails)
        return value
    if isinstance(value, list) and all(isinstance(one, (str, bytes)) for one in value):
        return list(_shrunk(tuple(value), lambda new: fails(list(new))))
    return value


def _shrunk_at(index: int, value: tuple[Any, ...], fails: Callable[[Any], bool]) -> tuple[Any, ...]:
    before, after = value[:index], value[index + 1 :]
    return (*before, _shrunk(value[index], lambda new: fails((*before, new, *after))), *after)


def file_name(failure: Failure) -> str:
    """Return a name for the file of a failure."""
    digest = hashlib.sha256(repr(failure.key).encode()).hexdigest()[:6]
    return f"{failure.entry}-{failure.kind.replace(' ', '-')}-{digest}"
