"""Checks of a call before it reaches a library. Every error names the argument, its value and the fix."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, TypedDict

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import Direction
from meshlab.base._errors import CommunicatorError, did_you_mean
from meshlab.comm._backend import CTA_POLICIES, PROTOCOLS, Backend, Call, CallConfig
from meshlab.comm._catalog import Collective
from meshlab.comm._compositions import with_compositions
from meshlab.comm._elements import OPS, ReduceOp, find_dtype, find_op, scalar_in


class PreparedOptions(TypedDict, total=False):
    """The keyword arguments of `Communicator.prepare`, which documents them."""

    op: str | ReduceOp | None
    root: int | None
    dest: int | None
    source: int | None
    send_counts: Sequence[int] | None
    recv_counts: Sequence[int] | None
    tag: int
    dtype: Any


class CallArguments(NamedTuple):
    """The arguments of a call before they are checked, as `Communicator.prepare` documents them."""

    collective: Collective
    send: Any = None
    out: Any = None
    dtype: Any = None
    op: str | ReduceOp | None = None
    root: int | None = None
    dest: int | None = None
    source: int | None = None
    tag: int = 0
    send_counts: Sequence[int] | None = None
    recv_counts: Sequence[int] | None = None


OPTION_DEFAULTS = {name: CallArguments._field_defaults[name] for name in PreparedOptions.__annotations__}


class CallValidator:
    """Turns the arguments of a call into a checked `Call`. Errors name the `group` and the `world_rank`."""

    def __init__(self, backend: Backend, group: str, world_rank: int) -> None:
        can = with_compositions(backend.capabilities())
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

    def check(self, arguments: CallArguments, *, makes_output: bool = False) -> Call:
        """Return the checked call, with all defaults. With `makes_output`, it has a new output if `out` is None."""
        row, send, out, dtype, op, root, dest, source, tag, send_counts, recv_counts = arguments
        if row.name not in self._collectives:
            fact = self._can.facts.get(row.name, "")
            why = fact.removeprefix("no") if fact.startswith("no: ") else ""
            self.reject(
                row,
                f"{self._can.backend} does not support {row.name}{why}; choose one of "
                f"{', '.join(self._can.collectives)}",
            )
        is_root = True
        if row.rooted:
            root = self._rank_of_group(row, "root", 0 if root is None else root)
            is_root = root == self._rank
        elif root is not None:
            self.reject(row, f"the collective has no root, but root={root!r} was given; omit root=")
        if row.peers or dest is not None or source is not None:
            dest, source = self._peers(row, dest, source)
        if tag.__class__ is not int or tag:
            tag = self._tag(row, tag)
        if op is not None and not row.reduces:
            self.reject(row, f"the collective does not reduce, but op={op!r} was given; omit op=")
        if not row.counted and not (send_counts is None and recv_counts is None):
            self.reject(row, "all chunks have the same size, but counts were given; omit send_counts= and recv_counts=")
        if send is not None and row.sends == "nothing":
            self.reject(row, "the collective has no input, but one was given; omit it")
        if out is not None and row.receives == "nothing":
            self.reject(row, "the collective has no output, but out= was given; omit it")
        if row.sends == row.receives == "nothing":
            return Call(row, None, None, 0, None, None, None, False)

        # All ranks may pass both arrays, so that the same line works on the root and elsewhere. An array that is not
        # used on this rank is checked too, because a mistake in it would otherwise show only with a different root.
        has_send, has_recv = row.has("sends", is_root), row.has("receives", is_root)
        if send is not None or has_send:
            self._array(row, "the input", send)
        if out is not None:
            self._array(row, "out", out)
        elif has_recv and not (makes_output and send is not None):
            self._reject_no_output(row, makes_output)
        element = self._dtype(row, send, out, dtype)
        counts = self._counts(arguments) if row.counted else (None, None)
        if out is None and has_recv:
            out = self._new_output(row, send, counts[1])
        count = self._count(row, send, out, counts)
        if has_recv and isinstance(out, np.ndarray) and not out.flags.writeable:
            self.reject(row, "out is read-only; pass a writable array")
        op_name, scalar = self._op(row, op, element)
        send, recv = (send if has_send else None), (out if has_recv else None)
        in_place = send is not None and recv is not None and self._is_in_place(row, send, recv, count)
        return Call(
            row, send, recv, count, element, op_name, root, in_place, scalar, dest, source, counts[0], counts[1], tag
        )

    def check_send_counts(self, arguments: CallArguments) -> tuple[int, ...]:
        """Return the checked send counts, before they are sent to other ranks."""
        row, send = arguments.collective, arguments.send
        self._array(row, "the input", send)
        counts = self._integers(row, "send_counts", arguments.send_counts)
        self._sum_of_counts(row, "send_counts", counts, "the input", send)
        return counts

    def check_batch(self, calls: Sequence[Call]) -> None:
        """Raise if an output overlaps a buffer of another call, or the messages of this rank to itself do not match."""
        buffers = []
        for number, call in enumerate(calls):
            if call.in_place:  # the smaller array is part of the larger one
                larger = call.send if call.send.size > call.recv.size else call.recv
                buffers.append((*_byte_range(larger), True, number))
                continue
            for array, is_written in ((call.send, False), (call.recv, True)):
                if array is not None and array.size:
                    buffers.append((*_byte_range(array), is_written, number))
        # Sweep the buffers by start address and keep the furthest end so far, of any buffer and of written ones. A read
        # may overlap reads; a write may overlap nothing. O(n log n), and it names one offending pair.
        furthest = furthest_written = (0, 0)  # end address, and index of the call
        for start, end, is_written, number in sorted(buffers):
            for other_end, other in [furthest_written] + [furthest] * is_written:
                if start < other_end:
                    self.reject(
                        calls[number].collective,
                        f"its buffer overlaps a buffer of {calls[other].collective.name} in the same batch, and one of "
                        "them is written; calls of a batch are unordered, so use separate buffers",
                    )
            furthest = max(furthest, (end, number))
            furthest_written = max(furthest_written, (end, number)) if is_written else furthest_written
        # Libraries match messages with the same tag between two ranks in order, also if both are the same rank.
        self_sends = sorted((call for call in calls if call.dest == self._rank), key=operator.attrgetter("tag"))
        self_recvs = sorted((call for call in calls if call.source == self._rank), key=operator.attrgetter("tag"))
        for sent, received in zip(self_sends, self_recvs, strict=False):
            if (sent.count, sent.dtype, sent.tag) != (received.count, received.dtype, received.tag):
                tags = [f" with tag {call.tag}" if sent.tag != received.tag else "" for call in (sent, received)]
                self.reject(
                    received.collective,
                    f"this rank sends {sent.count} elements of {sent.dtype}{tags[0]} to itself, but receives "
                    f"{received.count} of {received.dtype}{tags[1]}; use the same count, dtype and tag",
                )
        if len(self_sends) != len(self_recvs):
            self.reject(
                (self_sends or self_recvs)[-1].collective,
                f"this rank sends {len(self_sends)} message(s) to itself, but posts {len(self_recvs)} receive(s) from "
                "itself, which would deadlock; put each send and its receive in one batch",
            )

    def reject(self, row: Collective, message: str) -> NoReturn:
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
            problem = f"must be a {module} array, not {type(array).__name__}; convert it with {module}.asarray()"
        elif not array.flags.c_contiguous:
            problem = f"must be contiguous, but has shape {array.shape} and strides {array.strides}; copy it first"
        elif self._device is not None and array.device.id != self._device:
            problem = f"is on GPU {array.device.id}, but this rank uses GPU {self._device}; copy it to that GPU"
        else:
            return
        self.reject(row, f"{name} {problem}")

    def _reject_no_output(self, row: Collective, makes_output: bool) -> NoReturn:
        if row.only_root == "sends" and makes_output:
            self.reject(
                row,
                "out= is required on this rank; pass the array that receives the data, or an input with the shape of "
                "the root's",
            )
        if makes_output:
            self.reject(row, "out= is required; pass the array that receives the data")
        self.reject(row, "prepare() requires out=, because repeated calls use the same arrays; pass the output array")

    def _dtype(self, row: Collective, send: Any, out: Any, asked: Any) -> np.dtype[Any]:
        of_arrays: np.dtype[Any] = out.dtype if send is None else send.dtype
        if out is not None and out.dtype is not of_arrays and out.dtype != of_arrays:
            self.reject(row, f"out is {out.dtype}, but the input is {of_arrays}; pass arrays of the same dtype")
        element = find_dtype(of_arrays if asked is None else asked)
        if element != of_arrays and of_arrays != np.dtype(f"u{element.itemsize}"):
            self.reject(
                row, f"dtype={element} requires arrays of {element} or uint{8 * element.itemsize}, not {of_arrays}"
            )
        supported = self._reducible if row.reduces else self._dtypes
        if element not in supported:
            what = f"reductions of {element}" if row.reduces else str(element)
            names = ", ".join(sorted(dtype.name for dtype in supported))
            self.reject(row, f"{self._can.backend} does not support {what}; choose one of {names}")
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
            self.reject(
                row,
                f"the first dimension of the input is {shape[0] if shape else 0}, which is not divisible by the {n} "
                f"ranks of {self._group}; pad it, or pass out=",
            )
        return self._xp.empty((shape[0] // n, *shape[1:]), send.dtype)

    def _is_in_place(self, row: Collective, send: Any, recv: Any, count: int) -> bool:
        """Return True for a valid in-place layout and False for disjoint arrays; reject everything else."""
        if self._xp is np and not np.may_share_memory(send, recv):
            return False
        send_start = pointer(send)
        recv_start = send_start if recv is send else pointer(recv)
        if recv_start + recv.nbytes <= send_start or send_start + send.nbytes <= recv_start:
            return False
        if not row.in_place:
            self.reject(row, f"the input and out overlap, but {row.name} cannot work in place; pass separate arrays")
        # NCCL's in-place layout: the buffer with one block must be this rank's block of the buffer with n blocks.
        # all_gather: send == recv + rank * count. reduce_scatter: recv == send + rank * count. all_reduce: send ==
        # recv.
        start = self._rank * count * send.dtype.itemsize
        expected = start * (row.sends == "count x n") - start * (row.receives == "count x n")
        offset = recv_start - send_start
        if offset != expected:
            self.reject(
                row,
                f"the input and out overlap, but out must start at byte {expected:+d} of the input to work in place, "
                f"not at byte {offset:+d}; pass separate arrays",
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
        # The count comes from the buffer that has exactly `count` elements, so that the other one can be checked.
        source, size = "the input", 0 if send is None else send.size
        if row.sends == "count" and send is not None:
            count: int = size
        elif row.receives == "count" and out is not None:
            source, size = "out", out.size
            count = size
        else:
            count, rest = divmod(size, n)
            if rest:
                self.reject(
                    row,
                    f"{source} has {size} elements, which is not divisible by the {n} ranks of {self._group}; pad the "
                    "input",
                )
        arrays: tuple[tuple[str, Any, Direction], ...] = ("the input", send, "sends"), ("out", out, "receives")
        for name, array, side in arrays:
            if array is not None and array.size != (expected := row.elements(side, count, n)):
                self.reject(
                    row,
                    f"{name} has {array.size} elements, but must have {expected}: {source} has {size}, and "
                    f"{self._group} has {n} rank{'s' * (n != 1)}",
                )
        return count

    def _counts(self, arguments: CallArguments) -> tuple[tuple[int, ...], tuple[int, ...]]:
        row = arguments.collective
        if arguments.recv_counts is None:
            self.reject(
                row,
                f"recv_counts= is required; pass the number of elements to receive from each of the {self._size} ranks",
            )
        return self.check_send_counts(arguments), self._integers(row, "recv_counts", arguments.recv_counts)

    def _integers(self, row: Collective, name: str, counts: Any) -> tuple[int, ...]:
        numbers: npt.NDArray[Any] = np.asarray(counts.get() if hasattr(counts, "get") else counts)  # CuPy has get()
        if numbers.shape != (self._size,) or numbers.dtype.kind not in "iu" or (numbers < 0).any():
            self.reject(
                row,
                f"{name} must be {self._size} non-negative integer{'s' * (self._size != 1)}, one per rank of "
                f"{self._group}, not {counts!r}",
            )
        return tuple(numbers.tolist())

    def _sum_of_counts(self, row: Collective, name: str, counts: tuple[int, ...], array_name: str, array: Any) -> None:
        if sum(counts) != array.size:
            shape = f" (shape {array.shape}: counts are elements, not rows)" if array.ndim > 1 else ""
            self.reject(row, f"{name} add up to {sum(counts)}, but {array_name} has {array.size} elements{shape}")

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
        op = find_op(op)
        if op.name not in self._can.ops:
            self.reject(
                row, f"{self._can.backend} does not support op={op.name!r}; choose one of {', '.join(self._can.ops)}"
            )
        return op.name, scalar_in(op, dtype)

    def _peers(self, row: Collective, dest: int | None, source: int | None) -> tuple[int | None, int | None]:
        peers: list[int | None] = []
        for name, rank in (("dest", dest), ("source", source)):
            if name not in row.peers:
                if rank is not None:
                    self.reject(row, f"the collective has no {name}, but {name}={rank!r} was given; omit {name}=")
                peers.append(None)
            else:
                if rank is None:
                    self.reject(row, f"{name}= is required; pass a rank of the group, 0 to {self._size - 1}")
                peers.append(self._rank_of_group(row, name, rank))
        return peers[0], peers[1]

    def _tag(self, row: Collective, tag: Any) -> int:
        try:
            number = operator.index(tag)
        except TypeError:
            number = -1
        if number < 0 or isinstance(tag, (bool, np.bool_)):
            self.reject(row, f"tag must be a non-negative integer, not {tag!r}")
        if not row.peers and number:
            self.reject(row, f"only messages have tags, but tag={number} was given; omit tag=")
        largest = self._can.largest_tag
        if number > largest:
            if largest:
                self.reject(row, f"tag must be at most {largest}, the largest tag of {self._can.library}, not {number}")
            self.reject(
                row,
                f"tag must be 0, not {number}: {self._can.backend} has no tags and matches the messages between two "
                "ranks in order; omit tag=, and receive messages in the order in which they are sent",
            )
        return number

    def _rank_of_group(self, row: Collective, name: str, rank: Any) -> int:
        try:
            number = operator.index(rank)
        except TypeError:
            self.reject(row, f"{name} must be an integer, not {rank!r}")
        if not 0 <= number < self._size:
            self.reject(row, f"{name} must be a rank of the group, 0 to {self._size - 1}, not {number}")
        return number


def _byte_range(array: Any) -> tuple[int, int]:
    start = pointer(array)
    return start, start + int(array.nbytes)


def pointer(array: Any) -> int:
    """Return the address of the first element of an array."""
    return int(array.__array_interface__["data"][0]) if isinstance(array, np.ndarray) else int(array.data.ptr)


def check_config(config: CallConfig) -> None:
    """Raise a `CommunicatorError` unless a configuration of calls is possible."""
    for what, name, choices in (
        ("protocol", config.protocol, PROTOCOLS),
        ("cta_policy", config.cta_policy, CTA_POLICIES),
    ):
        if name is not None and name not in choices:
            raise CommunicatorError(
                f"unknown {what} {name!r}{did_you_mean(name, choices)}; choose one of {', '.join(choices)}"
            )
    if config.algorithm is not None and not (isinstance(config.algorithm, str) and config.algorithm.strip()):
        raise CommunicatorError(
            f"algorithm must be the name of an algorithm of NCCL, such as 'ring', not {config.algorithm!r}"
        )
    for what, number in (("min_ctas", config.min_ctas), ("max_ctas", config.max_ctas)):
        if number is not None and (not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1):
            raise CommunicatorError(f"{what} must be a positive integer, not {number!r}")
    if config.min_ctas is not None and config.max_ctas is not None and config.min_ctas > config.max_ctas:
        raise CommunicatorError(f"min_ctas={config.min_ctas} is larger than max_ctas={config.max_ctas}")
