"""The collectives as methods, which `Communicator` and `Batch` share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from meshlab.comm._catalog import CATALOG, Collective
from meshlab.comm._elements import ReduceOp

# Global variables, because every call looks up its row.
_ALL_REDUCE = CATALOG["all_reduce"]
_ALL_GATHER = CATALOG["all_gather"]
_REDUCE_SCATTER = CATALOG["reduce_scatter"]
_ALL_TO_ALL = CATALOG["all_to_all"]
_ALL_TO_ALL_V = CATALOG["all_to_all_v"]
_BROADCAST = CATALOG["broadcast"]
_REDUCE = CATALOG["reduce"]
_GATHER = CATALOG["gather"]
_SCATTER = CATALOG["scatter"]
_SEND = CATALOG["send"]
_RECV = CATALOG["recv"]
_SEND_RECV = CATALOG["send_recv"]
_BARRIER = CATALOG["barrier"]


class CollectiveMethods(ABC):
    """One method per collective.

    Arrays are contiguous and in the memory of the backend (`xp`). All ranks of the group must agree on dtype, size,
    `op` and `root`. `root`, `dest` and `source` are ranks of the group. Without `out`, the methods return a new array.
    Pass `dtype` for an element type that the array module does not support, such as ``"float8_e4m3fn"`` in an array of
    uint8. An invalid call raises `CommunicatorError` before it starts.
    """

    @abstractmethod
    def _call(self, collective: Collective, send: Any = None, out: Any = None, *options: Any) -> Any:
        """Run or record a call and return this rank's output. `options` are further `CallArguments`, in their order."""
        # Positional options are in a tuple already. A value or keywords would add a fifth to the cost of a small call.

    def all_reduce(self, send: Any, out: Any = None, *, op: str | ReduceOp = "sum", dtype: Any = None) -> Any:
        """Reduce over all ranks. Every rank receives the result.

        Parameters
        ----------
        send : array
            The input, with the same shape on every rank.
        out : array, optional
            The array that receives the result. Pass `send` to work in place.
        op : {"sum", "prod", "min", "max", "avg"} or ReduceOp, default "sum"
            The reduce operation. See also `meshlab.comm.pre_mul_sum`. ``"min"`` and ``"max"`` ignore NaN: the result
            is NaN only if the inputs of all ranks are.
        dtype : str, optional
            The element type. By default that of `send`.

        Returns
        -------
        array
            `out`, with the shape of `send`.
        """
        return self._call(_ALL_REDUCE, send, out, dtype, op)

    def all_gather(self, send: Any, out: Any = None, *, dtype: Any = None) -> Any:
        """Concatenate the inputs of all ranks, in rank order, on every rank.

        Parameters
        ----------
        send : array
            The input, with the same shape on every rank. To work in place, pass this rank's chunk of `out`.
        out : array, optional
            The array that receives the result, with `size` times as many elements as `send`.
        dtype : str, optional
            The element type. By default that of `send`.

        Returns
        -------
        array
            `out`, or a new array in which the inputs are concatenated along the first dimension.
        """
        return self._call(_ALL_GATHER, send, out, dtype)

    def reduce_scatter(self, send: Any, out: Any = None, *, op: str | ReduceOp = "sum", dtype: Any = None) -> Any:
        """Reduce over all ranks. Rank i receives chunk i of the result.

        Parameters
        ----------
        send : array
            The input. Without `out`, its first dimension must be divisible by the number of ranks.
        out : array, optional
            The array that receives this rank's chunk. To work in place, pass this rank's chunk of `send`. The rest of
            `send` is then undefined.
        op, dtype
            As in `all_reduce`.

        Returns
        -------
        array
            `out`, with 1 / `size` times as many elements as `send`.
        """
        return self._call(_REDUCE_SCATTER, send, out, dtype, op)

    def all_to_all(self, send: Any, out: Any = None, *, dtype: Any = None) -> Any:
        """Send chunk i of the input to rank i and receive one chunk from every rank.

        Parameters
        ----------
        send : array
            One chunk per rank, concatenated. All chunks have the same size.
        out : array, optional
            The array that receives the chunks, in rank order. It has the size of `send` and must not overlap it.
        dtype : str, optional
            The element type. By default that of `send`.

        Returns
        -------
        array
            `out`, with the shape of `send`.
        """
        return self._call(_ALL_TO_ALL, send, out, dtype)

    def all_to_all_v(
        self,
        send: Any,
        out: Any = None,
        *,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        dtype: Any = None,
    ) -> Any:
        """Send a chunk of any size to every rank and receive one from every rank.

        Parameters
        ----------
        send : array
            One chunk per rank, concatenated.
        out : array, optional
            The array that receives the chunks, in rank order.
        send_counts : sequence of int
            The number of elements to send to each rank.
        recv_counts : sequence of int, optional
            The number of elements to receive from each rank. By default the ranks exchange their counts first. Pass
            `recv_counts` on all ranks or on none. Required in a batch.
        dtype : str, optional
            The element type. By default that of `send`.

        Returns
        -------
        array
            `out`. A new array has one dimension.
        """
        return self._call(_ALL_TO_ALL_V, send, out, dtype, None, None, None, None, 0, send_counts, recv_counts)

    def broadcast(self, send: Any, out: Any = None, *, root: int = 0, dtype: Any = None) -> Any:
        """Copy the root's input to every rank.

        Parameters
        ----------
        send : array
            The input on the root. On other ranks only its shape and dtype are used.
        out : array, optional
            The array that receives the result. Pass `send` to work in place.
        root : int, default 0
            The root.
        dtype : str, optional
            The element type. By default that of `send`.

        Returns
        -------
        array
            `out`, with the shape of `send`.
        """
        return self._call(_BROADCAST, send, out, dtype, None, root)

    def reduce(
        self, send: Any, out: Any = None, *, op: str | ReduceOp = "sum", root: int = 0, dtype: Any = None
    ) -> Any:
        """Reduce over all ranks. The root receives the result.

        Parameters
        ----------
        send : array
            The input, with the same shape on every rank.
        out : array, optional
            The array that receives the result on the root. Pass `send` to work in place. Unchanged on other ranks.
        op, root, dtype
            As in `all_reduce` and `broadcast`.

        Returns
        -------
        array or None
            `out`, with the shape of `send`, on the root. None on other ranks.
        """
        return self._call(_REDUCE, send, out, dtype, op, root)

    def gather(self, send: Any, out: Any = None, *, root: int = 0, dtype: Any = None) -> Any:
        """Concatenate the inputs of all ranks, in rank order, on the root.

        Parameters
        ----------
        send : array
            The input, with the same shape on every rank. To work in place, the root passes its chunk of `out`.
        out : array, optional
            The array that receives the result on the root. Unchanged on other ranks.
        root, dtype
            As in `broadcast`.

        Returns
        -------
        array or None
            On the root `out`, or a new array in which the inputs are concatenated along the first dimension. None on
            other ranks.
        """
        return self._call(_GATHER, send, out, dtype, None, root)

    def scatter(self, send: Any = None, out: Any = None, *, root: int = 0, dtype: Any = None) -> Any:
        """Send chunk i of the root's input to rank i.

        Parameters
        ----------
        send : array, optional
            The input on the root. Without `out`, its first dimension must be divisible by the number of ranks. On other
            ranks only its shape and dtype are used, and it can be omitted if `out` is given.
        out : array, optional
            The array that receives this rank's chunk. To work in place, the root passes its chunk of `send`.
        root, dtype
            As in `broadcast`.

        Returns
        -------
        array
            `out`, with 1 / `size` times as many elements as the root's `send`.
        """
        return self._call(_SCATTER, send, out, dtype, None, root)

    def send(self, send: Any, dest: int, *, tag: int = 0, dtype: Any = None) -> None:
        """Send the input to one rank, which must receive it.

        The call may block until that rank receives, so two ranks that both send first may deadlock. Use `send_recv` or
        a batch instead. Messages with the same tag arrive in order. A receive with a tag other than 0 keeps the earlier
        messages of its source, but one with tag 0 does not, so receive those that were sent before it first.

        Parameters
        ----------
        send : array
            The input.
        dest : int
            The receiving rank of the group.
        tag : int, default 0
            The tag, from 0 to ``capabilities().largest_tag``. NCCL has only tag 0.
        dtype : str, optional
            The element type. By default that of `send`.
        """
        self._call(_SEND, send, None, dtype, None, None, dest, None, tag)

    def recv(self, out: Any, source: int, *, tag: int = 0, dtype: Any = None) -> Any:
        """Receive the input of one rank, which must send it.

        Parameters
        ----------
        out : array
            The array that receives the data, with the same number of elements as the source sends.
        source : int
            The sending rank of the group.
        tag : int, default 0
            The tag of the message. NCCL has only tag 0.
        dtype : str, optional
            The element type. By default that of `out`.

        Returns
        -------
        array
            `out`.
        """
        return self._call(_RECV, None, out, dtype, None, None, None, source, tag)

    def send_recv(self, send: Any, out: Any = None, *, dest: int, source: int, tag: int = 0, dtype: Any = None) -> Any:
        """Send the input to one rank and receive the input of another rank simultaneously.

        Parameters
        ----------
        send : array
            The input. The source must send the same number of elements.
        out : array, optional
            The array that receives the data. It must not overlap `send`.
        dest, source : int
            The receiving and the sending rank of the group.
        tag : int, default 0
            The tag of both messages. NCCL has only tag 0.
        dtype : str, optional
            The element type. By default that of `send`.

        Returns
        -------
        array
            `out`, with the shape of `send`.
        """
        return self._call(_SEND_RECV, send, out, dtype, None, None, dest, source, tag)

    def barrier(self) -> None:
        """Wait until all ranks of the group have entered."""
        self._call(_BARRIER)
