"""Candidates of a search: all factorisations of the ranks, and those that do not divide the job."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from meshlab.base._arguments import Arguments
from meshlab.base._errors import MeshError, TopologyError
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import THIN
from meshlab.mesh._axes import as_integer, divisors
from meshlab.prediction._compute_rates import MATMUL_BITS, ComputeRates, published_peak, scaled_rates
from meshlab.prediction._compute_time import ComputeTime, compute_time, constant_time
from meshlab.prediction._job import Job
from meshlab.prediction._step_range import StepRange, step_range
from meshlab.prediction._step_ratio import HIDDEN
from meshlab.prediction._volumes import Degrees, memory_of, problems
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device
from meshlab.topology.model._levels import Floats

AXES = ("pp", "dp", "cp", "tp")
"""The axes of the dense layout, in the usual order: slowest first."""

Degree = int | Iterable[int] | None

_DEVICE: dict[str, Any] = {
    "memory_share": 0.9, "memory_gib": None, "peak": None, "utilisation": None, "rates": None,
}  # fmt: skip


class DeviceArguments(TypedDict, total=False):
    """Assumptions of the caller about a device, which replace the facts of the cluster."""

    memory_share: float
    memory_gib: float | None
    peak: float | None
    utilisation: tuple[float, float] | None
    rates: ComputeRates | None


class SearchArguments(DeviceArguments, total=False):
    """The degrees and the order of the axes to consider, and the assumptions about a device."""

    pp: Degree
    dp: Degree
    cp: Degree
    tp: Degree
    ep: Degree
    interleave: Degree
    order: str | Sequence[str] | None
    exposed_share: float | None


ARGUMENTS = Arguments(
    SearchArguments,
    dict.fromkeys(("pp", "dp", "cp", "tp", "ep", "interleave", "order", "exposed_share")) | _DEVICE,
)
"""The arguments of a search. `search` documents them."""

_NARROWER, _NARROWEST = 1.6, 3.2  # peaks relative to 16 bits from which products have 8 and 4 bits

MEMORY_ERROR = 1.1
"""Factor around the limit in which an estimate does not tell whether the memory suffices."""

_MOST_FEWER = 64  # ranks that may stay idle


@dataclass(frozen=True, slots=True)
class WeakestDevice:
    """Memory and speed of the weakest device."""

    memory: float
    flops: float  # peak of the matrix products, in operations per second
    matmul: str  # element type of the matrix products
    rates: ComputeRates
    utilisation: tuple[float, float] | None  # share of the peak that replaces the rates
    range: StepRange
    exposed_share: float = 1 - HIDDEN
    """The expected share of the communication that may be hidden which stays exposed."""

    @classmethod
    def of(cls, cluster: Cluster, ranks: int, job: Job, choice: Mapping[str, Any]) -> WeakestDevice:
        """Return the least memory and peak of the devices with ranks, or what the caller chose instead."""
        memory_share, memory_gib, peak, utilisation, rates = (choice[name] for name in _DEVICE)
        shares = _shares(utilisation)
        exposed = choice.get("exposed_share")
        if exposed is not None and not (_is_positive(exposed) or exposed == 0):
            raise MeshError(
                f"exposed_share must be a number from 0 on, not {exposed!r}",
                hint="measure it with ml.benchmark.overlap(engines, mesh, axis='tp')",
            )
        if rates is not None and not isinstance(rates, ComputeRates):
            raise MeshError(
                f"rates must be ComputeRates, not {type(rates).__name__}",
                hint="measure them with ml.benchmark.compute_rates(engines)",
            )
        if not _is_positive(memory_share) or memory_share > 1:
            raise MeshError(f"memory_share must be from 0 to 1, not {memory_share!r}", hint="pass 0.9")
        for name, limit, unit in (("memory_gib", memory_gib, "GiB"), ("peak", peak, "TFLOP/s")):
            if limit is not None and not _is_positive(limit):
                raise MeshError(f"{name} must be a positive number of {unit}, not {limit!r}")
        kinds = np.unique(cluster.kinds[cluster.node_of[:ranks]]).tolist()
        devices = [device for kind in kinds for device in cluster.templates[kind].devices]
        if memory_gib is None:
            sizes = [device.memory_bytes for device in devices]
            if not all(sizes) or not sizes:
                raise TopologyError(
                    "the memory of some devices is unknown", hint=Hint("pass {}, such as 80", Argument("memory_gib"))
                )
            memory_gib = min(size for size in sizes if size) / 2**30
        name, matmul, peak = _slowest(devices, job, peak)
        if rates is None:
            rates = scaled_rates(name, choice["peak"], MATMUL_BITS[matmul])
        of_step = step_range(job, name, matmul)
        share = 1 - HIDDEN if exposed is None else float(exposed)
        return cls(memory_gib * memory_share * 2**30, peak * 1e12, matmul, rates, shares, of_step, share)

    @property
    def compute_error(self) -> float:
        """Factor by which the time of computation may be longer or shorter."""
        if self.utilisation is None:
            return self.range.factor
        return math.sqrt(self.utilisation[1] / self.utilisation[0])

    @property
    def rate_text(self) -> str:
        """What the time of computation rests on, in a few words."""
        if self.utilisation is not None:
            return f"computation at {100 * sum(self.utilisation) / 2:.0f}{THIN}% of the peak"
        return f"rates of kernels {self.rates.source}"

    @property
    def basis(self) -> str:
        """What the range rests on, in a sentence."""
        if self.utilisation is None:
            return self.range.text
        low, high = (f"{100 * share:.0f}" for share in self.utilisation)
        return f"The range is that of {low} to {high}{THIN}% of the peak, and of nothing and all hidden."

    def compute_time(self, job: Job, d: Degrees) -> ComputeTime:
        """Return the seconds of computation of a step, from the rates or at the middle of the utilisation."""
        if self.utilisation is None:
            return compute_time(job, d, self.rates, self.matmul)
        speed = self.flops * sum(self.utilisation) / 2
        return constant_time(job, d, speed)


def _shares(utilisation: Any) -> tuple[float, float] | None:
    if utilisation is None:
        return None
    shares = tuple(utilisation) if isinstance(utilisation, Sequence) else ()
    if len(shares) != 2 or not all(map(_is_positive, shares)) or not shares[0] <= shares[1] <= 1:
        raise MeshError(f"utilisation must be two shares of the peak, not {utilisation!r}", hint="pass (0.45, 0.6)")
    return shares[0], shares[1]


def _slowest(devices: Sequence[Device], job: Job, peak: float | None) -> tuple[str, str, float]:
    """Return the name of the slowest device, and the element type and the peak of its matrix products in TFLOP/s."""
    peaks = {device.name: published_peak(device.name) for device in devices}
    unknown = [name for name, value in peaks.items() if math.isnan(value)]
    if peak is None and (unknown or not peaks):
        raise TopologyError(
            f"the peak of {unknown[0]!r} is unknown" if unknown else "the cluster has no devices",
            hint=Hint("pass {} in TFLOP/s, such as 989 for an H100 in bfloat16", Argument("peak")),
        )
    name = min(peaks, key=lambda name: (math.isnan(peaks[name]), peaks[name]), default="")
    published = peaks.get(name, math.nan)
    matmul = job.matmul or job.dtype
    if peak is not None:
        # Without a type of products, a peak far above that of 16 bits is the one of a narrower type.
        ratio = peak / published
        if job.matmul is None and MATMUL_BITS.get(matmul) == 16:
            matmul = "nvfp4" if ratio > _NARROWEST else "float8_e4m3fn" if ratio > _NARROWER else matmul
        return name, matmul, float(peak)
    if matmul not in MATMUL_BITS:
        raise MeshError(f"the peak for {matmul} is unknown", hint=Hint("pass {} in TFLOP/s", Argument("peak")))
    # GPUs before Ada multiply 8-bit floats as 16-bit ones, and those before Blackwell 4-bit floats as 8-bit ones.
    capability = min((device.compute_capability or (0, 0)) for device in devices)
    widest = "bfloat16" if capability < (8, 9) else "float8_e4m3fn" if capability < (10, 0) else "nvfp4"
    if MATMUL_BITS[matmul] < MATMUL_BITS[widest]:
        matmul = widest
    return name, matmul, published_peak(name, MATMUL_BITS[matmul])


def _is_positive(value: object) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_number and 0 < value < 1e300  # type: ignore[operator]  # a larger integer has no float


def allowed_degrees(name: str, values: list[int] | None, ranks: int) -> set[int] | None:
    """Return those of the wanted degrees that divide the ranks, None for all. Raise if none does."""
    if values is None:
        return None
    dividing = {value for value in values if ranks % value == 0}
    if not dividing:
        nearest = sorted(sorted(divisors(ranks), key=lambda d: abs(math.log(d) - math.log(values[0])))[:2])
        raise MeshError(
            f"{name}={', '.join(map(str, values))} does not divide {ranks:,} ranks",
            hint=Hint("use {}{}", Argument(name, nearest[0]), "".join(f" or {degree}" for degree in nearest[1:])),
        )
    return dividing


def positive_integers(name: str, value: int | Iterable[int]) -> list[int]:
    """Return a degree or several as a list."""
    values = [as_integer(degree) for degree in (value if isinstance(value, Iterable) else [value])]
    degrees = [degree for degree in values if degree is not None and degree >= 1]
    if not degrees or len(degrees) < len(values):
        raise MeshError(f"{name} must be a positive integer, or several of them, not {value!r}")
    return degrees


def all_factorisations(ranks: int, allowed: dict[str, set[int] | None], chunks: list[int]) -> Degrees:
    """Return all factorisations of the ranks, with each expert on one rank."""

    def options(name: str, of: int) -> list[int]:
        chosen = allowed[name]
        return [d for d in all_divisors if of % d == 0 and (chosen is None or d in chosen)]

    all_divisors = divisors(ranks)
    rows = [
        (pp, ranks // (pp * tp * cp), cp, tp, ep, v)
        for pp in options("pp", ranks)
        for tp in options("tp", ranks // pp)
        for cp in options("cp", ranks // (pp * tp))
        if allowed["dp"] is None or ranks // (pp * tp * cp) in allowed["dp"]
        for ep in options("ep", ranks // pp)
        for v in (chunks if pp > 1 else [1])
    ]
    if not rows:
        listed = {name: " or ".join(map(str, sorted(values))) for name, values in allowed.items() if values}
        wish = ", ".join(f"{name}={text}" for name, text in listed.items() if name != "ep")
        raise MeshError(
            f"no layout of {ranks:,} ranks has {wish}", hint="omit one of them, so that it takes the remaining factor"
        )
    pp, dp, cp, tp, ep, v = np.array(rows, dtype=np.int64).T
    ones = np.ones_like(pp)
    return Degrees(pp=pp, dp=dp, cp=cp, tp=tp, ep=ep, etp=ones, edp=ranks // (pp * ep), replicas=ones, chunks=v)


def degrees_at(d: Degrees, index: npt.NDArray[np.integer]) -> Degrees:
    """Return the degrees of some of the layouts."""
    return Degrees(*(getattr(d, field.name)[index] for field in fields(Degrees)))


def drop_layouts(job: Job, d: Degrees) -> tuple[npt.NDArray[np.bool_], DroppedLayouts]:
    """Return a mask of the layouts on which the job can run, and the others with their reasons."""
    reasons = list(problems(job, d))
    kind = np.full(len(d.pp), -1)
    for number, problem in enumerate(reasons):
        kind[(kind < 0) & problem.bad] = number
    return kind < 0, DroppedLayouts(d, reasons, kind)


@dataclass(frozen=True, eq=False)
class DroppedLayouts:
    """The layouts that do not divide the job. `kind` is the index of the problem, or -1."""

    degrees: Degrees
    problems: list[Any]
    kind: npt.NDArray[np.int_]

    def reason(self, i: int) -> tuple[str, str, str]:
        """Return the kind of a layout's problem, the problem, and its fix."""
        problem = self.problems[int(self.kind[i])]
        return problem.kind, problem.reason(i), problem.fix(i)

    def groups(self) -> Iterator[tuple[int, int]]:
        """Yield for each kind of problem the number of its layouts and the index of one."""
        for number in range(len(self.problems)):
            rows = np.flatnonzero(self.kind == number)
            if len(rows):
                yield len(rows), int(rows[0])


