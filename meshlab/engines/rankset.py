"""What `Engines` needs of a set of ranks, whether they are processes or threads."""

from __future__ import annotations

import traceback
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshlab.comm.backend import Capabilities

__all__ = ["Death", "Opening", "RankDiedError", "RankFacts", "RankSet", "Reply"]


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one rank says about itself when it is ready.

    Parameters
    ----------
    rank, world_size : int
        Its place in the world.
    host : str
        The name of its host.
    pid, parent_pid : int
        Its process, and the process that started it.
    python : str
        The version of Python it runs.
    meshlab : str
        The version of meshlab it runs.
    capabilities : Capabilities
        What its backend can do.
    segments : tuple of str
        Shared-memory files that its library made and that should not outlive it.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    parent_pid: int
    python: str
    meshlab: str
    capabilities: Capabilities
    segments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """What an engine must know to become a rank.

    Parameters
    ----------
    backend : str
        ``"mpi"``, where the launcher has decided everything else, or ``"nccl"``.
    counts_file : str or None
        A file that ranks of this host share with the client: one int64 per rank to count collectives in, and one that
        the client sets when the ranks must not wait for each other any more.
    size, rank : int
        How many ranks, and which one; -1 where the backend knows.
    device : int
        The index of its GPU.
    identity : bytes
        What lets the ranks of one NCCL world find each other.
    """

    backend: str
    counts_file: str | None
    size: int = -1
    rank: int = -1
    device: int = -1
    identity: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back from one rank: a value, or what was raised there.

    Parameters
    ----------
    rank : int
        The global rank.
    value : object
        What the function returned.
    error : str or None
        The type and message of what it raised.
    trace : str
        The traceback, as text.
    is_interrupt : bool
        True when it was interrupted from outside.
    """

    rank: int
    value: Any = None
    error: str | None = None
    trace: str = field(default="", repr=False)
    is_interrupt: bool = False

    @classmethod
    def of_error(cls, rank: int, error: BaseException) -> Reply:
        """What a rank answers when something was raised there."""
        trace = "".join(traceback.format_exception(error))
        return cls(rank, error=f"{type(error).__name__}: {error}", trace=trace)


@dataclass(frozen=True, slots=True)
class Death:
    """How a rank ended.

    Parameters
    ----------
    rank : int or None
        Which; None when only the set's end is known.
    how : str
        Such as "killed by signal 9".
    """

    rank: int | None
    how: str


class RankDiedError(Exception):
    """The rank ended before it answered; only used between a rank set and `Engines`."""


class RankSet(Protocol):
    """A set of ranks that run methods of `meshlab.engines.worker.Worker`."""

    size: int
    backend: str
    is_attached: bool
    """True when somebody else started the ranks; they are never killed then."""

    def start(self, timeout_s: float) -> tuple[RankFacts, ...]:
        """Bring the ranks up and return their facts, by rank."""

    def submit(self, rank: int, method: str, arguments: tuple[Any, ...]) -> Future[Reply]:
        """Run a worker's method on one rank. The future raises `RankDiedError` when the rank ended."""

    def calls(self) -> list[int]:
        """How many collectives each rank has entered, by rank; -1 where that is not known."""

    def first_death(self) -> Death | None:
        """Who ended first, when some rank ended."""

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt on every rank, as far as its Python code lets it."""

    def kill(self) -> None:
        """End all ranks at once, but for those that can be used again by `start`."""

    def log_tail(self) -> str:
        """The last lines that the ranks printed."""

    @property
    def client(self) -> Any:
        """The ipyparallel client, where there is one."""

    def close(self) -> None:
        """End all ranks in an orderly way and leave nothing behind."""
