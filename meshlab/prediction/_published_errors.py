"""What published runs teach about the formula: its usual error on a group by size, and how far runs lie around that.

The error of the formula is a random field over machines (kriging, Matheron 1963). What two groups have in common is the
sum of a few variances: of all groups, of groups on one kind of network, of a trend with the number of domains, by
which contention, skew and jitter grow, and of one class of machine. What a run does not share with any other is the
spread of its source and its noise, which also grow with the number of domains. So the expected error of a group is a
mean of the errors of similar runs, weighted by likeness, and close to 0 without them; and its band is narrow near runs
that agree, and as wide as the formula's own where there are none.

The file ``published_errors.csv`` next to this module has a row per published curve: its source, the facts of its group,
and log(measured / formula) by octave of the size. ``python -m tests.prediction.published`` writes it.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import MODELLED
from meshlab.prediction._constants import generation
from meshlab.prediction._group_links import FABRIC_KINDS, GroupLinks
from meshlab.topology.model._levels import Bools, Floats, Ints

OCTAVES = np.arange(3, 35)
"""The sizes with an expected error, as log2 of the bytes: 8 B to 16 GiB."""

SIZE_CLASSES = (1 << 20, 128 << 20)
"""The sizes in bytes at which the error of the formula changes its kind: below, latency dominates, above, bandwidth."""

# All numbers below are fits to the curves in ``published_errors.csv``, each chosen with the curves of every source
# predicted by those of the others. Variances are relative to the usual error of the formula at a size.
#
# Usual error of the formula in units of log time, by log2 of the size: inside a domain, and between domains.
_USUAL = (
    ((3, 10, 18, 25, 29, 32), (0.2, 0.12, 0.12, 0.13, 0.06, 0.025)),
    ((3, 10, 16, 20, 24, 28, 31), (0.25, 0.45, 0.8, 0.7, 0.45, 0.15, 0.08)),
)
_OF_ALL = (0.4, 0.2)  # what all groups share, inside a domain and between domains
_OF_FABRIC = 0.1  # what groups on one kind of network share
_OF_CLASS = (0.8, 0.6)  # what groups on one class of machine share
_TREND, _TREND_OF_FABRIC = 0.05, 0.12  # per doubling of the domains
_OF_SOURCE = 0.15  # what the curves of one source share
_NOISE = 0.25  # what a curve does not share
# Its growth per doubling of the domains beyond two, by log2 of the size. Contention hits large messages: a job shares
# the network with others.
_NOISE_TREND = ((24, 28), (0.4, 2.0))
_SPIKE, _LATENCY_OCTAVE = 3.0, 10  # standard deviations of the noise, and the largest size, of a disturbed measurement
_OTHER_COLLECTIVE = 0.25  # correlation of two collectives
_OTHER_GENERATION, _OTHER_CAPABILITY = 0.3, 0.8  # correlation of two GPUs: of other generations, and within one
# Distance in doublings at which groups of one class have little in common: of ranks inside a domain, of domains, of
# ranks per domain, and of the bandwidth of a rank's NICs.
_RANKS_APART, _DOMAINS_APART, _PER_DOMAIN_APART, _NICS_APART = 0.5, 1.0, 1.41, 1.0

# Ends of the band in standard deviations: between them are 90 % of the errors of sources that were left out, of sizes
# in the three classes of `SIZE_CLASSES`, inside a domain and between domains.
_ENDS = (((-1.5, 1.5), (-1.6, 2.5), (-1.8, 2.5)), ((-1.1, 2.5), (-1.3, 2.8), (-2.2, 3.8)))

CLASS_LIKENESS = 0.6
"""Runs support a prediction from this likeness on, such as the same machine with half or twice the nodes."""


class _Groups(NamedTuple):
    """The facts of groups that the error of the formula depends on. All arrays have the same shape."""

    collective: Ints  # index into `MODELLED`
    capability: Ints
    links: Ints  # 0 without NVLink, 1 with NVLink, 2 with NVSwitch
    n_ranks: Floats  # log2
    domains: Floats  # log2
    per_domain: Floats  # log2
    fabric: Ints
    nic_gbs: Floats  # log2 of the GB/s of a rank's NICs

    @classmethod
    def of(cls, links: GroupLinks, collective: str) -> _Groups:
        with np.errstate(divide="ignore"):
            nic_gbs = np.log2(links.nics * links.nic_gbs / links.ranks_per_domain)
        return cls(
            np.full(len(links), MODELLED.index(collective), dtype=np.int32),
            links.compute_capability,
            links.inner_is_nvlink.astype(np.int32) + links.is_switched,
            np.log2(links.n_ranks),
            np.log2(links.domains),
            np.log2(links.ranks_per_domain),
            links.fabric.astype(np.int32),
            np.nan_to_num(nic_gbs, nan=0.0, posinf=0.0, neginf=0.0),
        )

    def column(self) -> _Groups:
        return _Groups._make(values[:, None] for values in self)

    def rows(self, index: npt.NDArray[np.intp] | Bools) -> _Groups:
        return _Groups._make(values[index] for values in self)


def _collectives(a: _Groups, b: _Groups) -> Floats:
    """Return the correlation of the collectives."""
    return np.where(a.collective == b.collective, 1.0, _OTHER_COLLECTIVE)


def _class_likeness(a: _Groups, b: _Groups) -> Floats:
    """Return how much the class of machine of two groups has in common, from 0 to 1, whatever the collective."""
    of_gpu = np.where(a.capability == b.capability, 1.0, _OTHER_CAPABILITY)
    of_gpu = np.where(generation(a.capability) == generation(b.capability), of_gpu, _OTHER_GENERATION)
    inside = (a.links == b.links) * _bell(a.n_ranks - b.n_ranks, _RANKS_APART)
    apart = ((a.domains - b.domains) / _DOMAINS_APART) ** 2
    apart = (
        apart + ((a.per_domain - b.per_domain) / _PER_DOMAIN_APART) ** 2 + ((a.nic_gbs - b.nic_gbs) / _NICS_APART) ** 2
    )
    between = (a.fabric == b.fabric) * np.exp(-0.5 * apart)
    is_inside, is_between = (a.domains == 0) & (b.domains == 0), (a.domains > 0) & (b.domains > 0)
    likeness: Floats = of_gpu * np.where(is_inside, inside, np.where(is_between, between, 0.0))
    return likeness


def _shared(a: _Groups, b: _Groups) -> Floats:
    """Return the covariance of the errors of two groups, relative to the usual error."""
    same = a.fabric == b.fabric
    trend = (_TREND**2 + _TREND_OF_FABRIC**2 * same) * a.domains * b.domains
    likeness = _class_likeness(a, b)
    inside = _OF_ALL[0] ** 2 + _OF_CLASS[0] ** 2 * likeness
    between = _OF_ALL[1] ** 2 + _OF_FABRIC**2 * same + trend + _OF_CLASS[1] ** 2 * likeness
    is_inside, is_between = (a.domains == 0) & (b.domains == 0), (a.domains > 0) & (b.domains > 0)
    covariance: Floats = _collectives(a, b) * np.where(is_inside, inside, np.where(is_between, between, 0.0))
    return covariance


def _bell(apart: Floats, scale: float) -> Floats:
    return np.asarray(np.exp(-0.5 * (apart / scale) ** 2))


def _usual(groups: _Groups) -> Floats:
    """Return the usual error of the formula at each octave, of shape (groups, octaves)."""
    of_kind = np.exp(np.stack([np.interp(OCTAVES, x, np.log(y)) for x, y in _USUAL]))
    return np.asarray(of_kind[(groups.domains > 0).astype(np.intp)])


def _noise(groups: _Groups) -> Floats:
    """Return the variance that a curve does not share, of shape (groups, octaves)."""
    trend = np.interp(OCTAVES, *_NOISE_TREND)
    return np.asarray((_NOISE * (1 + trend * np.maximum(groups.domains - 1, 0)[:, None])) ** 2)


@dataclass(frozen=True, eq=False)
class PublishedErrors:
    """Errors of the formula on published curves.

    Parameters
    ----------
    curves, sources : tuple of str
        Name and source of every curve.
    groups : tuple of numpy.ndarray
        The facts of its group.
    errors : numpy.ndarray
        float64 of shape (curves, octaves): log(measured / formula), NaN where the curve has no size.
    """

    curves: tuple[str, ...]
    sources: tuple[str, ...]
    groups: _Groups
    errors: Floats

    def without(self, sources: Sequence[str]) -> PublishedErrors:
        """Return the errors of all other sources."""
        keep = np.array([source not in sources for source in self.sources], dtype=bool)
        return self.rows(keep)

    def rows(self, keep: Bools) -> PublishedErrors:
        """Return the errors of some curves."""
        curves, sources = (
            tuple(name for name, is_kept in zip(names, keep.tolist(), strict=True) if is_kept)
            for names in (self.curves, self.sources)
        )
        return PublishedErrors(curves, sources, self.groups.rows(keep), self.errors[keep])

    @cached_property
    def _inverses(self) -> Floats:
        """Inverse covariances of the curves by octave, (octaves, curves, curves), 0 for curves without this octave."""
        count = len(self.curves)
        source = np.array([self.sources.index(name) for name in self.sources], dtype=np.intp)
        same_reach = (self.groups.domains[:, None] > 0) == (self.groups.domains > 0)
        of_source = _OF_SOURCE**2 * same_reach * (source[:, None] == source)
        covariance = _shared(self.groups.column(), self.groups) + of_source * _collectives(
            self.groups.column(), self.groups
        )
        noise, inverses = _noise(self.groups), np.zeros((OCTAVES.size, count, count))
        for number, has in enumerate(np.isfinite(self.errors).T):
            rows = np.flatnonzero(has)
            of_octave = covariance[np.ix_(rows, rows)] + np.diag(noise[rows, number])
            inverses[number][np.ix_(rows, rows)] = np.linalg.inv(of_octave)
        return inverses

    @cached_property
    def _weights(self) -> Floats:
        """Return the inverse covariance times the relative errors, of shape (curves, octaves)."""
        relative = np.nan_to_num(self.errors / _usual(self.groups))
        return np.asarray(np.einsum("ocd,do->co", self._inverses, relative))

    def on(self, links: GroupLinks, collective: str) -> GroupErrors:
        """Return the expected errors of a collective on every signature."""
        groups = _Groups.of(links, collective)
        shared = _shared(groups.column(), self.groups) if self.curves else np.zeros((len(links), 0))
        mean = shared @ self._weights if self.curves else np.zeros((len(links), OCTAVES.size))
        mean *= _usual(groups)
        mean[links.n_ranks == 1] = 0.0
        return GroupErrors(self, groups, shared, mean)


@dataclass(frozen=True, eq=False)
class GroupErrors:
    """Expected errors of the formula for a collective on k signatures."""

    evidence: PublishedErrors
    groups: _Groups
    shared: Floats  # (k, curves): covariance with each curve
    mean: Floats  # (k, octaves): expected log(measured / formula)

    @cached_property
    def deviation(self) -> Floats:
        """Standard deviation of log(measured / expected), of shape (k, octaves)."""
        rows = (self.groups.rows(np.array([row])) for row in range(len(self.mean)))
        prior = np.array([_shared(row, row)[0] for row in rows])
        variance = prior[:, None] + _OF_SOURCE**2 + _noise(self.groups)
        if self.evidence.curves:
            variance -= ((self.shared @ self.evidence._inverses) * self.shared).sum(axis=-1).T
        variance = np.maximum(variance, 0.01) * _usual(self.groups) ** 2
        return np.asarray(np.sqrt(variance + self._disagreement))

    @cached_property
    def _disagreement(self) -> Floats:
        """Variance around the mean of the runs that support each octave, (k, octaves). 0 with fewer than two."""
        errors, support = self.evidence.errors, self._support.astype(float)
        has = np.isfinite(errors)
        count, filled = support @ has, np.where(has, errors, 0.0)
        around = support @ filled**2 - 2 * self.mean * (support @ filled) + count * self.mean**2
        return np.where(count > 1, np.maximum(around, 0.0) / np.maximum(count, 1), 0.0)

    @cached_property
    def is_supported(self) -> Bools:
        """Whether runs of the same collective on the same class of machine support each octave, (k, octaves)."""
        return np.asarray(self._support @ np.isfinite(self.evidence.errors) > 0)

    @cached_property
    def _support(self) -> Bools:
        """Whether a curve is one of the same collective on the same class of machine, of shape (k, curves)."""
        curves = self.evidence.groups
        alike = _class_likeness(self.groups.column(), curves) >= CLASS_LIKENESS
        return np.asarray(alike & (self.groups.column().collective == curves.collective))

    def sources(self, row: int) -> tuple[str, ...]:
        """Return the sources of the runs that support a signature, those with the most curves first."""
        names = [name for name, is_like in zip(self.evidence.sources, self._support[row], strict=True) if is_like]
        return tuple(sorted(set(names), key=lambda name: (-names.count(name), name)))

    def log_factor(self, rows: npt.ArrayLike, sizes: npt.ArrayLike) -> Floats:
        """Return the expected log(measured / formula) of every size on the signature of each row."""
        return _between_octaves(self.mean, rows, sizes)

    def band(self, rows: npt.ArrayLike, sizes: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return both ends of log(measured / predicted), between which 9 of 10 runs are."""
        row, size = np.broadcast_arrays(np.asarray(rows, dtype=np.intp), np.asarray(sizes, dtype=np.float64))
        ends = np.array(_ENDS)[(self.groups.domains[row] > 0).astype(np.intp), size_class(size)]
        deviation = _between_octaves(self.deviation, row, size)
        return ends[..., 0] * deviation, ends[..., 1] * deviation

    def supports(self, row: int, sizes: npt.ArrayLike) -> Bools:
        """Return whether runs support a signature at each size."""
        number = np.clip(np.round(np.log2(np.asarray(sizes, dtype=np.float64))) - OCTAVES[0], 0, OCTAVES.size - 1)
        return np.asarray(self.is_supported[row, number.astype(np.intp)])


