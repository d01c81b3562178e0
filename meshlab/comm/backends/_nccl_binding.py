"""Binds checked calls to functions of NCCL, with resolved pointers, counts and handles."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from meshlab.base._errors import CommunicatorError
from meshlab.base._hints import Argument, Hint
from meshlab.comm._backend import CONFIGURABLE, Call, CallConfig
from meshlab.comm._windows import SYMMETRIC
from meshlab.comm.backends._cuda_parts import explain_failure

_DTYPES = {"float8_e4m3fn": "Float8e4m3", "float8_e5m2": "Float8e5m2"}  # all other names differ only in capitalisation
_MISSING = ("FunctionNotFoundError", "not found")

NO_MAPPING = "the GPUs of this group cannot map each other's memory"
"""The reason why a group has no symmetric memory, if neither the version nor a variable is the reason."""

_WINDOWS_SINCE, _CONFIG_SINCE = 22700, 23100  # version codes of NCCL
_DISABLING = ("NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE")  # variables that turn symmetric memory off

# The protocols of each algorithm in the selection strings of NCCL. Symmetric kernels (symk) have none.
_PROTOCOLS_OF = {
    **dict.fromkeys(("ring", "tree"), ("ll", "ll128", "simple")),
    **dict.fromkeys(("collnet_direct", "collnet_chain", "nvls", "nvlstree", "pat"), ("simple",)),
}

Work = Callable[[], object]

Launch = Callable[[int], object]
"""Enqueues a call on the stream with the given handle."""


class Libraries(NamedTuple):
    """CuPy, nccl4py, the low-level binding of nccl4py, and the exceptions that its functions raise."""

    cupy: ModuleType
    nccl: ModuleType
    binding: ModuleType
    errors: tuple[type[Exception], ...]


@cache
def load_libraries() -> Libraries:
    """Load the libraries. Raise a `CommunicatorError` if one is missing."""
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
    """Binds the calls of one communicator. `scratch` is a pointer to one int32, for barriers."""

    def __init__(self, comm: Any, scratch: int, size: int, config: CallConfig | None) -> None:
        self._owner = comm
        self._comm = comm._comm
        self._size = size
        self._binding = load_libraries().binding
        self._config = None if config is None else self._native_config(config)
        self._config_text = "" if config is None else _config_text(config)
        types, ops = self._binding.DataType, self._binding.RedOp
        # NCCL has no barrier. An all_reduce of one number has the same effect.
        self.barrier: Launch = partial(
            self._binding.all_reduce, scratch, scratch, 1, int(types.Int32), int(ops.Sum), self._comm
        )

    def bind(self, call: Call) -> Launch:
        """Return a callable that enqueues a call on a stream."""
        # A partial() and not a lambda, so that C calls C without a Python frame, because this is the timed code.
        row = call.collective
        if not row.has_size:
            return self.barrier
        if row.peers:
            return self._bind_messages(call)(_pointer(call.send), _pointer(call.recv))
        if row.counted:
            return self._bind_by_counts(call)
        op = None if call.op is None else self._op(call)
        launch = self._bind_plain(call, op)(_pointer(call.send), _pointer(call.recv))
        return launch if call.scalar is None or op is None else self._owning(launch, op)

    def bind_pointers(self, call: Call) -> Callable[[int, int], Launch] | None:
        """Return a function of two pointers that binds the call to them. None if it depends on more than that."""
        if call.dtype is None or call.collective.counted or call.scalar is not None:
            return None
        if call.collective.peers:
            return self._bind_messages(call)
        return self._bind_plain(call, None if call.op is None else self._op(call))

    def _bind_plain(self, call: Call, op: int | None) -> Callable[[int, int], Launch]:
        row = call.collective
        if row.nccl is None:
            raise CommunicatorError(f"NCCL does not support {row.name}", collective=row.name)
        function = getattr(self._binding, row.nccl.in_bindings)
        last = [value for value in (op, call.root) if value is not None]
        arguments = [call.count, self._dtype(call), *last, self._comm]
        config = self._config
        if config is None:
            return lambda send, recv: partial(function, send, recv, *arguments)
        # The configuration follows the stream, so that this needs a Python frame.
        chosen = getattr(self._binding, f"{function.__name__}_config")
        return lambda send, recv: lambda stream: chosen(send, recv, *arguments, stream, config)

    def together(self, launches: Sequence[Launch]) -> Launch:
        """Return a callable that enqueues several calls as a group, so that none waits for another of this rank."""
        start, end = self._binding.group_start, self._binding.group_end

        def grouped(stream: int) -> None:
            start()
            try:
                for launch in launches:
                    launch(stream)
            finally:  # a group that stays open would defer every later call
                end()

        return grouped

    def _bind_messages(self, call: Call) -> Callable[[int, int], Launch]:
        count, dtype, dest, source, comm = call.count, self._dtype(call), call.dest, call.source, self._comm
        send_to, recv_from, together = self._binding.send, self._binding.recv, self.together

        def bind(send: int, recv: int) -> Launch:
            launches: list[Launch] = []
            if dest is not None:
                launches.append(partial(send_to, send, count, dtype, dest, comm))
            if source is not None:
                launches.append(partial(recv_from, recv, count, dtype, source, comm))
            return launches[0] if len(launches) == 1 else together(launches)

        return bind

    def _bind_by_counts(self, call: Call) -> Launch:
        """Bind an all_to_all_v as one group of messages, as in nccl-tests, because NCCL has no such collective."""
        dtype, itemsize = self._dtype(call), 0 if call.dtype is None else call.dtype.itemsize
        launches: list[Launch] = []
        for array, counts, function in (
            (call.send, call.send_counts or (), self._binding.send),
            (call.recv, call.recv_counts or (), self._binding.recv),
        ):
            pointer = _pointer(array)
            for peer, count in enumerate(counts):
                if count:
                    launches.append(partial(function, pointer, count, dtype, peer, self._comm))
                pointer += count * itemsize
        return self.together(launches)

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

    def _owning(self, launch: Launch, op: int) -> Launch:
        """Destroy the operation that was created for a call when the call can no longer run."""

        def launch_and_own(stream: int) -> None:
            launch(stream)

        # Not at interpreter exit, when NCCL may already be unloaded. The finalizer must not hold the call itself.
        weakref.finalize(launch_and_own, _destroy_op, self._binding, self._owner, op).atexit = False
        return launch_and_own

    def _native_config(self, config: CallConfig) -> Any:
        import nccl.core as nccl

        if _version_code(self._binding) < _CONFIG_SINCE:
            raise CommunicatorError(
                f"NCCL {_version_text(self._binding)} cannot configure calls, which requires 2.31; upgrade NCCL, or "
                "start the engines with env={'NCCL_ALGO': 'Ring'}"
            )
        policy = None if config.cta_policy is None else nccl.CTAPolicy[config.cta_policy.upper()]
        chosen = nccl.NCCLCollConfig(
            alg_selection=selection(config.algorithm, config.protocol),
            min_ctas=config.min_ctas,
            max_ctas=config.max_ctas,
            cta_policy=policy,
        )
        return chosen._to_lowpp()

    def simulate_us(self, launch: Launch, stream: int) -> float:
        """Return NCCL's own estimate of the duration of a call, in µs."""
        self._binding.group_start()
        launch(stream)
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
            CONFIGURABLE: self._since(_CONFIG_SINCE),
            "protocol choice per call": self._since(_CONFIG_SINCE),
            "CTA policy per call": self._since(_CONFIG_SINCE),
            SYMMETRIC: self._symmetric_memory(),
            "memory statistics": "absent" if (held := self.memory_bytes()) is None else f"{held} bytes used",
            "SHARP": sharp_fact(_library_variable("NCCL_COLLNET_ENABLE"), None, _debug_log),
        }
        try:
            properties = self._owner.properties
        except load_libraries().errors:
            return facts | {"properties": "absent", "NVLS multicast": "unknown"}
        return facts | {
            "properties": "yes",
            "SHARP": sharp_fact(_library_variable("NCCL_COLLNET_ENABLE"), properties.n_lsa_teams, _debug_log),
            "NVLS multicast": "yes" if properties.multimem_support else "no",
            "device API": "yes" if properties.device_api_support else "no",
            "NVLink teams": str(properties.n_lsa_teams),
        }

    def _since(self, version: int) -> str:
        """Return "yes", or the reason why the loaded library is too old for a feature."""
        if _version_code(self._binding) >= version:
            return "yes"
        return (
            f"no: NCCL {_version_text(self._binding)} has none, {version // 10000}.{version % 10000 // 100} is needed"
        )

    def _symmetric_memory(self) -> str:
        """Return whether the group has symmetric memory: "yes", "unknown", or "no: " and the reason."""
        fact = self._since(_WINDOWS_SINCE)
        if fact != "yes":
            return fact
        off = next((name for name in _DISABLING if os.environ.get(name) == "0"), None)
        if off is not None:
            return f"no: {off}=0 turns it off"
        try:
            return "yes" if self._owner.properties.device_api_support else f"no: {NO_MAPPING}"
        except load_libraries().errors:  # before 2.29
            # NCCL reports it only by a window that it does not register. Without direct access there is none.
            return "yes" if self._has_peer_access() else "unknown"

    def _has_peer_access(self) -> bool:
        """Return True if the GPUs of this host access each other, and the group has no more ranks than that."""
        runtime = load_libraries().cupy.cuda.runtime
        device, n = runtime.getDevice(), runtime.getDeviceCount()
        peers = [peer for peer in range(n) if peer != device]
        return self._size <= n and all(runtime.deviceCanAccessPeer(device, peer) for peer in peers)

    def explain(self, error: Exception, calls: Sequence[Call]) -> CommunicatorError:
        """Return an error that names the collective and the fix."""
        name = calls[0].collective.name if len(calls) == 1 else "a batch"
        if type(error).__name__ in _MISSING or "not found" in str(error):
            return CommunicatorError(
                f"NCCL {_version_text(self._binding)} does not support {name}; upgrade libnccl", collective=name
            )
        status = getattr(error, "status", None)
        code = status if isinstance(status, int) else None
        if self._config_text:
            return CommunicatorError(
                f"NCCL rejected {name} with {self._config_text}: {error}",
                hint="choose an algorithm and a protocol that this collective has on these GPUs",
                collective=name,
                code=code,
            )
        return CommunicatorError(f"NCCL rejected {name}: {error}", collective=name, code=code)


