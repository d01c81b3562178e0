"""Communicator: the one class that users call collectives on, whatever the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np

from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Prepared, Timings
from meshlab.comm.catalog import CATALOG, Collective, find_collective
from meshlab.comm.collectives import Calls
from meshlab.comm.elements import ReduceOp
from meshlab.comm.validate import CallValidator
from meshlab.errors import CommunicatorError

__all__ = ["Batch", "Communicator", "PreparedCall"]


class Batch(Calls):
    """Calls that are checked as they are written down, and made together; `Communicator.batch` starts one.

    None of them waits for another one of the same rank, so a rank can send to all others and receive from them without
    a thought about order. Between the same two ranks, the first receive gets what the first send gave. Ranks write down
    the collectives in the same order; sends and receives may stand anywhere between. New outputs are returned at once,
    and hold the result when the batch is done.

    As a context manager it makes its calls at the end of the block. Where the block raises, or a call does not fit,
    this rank makes none of them, so that no rank is ever left half-way through a batch.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm.communicator import Communicator
    >>> from meshlab.comm.backends.threads import ThreadWorld
    >>> comm = Communicator(ThreadWorld(1).backend(0))
    >>> with comm.batch() as batch:
    ...     batch.send(np.arange(3.0), dest=0)
    ...     got = batch.recv(np.empty(3), source=0)
    >>> got
    array([0., 1., 2.])
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._calls: list[Call] = []
        self._is_done = False

    def _call(self, row: Collective, send: Any, out: Any, **arguments: Any) -> Any:
        if self._is_done:
            raise CommunicatorError("this batch has been made; start a new one with batch()", collective=row.name)
        call = self._communicator._rules.check(row, send, out, makes_output=True, **arguments)
        self._calls.append(call)
        return call.recv

    def prepare(self) -> PreparedCall:
        """Check the calls against each other, to make them together many times.

        Returns
        -------
        PreparedCall

        Raises
        ------
        CommunicatorError
            If there are none, an output overlaps the buffer of another call, or the rank sends to itself what it does
            not receive.
        """
        return self._communicator._prepare_batch(self._calls)

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_done = True
        if error is None and self._calls:
            self.prepare()()

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        calls = ", ".join(str(call) for call in self._calls)
        return f"<batch on {self._communicator.name}: {calls or 'no calls'}{', done' if self._is_done else ''}>"


class PreparedCall:
    """A call, or a batch of calls, that was checked once and can be made many times.

    It works on the arrays it was prepared with. Every rank of the group must prepare it, and make it as often.
    """

    def __init__(self, communicator: Communicator, calls: Sequence[Call], prepared: Prepared) -> None:
        self._communicator = communicator
        self._prepared = prepared
        self._is_collective = any(not call.collective.peers for call in calls)
        self.calls = tuple(calls)

    def __call__(self) -> None:
        """Make the call."""
        self._communicator._enter(self._is_collective)
        self._prepared()

    def enqueue(self) -> None:
        """Make the call without putting it in order with other streams.

        On a GPU it then runs on ``communicator.backend.stream`` as soon as what was enqueued there before is done; use
        events to order it, for overlap and graphs. Where calls block it is the call itself. Let go of a graph that has
        captured it before the communicator is closed: NCCL waits for that.
        """
        self._communicator._enter(self._is_collective)
        getattr(self._prepared, "enqueue", self._prepared)()

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        """Time batches of calls.

        Parameters
        ----------
        mode : {"isolated", "pipelined", "graph"}
            See `meshlab.comm.MODES`.
        calls, batches : int
            How many calls in a batch, and how many batches. All ranks must give the same numbers.

        Returns
        -------
        Timings
            One value per batch.
        """
        self._communicator._enter()
        return self._prepared.measure(mode, calls, batches)

    def estimate_us(self) -> float:
        """How long the library's own model thinks that the call takes, in µs; nothing is carried out. NCCL has one.

        Raises
        ------
        CommunicatorError
            If the backend has no such model, or this is a batch.
        """
        if len(self.calls) != 1:
            raise CommunicatorError("a batch cannot be estimated; estimate its calls one by one")
        simulate = self._communicator._optional("simulate_us", "estimate a call")
        return float(simulate(self.calls[0]))

    def __repr__(self) -> str:
        return f"<{', '.join(str(call) for call in self.calls)} on {self._communicator.name}>"


