"""ComputeRates: how fast a GPU computes the kernels of a training step, by kernel, element type and shape."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from meshlab.base._errors import TopologyError
from meshlab.base._hints import Argument, Hint
from meshlab.topology.model._levels import Floats
from meshlab.topology.model._products import peak_tflops

PRODUCT, FORWARD, BACKWARD = "product", "attention forward", "attention backward"
KERNELS = (PRODUCT, FORWARD, BACKWARD)
_TRAFFIC = ("rms_norm", "eager swiglu", "permutation", "add")  # kernels that only move data, with rates in TB/s

MATMUL_BITS: Mapping[str, int] = {
    "float32": 32, "bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "nvfp4": 4,
}  # fmt: skip
"""Element types of matrix products, and their bits. ``nvfp4`` has a scale per 16 elements of 4 bits."""


class Scale(NamedTuple):
    """Rates of a GPU relative to the measured H200. `peaks` are published, `shares` are fitted to published steps."""

    peaks: Mapping[int, float]  # dense peak in TFLOP/s by bits, from data sheets
    shares: Mapping[int, float]  # by bits: how much more of its peak than the H200 a product reaches
    attention: float  # rate of attention relative to the H200
    memory_tbs: float  # bandwidth of the memory in TB/s, from data sheets
    host_gbs: float = 50.0  # between the device and the memory of its host, each way: PCIe 5, 4 or NVLink-C2C


class Kernel(NamedTuple):
    """The measured rates of a kernel. Shapes are those of a product (m, n, k) or of attention (b, heads, sequence)."""

    shape: Floats  # (rows, axes), base-2 logarithms
    rate: Floats  # TFLOP/s
    weights: tuple[float, ...]  # of the axes in a distance


_PRODUCT_WEIGHTS = (1.0, 1.0, 1.0)
_ATTENTION_WEIGHTS = (0.25, 0.25, 1.0, 4.0)  # the head size decides, then the sequence


@dataclass(frozen=True, eq=False)
class ComputeRates:
    """Measured rates of a GPU, or those of an H200 scaled to another GPU.

    Create them with `meshlab.benchmark.compute_rates` on your own GPUs. Without them, `search` and `step_time` use the
    table of an H200 in the package, which is scaled to other GPUs by published peaks and fitted factors.

    Parameters
    ----------
    gpu : str
        Name of the GPU.
    source : str
        Where the rates come from, in words.
    kernels : mapping
        The measured rates by kernel and element type.
    memory_tbs : float
        Bandwidth of the memory in TB/s that a kernel reaches.
    launch_us : float
        Time in us that the host needs to launch a kernel.
    factors : mapping, optional
        Factors of the rates of matrix products by bits, and of attention (key 0). By default 1.
    flash : float, default 1
        Rate of FlashAttention-2 relative to that of the table's attention.
    host_gbs : float, default 50
        GB/s between the device and the memory of its host, each way.
    """

    gpu: str
    source: str
    kernels: Mapping[tuple[str, str], Kernel]
    memory_tbs: float
    launch_us: float
    factors: Mapping[int, float] = field(default_factory=dict)
    flash: float = 1.0
    host_gbs: float = 50.0

    def products(self, dtype: str, m: Any, n: Any, k: Any) -> Floats:
        """Return the rates of products of (m, k) and (k, n) matrices in TFLOP/s."""
        bits = MATMUL_BITS[dtype]
        measured = self._kernel(PRODUCT, bits)
        shapes = np.broadcast_arrays(*(np.asarray(size, dtype=float) for size in (m, n, k)))
        return self.factors.get(bits, 1.0) * _nearby(measured, shapes)

    def attention(self, phase: str, batch: Any, heads: Any, sequence: Any, head_size: int) -> Floats:
        """Return the rates of a pass of causal attention in TFLOP/s, with half of the square as operations."""
        measured = self._kernel(FORWARD if phase == "forward" else BACKWARD, 16)
        sizes = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (batch, heads, sequence, head_size)))
        return self.factors.get(0, 1.0) * _nearby(measured, sizes)

    def _kernel(self, name: str, bits: int) -> Kernel:
        # The nearest wider type, such as 8 bits for 4, whose factor has the ratio of the peaks.
        for wider in (bits, *(b for b in (8, 16, 32) if b > bits), 16):
            for (kernel, dtype), rates in self.kernels.items():
                if kernel == name and MATMUL_BITS[dtype] == wider:
                    return rates
        raise TopologyError(f"the rates of {self.gpu} have no {name}", hint="measure them with compute_rates()")

    def __repr__(self) -> str:
        count = sum(len(kernel.rate) for kernel in self.kernels.values())
        title = f"<ComputeRates of {self.gpu}: {count} kernels, {self.memory_tbs:.3g} TB/s, {self.source}"
        return f"{title}; next: ml.search(…, rates=…)>"


def _nearby(measured: Kernel, sizes: Iterable[Floats]) -> Floats:
    """Interpolate the rates at shapes, with weights that fall with the distance of the logarithms of the sizes."""
    points = np.log2(np.maximum(np.stack([np.ravel(size) for size in sizes], axis=1), 1.0))
    shape = np.shape(next(iter(sizes)))
    unique, index = np.unique(points, axis=0, return_inverse=True)
    weights = np.array(measured.weights)
    distance = (weights * (unique[:, None, :] - measured.shape[None]) ** 2).sum(axis=2)
    weight = 1 / (distance + 0.02) ** 2
    rate = (weight * measured.rate).sum(axis=1) / weight.sum(axis=1)
    return np.asarray(rate[index.ravel()].reshape(shape))


@cache
def measured_h200() -> ComputeRates:
    """Return the rates that were measured on an H200, from the table of the package."""
    text = files("meshlab.prediction").joinpath("rates_h200.csv").read_text(encoding="utf-8")
    return rates_of_rows("H200", "measured on an H200", csv.DictReader(text.splitlines()), launch_us=LAUNCH_US)


def rates_of_rows(gpu: str, source: str, rows: Iterable[Mapping[str, Any]], *, launch_us: float) -> ComputeRates:
    """Return the rates of measured rows, in the form of ``rates_h200.csv``."""
    of_kernel: dict[tuple[str, str], list[tuple[list[float], float]]] = {}
    memory = []
    for row in rows:
        kernel, rate = str(row["kernel"]), float(row["rate"])
        if kernel in KERNELS:
            names = ("m", "n", "k") if kernel == PRODUCT else ("m", "n", "k", "head_size")
            of_kernel.setdefault((kernel, str(row["dtype"])), []).append(([float(row[name]) for name in names], rate))
        elif kernel in _TRAFFIC:
            memory.append(rate)
    kernels = {
        key: Kernel(
            np.log2(np.array([shape for shape, _ in measured])),
            np.array([rate for _, rate in measured]),
            _PRODUCT_WEIGHTS if key[0] == PRODUCT else _ATTENTION_WEIGHTS,
        )
        for key, measured in of_kernel.items()
    }
    return ComputeRates(gpu, source, kernels, max(memory, default=3.0), launch_us)


LAUNCH_US = 8.5
"""Time of a launch on the host of the measured H200, in us."""

FLASH = 0.38
"""Rate of FlashAttention-2 on Hopper relative to the measured kernel of cuDNN, fitted to published steps."""

# Dense peaks and bandwidths are those of NVIDIA's data sheets. The shares and factors of attention are fitted.
_H200 = Scale({32: 494.0, 16: 989.0, 8: 1979.0}, {}, 1.0, 4.8)
SCALES: dict[str, Scale] = {
    "A100": Scale({16: 312.0, 32: 156.0}, {16: 1.16}, 0.35, 2.0, 25.0),
    "H100": Scale({16: 989.0, 8: 1979.0, 32: 494.0}, {8: 1.25}, 1.0, 3.35),
    "H200": Scale({16: 989.0, 8: 1979.0, 32: 494.0}, {8: 1.25}, 1.0, 4.8),
    "B200": Scale({16: 2250.0, 8: 4500.0, 4: 9000.0, 32: 1100.0}, {16: 1.04, 8: 1.04, 4: 0.95}, 2.4, 8.0),
    "GB200": Scale({16: 2500.0, 8: 5000.0, 4: 10000.0, 32: 1250.0}, {16: 1.04, 8: 1.04, 4: 0.95}, 2.4, 8.0, 300.0),
    "B300": Scale({16: 2250.0, 8: 4500.0, 4: 13500.0, 32: 1100.0}, {16: 1.32, 8: 1.32, 4: 0.8}, 3.1, 8.0),
    "GB300": Scale({16: 2500.0, 8: 5000.0, 4: 15000.0, 32: 1250.0}, {16: 1.32, 8: 1.32, 4: 0.8}, 3.1, 8.0, 300.0),
}


def scaled_rates(gpu: str, peak: float | None = None, bits: int = 16) -> ComputeRates:
    """Return the rates of a GPU by its name, scaled from those of the H200. A peak replaces the published one."""
    base = measured_h200()
    scale = SCALES.get(family_of(gpu)) or _by_peak(gpu, peak)
    factors = {}
    relative = peak_tflops(gpu) / scale.peaks[16]
    relative = 1.0 if np.isnan(relative) else relative
    for width in (32, 16, 8, 4):
        reference = _H200.peaks[max(width, 8)]
        published = scale.peaks.get(width, scale.peaks.get(16, 0.0)) * relative
        most = peak if peak is not None and width == bits else published
        factors[width] = most / reference * scale.shares.get(width, scale.shares.get(16, 1.0))
    factors[0] = scale.attention
    source = base.source if family_of(gpu) == "H200" else "scaled from an H200"
    memory = base.memory_tbs * scale.memory_tbs / _H200.memory_tbs
    return ComputeRates(
        gpu, source, base.kernels, memory, LAUNCH_US, factors, FLASH if scale.attention == 1.0 else 1.0, scale.host_gbs
    )


def published_peak(gpu: str, bits: int = 16) -> float:
    """Return the published dense peak of a GPU in TFLOP/s, scaled from 16 bits if it is unknown, or NaN."""
    scale = SCALES.get(family_of(gpu))
    peak = peak_tflops(gpu)
    if scale is not None and (bits in scale.peaks or np.isnan(peak)):
        relative = 1.0 if np.isnan(peak) else peak / scale.peaks[16]
        return relative * scale.peaks.get(bits, scale.peaks[16] * 16 / bits)
    return peak * 16 / bits


def family_of(gpu: str) -> str:
    """Return the key of a GPU in `SCALES`, or an empty string."""
    import re

    alike = {"A800": "A100", "H800": "H100", "GH200": "H100"}
    for name in (*alike, *SCALES):
        if re.search(rf"\b{name}\b", gpu):
            return alike.get(name, name)
    return ""


def _by_peak(gpu: str, peak: float | None) -> Scale:
    published = peak_tflops(gpu)
    if np.isnan(published):
        if peak is None:
            raise TopologyError(
                f"the peak of {gpu!r} is unknown",
                hint=Hint("pass {} in TFLOP/s, such as 989 for an H100 in bfloat16", Argument("peak")),
            )
        published = peak
    return Scale({16: published}, {}, published / 989.0, 4.8 * published / 989.0)