def sharp_fact(enabled: str | None, n_lsa_teams: int | None, read_log: Callable[[], str]) -> str:
    """Return whether switches reduce between hosts (CollNet): "yes", "unknown", or "no: " and the reason."""
    # NCCL reports it only in its log. The ranks of an LSA team access each other's memory: they are on one host, or in
    # one NVLink domain.
    if enabled is None or enabled.strip() != "1":
        return "no: NCCL_COLLNET_ENABLE=1 turns it on"
    if n_lsa_teams == 1:
        return "no: all ranks access each other's memory, so no switch between hosts is involved"
    log = read_log()
    if "Connected CollNet" in log:
        return "yes"
    if "Cannot initialize CollNet" in log:
        return "no: NCCL cannot initialize CollNet, see its log"
    if "less than CollNet node threshold" in log:
        return "no: the group has fewer hosts than NCCL_COLLNET_NODE_THRESHOLD"
    return "unknown"


def _library_variable(name: str) -> str | None:
    """Return a variable as NCCL sees it. NCCL also sets variables of /etc/nccl.conf, which Python does not show."""
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    value: bytes | None = library.getenv(name.encode())
    return None if value is None else value.decode(errors="replace")


def _debug_log() -> str:
    """Return the log of NCCL in this process, or an empty string if it is not in a separate file."""
    pattern = _library_variable("NCCL_DEBUG_FILE") or ""
    if "%p" not in pattern:
        return ""
    path = Path(pattern.replace("%h", socket.gethostname()).replace("%p", str(os.getpid())))
    return path.read_text(errors="replace") if path.is_file() else ""


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


