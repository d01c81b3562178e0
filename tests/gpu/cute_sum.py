"""The sum of a window over all ranks as a kernel of the CuTe DSL, for `one_sided.py`.

It is a module because the DSL reads the source of its functions.
"""

from typing import Any

import cutlass
import nccl.core.device.cute as device
from cutlass import cute

N_BLOCKS, N_THREADS = 16, 512


def part(window: device.Window, peer: cutlass.Int32, count: cutlass.Int32) -> cute.Tensor:
    """Return the window of a peer."""
    return cute.make_tensor(cute.make_ptr(cutlass.Float32, window.lsa_pointer(0, peer)), cute.make_layout(count))


@cute.kernel
def kernel(comm: device.DevComm, window: device.Window, count: cutlass.Int32) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    coop = device.cta()
    barrier = device.lsa_default(coop, comm, index=block)
    barrier.sync(coop, device.MemoryOrder.ACQUIRE)
    n = comm.lsa_size
    first = thread + N_THREADS * (comm.lsa_rank + block * n)
    for i in cutlass.range(first, count, N_THREADS * N_BLOCKS * n):
        total = cutlass.Float32(0.0)
        for peer in cutlass.range(n):
            total += part(window, peer, count)[i]
        for peer in cutlass.range(n):
            part(window, peer, count)[i] = total
    barrier.sync(coop, device.MemoryOrder.RELEASE)
    barrier.destroy()


@cute.jit
def launch(comm: device.DevComm, window: device.Window, count: cutlass.Int32, stream: Any) -> None:
    kernel(comm, window, count).launch(grid=[N_BLOCKS, 1, 1], block=[N_THREADS, 1, 1], stream=stream, cooperative=True)


def compiled() -> Any:
    """Compile it, which needs neither a communicator nor a GPU if `CUTE_DSL_ARCH` names an architecture."""
    fakes = device.runtime.make_fake_dev_comm(), device.runtime.make_fake_window()
    return cute.compile(launch, *fakes, cutlass.Int32(0), cutlass.runtime.make_fake_stream())
