"""Communicator: the one class that users call collectives on, whatever the backend."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Prepared, Timings
from meshlab.comm.catalog import CATALOG, Collective, find_collective, find_dtype, find_op
from meshlab.errors import CommunicatorError

__all__ = ["Communicator", "PreparedCall"]


class PreparedCall:
    """A call that was checked once and can be made many times.

    It works on the arrays it was prepared with. Every rank of the group must make it the same number of times.
    """

    def __init__(self, communicator: Communicator, call: Call, prepared: Prepared) -> None:
        self._communicator = communicator
        self._prepared = prepared
        self.call = call

    def __call__(self) -> None:
        """Make the call."""
        self._communicator._enter()
        self._prepared()

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

    def __repr__(self) -> str:
        call = self.call
        details = [f"count={call.count}"] + [
            f"{name}={value}" for name in ("dtype", "op", "root") if (value := getattr(call, name)) is not None
        ]
        return f"<{call.collective.name} {' '.join(details)} on {self._communicator.name}>"


class Communicator:
    """A group of ranks that can talk: collectives on arrays in the backend's own memory (`xp`).

    Roots are ranks of the group. Every rank of the group must make the same calls in the same order.

    Parameters
    ----------
    backend : Backend
        This rank's end in a library.
    name : str, default "world"
        The group's name.
    ranks : sequence of int, optional
        The global ranks of the group, in order; 0, 1, … by default.
    on_enter : callable, optional
        Called before every collective; engines count calls with it.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm.threads import ThreadWorld
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
        self._backend = backend
        self._on_enter = on_enter
        self._is_closed = False
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
        return self._backend.xp

    @property
    def world_rank(self) -> int:
        """The number of this rank in the world."""
        return self.ranks[self.rank]

    def capabilities(self) -> Capabilities:
        """What the backend and its library can do."""
        return self._backend.capabilities()

    # -- collectives ---------------------------------------------------------------------------------------------------

    def all_reduce(self, send: Any, out: Any = None, *, op: str = "sum") -> Any:
        """Reduce over all ranks; every rank gets the result.

        Parameters
        ----------
        send : array
            The input, of the same shape on every rank.
        out : array, optional
            Where the result goes; `send` itself to work in place. A new array by default.
        op : {"sum", "min", "max"}
            How values become one.

        Returns
        -------
        array
            `out`, of the shape of `send`.

        Raises
        ------
        CommunicatorError
            If an array, a dtype or the operation does not fit; the call is not started then.
        """
        return self._call("all_reduce", send, out, op=op)

    def all_gather(self, send: Any, out: Any = None) -> Any:
        """Put the inputs of all ranks one behind the other; every rank gets the whole.

        Parameters
        ----------
        send : array
            The input, of the same shape on every rank.
        out : array, optional
            Where the result goes, `size` times as many elements. To work in place, `send` is this rank's part of `out`.

        Returns
        -------
        array
            `out`; a new one joins along the first dimension.

        Raises
        ------
        CommunicatorError
            If an array or a dtype does not fit; the call is not started then.
        """
        return self._call("all_gather", send, out)

    def reduce_scatter(self, send: Any, out: Any = None, *, op: str = "sum") -> Any:
        """Reduce over all ranks; every rank gets its own part of the result.

        Parameters
        ----------
        send : array
            The input; its first dimension (or `out`) must divide by the number of ranks.
        out : array, optional
            Where this rank's part goes. To work in place, it is this rank's part of `send`; the rest of `send` is
            undefined afterwards.
        op : {"sum", "min", "max"}
            How values become one.

        Returns
        -------
        array
            `out`, with `size` times fewer elements than `send`.

        Raises
        ------
        CommunicatorError
            If an array, a dtype or the operation does not fit; the call is not started then.
        """
        return self._call("reduce_scatter", send, out, op=op)

    def broadcast(self, send: Any, out: Any = None, *, root: int = 0) -> Any:
        """Give every rank the root's input.

        Parameters
        ----------
        send : array
            The input on the root; elsewhere only its shape and dtype count.
        out : array, optional
            Where the result goes; `send` itself to work in place. A new array by default.
        root : int, default 0
            A rank of the group.

        Returns
        -------
        array
            `out`, of the shape of `send`.

        Raises
        ------
        CommunicatorError
            If an array, a dtype or the root does not fit; the call is not started then.
        """
        return self._call("broadcast", send, out, root=root)

    def barrier(self) -> None:
        """Wait until every rank of the group is here."""
        self._call("barrier", None, None)

    def prepare(
        self, collective: str, send: Any = None, out: Any = None, *, op: str | None = None, root: int | None = None
    ) -> PreparedCall:
        """Check a call once, to make it many times.

        Parameters
        ----------
        collective : str
            Its name, such as ``"all_reduce"``.
        send, out : array
            As in the collective's own method; both are needed, but for a barrier.
        op : str, optional
            The reduce operation, ``"sum"`` where one is needed and none is given.
        root : int, optional
            The root, 0 where one is needed and none is given.

        Returns
        -------
        PreparedCall

        Raises
        ------
        CommunicatorError
            If something does not fit.
        """
        row = find_collective(collective)
        if row.sends != "nothing" and out is None:
            raise self._error(row, "prepare() needs out=, because the call is made again and again on the same arrays")
        return self._prepare(row, send, out, op=op, root=root)

    def _call(self, collective: str, send: Any, out: Any, *, op: str | None = None, root: int | None = None) -> Any:
        row = CATALOG[collective]
        if row.sends != "nothing" and out is None:
            out = self._new_output(row, self._check_array(row, "the input", send))
        self._prepare(row, send, out, op=op, root=root)()
        return out

    def _prepare(
        self, row: Collective, send: Any, out: Any, *, op: str | None = None, root: int | None = None
    ) -> PreparedCall:
        call = self._check(row, send, out, op, root)
        return PreparedCall(self, call, self._backend.prepare(call))

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check(self, row: Collective, send: Any, out: Any, op: str | None, root: int | None) -> Call:
        self._check_open()
        if row.sends == "nothing":
            return Call(row, None, None, 0, None, None, None, False)
        self._check_array(row, "the input", send)
        self._check_array(row, "out", out)
        if send.dtype != out.dtype:
            raise self._error(row, f"out is {out.dtype}, but the input is {send.dtype}; give both the same dtype")
        dtype = find_dtype(send.dtype)
        if not out.flags.writeable:
            raise self._error(row, "out is read-only; give an array that can be written")
        count = self._check_counts(row, send, out)
        if row.reduces:
            op = find_op("sum" if op is None else op).name
        elif op is not None:
            raise self._error(row, f"it reduces nothing, so op={op!r} has no meaning; leave it out")
        if row.rooted:
            root = self._check_root(row, 0 if root is None else root)
        elif root is not None:
            raise self._error(row, f"it has no root, so root={root!r} has no meaning; leave it out")
        return Call(row, send, out, count, dtype, op, root, self._check_overlap(row, send, out, count))

    def _check_array(self, row: Collective, name: str, array: Any) -> Any:
        kind = self.xp.ndarray
        if not isinstance(array, kind):
            module = self.xp.__name__
            raise self._error(
                row, f"{name} must be a {module} array, not {type(array).__name__}; {module}.asarray() makes one"
            )
        if not array.flags.c_contiguous:
            raise self._error(
                row, f"{name} is not contiguous (shape {array.shape}, strides {array.strides}); copy it first"
            )
        return array

    def _check_counts(self, row: Collective, send: Any, out: Any) -> int:
        if row.sends == "count x n":
            count: int = out.size
            wanted, given = count * self.size, send.size
            name, other = "the input", "out"
        else:
            count = send.size
            wanted, given = row.elements("receives", count, self.size), out.size
            name, other = "out", "the input"
        if wanted != given:
            raise self._error(
                row,
                f"{name} has {given} elements, but {other} with {count} on {self.size} ranks needs {wanted}",
            )
        return count

    def _check_root(self, row: Collective, root: int) -> int:
        try:
            number = operator.index(root)
        except TypeError:
            raise self._error(row, f"the root must be a whole number, not {root!r}") from None
        if not 0 <= number < self.size:
            raise self._error(
                row, f"root {number} does not exist; roots are ranks of the group, 0 to {self.size - 1} in {self.name}"
            )
        return number

    def _check_overlap(self, row: Collective, send: Any, out: Any, count: int) -> bool:
        if self.xp is np and not np.may_share_memory(send, out):
            return False
        start, end = _pointer(send), _pointer(out)
        if end + out.nbytes <= start or start + send.nbytes <= end:
            return False
        own = self.rank * count * send.dtype.itemsize
        expected = {"count": {"count": 0, "count x n": -own}, "count x n": {"count": own}}[row.sends][row.receives]
        if end - start != expected:
            raise self._error(
                row,
                "the input and out overlap, but not at the place that in-place calls have"
                + (f" (byte {abs(expected)}, given {abs(end - start)})" if expected or end - start else "")
                + "; give arrays that do not overlap",
            )
        return True

    def _new_output(self, row: Collective, send: Any) -> Any:
        if row.sends == "count x n":
            first = send.shape[0] if send.ndim else 0
            if not send.ndim or first % self.size:
                raise self._error(
                    row,
                    f"the input's first dimension is {first}, which does not divide by the {self.size} ranks of "
                    f"{self.name}; pad it, or give out=",
                )
            return self.xp.empty((first // self.size, *send.shape[1:]), send.dtype)
        if row.receives == "count x n":
            first, *rest = send.shape or (1,)
            return self.xp.empty((first * self.size, *rest), send.dtype)
        return self.xp.empty_like(send)

    def _error(self, row: Collective, message: str) -> CommunicatorError:
        return CommunicatorError(
            f"{row.name} on {self.name}: {message}", collective=row.name, group=self.name, rank=self.world_rank
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise CommunicatorError(f"the communicator of {self.name} is closed; make a new one", group=self.name)

    def _enter(self) -> None:
        self._check_open()
        if self._on_enter is not None:
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
        """
        self._enter()
        backend = self._backend.split(color, self.rank if key is None else key)
        if backend is None:
            return None
        child = Communicator(backend, name=name or f"{self.name}/{color}", on_enter=self._on_enter)
        mine = self.xp.asarray([self.world_rank], dtype=np.int64)
        child.ranks = tuple(int(rank) for rank in child.all_gather(mine))
        return child

    def close(self) -> None:
        """Give the communicator back; all ranks must call it. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._backend.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"Communicator({self.name!r}, rank {self.rank} of {self.size}{state})"


def _pointer(array: Any) -> int:
    return int(array.__array_interface__["data"][0]) if isinstance(array, np.ndarray) else int(array.data.ptr)