def size_class(sizes: npt.ArrayLike) -> npt.NDArray[np.intp]:
    """Return the class of each size: 0 below 1 MiB, 1 below 128 MiB, 2 from there on."""
    return np.searchsorted(np.array(SIZE_CLASSES), sizes, side="right")


def _between_octaves(table: Floats, rows: npt.ArrayLike, sizes: npt.ArrayLike) -> Floats:
    """Interpolate a table of shape (k, octaves) over the logarithm of the size, constant beyond its ends."""
    position = np.clip(np.log2(np.maximum(np.asarray(sizes, dtype=np.float64), 1)) - OCTAVES[0], 0, OCTAVES.size - 1)
    first = np.minimum(position.astype(np.intp), OCTAVES.size - 2)
    share, row = position - first, np.asarray(rows, dtype=np.intp)
    return np.asarray(table[row, first] * (1 - share) + table[row, first + 1] * share)


def _without_spikes(errors: Floats, groups: _Groups) -> Floats:
    """Replace single sizes of at most 1 KiB that differ from both neighbours by far more than noise by their median."""
    # The latency decides these times, and no choice of NCCL is for only one of these sizes, so the call was disturbed.
    median = np.median(np.stack([errors[:, :-2], errors[:, 1:-1], errors[:, 2:]]), axis=0)
    noise = np.sqrt(_noise(groups)) * _usual(groups)
    is_spike = np.abs(errors - np.pad(median, ((0, 0), (1, 1)), constant_values=np.nan)) > _SPIKE * noise
    is_spike &= OCTAVES <= _LATENCY_OCTAVE
    return np.where(is_spike, np.pad(median, ((0, 0), (1, 1))), errors)