def selection(algorithm: str | None, protocol: str | None) -> str | None:
    """Return NCCL's selection string for an algorithm and a protocol, such as RING_LL128. None lets NCCL choose."""
    if algorithm is None and protocol is None:
        return None
    names = [] if algorithm is None else [name.strip() for name in algorithm.removeprefix("^").split(",")]
    excludes = algorithm is not None and algorithm.startswith("^")
    if protocol is None:
        return ("^" if excludes else "") + ",".join(names)
    if algorithm is None or excludes:
        excluded = _lower(names)
        names = [name for name, protocols in _PROTOCOLS_OF.items() if protocol in protocols and name not in excluded]
    for name in _lower(names):
        if name not in _PROTOCOLS_OF:
            raise CommunicatorError(
                f"algorithm {name!r} cannot be combined with protocol {protocol!r}",
                hint=Hint("omit {}, or choose one of {}", Argument("protocol"), ", ".join(_PROTOCOLS_OF)),
            )
        if protocol not in _PROTOCOLS_OF[name]:
            raise CommunicatorError(
                f"algorithm {name!r} has no protocol {protocol!r}; choose one of {', '.join(_PROTOCOLS_OF[name])}"
            )
    if not names:
        raise CommunicatorError(f"algorithm {algorithm!r} excludes all algorithms with protocol {protocol!r}")
    return ",".join(f"{name}_{protocol}".upper() for name in names)


def _lower(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _config_text(config: CallConfig) -> str:
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
