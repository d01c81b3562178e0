"""StepRange: how far predicted steps were from published ones, learnt with each group of rows left out of the fit.

The table is in the file ``published_steps.csv`` next to this module: a row per published training step, and the
logarithm of predicted over published seconds, from a fit without the rows of the same model and source.
"""

from __future__ import annotations

import csv
import math
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshlab.base._units import THIN
from meshlab.prediction._compute_rates import MATMUL_BITS, family_of

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.prediction._job import Job

_SHARE = 0.87  # of the published steps that a range contains
_PAIR_SHARE = 0.9  # of the pairs of published steps whose ratio is in its range
_LEAST_ROWS = 8
_WIDER = 1.35  # exponent of the range of a stack without enough rows


class PublishedStep(NamedTuple):
    """A published training step, and how far a prediction without its group was from it."""

    source: str
    model: str
    gpu: str
    matmul: str
    ranks: int
    has_experts: bool
    is_pytorch: bool
    published_s: float
    error: float  # logarithm of predicted over published seconds

    @property
    def stack(self) -> tuple[str, int, bool]:
        """What a step has in common with others: the GPU, the bits of its products, and the software."""
        return architecture_of(self.gpu), MATMUL_BITS[self.matmul], self.is_pytorch


class StepRange(NamedTuple):
    """The range of a predicted step: from ``seconds / factor`` to ``seconds * factor``."""

    factor: float
    n_rows: int
    has_stack: bool  # rows of the same GPU, precision and software exist
    sources: tuple[str, ...]

    @property
    def text(self) -> str:
        """What the range rests on, in a sentence."""
        sources = ", ".join(self.sources)
        if self.has_stack:
            share = f"{100 * _SHARE:.0f}{THIN}%"
            steps = f"{self.n_rows} published steps with the same GPUs, precision and software ({sources})"
            return f"Of {steps}, {share} were in such a range."
        rows = f"{self.n_rows} published steps ({sources})"
        return (
            f"Fewer than {_LEAST_ROWS} published steps have these GPUs, this precision and this software, so the range "
            f"is wider than that of all {rows}."
        )


def architecture_of(gpu: str) -> str:
    """Return the GPU whose published steps count for another one, or its name."""
    family = family_of(gpu)
    return {"H200": "H100", "GB200": "B200", "B300": "B200", "GB300": "B200"}.get(family, family or gpu)


@cache
def step_rows() -> tuple[PublishedStep, ...]:
    """Return the rows of the table."""
    text = files("meshlab.prediction").joinpath("published_steps.csv").read_text(encoding="utf-8")
    return tuple(
        PublishedStep(
            source=row["source"],
            model=row["model"],
            gpu=row["gpu"],
            matmul=row["matmul"],
            ranks=int(row["ranks"]),
            has_experts=row["experts"] == "1",
            is_pytorch=row["pytorch"] == "1",
            published_s=float(row["published_s"]),
            error=float(row["error"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


class PairError(NamedTuple):
    """How far the predicted ratio of two published steps was from the published one."""

    source: str
    error: float  # absolute logarithm


def pair_errors(*, has_experts: bool) -> list[PairError]:
    """Return the errors of all pairs of published steps of one source and model on as many of the same GPUs."""
    groups: dict[tuple[object, ...], list[PublishedStep]] = {}
    for row in step_rows():
        if row.has_experts == has_experts:
            key = (row.source, row.model, row.gpu, row.matmul, row.is_pytorch, row.ranks)
            groups.setdefault(key, []).append(row)
    pairs = (pair for rows in groups.values() for pair in combinations(rows, 2))
    return [PairError(after.source, abs(after.error - before.error)) for after, before in pairs]


@cache
def layout_error(*, has_experts: bool) -> float:
    """Return the factor of the error that a layout does not share with another one of the same model and machine."""
    # The ratio of two layouts has the errors of both, which are independent: hence the square root of 2. The pairs of
    # models with experts are of different releases of the software, so their factor is an upper bound.
    errors = [pair.error for pair in pair_errors(has_experts=has_experts)]
    return math.exp(float(np.quantile(errors, _PAIR_SHARE)) / math.sqrt(2))


def published_steps() -> pd.DataFrame:
    """Return the published training steps on which the ranges of predicted steps rest.

    Returns
    -------
    pandas.DataFrame
        One row per step: ``source``, ``model``, ``gpu``, ``matmul`` (element type of the products), ``ranks``,
        ``has_experts``, ``is_pytorch`` (the software is PyTorch's instead of Megatron's), ``published_s``, ``error``
        (logarithm of predicted over published seconds, from a fit without the rows of the same model and source), and
        ``predicted_s``.

    Examples
    --------
    >>> import meshlab as ml
    >>> steps = ml.prediction.published_steps()
    >>> len(steps), sorted(set(steps["source"]))[:3]
    (116, ['MLPerf Training', 'Megatron-Bridge', 'NeMo'])
    """
    import pandas as pd

    frame = pd.DataFrame(step_rows())
    frame["predicted_s"] = frame["published_s"] * np.exp(frame["error"])
    return frame


def step_range(job: Job, gpu: str, matmul: str) -> StepRange:
    """Return the range of a job on a GPU."""
    alike = [row for row in step_rows() if row.has_experts == (job.moe_layers > 0)]
    stack = architecture_of(gpu), MATMUL_BITS.get(matmul, 16), job.is_pytorch
    same = [row for row in alike if row.stack == stack]
    rows = same if len(same) >= _LEAST_ROWS else alike
    spread = float(np.quantile([abs(row.error) for row in rows], _SHARE))
    spread *= 1.0 if rows is same else _WIDER
    return StepRange(float(np.exp(spread)), len(rows), rows is same, tuple(sorted({row.source for row in rows})))
