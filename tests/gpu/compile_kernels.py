"""Compile the kinds of kernels that meshlab runs through CuPy. This needs NVRTC and the CUDA headers, but no GPU.

    python tests/gpu/compile_kernels.py

CuPy generates the source code and the include folders. Every folder and every CUDA library has to be in the environment
of this interpreter, so that a CUDA toolkit of the machine cannot hide a package that is missing. Prints one line per
kernel, and exits with 1 if a part is missing, comes from elsewhere, or a kernel does not compile.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import cupy
import ml_dtypes
import numpy as np
from cupy._core import _kernel, _reduction, core
from cupy.cuda import compiler
from cupy_backends.cuda.libs import nvrtc

from meshlab.benchmark.on_ranks._checking import _counter

ARCHITECTURE = "90"  # H100 and H200
DTYPES = [np.dtype(name) for name in ("int64", "uint8", "float16", ml_dtypes.bfloat16, "float32", "float64")]
BINARY = ("add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "equal", "not_equal", "less_equal")
UNARY = ("absolute", "rint")
NDARRAY, INDEXER = 1, 2  # CuPy's enumeration of kinds of arguments

# CuPy reduces an axis with the block-wide functions of CUB, whose headers are part of its wheel.
CUB = """
#include <cub/block/block_load.cuh>
#include <cub/block/block_reduce.cuh>
{declaration}
extern "C" __global__ void cub_sum(const {type}* values, {type}* total) {{
  typedef cub::BlockReduce<{type}, 128> Reduce;
  __shared__ typename Reduce::TempStorage storage;
  {type} items[1] = {{values[threadIdx.x]}};
  auto add = [](const {type}& a, const {type}& b) {{ return static_cast<{type}>(a + b); }};
  {type} sum = Reduce(storage).Reduce(items, add);
  if (threadIdx.x == 0) *total = sum;
}}
"""


def arguments(*dtypes: np.dtype[Any]) -> tuple[Any, ...]:
    """CuPy's descriptions of contiguous arrays of one dimension, as they are for a call with such arrays."""
    return tuple(_kernel._ArgInfo(NDARRAY, cupy.ndarray, dtype, 1, True, True) for dtype in dtypes)


def indexers(n: int) -> tuple[Any, ...]:
    return tuple(_kernel._ArgInfo(INDEXER, cupy._core._carray.Indexer, None, 1, True, True) for _ in range(n))


def elementwise(operation: str, preamble: str, sources: tuple[Any, ...], target: np.dtype[Any]) -> str:
    """The source of an elementwise kernel."""
    names = ", ".join(f"{'TUV'[number]} in{number}" for number in range(len(sources)))
    read, written = _kernel._get_param_info(names, True), _kernel._get_param_info("W out0", False)
    *_, types = _kernel._decide_params_type(read, written, sources, (target,))
    indexer = _kernel._get_param_info("CIndexer _ind", False)
    return str(
        _kernel._get_elementwise_kernel_code(
            arguments(*sources, target) + indexers(1), types, read + written + indexer, operation, "kernel", preamble
        )
    )


def ufunc(name: str, dtype: np.dtype[Any]) -> str:
    """The source of a ufunc for one dtype, from CuPy's own table of operations."""
    function = getattr(cupy, name)
    row = next(op for op in function._ops.ops if op.routine and all(np.can_cast(dtype, one) for one in op.in_types))
    preamble = "".join(f"typedef {a} in{n}_type;\n" for n, a in enumerate("TUV"[: function.nin]))
    preamble += "typedef W out0_type;\n" + function._preamble
    return elementwise(row.routine, preamble, (dtype,) * function.nin, row.out_types[0])


def total(dtype: np.dtype[Any]) -> str:
    """The source of a sum."""
    read, written = _kernel._get_param_info("T in0", True), _kernel._get_param_info("U out0", False)
    *_, types = _kernel._decide_params_type(read, written, (dtype,), (dtype,))
    rest = _kernel._get_param_info("CIndexer _in_ind, CIndexer _out_ind", False)
    block = _kernel._get_param_info("int32 _block_stride", True)
    stride = (_kernel._ArgInfo(3, cupy._core._scalar.CScalar, np.dtype("int32"), 0, True, True),)
    return str(
        _reduction._create_reduction_function_code(
            "kernel", 512, "U", read + written + rest + block, arguments(dtype, dtype) + indexers(2) + stride, "0",
            "in0", "a + b", "out0 = a", types, "const T in0 = _raw_in0[_in_ind.get()];",
            "U &out0 = _raw_out0[_out_ind.get()];", "typedef int IndexT;\n", (),
        )
    )  # fmt: skip


def counter(dtype: np.dtype[Any]) -> str:
    """The source of meshlab's own kernel, which counts differences."""
    kernel = _counter(cupy)
    *_, types = _kernel._decide_params_type(kernel.in_params, kernel.out_params, (dtype, dtype), (np.dtype("uint64"),))
    described = arguments(dtype, dtype, np.dtype("uint64")) + indexers(1)
    return str(
        _kernel._get_elementwise_kernel_code(
            described, types, kernel.params, kernel.operation, kernel.name, kernel.preamble
        )
    )


def kernels() -> dict[str, str]:
    """All kernels to compile, by name."""
    found = {
        f"count {dtype}": counter(dtype) for dtype in map(np.dtype, ("bool", "uint8", "uint16", "uint32", "uint64"))
    }
    for dtype in DTYPES:
        for name in BINARY + UNARY:
            if not (name == "rint" and dtype.kind in "iu"):
                found[f"{name} {dtype}"] = ufunc(name, dtype)
        found[f"sum {dtype}"] = total(dtype)
        declarations: set[str] = set()
        type_name = cupy._core._scalar.get_typename(dtype, declarations)
        found[f"CUB sum {dtype}"] = CUB.format(type=type_name, declaration="\n".join(declarations))
    for dtype in DTYPES:
        for source, target in ((dtype, DTYPES[-1]), (DTYPES[-1], dtype)):
            found[f"astype {source} → {target}"] = elementwise("out0 = in0", "", (source,), target)
    return found


def outside(paths: list[str]) -> list[str]:
    return [path for path in paths if not Path(path).resolve().is_relative_to(Path(sys.prefix).resolve())]


def main() -> int:
    options = core.assemble_cupy_compiler_options(())
    # CuPy asks the driver for the architecture of the device.
    compiler._get_arch_for_options_for_nvrtc = lambda arch=None: (f"-arch=sm_{arch}", "cubin")
    header = "".join(f"#include <{name}>\n" for name in core._cupy_header_list)
    n_failed = 0
    for name, source in kernels().items():
        try:
            code, _ = compiler._compile_using_nvrtc_no_warning(header + source, options, arch=ARCHITECTURE)
            assert code[:4] == b"\x7fELF", code[:4]
        except Exception as error:
            n_failed += 1
            print(f"failed   {name}: {error}\n{source}")
        else:
            print(f"compiled {name}: {len(code)} bytes")
    maps = Path("/proc/self/maps").read_text()
    libraries = sorted(set(re.findall(r"/\S+/lib(?:cu|nv)\w+[\w.-]*\.so[\d.]*", maps)))
    includes = [option[2:] for option in options if option.startswith("-I")]
    print(f"NVRTC {'.'.join(map(str, nvrtc.getVersion()))}, CuPy {cupy.__version__}", *libraries, *includes, sep="\n")
    foreign = outside(libraries + includes)
    if foreign:
        print("not from this environment:", *foreign)
    return int(bool(n_failed or foreign))


if __name__ == "__main__":
    sys.exit(main())
