"""Fits of measured times: a model's shape × scales × a residual over the size, and the error of all this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import BenchError
from meshlab.prediction._constants import ALGORITHMS, PROTOCOLS

if TYPE_CHECKING:
    from meshlab.prediction._costs import Cost


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

FEWEST_ROWS = 4
"""A fit needs at least this number of sizes."""

_FEWEST_FOR_RESIDUAL = 8
"""With fewer sizes than this, the scales follow the noise already, so there is no residual."""

_HUBER = 0.1  # in units of log time: a row that is off by more than 10 % pulls linearly instead of quadratically
_RIDGE = 0.02
_OFF = 3.0  # a row that is this factor off its neighbours is an outlier
_COVERAGE = 0.9
# The error of a fit is like a random walk over the size: its variance between two rows at a and b octaves is
# a b / (a + b), beyond the last row the distance to it, and everywhere this much more, in octaves, by which a row
# differs from a repetition.
_OF_REPETITION = 0.25
_NEAR_OCTAVES = 4.0  # errors at sizes farther away than this count less
_FAR_SHARE = 0.3  # what all rows together count at any distance, as a share of one row
_BEYOND_ALL = 1.3  # of the largest error, where the rows are too few for the quantile
_NARROWEST, _NARROWEST_OF_FEW = 0.02, 0.15


@dataclass(frozen=True, eq=False)
class ModelTimes:
    """The times of a model at increasing sizes, in two parts, with the algorithm and protocol of each."""

    size_bytes: Floats
    latency_us: Floats
    transfer_us: Floats
    kind: tuple[str, ...]  # each kind has separate scales

    @classmethod
    def of(cls, cost: Cost, row: int) -> ModelTimes:
        """Return the times that NCCL's model has for one signature."""
        choices = zip(cost.algorithm[row].tolist(), cost.protocol[row].tolist(), strict=True)
        kinds = tuple(f"{ALGORITHMS[algorithm]} {PROTOCOLS[protocol]}" for algorithm, protocol in choices)
        return cls(cost.sizes.astype(np.float64), cost.latency_us[row], cost.transfer_us[row], kinds)

    @property
    def time_us(self) -> Floats:
        """The unscaled times."""
        return self.latency_us + self.transfer_us

    def __getitem__(self, rows: npt.NDArray[np.bool_]) -> ModelTimes:
        kinds = tuple(kind for kind, is_kept in zip(self.kind, rows, strict=True) if is_kept)
        return ModelTimes(self.size_bytes[rows], self.latency_us[rows], self.transfer_us[rows], kinds)


def hockney(size_bytes: Floats, latency_us: float, gbs: float) -> ModelTimes:
    """Return the shape latency + size / bandwidth, for libraries whose algorithms are not modelled."""
    return ModelTimes(
        size_bytes, np.full(size_bytes.shape, latency_us), size_bytes / gbs / 1e3, ("",) * size_bytes.size
    )