class Communicator(Calls):
    """A group of ranks that can talk: collectives on arrays in the backend's own memory (`xp`).

    Roots and peers are ranks of the group. Every rank of the group must make the same calls in the same order.

    Parameters
    ----------
    backend : Backend
        This rank's end in a library.
    name : str, default "world"
        The group's name.
    ranks : sequence of int, optional
        The global ranks of the group, in order; 0, 1, … by default.
    on_enter : callable, optional
        Called before everything that the whole group does together; engines count calls with it.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm.backends.threads import ThreadWorld
    >>> comm = Communicator(ThreadWorld(1).backend(0))
    >>> comm.all_reduce(np.arange(3.0))
    array([0., 1., 2.])
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str = "world",
        ranks: Sequence[int] | None = None,
        on_enter: Callable[[], None] | None = None,
    ) -> None:
        self._on_enter = on_enter
        self._is_closed = False
        self._owner: Communicator | None = None  # whose library's communicator this one uses as well
        self.backend = backend
        self.name = name
        self.rank = backend.rank
        self.size = backend.size
        self.ranks: tuple[int, ...] = tuple(ranks) if ranks is not None else tuple(range(backend.size))
        if len(self.ranks) != self.size:
            raise CommunicatorError(
                f"group {name!r} should have {len(self.ranks)} ranks, but the library says {self.size}",
                group=name,
            )

    @property
    def xp(self) -> Any:
        """The array module of the backend: numpy, or cupy on a GPU."""
        return self.backend.xp

    @property
    def world_rank(self) -> int:
        """The number of this rank in the world."""
        return self.ranks[self.rank]

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Make an uninitialised array in the memory that the library moves fastest.

        On GPUs that is NCCL's own memory, which other GPUs may map: a captured call can then work on the peer's buffer
        instead of copying through NCCL's. Any other array of `xp` is right too, and slower where that matters. An
        array of this kind takes a multiple of 2 MiB, and giving it back waits for the GPU: make it once.

        Parameters
        ----------
        shape : int or tuple of int
            Its shape.
        dtype : numpy.dtype or str
            Its element type.

        Returns
        -------
        numpy.ndarray or cupy.ndarray
            The array.

        Examples
        --------
        >>> import meshlab as ml
        >>> def double(comm):
        ...     x = comm.empty(4, "float32")
        ...     x[:] = comm.rank + 1
        ...     return float(comm.all_reduce(x)[0])
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.run(double)["value"].tolist()
        [3.0, 3.0]
        """
        return self.backend.empty(shape, dtype)

    def capabilities(self) -> Capabilities:
        """What the backend and its library can do."""
        return self.backend.capabilities()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def batch(self) -> Batch:
        """Start a batch: several calls, written down one by one and made at once.

        Returns
        -------
        Batch
            A context manager that makes its calls at the end of the block.

        Examples
        --------
        >>> import meshlab as ml
        >>> def ring(comm):
        ...     with comm.batch() as batch:
        ...         batch.send(np.array([comm.rank]), dest=(comm.rank + 1) % comm.size)
        ...         got = batch.recv(np.empty(1, int), source=(comm.rank - 1) % comm.size)
        ...     return got.item()
        >>> with ml.launch(3, backend="threads") as engines:
        ...     engines.run(ring)["value"].tolist()
        [2, 0, 1]
        """
        self._check_open()
        return Batch(self)

    def prepare(
        self,
        collective: str,
        send: Any = None,
        out: Any = None,
        *,
        op: str | ReduceOp | None = None,
        root: int | None = None,
        dest: int | None = None,
        source: int | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        dtype: Any = None,
    ) -> PreparedCall:
        """Check a call once, to make it many times.

        Parameters
        ----------
        collective : str
            Its name, such as ``"all_reduce"``.
        send, out : array
            As in the collective's own method; both are needed where this rank sends and receives.
        op : str or ReduceOp, optional
            The reduce operation, ``"sum"`` where one is needed and none is given.
        root : int, optional
            The root, 0 where one is needed and none is given.
        dest, source, send_counts, recv_counts, dtype : optional
            As in the collective's own method.

        Returns
        -------
        PreparedCall

        Raises
        ------
        CommunicatorError
            If something does not fit.

        Examples
        --------
        >>> import meshlab as ml
        >>> def count(comm):
        ...     total = comm.xp.ones(1)
        ...     add_up = comm.prepare("all_reduce", total, total)
        ...     for _ in range(3):
        ...         add_up()
        ...     return total.item()
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.run(count)["value"].tolist()
        [8.0, 8.0]
        """
        self._check_open()
        call = self._rules.check(
            find_collective(collective),
            send,
            out,
            op=op,
            root=root,
            dest=dest,
            source=source,
            send_counts=send_counts,
            recv_counts=recv_counts,
            dtype=dtype,
        )
        self._check_own_messages(call)
        return PreparedCall(self, (call,), self.backend.prepare(call))

    def configured(
        self, *, algorithm: str | None = None, min_ctas: int | None = None, max_ctas: int | None = None
    ) -> Communicator:
        """The same communicator, with calls carried out as one chooses; NCCL 2.31 and newer can.

        Parameters
        ----------
        algorithm : str, optional
            Which algorithms NCCL may use, such as ``"ring"``, ``"tree"`` or ``"tree,ring"``.
        min_ctas, max_ctas : int, optional
            How many thread blocks, which also means how many channels.

        Returns
        -------
        Communicator
            All ranks must choose alike. Closing it leaves this one open; once this one is closed, it is too.

        Raises
        ------
        CommunicatorError
            If the backend or the loaded library cannot choose per call.

        Examples
        --------
        On GPUs, ``comm.configured(algorithm="tree").all_reduce(x)``. Others say that they cannot:

        >>> from meshlab.comm.backends.threads import ThreadWorld
        >>> Communicator(ThreadWorld(1).backend(0)).configured(algorithm="tree")
        Traceback (most recent call last):
        ...
        meshlab.errors.CommunicatorError: threads cannot choose how a call is carried out; nccl can
        """
        from meshlab.comm.backend import CallConfig

        configure = self._optional("configured", "choose how a call is carried out")
        chosen = Communicator(
            configure(CallConfig(algorithm, min_ctas, max_ctas)),
            name=self.name,
            ranks=self.ranks,
            on_enter=self._on_enter,
        )
        chosen._owner = self
        return chosen

    def registered(self, array: Any) -> AbstractContextManager[None]:
        """Let the library know a buffer while a block lasts, so that it can move it without a copy; NCCL can.

        Raises
        ------
        CommunicatorError
            If the backend has no registered buffers.
        """
        register: Callable[[Any], AbstractContextManager[None]] = self._optional("registered", "register buffers")
        return register(array)

    def memory_bytes(self) -> int | None:
        """The GPU memory that the communicator holds; None where nothing is known of it."""
        ask = getattr(self.backend, "memory_bytes", None)
        return None if ask is None else ask()

    def _optional(self, name: str, what: str) -> Any:
        method = getattr(self.backend, name, None)
        if method is None:
            raise CommunicatorError(f"{self.capabilities().backend} cannot {what}; nccl can", group=self.name)
        return method

    def _call(self, row: Collective, send: Any, out: Any, **arguments: Any) -> Any:
        self._check_open()
        if row.counted and arguments["recv_counts"] is None:
            arguments["recv_counts"] = self._tell_counts(row, send, arguments["send_counts"])
        call = self._rules.check(row, send, out, makes_output=True, **arguments)
        self._check_own_messages(call)
        prepared = self.backend.prepare(call)
        self._enter(not row.peers)
        prepared()
        return call.recv

    def _tell_counts(self, row: Collective, send: Any, send_counts: Any) -> Any:
        return self._share("all_to_all", self._rules.check_send_counts(row, send, send_counts))

    def _share(self, collective: str, numbers: Sequence[int], **arguments: Any) -> list[int]:
        """A small collective of whole numbers, from the host's memory and back."""
        with self.backend.local():
            send = self.xp.asarray(numbers, dtype=np.int64)
            got = self._call(CATALOG[collective], send, None, **arguments)
            return [int(number) for number in (got.get() if hasattr(got, "get") else got)]

    def _prepare_batch(self, calls: Sequence[Call]) -> PreparedCall:
        self._check_open()
        if not calls:
            raise CommunicatorError(f"the batch on {self.name} has no calls; add some", group=self.name)
        self._rules.check_batch(calls)
        return PreparedCall(self, calls, self.backend.prepare_batch(tuple(calls)))

    def _check_own_messages(self, call: Call) -> None:
        if call.dest == self.rank or call.source == self.rank:
            self._rules.check_batch((call,))

    @cached_property
    def _rules(self) -> CallValidator:
        return CallValidator(self.backend, self.name, self.world_rank)

    def _check_open(self) -> None:
        if self._is_closed:
            raise CommunicatorError(f"the communicator of {self.name} is closed; make a new one", group=self.name)
        if self._owner is not None:
            self._owner._check_open()

    def _enter(self, is_collective: bool = True) -> None:
        self._check_open()
        if is_collective and self._on_enter is not None:
            self._on_enter()

    # -- life ----------------------------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int | None = None, *, name: str = "") -> Communicator | None:
        """Make one communicator per color. All ranks must call it.

        Parameters
        ----------
        color : int or None
            Ranks with the same color come together; None stays outside.
        key : int, optional
            Orders the ranks inside the new group; their order here by default.
        name : str, optional
            The name of the new group; this one's name and the color by default.

        Returns
        -------
        Communicator or None
            None for a rank without a color.

        Raises
        ------
        CommunicatorError
            If color or key is not a whole number, or a color is negative.

        Examples
        --------
        >>> import meshlab as ml
        >>> def halves(comm):
        ...     with comm.split(comm.rank // 2) as half:
        ...         return half.name, half.ranks
        >>> with ml.launch(4, backend="threads") as engines:
        ...     engines.run(halves)["value"].tolist()
        [('world/0', (0, 1)), ('world/0', (0, 1)), ('world/1', (2, 3)), ('world/1', (2, 3))]
        """
        for what, number in (("color", color), ("key", key)):
            if number is not None and (not isinstance(number, (int, np.integer)) or (what == "color" and number < 0)):
                raise CommunicatorError(f"split of {self.name}: {what} must be a whole number, not {number!r}")
        self._enter()
        backend = self.backend.split(None if color is None else int(color), self.rank if key is None else int(key))
        if backend is None:
            return None
        name = name or f"{self.name}/{color}"
        ranks = Communicator(backend, name=name, on_enter=self._on_enter)._share("all_gather", [self.world_rank])
        return Communicator(backend, name=name, ranks=ranks, on_enter=self._on_enter)

    def close(self) -> None:
        """Give the communicator back; all ranks must call it. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.backend.close()

    def abort(self) -> None:
        """End the communicator although other ranks do not answer any more; where the library cannot, forget it.

        On GPUs all communicators of this rank end with it, because they share what NCCL asks whether to go on.
        """
        if not self._is_closed:
            self._is_closed = True
            abort = getattr(self.backend, "abort", None)
            if abort is not None:
                abort()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"Communicator({self.name!r}, rank {self.rank} of {self.size}{state})"
