"""What a call must fulfil before a library sees it: every refusal names the argument, its value and the cure."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from meshlab.comm.backend import Backend, Call
from meshlab.comm.catalog import Collective
from meshlab.comm.elements import OPS, ReduceOp, find_dtype, find_op, scalar_in
from meshlab.errors import CommunicatorError

__all__ = ["CallValidator", "disagreement", "fingerprint", "signature"]


class CallValidator:
    """Turns the arguments of a call into a checked `Call`.

    Parameters
    ----------
    backend : Backend
        Says what can be done.
    group : str
        The group's name.
    world_rank : int
        This rank's number in the world.
    """

    def __init__(self, backend: Backend, group: str, world_rank: int) -> None:
        can = backend.capabilities()
        self._can = can
        self._group = group
        self._world_rank = world_rank
        self._rank = backend.rank
        self._size = backend.size
        self._xp = backend.xp
        self._array_type = backend.xp.ndarray
        self._device = backend.device
        self._collectives = frozenset(can.collectives)
        self._dtypes = {find_dtype(name) for name in can.dtypes}
        reducible = can.dtypes if can.reduce_dtypes is None else can.reduce_dtypes
        self._reducible = {find_dtype(name) for name in reducible}
        self._plain_ops = {name: OPS[name] for name in can.ops if name != "pre_mul_sum"}

    def check(
        self,
        row: Collective,
        send: Any,
        out: Any,
        *,
        op: str | ReduceOp | None = None,
        root: int | None = None,
        dest: int | None = None,
        source: int | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        dtype: Any = None,
        makes_output: bool = False,
    ) -> Call:
        """Check one call.

        Parameters
        ----------
        row : Collective
            What is called.
        send, out : array or None
            The arrays given.
        op, root, dest, source, send_counts, recv_counts, dtype
            The other arguments; None where not given.
        makes_output : bool, default False
            Whether to make the output when none is given.

        Returns
        -------
        Call

        Raises
        ------
        CommunicatorError
            If something does not fit.
        """
        if row.name not in self._collectives:
            self.refuse(row, f"{self._can.backend} has no {row.name}; it has {', '.join(self._can.collectives)}")
        is_root = True
        if row.rooted:
            root = self._rank_of_group(row, "root", 0 if root is None else root)
            is_root = root == self._rank
        elif root is not None:
            self.refuse(row, f"it has no root, so root={root!r} has no meaning; leave it out")
        if row.peers or dest is not None or source is not None:
            dest, source = self._peers(row, dest, source)
        if op is not None and not row.reduces:
            self.refuse(row, f"it reduces nothing, so op={op!r} has no meaning; leave it out")
        if not row.counted and not (send_counts is None and recv_counts is None):
            self.refuse(row, "all parts have the same size; leave send_counts and recv_counts out")
        if send is not None and row.sends == "nothing":
            self.refuse(row, "it sends nothing; leave the input out")
        if out is not None and row.receives == "nothing":
            self.refuse(row, "it receives nothing; leave out= out")
        if row.sends == row.receives == "nothing":
            return Call(row, None, None, 0, None, None, None, False)

        # The root's input, and the output, may also be given where they are not used; they are checked all the same.
        has_send, has_recv = row.has("sends", is_root), row.has("receives", is_root)
        if send is not None or has_send:
            self._array(row, "the input", send)
        if out is not None:
            self._array(row, "out", out)
        elif has_recv and not (makes_output and send is not None):
            self._refuse_no_output(row, makes_output)
        element = self._dtype(row, send, out, dtype)
        counts = self._counts(row, send, send_counts, recv_counts) if row.counted else (None, None)
        if out is None and has_recv:
            out = self._new_output(row, send, counts[1])
        count = self._count(row, send, out, counts)
        if has_recv and isinstance(out, np.ndarray) and not out.flags.writeable:
            self.refuse(row, "out is read-only; give an array that can be written")
        op_name, scalar = self._op(row, op, element)
        send, recv = (send if has_send else None), (out if has_recv else None)
        in_place = send is not None and recv is not None and self._shares_memory(row, send, recv, count)
        return Call(
            row, send, recv, count, element, op_name, root, in_place, scalar, dest, source, counts[0], counts[1]
        )

    def check_send_counts(self, row: Collective, send: Any, send_counts: Any) -> tuple[int, ...]:
        """Check how an input is cut, before the other ranks are told."""
        self._array(row, "the input", send)
        counts = self._whole_numbers(row, "send_counts", send_counts)
        self._sum_of_counts(row, "send_counts", counts, "the input", send)
        return counts

    def check_batch(self, calls: Sequence[Call]) -> None:
        """Check what only several calls together can get wrong.

        Raises
        ------
        CommunicatorError
            If an output overlaps the buffer of another call, or this rank sends to itself what it does not receive.
        """
        spans = []
        for number, call in enumerate(calls):
            if call.in_place:  # the smaller array lies in the larger one
                larger = call.send if call.send.size > call.recv.size else call.recv
                spans.append((*_span(larger), True, number))
                continue
            for array, is_written in ((call.send, False), (call.recv, True)):
                if array is not None and array.size:
                    spans.append((*_span(array), is_written, number))
        reach = written_reach = (0, 0)  # how far the buffers so far go, and whose is the farthest
        for start, end, is_written, number in sorted(spans):
            for far, earlier in [written_reach] + [reach] * is_written:
                if start < far:
                    self.refuse(
                        calls[number].collective,
                        f"its buffer overlaps that of {calls[earlier].collective.name} in the same batch, and one of "
                        "them is written; the calls of a batch have no order, so give each buffers of its own",
                    )
            reach = max(reach, (end, number))
            written_reach = max(written_reach, (end, number)) if is_written else written_reach
        own_sends = [call for call in calls if call.dest == self._rank]
        own_recvs = [call for call in calls if call.source == self._rank]
        for sent, received in zip(own_sends, own_recvs, strict=False):
            if (sent.count, sent.dtype) != (received.count, received.dtype):
                self.refuse(
                    received.collective,
                    f"this rank sends itself {sent.count} {sent.dtype}, but receives {received.count} {received.dtype}",
                )
        if len(own_sends) != len(own_recvs):
            self.refuse(
                (own_sends or own_recvs)[-1].collective,
                f"this rank sends itself {len(own_sends)} message(s), and receives {len(own_recvs)} from itself; it "
                "would wait for itself unless one batch holds both",
            )

    def refuse(self, row: Collective, message: str) -> NoReturn:
        """Raise an error that names the collective and the group."""
        raise CommunicatorError(
            f"{row.name} on {self._group}: {message}",
            collective=row.name,
            group=self._group,
            rank=self._world_rank,
        )

    # -- arrays --------------------------------------------------------------------------------------------------------

    def _array(self, row: Collective, name: str, array: Any) -> None:
        if not isinstance(array, self._array_type):
            module = self._xp.__name__
            self.refuse(
                row, f"{name} must be a {module} array, not {type(array).__name__}; {module}.asarray() makes one"
            )
        if not array.flags.c_contiguous:
            self.refuse(row, f"{name} is not contiguous (shape {array.shape}, strides {array.strides}); copy it first")
        if self._device is not None and array.device.id != self._device:
            self.refuse(
                row, f"{name} is on GPU {array.device.id}, but this rank works on GPU {self._device}; move it there"
            )

    def _refuse_no_output(self, row: Collective, makes_output: bool) -> NoReturn:
        if row.only_root == "sends" and makes_output:
            self.refuse(row, "this rank needs out=, or an input of the root's shape, to know how much it will get")
        if makes_output:
            self.refuse(row, "it needs out=, where what comes can go")
        self.refuse(row, "prepare() needs out=, because the call is made again and again on the same arrays")

    def _dtype(self, row: Collective, send: Any, out: Any, asked: Any) -> np.dtype[Any]:
        given: np.dtype[Any] = out.dtype if send is None else send.dtype
        if out is not None and out.dtype != given:
            self.refuse(row, f"out is {out.dtype}, but the input is {given}; give both the same dtype")
        element = find_dtype(given if asked is None else asked)
        if element != given and given != np.dtype(f"u{element.itemsize}"):
            self.refuse(
                row, f"dtype={element} can be carried by arrays of {element} or uint{8 * element.itemsize}, not {given}"
            )
        allowed = self._reducible if row.reduces else self._dtypes
        if element not in allowed:
            does = "reduce" if row.reduces else "carry"
            names = ", ".join(sorted(dtype.name for dtype in allowed))
            self.refuse(row, f"{self._can.backend} does not {does} {element}; it does {names}")
        return element

    def _new_output(self, row: Collective, send: Any, recv_counts: tuple[int, ...] | None) -> Any:
        n, shape = self._size, send.shape
        if recv_counts is not None:
            return self._xp.empty(sum(recv_counts), send.dtype)
        if row.sends == row.receives:
            return self._xp.empty(shape, send.dtype)
        if row.receives == "count x n":
            first, *rest = shape or (1,)
            return self._xp.empty((first * n, *rest), send.dtype)
        if not shape or shape[0] % n:
            self.refuse(
                row,
                f"the input's first dimension is {shape[0] if shape else 0}, which does not divide by the {n} ranks of "
                f"{self._group}; pad it, or give out=",
            )
        return self._xp.empty((shape[0] // n, *shape[1:]), send.dtype)

    def _shares_memory(self, row: Collective, send: Any, recv: Any, count: int) -> bool:
        if self._xp is np and not np.may_share_memory(send, recv):
            return False
        start, end = _pointer(send), _pointer(recv)
        if end + recv.nbytes <= start or start + send.nbytes <= end:
            return False
        if not row.in_place:
            self.refuse(row, "the input and out overlap, and it cannot work in place; give arrays that do not overlap")
        own = self._rank * count * send.dtype.itemsize
        expected = own * (row.sends == "count x n") - own * (row.receives == "count x n")
        if end - start != expected:
            self.refuse(
                row,
                "the input and out overlap, but not at the place that in-place calls have"
                + (f" (byte {abs(expected)}, given {abs(end - start)})" if expected or end - start else "")
                + "; give arrays that do not overlap",
            )
        return True

    # -- counts --------------------------------------------------------------------------------------------------------

    def _count(
        self, row: Collective, send: Any, out: Any, counts: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    ) -> int:
        if counts[0] is not None and counts[1] is not None:
            self._sum_of_counts(row, "recv_counts", counts[1], "out", out)
            return sum(counts[0])
        n = self._size
        if row.sends == "count" and send is not None:
            count: int = send.size
            first = "the input"
        elif row.receives == "count" and out is not None:
            count = out.size
            first = "out"
        else:
            count, rest = divmod(send.size, n)
            first = "the input"
            if rest:
                self.refuse(
                    row, f"the input has {send.size} elements, which do not divide by the {n} ranks of {self._group}"
                )
        if send is not None and send.size != (wanted := row.elements("sends", count, n)):
            self._refuse_size(row, "the input", send, first, count, wanted)
        if out is not None and out.size != (wanted := row.elements("receives", count, n)):
            self._refuse_size(row, "out", out, first, count, wanted)
        return count

    def _refuse_size(self, row: Collective, name: str, array: Any, other: str, count: int, wanted: int) -> NoReturn:
        self.refuse(
            row,
            f"{name} has {array.size} elements, but {other} with {count} on {self._size} ranks needs {wanted}",
        )

    def _counts(
        self, row: Collective, send: Any, send_counts: Any, recv_counts: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if recv_counts is None:
            self.refuse(row, f"it needs recv_counts: how many elements come from each of the {self._size} ranks")
        return (
            self.check_send_counts(row, send, send_counts),
            self._whole_numbers(row, "recv_counts", recv_counts),
        )

    def _whole_numbers(self, row: Collective, name: str, counts: Any) -> tuple[int, ...]:
        given: npt.NDArray[Any] = np.asarray(counts.get() if hasattr(counts, "get") else counts)
        if given.shape != (self._size,) or given.dtype.kind not in "iu" or (given < 0).any():
            self.refuse(
                row, f"{name} must be {self._size} whole numbers, one for each rank of {self._group}, not {counts!r}"
            )
        return tuple(given.tolist())

    def _sum_of_counts(self, row: Collective, name: str, counts: tuple[int, ...], array_name: str, array: Any) -> None:
        if sum(counts) != array.size:
            shape = f" (shape {array.shape}: counts are elements, not rows)" if array.ndim > 1 else ""
            self.refuse(row, f"{name} add up to {sum(counts)}, but {array_name} has {array.size} elements{shape}")

    # -- operations and ranks ------------------------------------------------------------------------------------------

    def _op(
        self, row: Collective, op: str | ReduceOp | None, dtype: np.dtype[Any]
    ) -> tuple[str | None, npt.NDArray[Any] | None]:
        if not row.reduces:
            return None, None
        if op is None:
            op = "sum"
        if isinstance(op, str) and op in self._plain_ops:
            return op, None
        known = find_op(op)
        if known.name not in self._can.ops:
            self.refuse(row, f"{self._can.backend} has no {known.name}; it has {', '.join(self._can.ops)}")
        return known.name, scalar_in(known, dtype)

    def _peers(self, row: Collective, dest: int | None, source: int | None) -> tuple[int | None, int | None]:
        peers: list[int | None] = []
        for name, rank in (("dest", dest), ("source", source)):
            if name not in row.peers:
                if rank is not None:
                    self.refuse(row, f"it has no {name}, so {name}={rank!r} has no meaning; leave it out")
                peers.append(None)
            else:
                if rank is None:
                    self.refuse(row, f"it needs {name}=, a rank of the group, 0 to {self._size - 1} in {self._group}")
                peers.append(self._rank_of_group(row, name, rank))
        return peers[0], peers[1]

    def _rank_of_group(self, row: Collective, name: str, rank: Any) -> int:
        try:
            number = operator.index(rank)
        except TypeError:
            self.refuse(row, f"the {name} must be a whole number, not {rank!r}")
        if not 0 <= number < self._size:
            self.refuse(
                row,
                f"{name} {number} does not exist; give a rank of the group, 0 to {self._size - 1} in {self._group}",
            )
        return number


def _span(array: Any) -> tuple[int, int]:
    start = _pointer(array)
    return start, start + int(array.nbytes)


def _pointer(array: Any) -> int:
    return int(array.__array_interface__["data"][0]) if isinstance(array, np.ndarray) else int(array.data.ptr)


def signature(calls: Sequence[Call]) -> str:
    """What must be the same on every rank, as text: collective, count, dtype, operation and root; or ``"split"``.

    Sends and receives are between two ranks and leave no trace. The scalar of ``pre_mul_sum`` is each rank's own.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm.catalog import CATALOG
    >>> signature([Call(CATALOG["all_reduce"], None, None, 8, np.dtype("float32"), "sum", None, False)])
    'all_reduce count=8 dtype=float32 op=sum'
    """
    if not calls:
        return "split"
    return ", ".join([_text(*_facts(call)) for call in calls if not call.collective.peers])


def fingerprint(calls: Sequence[Call]) -> int:
    """The signature as a number, quickly: the same for the same, and different for what differs, but one in 2**32."""
    if len(calls) == 1:
        return _number(*_facts(calls[0]))
    return zlib.crc32(signature(calls).encode())


def _facts(call: Call) -> tuple[Any, ...]:
    row, dtype = call.collective, call.dtype
    return row.name, None if dtype is None or row.counted else call.count, dtype, call.op, call.root


def _text(name: str, count: int | None, dtype: Any, op: str | None, root: int | None) -> str:
    told = {"count": count, "dtype": dtype, "op": op, "root": root}
    return " ".join([name, *(f"{what}={value}" for what, value in told.items() if value is not None)])


@lru_cache(maxsize=1024)
def _number(*facts: Any) -> int:
    return zlib.crc32(_text(*facts).encode())


def disagreement(rank: int, calls: str, other: int, other_calls: str) -> CommunicatorError:
    """The error for ranks of a group that do not make the same call."""
    if rank > other:
        rank, calls, other, other_calls = other, other_calls, rank, calls
    return CommunicatorError(
        f"ranks disagree: rank {rank} of the group calls {calls}, rank {other} calls {other_calls}; "
        "every rank must make the same call"
    )