@dataclass(frozen=True)
class TimeFit:
    """Scales and a residual that turn a shape into measured times, over increasing sizes."""

    scales: tuple[tuple[str, float, float], ...]  # kind, of latency, of transfer; last without a name: other kinds
    size_bytes: tuple[int, ...]
    residual: tuple[float, ...]  # log(measured / scaled time) at these sizes; zero with few sizes
    half_width: float  # of the band, in units of log time; 9 of 10 left-out rows are inside
    errors: tuple[float, ...] = ()  # log(measured / predicted time) at each size, from a fit without this size
    ratio: tuple[float, ...] = ()  # log(measured / unscaled time) at each size

    def __post_init__(self) -> None:
        if not self.scales or not self.size_bytes or len(self.residual) != len(self.size_bytes):
            raise BenchError("a fit needs scales, sizes, and a residual for each size", hint="calibrate again")
        if min(self.size_bytes) < 1:
            raise BenchError(
                f"a fit needs sizes of at least 1 byte, not {min(self.size_bytes)}", hint="calibrate again"
            )

    def time_parts(self, shape: ModelTimes) -> tuple[Floats, Floats]:
        """Return latency and transfer time, in µs, with the scales and the residual."""
        scales = {kind: pair for kind, *pair in self.scales}
        pairs = np.array([scales.get(kind, self.scales[-1][1:]) for kind in shape.kind]).reshape(-1, 2)
        factor = np.exp(np.interp(np.log2(shape.size_bytes), np.log2(self.size_bytes), np.array(self.residual)))
        return shape.latency_us * pairs[:, 0] * factor, shape.transfer_us * pairs[:, 1] * factor

    def half_widths(self, size_bytes: Floats) -> Floats:
        """Return the half-width of the band at each size, from the errors at sizes nearby."""
        n = len(self.size_bytes)
        if n < _FEWEST_FOR_RESIDUAL or len(self.errors) != n:
            return np.full(size_bytes.shape, self.half_width)
        rows, x = np.log2(np.array(self.size_bytes)), np.log2(size_bytes)
        variance = np.array([_walk(rows[k : k + 1], np.delete(rows, k))[0] for k in range(n)])
        errors = np.maximum(np.abs(self.errors), _NARROWEST / 2) / np.sqrt(variance)
        order = np.argsort(errors)
        near = np.exp(-0.5 * ((x[:, None] - rows) / _NEAR_OCTAVES) ** 2) + _FAR_SHARE / n
        below = np.cumsum(near[:, order], axis=1)
        # The new size is one of n + 1 that could be the worst.
        number = (below < _COVERAGE * (below[:, -1:] + near.mean(axis=1, keepdims=True))).sum(axis=1)
        quantile = errors[order][np.minimum(number, n - 1)] * np.where(number < n, 1.0, _BEYOND_ALL)
        return np.asarray(np.maximum(quantile * np.sqrt(_walk(x, rows)), _NARROWEST))

    def time_parts_elsewhere(self, shape: ModelTimes) -> tuple[Floats, Floats]:
        """Return latency and transfer time, in µs, for the shape of another number of ranks."""
        # Scales per algorithm would move with the sizes at which the algorithm changes, and these depend on the number
        # of ranks. So the ratio to the model over the size is used as a whole.
        factor = np.exp(np.interp(np.log2(shape.size_bytes), np.log2(self.size_bytes), np.array(self.ratio)))
        return shape.latency_us * factor, shape.transfer_us * factor


def _walk(x: Floats, rows: Floats) -> Floats:
    """Return the variance of the error at each x between rows, both as log2 of the size, up to a factor."""
    after = np.searchsorted(rows, x)
    left = x - np.concatenate([[-np.inf], rows])[after]
    right = np.concatenate([rows, [np.inf]])[after] - x
    nearer, farther = np.minimum(left, right), np.maximum(left, right)
    # a b / (a + b), which is the nearer distance where there is no row on the other side.
    return np.asarray(nearer / (1 + nearer / np.maximum(farther, 1e-9)) + _OF_REPETITION)


def fit(shape: ModelTimes, time_us: Floats, *, spread: float = 0.0) -> TimeFit:
    """Fit the scales and the residual, with a band from held-out rows of at least `spread`, in units of log time."""
    # The scales minimise Huber's loss of the logarithms, with a ridge that keeps them at 1 where the rows do not
    # determine them. The choice of algorithm and protocol is the model's: a fit that took its own minimum would move
    # the switches.
    kinds = tuple(dict.fromkeys(shape.kind))
    kind = np.array([kinds.index(name) for name in shape.kind])
    n, x, log_time = time_us.size, np.log2(shape.size_bytes), np.log(time_us)
    # The fit of all rows, then one without each row.
    weights = np.concatenate([np.ones((1, n)), 1 - np.eye(n)])
    parts = np.stack([shape.latency_us, shape.transfer_us], axis=-1)
    scales = _scales(parts, kind, len(kinds), log_time, weights)
    residuals = log_time - np.log((np.exp(scales[:, kind]) * parts).sum(axis=-1))
    has_residual = n >= _FEWEST_FOR_RESIDUAL
    errors = np.array([_left_out(x, residuals[row + 1], row, has_residual) for row in range(n)])
    half_width = float(np.quantile(np.abs(errors), _COVERAGE, method="higher"))
    least = _NARROWEST if has_residual else _NARROWEST_OF_FEW
    return TimeFit(
        scales=_named(kinds, scales[0], parts, log_time),
        size_bytes=tuple(int(size) for size in shape.size_bytes),
        residual=tuple(map(float, residuals[0] if has_residual else np.zeros(n))),
        half_width=max(half_width, spread, least),
        errors=tuple(map(float, errors)),
        ratio=tuple(map(float, log_time - np.log(shape.time_us))),
    )


