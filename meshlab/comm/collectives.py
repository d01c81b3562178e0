"""The methods that a communicator and a batch share: one for each collective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from meshlab.comm.catalog import CATALOG, Collective
from meshlab.comm.elements import ReduceOp

__all__ = ["Calls"]


class Calls(ABC):
    """The collectives as methods.

    What holds for all of them: arrays are contiguous, in the backend's own memory (`xp`), and of a dtype and size that
    every rank of the group agrees on. `root`, `dest` and `source` are ranks of the group. `dtype` says what the
    elements are where the array module has no such type: bytes that carry ``"float8_e4m3fn"``. Where `out` is left out,
    a new array is made. A call that does not fit raises `CommunicatorError` before it starts.
    """

    @abstractmethod
    def _call(self, row: Collective, send: Any, out: Any, **arguments: Any) -> Any:
        """Make the call, or note it; give what this rank gets."""

    def all_reduce(self, send: Any, out: Any = None, *, op: str | ReduceOp = "sum", dtype: Any = None) -> Any:
        """Reduce over all ranks; every rank gets the result.

        Parameters
        ----------
        send : array
            The input, of the same shape on every rank.
        out : array, optional
            Where the result goes; `send` itself to work in place.
        op : {"sum", "prod", "min", "max", "avg"} or ReduceOp
            How values become one; `meshlab.comm.pre_mul_sum` makes one more.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`, of the shape of `send`.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(CATALOG["all_reduce"], send, out, op=op, dtype=dtype)

    def all_gather(self, send: Any, out: Any = None, *, dtype: Any = None) -> Any:
        """Put the inputs of all ranks one behind the other; every rank gets the whole.

        Parameters
        ----------
        send : array
            The input, of the same shape on every rank.
        out : array, optional
            Where the result goes, `size` times as many elements. To work in place, `send` is this rank's part of `out`.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`; a new one joins along the first dimension.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(CATALOG["all_gather"], send, out, dtype=dtype)

    def reduce_scatter(self, send: Any, out: Any = None, *, op: str | ReduceOp = "sum", dtype: Any = None) -> Any:
        """Reduce over all ranks; every rank gets its own part of the result.

        Parameters
        ----------
        send : array
            The input; its first dimension (or `out`) must divide by the number of ranks.
        out : array, optional
            Where this rank's part goes. To work in place, it is this rank's part of `send`; the rest of `send` is
            undefined afterwards.
        op : {"sum", "prod", "min", "max", "avg"} or ReduceOp
            How values become one; `meshlab.comm.pre_mul_sum` makes one more.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`, with `size` times fewer elements than `send`.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(CATALOG["reduce_scatter"], send, out, op=op, dtype=dtype)

    def all_to_all(self, send: Any, out: Any = None, *, dtype: Any = None) -> Any:
        """Give every rank its own part of the input, and get this rank's part of every input.

        Parameters
        ----------
        send : array
            As many equal parts as there are ranks, one behind the other.
        out : array, optional
            Where the parts of all ranks go, in their order; as large as `send`, and apart from it.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`, of the shape of `send`.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(CATALOG["all_to_all"], send, out, dtype=dtype)

    def all_to_all_v(
        self,
        send: Any,
        out: Any = None,
        *,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        dtype: Any = None,
    ) -> Any:
        """Give every rank a part of the input, of any size, and get this rank's part of every input.

        Parameters
        ----------
        send : array
            The parts for all ranks, one behind the other.
        out : array, optional
            Where the parts of all ranks go, in their order.
        send_counts : sequence of int
            How many elements each rank gets.
        recv_counts : sequence of int, optional
            How many elements come from each rank. Where all ranks leave it out, they tell each other first, with an
            all_to_all of the counts; in a batch it is needed.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`; a new one has one dimension.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(
            CATALOG["all_to_all_v"], send, out, send_counts=send_counts, recv_counts=recv_counts, dtype=dtype
        )

    def broadcast(self, send: Any, out: Any = None, *, root: int = 0, dtype: Any = None) -> Any:
        """Give every rank the root's input.

        Parameters
        ----------
        send : array
            The input on the root; elsewhere only its shape and dtype count.
        out : array, optional
            Where the result goes; `send` itself to work in place.
        root : int, default 0
            A rank of the group.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`, of the shape of `send`.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(CATALOG["broadcast"], send, out, root=root, dtype=dtype)

    def reduce(
        self, send: Any, out: Any = None, *, op: str | ReduceOp = "sum", root: int = 0, dtype: Any = None
    ) -> Any:
        """Reduce over all ranks; the root gets the result.

        Parameters
        ----------
        send : array
            The input, of the same shape on every rank.
        out : array, optional
            Where the result goes on the root; `send` itself to work in place. Elsewhere it stays as it is.
        op : {"sum", "prod", "min", "max", "avg"} or ReduceOp
            How values become one; `meshlab.comm.pre_mul_sum` makes one more.
        root : int, default 0
            A rank of the group.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array or None
            `out`, of the shape of `send`, on the root; None elsewhere.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(CATALOG["reduce"], send, out, op=op, root=root, dtype=dtype)

    def gather(self, send: Any, out: Any = None, *, root: int = 0, dtype: Any = None) -> Any:
        """Put the inputs of all ranks one behind the other; the root gets the whole.

        Parameters
        ----------
        send : array
            The input, of the same shape on every rank.
        out : array, optional
            Where the result goes on the root, `size` times as many elements. To work in place, the root's `send` is its
            part of `out`. Elsewhere it stays as it is.
        root : int, default 0
            A rank of the group.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array or None
            `out` on the root, where a new one joins along the first dimension; None elsewhere.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(CATALOG["gather"], send, out, root=root, dtype=dtype)

    def scatter(self, send: Any = None, out: Any = None, *, root: int = 0, dtype: Any = None) -> Any:
        """Give every rank its own part of the root's input.

        Parameters
        ----------
        send : array, optional
            The input on the root; its first dimension (or `out`) must divide by the number of ranks. Elsewhere only its
            shape and dtype count, and it may be left out where `out` is given.
        out : array, optional
            Where this rank's part goes. To work in place, the root's is its part of `send`.
        root : int, default 0
            A rank of the group.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`, with `size` times fewer elements than the root's `send`.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        return self._call(CATALOG["scatter"], send, out, root=root, dtype=dtype)

    def send(self, send: Any, dest: int, *, dtype: Any = None) -> None:
        """Give the input to one rank, which must receive it.

        It may wait for the other side, so two ranks that both send first wait for ever: use `send_recv` or a batch.

        Parameters
        ----------
        send : array
            The input.
        dest : int
            A rank of the group.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then.
        """
        self._call(CATALOG["send"], send, None, dest=dest, dtype=dtype)

    def recv(self, out: Any, source: int, *, dtype: Any = None) -> Any:
        """Get what one rank sends.

        Parameters
        ----------
        out : array
            Where it goes; as large as what is sent.
        source : int
            A rank of the group.
        dtype : optional
            What `out` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then. Also if what comes
            has another size.
        """
        return self._call(CATALOG["recv"], None, out, source=source, dtype=dtype)

    def send_recv(self, send: Any, out: Any = None, *, dest: int, source: int, dtype: Any = None) -> Any:
        """Give the input to one rank and get that of another, at once.

        Parameters
        ----------
        send : array
            The input, as large as what comes.
        out : array, optional
            Where the other rank's input goes; apart from `send`.
        dest, source : int
            To whom, and from whom; ranks of the group.
        dtype : optional
            What `send` carries, where its own dtype does not say it.

        Returns
        -------
        array
            `out`, of the shape of `send`.

        Raises
        ------
        CommunicatorError
            If an argument does not fit, or the library cannot do it; the call is not started then. Also if what comes
            has another size.
        """
        return self._call(CATALOG["send_recv"], send, out, dest=dest, source=source, dtype=dtype)

    def barrier(self) -> None:
        """Wait until every rank of the group is here."""
        self._call(CATALOG["barrier"], None, None)
