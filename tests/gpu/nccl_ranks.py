"""Two processes with one rank of nccl4py each, without meshlab: for scripts about the library itself.

Each has a GPU of its own, or they share the only one.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tests.gpu.launching import share_gpus

TAIL_S = 5.0


class Rank:
    """A rank: its GPU, its communicator, and a pipe to the other rank."""

    def __init__(self, rank: int, other: Connection, results: Any) -> None:
        import cupy  # after nccl4py, which chooses libnccl
        import nccl.bindings.nccl as binding
        import nccl.core as nccl

        self.rank, self.other, self._results = rank, other, results
        self.cupy, self.nccl, self.binding = cupy, nccl, binding
        self.device = rank % cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.Device(self.device).use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.comm: Any = None
        self._blocks: list[int] = []

    def open(self, **config: Any) -> Any:
        """Open a communicator of both ranks."""
        if self.rank == 0:
            unique = self.nccl.get_unique_id()
            self.other.send(bytes(unique))
        else:
            unique = self.nccl.UniqueId.from_bytes(self.other.recv())
        self.comm = self.nccl.Communicator.init(2, self.rank, unique, self.nccl.NCCLConfig(**config))
        return self.comm

    def meet(self) -> None:
        """Wait for the other process."""
        self.other.send("here")
        self.other.recv()

    def report(self, name: str, text: object) -> None:
        """Send a line to the parent."""
        self._results.put((self.rank, name, str(text)))

    def empty(self, n: int, dtype: str = "float32") -> Any:
        """Return an array in memory of NCCL."""
        n_bytes = max(n * np.dtype(dtype).itemsize, 4096)
        pointer = self.binding.mem_alloc(n_bytes)
        memory = self.cupy.cuda.UnownedMemory(pointer, n_bytes, None, self.device)
        return self.cupy.ndarray(n, dtype, self.cupy.cuda.MemoryPointer(memory, 0))

    def free(self, *arrays: Any) -> None:
        """Give memory of NCCL back."""
        self.cupy.cuda.Device().synchronize()
        for array in arrays:
            self.binding.mem_free(array.data.ptr)

    def free_mib(self) -> float:
        """Return the free memory of the GPU."""
        self.cupy.cuda.Device().synchronize()
        return float(self.cupy.cuda.runtime.memGetInfo()[0]) / (1 << 20)

    def is_done(self, limit_s: float = TAIL_S) -> bool:
        """Wait for the stream, and return False if it is not done in time."""
        event = self.cupy.cuda.Event(disable_timing=True)
        event.record(self.stream)
        deadline = time.monotonic() + limit_s
        while not event.done:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0002)
        return True

    def all_reduce(self, array: Any, comm: Any = None) -> None:
        """Enqueue a sum."""
        types, ops = self.binding.DataType, self.binding.RedOp
        handle = (self.comm if comm is None else comm)._comm
        pointer = array.data.ptr
        self.binding.all_reduce(pointer, pointer, array.size, int(types.Float32), int(ops.Sum), handle, self.stream.ptr)


def _main(function: Callable[[Rank, Any], None], rank: int, other: Connection, results: Any, argument: Any) -> None:
    try:
        function(Rank(rank, other, results), argument)
    except BaseException as error:
        results.put((rank, "error", f"{type(error).__name__}: {error}"))
    results.put((rank, "end", ""))


def run_ranks(
    function: Callable[[Rank, Any], None], argument: Any = None, *, limit_s: float = 60.0
) -> list[tuple[int, str, str]]:
    """Run a function of a module on two ranks, and return their reports. Ranks that do not end are killed."""
    share_gpus()
    context = multiprocessing.get_context("spawn")
    ends, results = context.Pipe(), context.Queue()
    processes = [
        context.Process(target=_main, args=(function, rank, ends[rank], results, argument), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    rows: list[tuple[int, str, str]] = []
    deadline, n_ended = time.monotonic() + limit_s, 0
    while n_ended < 2 and time.monotonic() < deadline:
        if results.empty():
            # A process may have reported and ended since the queue was empty.
            if not any(process.is_alive() for process in processes) and results.empty():
                break
            time.sleep(0.05)
            continue
        row = results.get()
        if row[1] == "end":
            n_ended += 1
        else:
            rows.append(row)
    for rank, process in enumerate(processes):
        process.join(2.0)
        if process.is_alive():
            rows.append((rank, "error", f"did not end in {limit_s:g} s and was killed"))
            process.kill()
            process.join()
        elif process.exitcode:
            rows.append((rank, "error", f"exited with {process.exitcode}"))
    return rows
