"""NCCL's calls, bound to pointers, counts and handles: what the `nccl` backend enqueues."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

from meshlab.comm.backend import Call, CallConfig
from meshlab.errors import CommunicatorError

__all__ = ["Libraries", "NcclBinder", "load"]

_INSTALL = "install the GPU parts with: pip install '.[cuda12]' or '.[cuda13]', whichever the driver supports"
_DTYPES = {"float8_e4m3fn": "Float8e4m3", "float8_e5m2": "Float8e5m2"}  # the others differ by a capital letter only
_MISSING = ("FunctionNotFoundError", "not found")

Work = Callable[[], object]


class Libraries(NamedTuple):
    """CuPy, nccl4py, nccl4py's low-level binding, and the errors that its calls raise."""

    cupy: ModuleType
    nccl: ModuleType
    binding: ModuleType
    errors: tuple[type[Exception], ...]


@cache
def load() -> Libraries:
    """Load the libraries; nccl4py first, so that CuPy uses the libnccl that it finds.

    Raises
    ------
    CommunicatorError
        If one is missing.
    """
    try:
        import nccl.bindings.nccl as binding
        import nccl.core as nccl
    except ImportError as error:
        raise CommunicatorError(f"nccl4py cannot be loaded ({error}); {_INSTALL}") from error
    errors = (RuntimeError, binding.NCCLError)  # a function that the library lacks, and what NCCL says
    try:
        binding.get_version()
    except errors as error:
        raise CommunicatorError(f"libnccl cannot be loaded ({error}); {_INSTALL}") from error
    try:
        import cupy
    except ImportError as error:
        raise CommunicatorError(f"CuPy cannot be loaded ({error}); {_INSTALL}") from error
    return Libraries(cupy, nccl, binding, errors)


