"""compute_rates: measure how fast the GPUs of the ranks compute the kernels of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshlab.base._errors import BenchError
from meshlab.comm.backends._torch_kernels import KernelTimes, time_kernels
from meshlab.prediction._compute_rates import ComputeRates, rates_of_rows

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines


def compute_rates(engines: Engines, *, seconds: float = 0.1) -> ComputeRates:
    """Measure the rates of matrix products, attention and memory traffic on the GPUs of the ranks.

    All GPUs measure simultaneously, as in a training step, with random data. Each kernel runs back to back three times
    for `seconds` seconds, so that the power limit of the GPU takes effect. For each kernel, the slowest GPU counts. The
    ranks need PyTorch with CUDA.

    Parameters
    ----------
    engines : Engines
        The ranks, one per GPU.
    seconds : float, default 0.1
        Duration of each repetition. Shorter ones do not reach the power limit.

    Returns
    -------
    ComputeRates
        The rates, for the argument `rates` of `search`, `step_time` and `rehearse`.

    Raises
    ------
    BenchError
        If `seconds` is not a positive number, or the GPUs differ.
    EngineError
        If a rank has no PyTorch, or no GPU.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(8, backend="nccl") as engines:  # doctest: +SKIP
    ...     rates = ml.benchmark.compute_rates(engines)
    >>> ml.search(ml.probe(), "llama3-8b", rates=rates)  # doctest: +SKIP
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 60:
        raise BenchError(f"seconds must be a positive number below 60, not {seconds!r}", hint="pass 0.1")
    measured: list[KernelTimes] = engines.run(time_kernels, arguments=(float(seconds),))["value"].tolist()
    names = sorted({times.gpu for times in measured})
    if len(names) > 1:
        raise BenchError(f"the ranks have different GPUs: {', '.join(names)}", hint="measure one kind at a time")
    rows = [
        min(same, key=lambda row: float(row["rate"])) for same in zip(*(times.rows for times in measured), strict=True)
    ]
    launch_us = max(times.launch_us for times in measured)
    count = f"{len(measured)} GPU{'s' * (len(measured) != 1)}"
    return rates_of_rows(names[0], f"measured on {count}", rows, launch_us=launch_us)
