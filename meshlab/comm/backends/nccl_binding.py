"""Binds checked calls to functions of NCCL, with resolved pointers, counts and handles."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

from meshlab.comm.backend import Call, CallConfig
from meshlab.comm.backends.cuda_parts import explain_failure
from meshlab.errors import CommunicatorError

__all__ = ["Libraries", "NcclBinder", "Work", "load_libraries"]

_DTYPES = {"float8_e4m3fn": "Float8e4m3", "float8_e5m2": "Float8e5m2"}  # all other names differ only in capitalisation
_MISSING = ("FunctionNotFoundError", "not found")

Work = Callable[[], object]


class Libraries(NamedTuple):
    """CuPy, nccl4py, the low-level binding of nccl4py, and the exceptions that its functions raise."""

    cupy: ModuleType
    nccl: ModuleType
    binding: ModuleType
    errors: tuple[type[Exception], ...]


@cache
def load_libraries() -> Libraries:
    """Load the libraries.

    Raises
    ------
    CommunicatorError
        If a library is missing.
    """
    # nccl4py first: it finds libnccl in the environment, and CuPy then uses the one that is loaded. In the other order,
    # CuPy may load an older libnccl of the system.
    try:
        import nccl.bindings.nccl as binding
        import nccl.core as nccl
    except ImportError as error:
        raise explain_failure("load nccl4py", error) from error
    errors = (RuntimeError, binding.NCCLError)  # raised for a missing function, and for an error code of NCCL
    try:
        binding.get_version()
    except errors as error:
        raise explain_failure("load libnccl", error) from error
    try:
        import cupy
    except ImportError as error:
        raise explain_failure("load CuPy", error) from error
    return Libraries(cupy, nccl, binding, errors)


class NcclBinder:
    """Binds the calls of one communicator.

    Parameters
    ----------
    comm : nccl.core.Communicator
        The communicator.
    stream : int
        The handle of the communication stream.
    scratch : int
        A pointer to one int32, for barriers.
    size : int
        The number of ranks.
    config : CallConfig, optional
        Configuration of every call. By default NCCL chooses.

    Raises
    ------
    CommunicatorError
        If `config` is given and the loaded NCCL cannot configure calls.
    """

    def __init__(self, comm: Any, stream: int, scratch: int, size: int, config: CallConfig | None) -> None:
        self._owner = comm
        self._comm = comm._comm
        self._stream = stream
        self._size = size
        self._binding = load_libraries().binding
        self._config = None if config is None else self._native_config(config)
        types, ops = self._binding.DataType, self._binding.RedOp
        # NCCL has no barrier. An all_reduce of one number has the same effect.
        self.barrier: Work = partial(
            self._binding.all_reduce, scratch, scratch, 1, int(types.Int32), int(ops.Sum), self._comm, stream
        )

    def bind(self, call: Call) -> Work:
        """Return a callable that enqueues a call."""
        # A partial() and not a lambda, so that C calls C without a Python frame, because this is the timed code.
        name = call.collective.name
        if name == "barrier":
            return self.barrier
        if name in ("send", "recv", "send_recv"):
            return self._bind_messages(call)
        if name == "all_to_all_v":
            return self._bind_by_counts(call)
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
        """Return a callable that enqueues several calls as a group, so that none waits for another of this rank."""
        start, end = self._binding.group_start, self._binding.group_end

        def grouped() -> None:
            start()
            try:
                for work in works:
                    work()
            finally:  # a group that stays open would defer every later call
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

    def _bind_by_counts(self, call: Call) -> Work:
        """Bind an all_to_all_v as one group of messages, as in nccl-tests, because NCCL has no such collective."""
        dtype, itemsize = self._dtype(call), 0 if call.dtype is None else call.dtype.itemsize
        works: list[Work] = []
        for array, counts, function in (
            (call.send, call.send_counts or (), self._binding.send),
            (call.recv, call.recv_counts or (), self._binding.recv),
        ):
            pointer = _pointer(array)
            for peer, count in enumerate(counts):
                if count:
                    works.append(partial(function, pointer, count, dtype, peer, self._comm, self._stream))
                pointer += count * itemsize
        return self.together(works)

    def _dtype(self, call: Call) -> int:
        name = "" if call.dtype is None else call.dtype.name
        return int(getattr(self._binding.DataType, _DTYPES.get(name, name.capitalize())))

    def _op(self, call: Call) -> int:
        if call.scalar is None:
            # Before 2.29.7, NCCL may drop the last elements of a floating-point avg on one rank. The sum is the same.
            op = "sum" if call.op == "avg" and self._size == 1 else str(call.op)
            return int(getattr(self._binding.RedOp, op.capitalize()))
        if self._size == 1 and _version_code(self._binding) < 22907:
            raise CommunicatorError(
                f"NCCL {_version_text(self._binding)} may drop the last elements of pre_mul_sum on one rank (fixed in "
                "2.29.7); upgrade NCCL, or scale the array yourself",
                collective=call.collective.name,
            )
        # HostImmediate: NCCL reads the scalar now, so the array may be freed afterwards. It must have the dtype of the
        # buffer, because NCCL reads that many bytes.
        pointer = call.scalar.__array_interface__["data"][0]
        residence = int(self._binding.ScalarResidence.HostImmediate)
        return int(self._binding.red_op_create_pre_mul_sum(pointer, self._dtype(call), residence, self._comm))

    def _guarded(self, call: Call, work: partial[Any]) -> Work:
        """Destroy the operation that was created for a call when the call can no longer run."""
        if call.scalar is None:
            return work
        binding, owner, op = self._binding, self._owner, work.args[4]

        def enqueue() -> None:
            work()

        # Not at interpreter exit, when NCCL may already be unloaded. The finalizer must not hold the call itself.
        weakref.finalize(enqueue, _destroy_op, binding, owner, op).atexit = False
        return enqueue

    def _native_config(self, config: CallConfig) -> Any:
        import nccl.core as nccl

        if _version_code(self._binding) < 23100:
            raise CommunicatorError(
                f"NCCL {_version_text(self._binding)} cannot configure calls, which requires 2.31; upgrade NCCL, or "
                "start the engines with env={'NCCL_ALGO': 'Ring'}"
            )
        chosen = nccl.NCCLCollConfig(alg_selection=config.algorithm, min_ctas=config.min_ctas, max_ctas=config.max_ctas)
        return chosen._to_lowpp()

    def simulate_us(self, work: Work) -> float:
        """Return NCCL's own estimate of the duration of a call, in µs."""
        self._binding.group_start()
        work()
        return float(self._binding.group_simulate_end().estimated_time)

    def memory_bytes(self) -> int | None:
        """Return the GPU memory of the communicator, in bytes, or None if the library does not report it."""
        try:
            return int(self._binding.comm_mem_stats(self._comm, int(self._binding.CommMemStat.GpuMemTotal)))
        except load_libraries().errors:
            return None

    def facts(self) -> dict[str, str]:
        """Return properties of the library: a value, "absent" or "unknown"."""
        facts = {
            "algorithm choice per call": "yes" if _version_code(self._binding) >= 23100 else "absent",
            "symmetric memory": "yes" if _version_code(self._binding) >= 22700 else "absent",
            "memory statistics": "absent" if (held := self.memory_bytes()) is None else f"{held} bytes used",
            "SHARP": "unknown",
        }
        try:
            properties = self._owner.properties
        except load_libraries().errors:
            return facts | {"properties": "absent", "NVLS multicast": "unknown"}
        return facts | {
            "properties": "yes",
            "NVLS multicast": "yes" if properties.multimem_support else "no",
            "device API": "yes" if properties.device_api_support else "no",
            "NVLink teams": str(properties.n_lsa_teams),
        }

    def explain(self, error: Exception, calls: Sequence[Call]) -> CommunicatorError:
        """Return an error that names the collective and the fix."""
        name = calls[0].collective.name if len(calls) == 1 else "a batch"
        if type(error).__name__ in _MISSING or "not found" in str(error):
            return CommunicatorError(
                f"NCCL {_version_text(self._binding)} does not support {name}; upgrade libnccl", collective=name
            )
        status = getattr(error, "status", None)
        code = status if isinstance(status, int) else None
        return CommunicatorError(f"NCCL rejected {name}: {error}", collective=name, code=code)


def _destroy_op(binding: ModuleType, owner: Any, op: int) -> None:
    if owner.is_valid:  # a closed communicator has freed its operations
        with contextlib.suppress(*load_libraries().errors):
            binding.red_op_destroy(op, owner._comm)


def _pointer(array: Any) -> int:
    return 0 if array is None else int(array.data.ptr)


def _version_code(binding: ModuleType) -> int:
    return int(binding.get_version())


def _version_text(binding: ModuleType) -> str:
    code = _version_code(binding)
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