def memory_state(needed: Floats, limit: float) -> npt.NDArray[np.str_]:
    """Return for each estimate whether it fits, is tight, or is over the limit by more than its error."""
    share = np.asarray(needed) / limit
    return np.where(share <= 1 / MEMORY_ERROR, "fits", np.where(share <= MEMORY_ERROR, "tight", "over"))


def memory_fix(job: Job, layout: Degrees, memory: float) -> str:
    """Return the change of a job with which its only layout needs at most a number of bytes."""
    half = max(int(layout.layers(job)[0]) // 2, 1)
    changes: list[dict[str, Any]] = [
        *({"micro_batch": 1}, {"recompute": "selective"}, {"offload": half}, {"recompute": "full"}, {"zero": 3}),
        *({"recompute": "full", "offload": 2 * half}, {"recompute": "full", "zero": 3}),
    ]
    for change in changes:
        needed = float(np.sum(memory_of(job.replace(**change), layout)))
        if needed <= memory:
            words = [Argument(name, value) for name, value in change.items()]
            return Hint(f"pass {' and '.join(['{}'] * len(words))} ({_gib(needed)})", *words)
    share = memory / float(np.sum(memory_of(job, layout)))
    return f"use devices with {1 / share:.1f} times the memory, or more ranks"


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}{THIN}GiB"