def fit_scales(shapes: Sequence[ModelTimes], times_us: Sequence[Floats], half_width: float) -> TimeFit:
    """Fit only the scales, to several collectives at once. Their residuals differ, so the band is given."""
    kinds = tuple(dict.fromkeys(kind for shape in shapes for kind in shape.kind))
    parts = np.concatenate([np.stack([shape.latency_us, shape.transfer_us], axis=-1) for shape in shapes])
    kind = np.array([kinds.index(name) for shape in shapes for name in shape.kind])
    log_time = np.log(np.concatenate(times_us))
    scales = _scales(parts, kind, len(kinds), log_time, np.ones((1, len(parts))))
    sizes = np.unique(np.concatenate([shape.size_bytes for shape in shapes]))
    named = _named(kinds, scales[0], parts, log_time)
    return TimeFit(named, tuple(int(size) for size in sizes), (0.0,) * sizes.size, half_width)


def _named(
    kinds: Sequence[str], log_scales: Floats, parts: Floats, log_time: Floats
) -> tuple[tuple[str, float, float], ...]:
    """Return the scales of each kind by name, and last those of all rows together."""
    n = len(parts)
    shared = _scales(parts, np.zeros(n, dtype=np.intp), 1, log_time, np.ones((1, n)))[0]
    pairs = np.exp(np.concatenate([log_scales, shared])).tolist()
    return tuple((name, latency, transfer) for name, (latency, transfer) in zip((*kinds, ""), pairs, strict=True))


def _left_out(x: Floats, residual: Floats, row: int, has_residual: bool) -> float:
    """Return the error at a row from a fit without it. `residual` is that of this fit."""
    others = np.arange(x.size) != row
    expected = np.interp(x[row : row + 1], x[others], residual[others])[0] if has_residual else 0.0
    return float(residual[row] - expected)


def _scales(parts: Floats, kind: Ints, n_kinds: int, log_time: Floats, weights: Floats) -> Floats:
    """Return the logarithms of both scales of each kind, of shape (fits, kinds, 2). Each fit has its own weights."""
    member = (kind[:, None] == np.arange(n_kinds)).astype(np.float64)
    scales = np.zeros((len(weights), n_kinds, 2))
    for _ in range(100):
        scaled = np.exp(scales[:, kind]) * parts
        total = scaled.sum(axis=-1)
        slope = scaled / total[..., None]  # derivative of the log time by the log scales
        residual = log_time - np.log(total)
        # Iteratively reweighted Gauss-Newton: Huber's weight is 1 close to the curve and falls as 1 / |residual|.
        weight = weights * np.minimum(1.0, _HUBER / np.maximum(np.abs(residual), 1e-12))
        gradient = np.einsum("fr,frp,rk->fkp", weight * residual, slope, member) - _RIDGE * scales
        curvature = np.einsum("fr,frp,frq,rk->fkpq", weight, slope, slope, member) + _RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        scales += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-7:
            break
    return scales


def find_outliers(shape: ModelTimes, time_us: Floats) -> npt.NDArray[np.bool_]:
    """Select the rows that are three times off their neighbours, relative to a shape."""
    x, ratio = np.log2(shape.size_bytes), np.log(time_us / shape.time_us)
    is_usual = np.ones(x.size, dtype=bool)
    # The worst first: a row that is far off also makes its neighbours look bad.
    while is_usual.sum() > 2:
        rows = np.flatnonzero(is_usual)
        off = [_off(x[rows], ratio[rows], row) for row in range(rows.size)]
        worst = int(np.argmax(np.abs(off)))
        if abs(off[worst]) < np.log(_OFF):
            break
        is_usual[rows[worst]] = False
    return ~is_usual


def _off(x: Floats, ratio: Floats, row: int) -> float:
    """Return how far a row is off its neighbours, in units of log time."""
    if 0 < row < x.size - 1:
        return _left_out(x, ratio, row, has_residual=True)
    # The only neighbour of the first or last row may be the outlier itself, so that the one after it decides.
    near = ratio[[1, 2] if row == 0 else [-2, -3]]
    return float(min(ratio[row] - near, key=abs))


def spread_of(repeats: Sequence[Floats]) -> float:
    """Return the spread of repeated times around their medians, in units of log time. 0 without repeats."""
    off = [np.abs(np.log(times / np.median(times))) for times in repeats if times.size > 1]
    return float(np.quantile(np.concatenate(off), _COVERAGE)) if off else 0.0
