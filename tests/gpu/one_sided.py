"""Which one-sided and device-initiated calls of NCCL can Python reach? Tries each of them on two GPUs, and prints.

    python tests/gpu/one_sided.py --build NCCL_TESTS/build

Host calls (put, signal, wait) and pointers to the memory of peers go through nccl4py. Kernels that call NCCL are
compiled by CuPy from the headers of the library, and by the CuTe DSL from `cute_sum.py` with the library's bitcode.
`-D` of nccl-tests is the same in C++.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.nccl_ranks import Rank, run_ranks

MIB = 1 << 20

KERNEL = r"""
#include <nccl_device.h>
extern "C" __global__ void sum(ncclWindow_t window, size_t count, const ncclDevComm* pointer) {
    const ncclDevComm& comm = *pointer;
    ncclLsaBarrierSession<ncclCoopCta> bar{ncclCoopCta(), comm, ncclTeamLsa(comm), comm.lsaBarrier, blockIdx.x};
    bar.sync(ncclCoopCta(), cuda::memory_order_acquire);
    const int n = comm.nRanks, first = threadIdx.x + blockDim.x * (comm.rank + blockIdx.x * n);
    for (size_t i = first; i < count; i += (size_t)blockDim.x * gridDim.x * n) {
        float total = 0.0f;
        for (int peer = 0; peer < n; peer++) total += ((float*)ncclGetLsaPointer(window, 0, peer))[i];
        for (int peer = 0; peer < n; peer++) ((float*)ncclGetLsaPointer(window, 0, peer))[i] = total;
    }
    bar.sync(ncclCoopCta(), cuda::memory_order_release);
}
"""

SHIMS = {
    "stdint.h": "#include <cuda/std/cstdint>\n"
    + "\n".join(f"using cuda::std::{u}int{n}_t;" for u in ("", "u") for n in (8, 16, 32, 64))
    + "\nusing cuda::std::intptr_t; using cuda::std::uintptr_t;",
    "limits.h": "#include <cuda/std/climits>",
    "stddef.h": "#include <cuda/std/cstddef>",
    **dict.fromkeys(("stdio.h", "stdlib.h", "string.h", "assert.h"), ""),
}

MULTICAST = r"""
extern "C" __global__ void sum(float* multicast, float* out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        float value;
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];"
                     : "=f"(value) : "l"(multicast + i) : "memory");
        out[i] = value;
    }
}
"""


class HungError(Exception):
    """A stream is not done in time, so the process cannot go on."""


def window_of(rank: Rank, array: Any) -> Any:
    return rank.comm.register_window(array, rank.nccl.WindowFlag.COLL_SYMMETRIC)


def checked(rank: Rank) -> None:
    if not rank.is_done():
        raise HungError("the stream is not done after 5 s")


def facts(rank: Rank) -> str:
    names = ("device_api_support", "multimem_support", "gin_type", "railed_gin_type", "host_rma_support", "n_lsa_teams")
    values = []
    for name in names:
        try:
            values.append(f"{name} {getattr(rank.comm, name)!s}")
        except Exception as error:
            values.append(f"{name} unknown ({error})")
    return f"NCCL {rank.nccl.get_version().libnccl.version}, {', '.join(values)}"


def signal(rank: Rank) -> str:
    peer = 1 - rank.rank
    window = window_of(rank, rank.empty(1024))  # without any, NCCL rejects signals
    rank.meet()
    desc = rank.nccl.WaitSignalDesc(peer=peer, op_count=1)
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        if rank.rank == 0:
            rank.comm.signal(peer, stream=rank.stream.ptr)
            rank.comm.wait_signal(desc, stream=rank.stream.ptr)
        else:
            rank.comm.wait_signal(desc, stream=rank.stream.ptr)
            rank.comm.signal(peer, stream=rank.stream.ptr)
        checked(rank)
        times.append(time.perf_counter() - begin)
    window.close()
    return f"works: {1e6 * float(np.median(times)) / 2:.1f} us per signal and wait, half a round trip"


def put(rank: Rank) -> str:
    peer, lines = 1 - rank.rank, []
    for n_bytes in (8, MIB, 64 * MIB):
        source, target = rank.empty(n_bytes // 4), rank.empty(n_bytes // 4)
        source[...], target[...] = rank.rank + 1, 0
        windows = window_of(rank, source), window_of(rank, target)
        rank.cupy.cuda.Device().synchronize()
        rank.meet()
        desc = rank.nccl.WaitSignalDesc(peer=peer, op_count=1)
        times = []
        for _ in range(30):
            begin = time.perf_counter()
            rank.comm.put_signal(source, peer, windows[1], stream=rank.stream.ptr)
            rank.comm.wait_signal(desc, stream=rank.stream.ptr)
            checked(rank)
            times.append(time.perf_counter() - begin)
        is_right = bool((target == peer + 1).all())
        lines.append(f"{n_bytes} B {'right' if is_right else 'WRONG'} in {1e6 * float(np.median(times[5:])):.1f} us")
        rank.meet()
        for window in windows:
            window.close()
        rank.free(source, target)
    return "works in both directions: " + ", ".join(lines)


def put_in_graph(rank: Rank) -> str:
    peer = 1 - rank.rank
    source, target = rank.empty(1024), rank.empty(1024)
    source[...], target[...] = rank.rank + 1, 0
    windows = window_of(rank, source), window_of(rank, target)
    rank.cupy.cuda.Device().synchronize()
    rank.meet()
    desc = rank.nccl.WaitSignalDesc(peer=peer, op_count=1)
    with rank.stream:
        rank.stream.begin_capture()
        try:
            rank.comm.put_signal(source, peer, windows[1], stream=rank.stream.ptr)
            rank.comm.wait_signal(desc, stream=rank.stream.ptr)
        finally:
            graph = rank.stream.end_capture()
    for _ in range(3):
        graph.launch(rank.stream)
    checked(rank)
    del graph
    return "works: captured and replayed" if bool((target == peer + 1).all()) else "replayed, but WRONG"


def peer_pointer(rank: Rank) -> str:
    cupy, peer, n = rank.cupy, 1 - rank.rank, 1 << 20
    target = rank.empty(n)
    target[...] = 0
    window = window_of(rank, target)
    pointer = window.get_lsa_device_pointer(peer)
    memory = cupy.cuda.UnownedMemory(pointer, 4 * n, window, rank.device)
    remote = cupy.ndarray(n, "float32", cupy.cuda.MemoryPointer(memory, 0))
    cupy.cuda.Device().synchronize()
    rank.meet()
    remote[...] = rank.rank + 1  # a kernel of CuPy that stores into the memory of the other GPU
    cupy.cuda.Device().synchronize()
    rank.meet()
    is_right = bool((target == peer + 1).all())
    del remote
    return f"works: a kernel of CuPy writes to the peer ({'right' if is_right else 'WRONG'})"


def multicast_pointer(rank: Rank) -> str:
    cupy, n = rank.cupy, 1024
    values, out = rank.empty(n), cupy.zeros(n, "float32")
    values[...] = rank.rank + 1
    window = window_of(rank, values)
    pointer = window.get_lsa_multimem_device_pointer()
    if not pointer:
        return "no pointer: this group has no multicast"
    cupy.cuda.Device().synchronize()
    rank.meet()
    kernel = cupy.RawKernel(MULTICAST, "sum")
    kernel((n // 256,), (256,), (np.uint64(pointer), out, np.int32(n)))
    cupy.cuda.Device().synchronize()
    rank.meet()
    return f"works: the switch adds up ({'right' if bool((out == 3).all()) else 'WRONG'})"


def device_communicator(rank: Rank) -> str:
    resource = rank.comm.create_dev_comm(rank.nccl.NCCLDevCommRequirements(lsa_barrier_count=16))
    text = f"works: {len(bytes(resource.dev_comm))} bytes"
    resource.close()
    return text


def summed(rank: Rank, launch: Callable[[Any, Any, int], object]) -> str:
    """Let a kernel add up a window of both ranks, and return whether the sums are right."""
    cupy, n = rank.cupy, 1 << 20
    numbers, values = cupy.arange(n, dtype="float32"), rank.empty(n)
    values[...] = (rank.rank + 1) * numbers
    window = window_of(rank, values)
    resource = rank.comm.create_dev_comm(rank.nccl.NCCLDevCommRequirements(lsa_barrier_count=16))
    cupy.cuda.Device().synchronize()
    rank.meet()
    launch(window, resource, n)
    checked(rank)
    rank.meet()
    return "right" if bool((values == 3 * numbers).all()) else "WRONG"


def compiled(cupy: Any, headers: list[str]) -> tuple[Any, str]:
    """Return the kernel, and how it was compiled. NVRTC has no headers of C, which those of NCCL include."""
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SHIMS.items():
            (Path(folder) / name).write_text(f"#pragma once\n{text}\n")
        for how, more, options in (
            ("with headers of C for NVRTC", [folder], {}),
            ("with nvcc", [], {"backend": "nvcc"}),
        ):
            flags = ("-std=c++17", *(f"-I{path}" for path in [*more, *headers]))
            try:
                module = cupy.RawModule(code=KERNEL, options=flags, **options)
                return module.get_function("sum"), "; not ".join([how, *problems])
            except Exception as error:
                wrong = [line for line in str(error).splitlines() if "error" in line.lower()]
                problems.append(f"{how}: {' '.join((wrong or [str(error)])[0].split())[-150:]}")
    raise RuntimeError("; ".join(problems))


def kernel_with_nccl(rank: Rank) -> str:
    cupy = rank.cupy
    library = Path(str(rank.nccl.get_version().libnccl.path)).parent.parent
    include = library / "include"
    if not (include / "nccl_device.h").exists():
        return f"no header nccl_device.h in {include}"
    import cuda.pathfinder

    headers = [str(include), *filter(None, [cuda.pathfinder.find_nvidia_header_directory("cudart")])]
    cccl = Path(cupy.__file__).parent / "_core/include/cupy/_cccl"
    headers += [str(path) for path in (cccl / "libcudacxx", cccl / "libcudacxx/include") if path.exists()]
    kernel, how = compiled(cupy, headers)

    def launch(window: Any, resource: Any, n: int) -> None:
        with rank.stream:
            device_copy = cupy.asarray(np.frombuffer(bytes(resource.dev_comm), np.uint8))
            kernel((16,), (512,), (np.uint64(window.handle), np.uint64(n), device_copy))

    return f"works: an all_reduce in a kernel that CuPy compiled {how} ({summed(rank, launch)})"


def cute(rank: Rank) -> str:
    versions = rank.nccl.get_version()
    if versions.libnccl.version != versions.nccl_bindings:
        return f"not tried: nccl4py's structs are those of {versions.nccl_bindings}, not of {versions.libnccl.version}"
    begin = time.perf_counter()
    from cuda.bindings import driver
    from nccl.core.device.cute import DevComm, Window  # names the package that is missing

    from tests.gpu import cute_sum

    imported = time.perf_counter()
    kernel = cute_sum.compiled()
    kernel.to()  # loads it before the ranks meet: a rank that fails until here leaves no other in a barrier on its GPU
    ready = time.perf_counter()

    def launch(window: Any, resource: Any, n: int) -> None:
        kernel(DevComm(resource), Window(window), n, driver.CUstream(rank.stream.ptr))

    return (
        f"works: an all_reduce in a kernel of the CuTe DSL ({summed(rank, launch)}), "
        f"imported in {imported - begin:.1f} s and compiled in {ready - imported:.1f} s"
    )


def gin(rank: Rank) -> str:
    requirements = rank.nccl.NCCLDevCommRequirements(
        gin_force_enable=True,
        gin_signal_count=1,
        gin_context_count=1,
        gin_connection_type=rank.nccl.NcclGinConnectionType.FULL,
    )
    resource = rank.comm.create_dev_comm(requirements)
    resource.close()
    return "works: a device communicator with puts over the network"


@dataclass(frozen=True)
class Attempt:
    """A function of a rank that returns what works, and how long it may take, imports and compilers included."""

    function: Callable[[Rank], str]
    limit_s: float = 20.0


ATTEMPTS: dict[str, Attempt] = {
    "properties": Attempt(facts),
    "pointer to a peer's window": Attempt(peer_pointer),
    "multicast pointer of a window": Attempt(multicast_pointer),
    "device communicator": Attempt(device_communicator),
    "kernel that includes nccl_device.h": Attempt(kernel_with_nccl),
    "nccl.core.device.cute": Attempt(cute, limit_s=60.0),
    "host: signal and wait": Attempt(signal),
    "host: put with signal and wait": Attempt(put),
    "host: put in a graph": Attempt(put_in_graph),
    "device communicator with GIN": Attempt(gin),
}


def attempt(rank: Rank, name: str) -> None:
    rank.open()
    array = rank.cupy.ones(1024, "float32")
    rank.all_reduce(array)
    checked(rank)
    try:
        text = ATTEMPTS[name].function(rank)
    except BaseException as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower()] or lines
        text = f"{type(error).__name__}: {' | '.join(wrong[:3])[:400]}"
        rank.report(name, text)
        raise SystemExit(0) from None  # the other rank may wait, and is killed after the limit
    rank.report(name, text)


def with_nccl_tests(build: Path) -> None:
    for program, numbers in (
        ("all_reduce_perf", (1, 2, 3, 4)),
        ("alltoall_perf", (1, 2, 3)),
        ("all_gather_perf", (1,)),
    ):
        for number in numbers:
            command = [str(build / program), "-b", "1M", "-e", "1M", "-t", "2", "-g", "1", "-R", "2", "-D", str(number)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=20)
            except (OSError, subprocess.TimeoutExpired) as error:
                print(f"nccl-tests {program} -D {number}: {type(error).__name__}")
                continue
            rows = [line.split() for line in done.stdout.splitlines() if line.strip().startswith("1048576")]
            text = f"{rows[0][5]} us" if rows else " ".join((done.stdout + done.stderr).split())[-160:]
            print(f"nccl-tests {program} -D {number}: {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, help="build folder of nccl-tests")
    parser.add_argument("--only", nargs="*", default=list(ATTEMPTS))
    options = parser.parse_args()
    for name in options.only:
        rows = run_ranks(attempt, name, limit_s=ATTEMPTS[name].limit_s)
        answers = dict.fromkeys(text for _, what, text in rows if what == name)
        others = "; ".join(f"rank {rank} {text}" for rank, what, text in rows if what != name)
        print(f"{name}: {' || '.join(answers) or 'no answer'}{f' ({others})' if others else ''}", flush=True)
    if options.build is not None:
        with_nccl_tests(options.build)
    return 0


if __name__ == "__main__":
    sys.exit(main())
