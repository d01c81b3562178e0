"""Times of the kernels of a training step on a rank's GPU, measured with PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from meshlab.base._errors import CommunicatorError
from meshlab.comm._communicator import Communicator

_WARM_UPS = 3
_INSTALL = "install PyTorch with CUDA, or pass measured rates of a similar GPU"
_PRODUCTS = ((1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192))  # n, k
_TOKENS = (512, 1024, 4096, 16384)
_ATTENTION = (
    (1, 32, 2048, 128),
    (1, 32, 8192, 128),
    (1, 32, 32768, 128),
    (8, 16, 2048, 64),
)  # b, heads, sequence, size


class KernelTimes(NamedTuple):
    """The rows of a GPU, as those of ``rates_h200.csv``."""

    gpu: str
    rows: tuple[dict[str, Any], ...]
    launch_us: float


def time_kernels(communicator: Communicator, seconds: float) -> KernelTimes:
    """Measure the kernels on the GPU of this rank, each for a number of seconds."""
    torch = _load()
    device = torch.device("cuda", communicator.rank % torch.cuda.device_count())
    with torch.cuda.device(device), torch.no_grad():
        rows = [*_products(torch, device, seconds), *_attention(torch, device, seconds)]
        rows += _traffic(torch, device, seconds)
        launch_us = _launch(torch, device)
    return KernelTimes(torch.cuda.get_device_name(device), tuple(rows), launch_us)


def _load() -> Any:
    try:
        import torch
    except Exception as error:
        raise CommunicatorError(f"cannot import torch to measure a GPU: {error}", hint=_INSTALL) from error
    if not torch.cuda.is_available():
        raise CommunicatorError(f"torch {torch.__version__} finds no GPU to measure", hint=_INSTALL)
    return torch


def _time(torch: Any, call: Callable[[], object], seconds: float) -> float:
    """Return the median of three means, in seconds per call."""
    for _ in range(_WARM_UPS):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(1, int(seconds / max(time.perf_counter() - start, 1e-6)))
    means: list[float] = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        means.append(float(begin.elapsed_time(end)) * 1e-3 / count)
    return sorted(means)[1]


def _row(kernel: str, dtype: str, sizes: Sequence[int], seconds: float, rate: float) -> dict[str, Any]:
    names = ("m", "n", "k", "head_size")
    shape = dict(zip(names, (*sizes, "", "", "")[:4], strict=True))
    return {"kernel": kernel, "dtype": dtype, **shape, "time_us": seconds * 1e6, "rate": rate}


def _products(torch: Any, device: Any, seconds: float) -> list[dict[str, Any]]:
    rows = []
    has_8_bits = torch.cuda.get_device_capability(device) >= (8, 9)
    for m in _TOKENS:
        for n, k in _PRODUCTS:
            a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
            b = torch.randn(n, k, device=device, dtype=torch.bfloat16)
            calls: dict[str, Callable[[], object]] = {"bfloat16": partial(torch.matmul, a, b.t())}
            if has_8_bits:
                scale = torch.ones((), device=device)
                x, y = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
                calls["float8_e4m3fn"] = partial(
                    torch._scaled_mm, x, y.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
                )
            for dtype, call in calls.items():
                spent = _time(torch, call, seconds)
                rows.append(_row("product", dtype, (m, n, k), spent, 2e-12 * m * n * k / spent))
    return rows


def _attention(torch: Any, device: Any, seconds: float) -> list[dict[str, Any]]:
    rows = []
    attend = torch.nn.functional.scaled_dot_product_attention
    for shape in _ATTENTION:
        batch, heads, sequence, size = shape
        q, k, v = (
            torch.randn(batch, heads, sequence, size, device=device, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        operations = 2e-12 * batch * heads * sequence**2 * size  # half of the square
        forward = _time(torch, partial(attend, q, k, v, is_causal=True), seconds)
        rows.append(_row("attention forward", "bfloat16", shape, forward, operations / forward))
        with torch.enable_grad():
            result = attend(q, k, v, is_causal=True)
            gradient = torch.randn_like(result)
            call = partial(torch.autograd.grad, result, (q, k, v), gradient, retain_graph=True)
            backward = _time(torch, call, seconds)
        rows.append(_row("attention backward", "bfloat16", shape, backward, 2.5 * operations / backward))
    return rows


def _traffic(torch: Any, device: Any, seconds: float) -> list[dict[str, Any]]:
    x, y = (torch.randn(8192, 14336, device=device, dtype=torch.bfloat16) for _ in range(2))
    spent = _time(torch, lambda: torch.add(x, y, out=x), seconds)
    return [_row("add", "bfloat16", (8192, 14336), spent, 3e-12 * x.numel() * 2 / spent)]


def _launch(torch: Any, device: Any) -> float:
    """Return the time of a launch in us: kernels that are shorter than that follow one another."""
    x = torch.zeros(256, device=device)
    return _time(torch, lambda: x.add_(1), 0.05) * 1e6