COLUMNS = (
    "curve",
    "source",
    "collective",
    "capability",
    "links",
    "n_ranks",
    "domains",
    "per_domain",
    "fabric",
    "nic_gbs",
)
"""The columns of ``published_errors.csv`` before those of the octaves."""


@lru_cache(maxsize=1)
def published_errors() -> PublishedErrors:
    """Return the errors of the formula on all published curves."""
    with files("meshlab.prediction").joinpath("published_errors.csv").open(encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    columns = list(zip(*rows, strict=True))
    curves, sources, collectives, capability, links, n_ranks, domains, per_domain, fabrics, nic_gbs, *errors = columns
    log_ranks, log_domains, log_per_domain = (
        np.log2(np.array(column, dtype=np.float64)) for column in (n_ranks, domains, per_domain)
    )
    groups = _Groups(
        collective=np.array([MODELLED.index(name) for name in collectives], dtype=np.int32),
        capability=np.array(capability, dtype=np.int32),
        links=np.array(links, dtype=np.int32),
        n_ranks=log_ranks,
        domains=log_domains,
        per_domain=log_per_domain,
        fabric=np.array([FABRIC_KINDS.index(name) if name else -1 for name in fabrics], dtype=np.int32),
        nic_gbs=np.array([float(gbs) if gbs else 0.0 for gbs in nic_gbs]),
    )
    values = [[float(value) if value else np.nan for value in column] for column in errors]
    return PublishedErrors(curves, sources, groups, _without_spikes(np.array(values).T, groups))


@lru_cache(maxsize=1)
def no_errors() -> PublishedErrors:
    """Return the evidence of the formula alone."""
    whole, real = np.zeros(0, dtype=np.int32), np.zeros(0)
    groups = _Groups(whole, whole, whole, real, real, real, whole, real)
    return PublishedErrors((), (), groups, np.zeros((0, OCTAVES.size)))
