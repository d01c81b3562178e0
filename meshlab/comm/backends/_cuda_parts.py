"""The packages and libraries that the `nccl` backend needs, and the fix for each one that is missing or does not match.

CuPy compiles its kernels when they first run. Its wheel contains neither NVRTC, the compiler, nor the headers of the
CUDA runtime. NVIDIA's cuda-pathfinder finds libraries in the environment, and then in a CUDA toolkit of the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from meshlab.base._errors import CommunicatorError

_CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")  # conda calls its package cupy, for every version of CUDA
_NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
_OLDEST_DRIVER = {12: 525, 13: 580}  # by the major version of CUDA


class CudaPart(NamedTuple):
    """A part that collectives on GPUs need."""

    name: str
    text: str  # its version and path
    problem: str = ""
    fix: str = ""
    conflicts: bool = False  # True if it is installed but cannot work


def find_parts() -> list[CudaPart]:
    """Find all parts, in the order in which they are needed. Without CuPy and nccl4py, later ones are left out."""
    packages = [_driver(), _package("cupy", _CUPY), _package("nccl4py", ("nccl4py",))]
    try:
        import cuda.pathfinder  # noqa: F401
    except ImportError:
        return packages
    return [*packages, _nccl(), _nvrtc(), _headers(), _library("CUDA runtime", "cudart")]


def find_cublas() -> CudaPart:
    """Find cuBLAS. Only matrix products need it, and it is larger than all other parts together."""
    command = f"pip install 'cuda-toolkit[cublas]=={_cuda_major() or '12'}.*'"
    try:
        import cuda.pathfinder  # noqa: F401
    except ImportError:
        return CudaPart("cuBLAS", "", "not found", command)
    return _library("cuBLAS", "cublas")._replace(fix=command)


def install_command() -> str:
    """Return the command that installs all parts, for the installed CuPy or, without it, for the driver."""
    major = _cuda_major()
    if major is None:
        return "pip install '.[cuda12]' or '.[cuda13]' in meshlab's folder, depending on the driver"
    return f"pip install '.[cuda{major}]' in meshlab's folder"


def explain_failure(action: str, error: Exception, *, rank: int | None = None) -> CommunicatorError:
    """Return an error that names the parts with problems, and repeats the error of the library."""
    reported = (str(error).strip().splitlines() or [type(error).__name__])[0]
    problems = [part for part in find_parts() if part.problem]
    if not problems:
        return CommunicatorError(f"cannot {action}: {reported}", hint="run meshlab doctor", rank=rank)
    text = ", ".join(f"{part.name} {part.problem}" for part in problems)
    fixes = "; ".join(dict.fromkeys(part.fix for part in problems))
    return CommunicatorError(f"cannot {action}: {text} (reported: {reported})", hint=fixes, rank=rank)


def _cuda_major() -> int | None:
    """Return the major version of CUDA that the installed CuPy, or else the driver, is made for."""
    for name in _installed(_CUPY):
        match = re.match(r"cupy-cuda(\d+)x", name)
        if match is not None and match[1] in ("12", "13"):
            return int(match[1])
    driver = _driver_version()
    return None if driver is None else min(max(driver[0], 12), 13)


def _installed(names: tuple[str, ...]) -> list[str]:
    """Return the installed packages of `names`, with their versions."""
    packages = []
    for name in names:
        try:
            packages.append(f"{name} {distribution(name).version}")
        except PackageNotFoundError:
            continue
    return packages


def _driver_version() -> tuple[int, int] | None:
    """Return the version of CUDA that the driver supports, or None without a driver."""
    version = ctypes.c_int()
    try:
        library = ctypes.CDLL("libcuda.so.1")
        if library.cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def _driver() -> CudaPart:
    name, version, major = "CUDA driver", _driver_version(), _cuda_major()
    if version is None:
        return CudaPart(name, "", "not found (libcuda.so.1)", "install the NVIDIA driver")
    text = f"supports CUDA {_dotted(version)}"
    if major is not None and version[0] < major:
        fix = f"upgrade the NVIDIA driver to {_OLDEST_DRIVER[major]} or newer"
        if version[0] == 12:
            fix += f", or pip uninstall cupy-cuda{major}x and pip install '.[cuda12]' in meshlab's folder"
        return CudaPart(name, "", f"{text}, but CuPy is made for CUDA {major}", fix, conflicts=True)
    return CudaPart(name, text)


def _package(name: str, choices: tuple[str, ...]) -> CudaPart:
    packages = _installed(choices)
    if len(packages) > 1:
        problem = f"{' and '.join(packages)} are both installed, and one hides the other"
        return CudaPart(name, "", problem, f"pip uninstall one of {', '.join(choices)}", conflicts=True)
    if not packages:
        return CudaPart(name, "", "not installed", install_command())
    return CudaPart(name, packages[0])


def _library(name: str, library: str) -> CudaPart:
    """Find and load a library. The path is the text of the result."""
    from cuda import pathfinder

    try:
        loaded = pathfinder.load_nvidia_dynamic_lib(library)
    except pathfinder.DynamicLibNotFoundError:
        return CudaPart(name, "", "not found", install_command())
    except (OSError, RuntimeError) as error:
        return CudaPart(name, "", f"cannot be loaded: {str(error).splitlines()[0]}", install_command(), conflicts=True)
    return CudaPart(name, str(loaded.abs_path))


def _nccl() -> CudaPart:
    hidden = _package("libnccl", _NCCL)
    if hidden.conflicts:
        return hidden
    part = _library("libnccl", "nccl")
    if part.problem:
        return part
    return part._replace(text=f"{_nccl_version(part.text)} at {part.text}")


def _nccl_version(path: str) -> str:
    version = ctypes.c_int()
    ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
    return f"{version.value // 10000}.{version.value % 10000 // 100}.{version.value % 100}"


def _nvrtc_version(path: str) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _nvrtc() -> CudaPart:
    part = _library("NVRTC", "nvrtc")
    if part.problem:
        return part
    version, driver = _nvrtc_version(part.text), _driver_version()
    text = f"{_dotted(version)} at {part.text}"
    # A driver runs machine code of newer minor versions, but not of newer major versions. If CuPy has the same major
    # version, the problem is the driver, which is reported once.
    if driver is not None and driver[0] < version[0] != _cuda_major():
        problem = f"{text} is newer than the driver, which supports CUDA {_dotted(driver)}"
        return CudaPart(part.name, "", problem, install_command(), conflicts=True)
    return part._replace(text=text)


def _headers() -> CudaPart:
    from cuda import pathfinder

    name = "CUDA headers"
    folder = pathfinder.find_nvidia_header_directory("cudart")
    if folder is None:
        return CudaPart(name, "", "not found", install_command())
    text = (Path(folder) / "cuda_runtime_api.h").read_text(errors="replace")
    match = re.search(r"^#define CUDART_VERSION\s+(\d+)", text, flags=re.MULTILINE)
    if match is None:
        return CudaPart(name, str(folder))
    version = int(match[1]) // 1000, int(match[1]) % 1000 // 10
    compiler = _library("NVRTC", "nvrtc")
    if not compiler.problem and (expected := _nvrtc_version(compiler.text))[0] != version[0]:
        problem = f"{_dotted(version)} at {folder} do not match NVRTC {_dotted(expected)}"
        return CudaPart(name, "", problem, install_command(), conflicts=True)
    return CudaPart(name, f"{_dotted(version)} at {folder}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def open_device(device: int) -> None:
    """Start CUDA on a device. In a thread, because it takes about a second, in which Python can import packages."""
    # The primary context is that of the CUDA runtime, and so of CuPy and NCCL. Later code reports the errors.
    with contextlib.suppress(OSError, AttributeError):
        driver, handle, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
        if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(handle), device):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)


def is_mappable(pointer: int) -> bool:
    """Return True if other GPUs can map the memory at an address, as they can map memory of NCCL."""
    try:
        from cuda.bindings import driver
    except ImportError:  # NCCL has the last word
        return True
    error, handle = driver.cuMemRetainAllocationHandle(pointer)
    if int(error):
        return False
    driver.cuMemRelease(handle)
    return True