def find_fewer_ranks(job: Job, ranks: int, degrees: dict[str, list[int] | None], chunks: list[int]) -> int | None:
    """Return the next lower number of ranks on which the job can run, such as 30 if one of 31 is too many."""
    for fewer in range(ranks - 1, max(ranks // 2, ranks - _MOST_FEWER) - 1, -1):
        try:
            allowed = {name: allowed_degrees(name, values, fewer) for name, values in degrees.items()}
            candidates = all_factorisations(fewer, allowed, chunks)
        except MeshError:  # a wanted degree does not divide this number
            continue
        if drop_layouts(job, candidates)[0].any():
            return fewer
    return None


def nothing_fits(job: Job, ranks: int, dropped: DroppedLayouts, fewer: int | None) -> MeshError:
    """Return the error for a search without a layout, with the most frequent reason."""
    what = f"no layout of {ranks:,} rank{'s' * (ranks != 1)} can run {job.title}"
    reasons = [(count, *dropped.reason(index)) for count, index in dropped.groups()]
    count, _, reason, fix = max(reasons)
    if fewer:
        fix = Hint("{}, or {}", fix, Argument("world_size", fewer))
    return MeshError(f"{what}: {reason} ({count:,} of {len(dropped.kind):,} layouts)", hint=fix)


def mesh_text(d: Degrees, i: int, order: Sequence[str]) -> str:
    """Return the mesh of a layout as text, without axes of size 1."""
    sizes = [(name, int(getattr(d, name)[i])) for name in order]
    return ", ".join(f"{name}={size}" for name, size in sizes if size > 1) or "dp=1"


def parse_orders(order: str | Sequence[str] | None) -> list[tuple[str, ...]]:
    """Return the orders to consider, the usual one first."""
    every = list(itertools.permutations(AXES))
    if order is None:
        return every
    words = order.split(",") if isinstance(order, str) else order if isinstance(order, Iterable) else []
    names = tuple(str(word).strip() for word in words)
    if sorted(names) != sorted(AXES):
        raise MeshError(f"order must list {', '.join(AXES)} once each, not {order!r}", hint='pass "pp, dp, cp, tp"')
    return [names]