class NcclBinder:
    """Binds calls of one communicator.

    Parameters
    ----------
    comm : nccl.core.Communicator
        The communicator.
    stream : int
        The communication stream's handle.
    scratch : int
        A pointer to one int32 for barriers.
    size : int
        How many ranks.
    config : CallConfig, optional
        How NCCL should carry the calls out.

    Raises
    ------
    CommunicatorError
        If the loaded library cannot choose per call.
    """

    def __init__(self, comm: Any, stream: int, scratch: int, size: int, config: CallConfig | None) -> None:
        self._owner = comm
        self._comm = comm._comm
        self._stream = stream
        self._size = size
        self._binding = load().binding
        self._config = None if config is None else self._native_config(config)
        types, ops = self._binding.DataType, self._binding.RedOp
        # NCCL has no barrier: one number is reduced instead.
        self.barrier: Work = partial(
            self._binding.all_reduce, scratch, scratch, 1, int(types.Int32), int(ops.Sum), self._comm, stream
        )

    def bind(self, call: Call) -> Work:
        """The shortest callable that enqueues a call. partial() and not lambda: it calls C from C."""
        name = call.collective.name
        if name == "barrier":
            return self.barrier
        if name in ("send", "recv", "send_recv"):
            return self._bind_messages(call)
        if name == "all_to_all_v":
            return self._bind_parts(call)
        function = getattr(self._binding, {"all_to_all": "allto_all"}.get(name, name))
        arguments: list[Any] = [_pointer(call.send), _pointer(call.recv), call.count, self._dtype(call)]
        if call.op is not None:
            arguments.append(self._op(call))
        if call.root is not None:
            arguments.append(call.root)
        if self._config is None:
            return self._guarded(call, partial(function, *arguments, self._comm, self._stream))
        chosen = getattr(self._binding, f"{function.__name__}_config")
        return self._guarded(call, partial(chosen, *arguments, self._comm, self._stream, self._config))

    def together(self, works: Sequence[Work]) -> Work:
        """One group of several calls, none of which waits for another one of this rank."""
        start, end = self._binding.group_start, self._binding.group_end

        def grouped() -> None:
            start()
            try:
                for work in works:
                    work()
            finally:
                end()

        return grouped

    def _bind_messages(self, call: Call) -> Work:
        dtype = self._dtype(call)
        works: list[Work] = []
        if call.dest is not None:
            works.append(
                partial(self._binding.send, _pointer(call.send), call.count, dtype, call.dest, self._comm, self._stream)
            )
        if call.source is not None:
            works.append(
                partial(
                    self._binding.recv, _pointer(call.recv), call.count, dtype, call.source, self._comm, self._stream
                )
            )
        return works[0] if len(works) == 1 else self.together(works)

    def _bind_parts(self, call: Call) -> Work:
        """NCCL has no all_to_all of unequal parts: every part is a message, all in one group, as in nccl-tests."""
        dtype, itemsize = self._dtype(call), 0 if call.dtype is None else call.dtype.itemsize
        works: list[Work] = []
        for array, counts, function in (
            (call.send, call.send_counts or (), self._binding.send),
            (call.recv, call.recv_counts or (), self._binding.recv),
        ):
            place = _pointer(array)
            for peer, count in enumerate(counts):
                if count:
                    works.append(partial(function, place, count, dtype, peer, self._comm, self._stream))
                place += count * itemsize
        return self.together(works)

    def _dtype(self, call: Call) -> int:
        name = "" if call.dtype is None else call.dtype.name
        return int(getattr(self._binding.DataType, _DTYPES.get(name, name.capitalize())))

    def _op(self, call: Call) -> int:
        if call.scalar is None:
            # Before 2.29.7 a float's avg of one rank can leave the last elements out; it is the sum of that rank.
            op = "sum" if call.op == "avg" and self._size == 1 else str(call.op)
            return int(getattr(self._binding.RedOp, op.capitalize()))
        if self._size == 1 and _version_code(self._binding) < 22907:
            raise CommunicatorError(
                f"NCCL {_version_text(self._binding)} can leave the last elements out of a pre_mul_sum of one rank; "
                "2.29.7 and newer do not. Until then, multiply the array",
                collective=call.collective.name,
            )
        pointer = call.scalar.__array_interface__["data"][0]
        residence = int(self._binding.ScalarResidence.HostImmediate)
        return int(self._binding.red_op_create_pre_mul_sum(pointer, self._dtype(call), residence, self._comm))

    def _guarded(self, call: Call, work: partial[Any]) -> Work:
        """A call whose operation was made for it gives the operation back when nobody can make the call any more."""
        if call.scalar is None:
            return work
        binding, owner, op = self._binding, self._owner, work.args[4]

        def enqueue() -> None:
            work()

        weakref.finalize(enqueue, _destroy_op, binding, owner, op).atexit = False
        return enqueue

    def _native_config(self, config: CallConfig) -> Any:
        import nccl.core as nccl

        if _version_code(self._binding) < 23100:
            raise CommunicatorError(
                f"NCCL {_version_text(self._binding)} cannot choose an algorithm per call; 2.31 and newer can. "
                "Until then, start engines with env={'NCCL_ALGO': 'Ring'}"
            )
        chosen = nccl.NCCLCollConfig(alg_selection=config.algorithm, min_ctas=config.min_ctas, max_ctas=config.max_ctas)
        return chosen._to_lowpp()

    def simulate_us(self, work: Work) -> float:
        """NCCL's own estimate of a call, in µs."""
        self._binding.group_start()
        work()
        return float(self._binding.group_simulate_end().estimated_time)

    def memory_bytes(self) -> int | None:
        """The GPU memory that the communicator holds; None where the library does not tell."""
        try:
            return int(self._binding.comm_mem_stats(self._comm, int(self._binding.CommMemStat.GpuMemTotal)))
        except load().errors:
            return None

    def facts(self) -> dict[str, str]:
        """What the library can and has: each known, absent or unknown."""
        facts = {
            "algorithm choice per call": "yes" if _version_code(self._binding) >= 23100 else "absent",
            "symmetric memory": "yes" if _version_code(self._binding) >= 22700 else "absent",
            "memory statistics": "absent" if (held := self.memory_bytes()) is None else f"{held} bytes held",
            "SHARP": "unknown",
        }
        try:
            properties = self._owner.properties
        except load().errors:
            return facts | {"properties": "absent", "NVLS multicast": "unknown"}
        return facts | {
            "properties": "yes",
            "NVLS multicast": "yes" if properties.multimem_support else "no",
            "device API": "yes" if properties.device_api_support else "no",
            "NVLink teams": str(properties.n_lsa_teams),
        }

    def explain(self, error: Exception, calls: Sequence[Call]) -> CommunicatorError:
        """Say in our words what NCCL refused."""
        name = calls[0].collective.name if len(calls) == 1 else "a batch"
        if type(error).__name__ in _MISSING or "not found" in str(error):
            return CommunicatorError(
                f"NCCL {_version_text(self._binding)} has no {name}; a newer libnccl has", collective=name
            )
        status = getattr(error, "status", None)
        code = status if isinstance(status, int) else None
        return CommunicatorError(f"NCCL refused {name}: {error}", collective=name, code=code)


def _destroy_op(binding: ModuleType, owner: Any, op: int) -> None:
    if owner.is_valid:  # else the communicator is gone, and its operations with it
        with contextlib.suppress(*load().errors):
            binding.red_op_destroy(op, owner._comm)


def _pointer(array: Any) -> int:
    return 0 if array is None else int(array.data.ptr)


def _version_code(binding: ModuleType) -> int:
    return int(binding.get_version())


def _version_text(binding: ModuleType) -> str:
    code = _version_code(binding)
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
