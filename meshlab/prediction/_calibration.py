"""Calibrations: measured times of one system that correct the predictions for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.base._errors import BenchError
from meshlab.base._files import is_folder
from meshlab.base._forwarding import implementation
from meshlab.base._hints import Argument, Hint
from meshlab.base._typed_values import typed_value
from meshlab.base._units import format_size, format_time_us
from meshlab.comm._backend import MODES
from meshlab.frames._labels import GPU_SOURCES, is_wrong, value_label, where_text
from meshlab.frames._schema import differing_options, is_pair, is_plain
from meshlab.frames._statistics import bandwidth
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.prediction._costs import COLLECTIVES, Cost, cost
from meshlab.prediction._fits import (
    FEWEST_ROWS,
    Floats,
    ModelTimes,
    TimeFit,
    find_outliers,
    fit,
    fit_scales,
    hockney,
    spread_of,
)
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._published_errors import no_errors
from meshlab.prediction._tuner import NcclSettings
from meshlab.runs._rundata import RunData
from meshlab.runs._store import frames_of, load
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.model._products import models_in
from meshlab.topology.placement._placement import Placement, as_placement

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_FEWEST_DECADES = 2.0

OTHER_COLLECTIVE = np.log(1.25)
"""Half-width of the band of a collective that was not measured, in units of log time."""

_FARTHEST = 4
"""A calibration is extrapolated to this factor in the number of ranks."""

_UNIFORM = {"mode": "modes", "in_place": "placements", "dtype": "element types", "source": "systems"}
"""The columns in which all rows of a calibration agree, and the plural of their values."""

_ALL_RANKS = "ranks"
"""Name of the only axis of a mesh for results that have none."""

_MOST_OUTLIERS = 0.25
"""With a larger share of outliers, the neighbours do not show which rows are correct."""

_SAME_GBS = 0.01
"""Bandwidths of two signatures that differ by less than this are the same."""


@dataclass(frozen=True)
class Signature:
    """The properties of a group that its times depend on. Those after `groups` are None without a cluster."""

    n_ranks: int
    groups: int  # of the axis, which run at the same time
    domains: int | None = None  # NVLink domains that the group spans
    ranks_per_domain: int | None = None
    inner_gbs: float | None = None  # of a rank inside a domain; None without such links
    network_gbs: float | None = None  # of the group out of a domain; None without such links

    @classmethod
    def of(cls, links: GroupLinks, row: int, groups: int) -> Signature:
        """Return the signature of one row of links."""

        def known(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        return cls(
            int(links.n_ranks[row]),
            groups,
            int(links.domains[row]),
            int(links.ranks_per_domain[row]),
            known(links.inner_gbs[row]),
            known(links.network_gbs[row]),
        )

    def matches(self, other: Signature) -> bool:
        """Return whether a fit of one signature holds for the other."""
        if self.domains is None or other.domains is None:
            return (self.n_ranks, self.groups) == (other.n_ranks, other.groups)
        counts = [(group.n_ranks, group.domains, group.ranks_per_domain) for group in (self, other)]
        return counts[0] == counts[1] and self._has_same_links(other)

    def is_smaller_kin(self, other: Signature) -> bool:
        """Return whether a fit can be extrapolated to another signature, with up to four times the ranks."""
        if self.domains is None or other.domains is None or not self._has_same_links(other):
            return False
        # Pairs, groups inside a domain and groups with one rank per domain behave differently from all others.
        kinds = [
            (group.n_ranks == 2, group.domains == 1, group.ranks_per_domain if (group.domains or 1) > 1 else None)
            for group in (self, other)
        ]
        return kinds[0] == kinds[1] and self.n_ranks < other.n_ranks <= _FARTHEST * self.n_ranks

    def _has_same_links(self, other: Signature) -> bool:
        pairs = ((self.inner_gbs, other.inner_gbs), (self.network_gbs, other.network_gbs))
        return all(
            gbs == other_gbs or (gbs is not None and other_gbs is not None and abs(gbs / other_gbs - 1) < _SAME_GBS)
            for gbs, other_gbs in pairs
        )

    def __str__(self) -> str:
        text = f"{self.n_ranks} ranks"
        if self.domains is not None and self.domains > 1:
            text += f" in {self.domains} nodes"
        return text if self.groups == 1 else f"{self.groups} groups of {text}"


@dataclass(frozen=True)
class Calibrated:
    """The fit of one collective on the groups of one signature."""

    collective: str  # empty for the scales that collectives without measurements share
    axis: str  # empty if it is unknown
    signature: Signature
    fit: TimeFit
    time_us: tuple[float, ...] = ()  # measured at each size of the fit, the median of repeated measurements
    latency_us: float | None = None  # of the shape latency + size / bandwidth; None if the fit scales NCCL's model
    gbs: float | None = None

    def __post_init__(self) -> None:
        n = len(self.fit.size_bytes)
        if self.collective and not (len(self.time_us) == len(self.fit.errors) == n and min(self.time_us) > 0):
            raise BenchError(
                f"the fit of {self.collective} has {n} sizes, but needs as many times, all of them positive"
            )

    def own_shape(self, size_bytes: Floats) -> ModelTimes:
        """Return the shape of a calibration without a cluster."""
        if self.latency_us is None or self.gbs is None:
            raise BenchError(
                "this calibration scales NCCL's model, which needs a cluster", hint=Hint("pass {}", Argument("cluster"))
            )
        return hockney(size_bytes, self.latency_us, self.gbs)


@dataclass(frozen=True, repr=False)
class Calibration:
    """Measured times of one system that correct the predictions for it.

    `meshlab.calibrate` creates one, and `meshlab.predict` accepts it.

    Parameters
    ----------
    fits : tuple of Calibrated
        One fit per collective, axis and signature.
    where : str
        Label of the measured system.
    source : str
        The backend or tool that measured.
    mode, dtype : str
        Timing mode and element type of the rows. Empty if unknown.
    in_place : bool or None
        Whether input and output shared memory. None if unknown.
    settings : NcclSettings or None
        The settings of NCCL's model. None if the fits do not scale this model.
    outliers : tuple of (str, str, int, float)
        Collective, axis, size in bytes and time in µs of rows that are three times off their neighbours. They are not
        part of the fits.
    left_out : tuple of str
        Reasons why other rows are not part of the fits.
    """

    fits: tuple[Calibrated, ...]
    where: str
    source: str
    mode: str
    dtype: str
    in_place: bool | None
    settings: NcclSettings | None
    outliers: tuple[tuple[str, str, int, float], ...] = ()
    left_out: tuple[str, ...] = ()

    @cached_property
    def lines(self) -> tuple[Calibrated, ...]:
        """The fits of measured collectives."""
        return tuple(calibrated for calibrated in self.fits if calibrated.collective)

    @property
    def collectives(self) -> tuple[str, ...]:
        """The measured collectives."""
        return tuple(dict.fromkeys(calibrated.collective for calibrated in self.lines))

    def find(self, collective: str, axis: str, signature: Signature) -> tuple[Calibrated, str] | None:
        """Return the best fit for a collective on a signature, and its basis. None if no fit applies.

        Parameters
        ----------
        collective : str
            The collective.
        axis : str
            The axis, which decides between fits of the same signature.
        signature : Signature
            The signature.
        """
        same = [calibrated for calibrated in self.fits if calibrated.signature.matches(signature)]
        same.sort(key=lambda calibrated: calibrated.axis != axis)
        for name, basis in ((collective, "calibrated"), ("", "other collective")):
            fits = [calibrated for calibrated in same if calibrated.collective == name]
            if fits:
                return fits[0], basis
        smaller = [calibrated for calibrated in self.lines if calibrated.collective == collective]
        smaller = [calibrated for calibrated in smaller if calibrated.signature.is_smaller_kin(signature)]
        if smaller:
            return max(smaller, key=lambda calibrated: calibrated.signature.n_ranks), "extrapolated"
        return None

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per measured size.

        Returns
        -------
        pandas.DataFrame
            ``axis``, ``groups``, ``n_ranks``, ``collective``, ``size_bytes``, ``time_us`` (measured), ``left_out_us``
            (predicted by a fit without this size), ``error`` (predicted / measured - 1), ``band`` (1.1 means that 9 of
            10 rows are within a factor of 1.1), ``busbw_gbs`` and ``is_outlier``. Outliers have no prediction.

        Examples
        --------
        >>> import meshlab as ml
        >>> calibration = ml.calibrate(ml.example(), mode="graph")
        >>> errors = calibration.frame().query("collective == 'all_gather'")["error"].abs()
        >>> bool(errors.median() < 0.1)
        True
        """
        import pandas as pd

        rows = []
        for line in self.lines:
            names = (line.axis, line.signature.groups, line.signature.n_ranks, line.collective)
            for size, time, error in zip(line.fit.size_bytes, line.time_us, line.fit.errors, strict=True):
                predicted = time * np.exp(-error)
                rows.append((*names, size, time, predicted, predicted / time - 1, np.exp(line.fit.half_width), False))
            rows += [
                (*names, size, time, np.nan, np.nan, np.nan, True)
                for collective, axis, size, time in self.outliers
                if (collective, axis) == (line.collective, line.axis)
            ]
        columns = ["axis", "groups", "n_ranks", "collective", "size_bytes", "time_us", "left_out_us", "error", "band"]
        frame = pd.DataFrame(rows, columns=[*columns, "is_outlier"])
        _, busbw = bandwidth(frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"])
        frame.insert(len(columns), "busbw_gbs", busbw)
        frame.attrs = {"where": self.where}
        return frame

    def explain(self) -> str:
        """Describe the fits, their errors, and the rows that are not part of them."""
        shape = "NCCL's model" if self.settings is not None else "latency + size / bandwidth"
        lines = [
            f"{self.where or self.source}: {shape}, scaled to the measured times"
            + "".join(f", {value}" for value in (self.mode, self.dtype) if value)
        ]
        for line in self.lines:
            sizes = line.fit.size_bytes
            errors = np.abs(np.expm1(np.abs(line.fit.errors)))
            few = "" if any(line.fit.residual) else ", scales only because there are fewer than 8 sizes"
            lines.append(
                f"{line.collective} along {line.axis or 'all ranks'}, {line.signature}: {len(sizes)} sizes from "
                f"{format_size(sizes[0])} to {format_size(sizes[-1])}{few}. A held-out size is predicted with "
                f"an error of {100 * np.median(errors):.1f} % (median), 9 of 10 within "
                f"{100 * np.expm1(line.fit.half_width):.0f} %"
            )
        lines += [
            f"outlier: {collective} at {format_size(size)} takes {format_time_us(time)}, more than three times off "
            "its neighbours; it is not part of the fit"
            for collective, _, size, time in self.outliers
        ]
        return "\n".join([*lines, *(f"left out: {reason}" for reason in self.left_out)])

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the measured times, the band of the fit, and the error at held-out sizes.

        See `meshlab.plots.calibration`.
        """
        return implementation(Calibration.plot)(self, ax=ax)

    def __repr__(self) -> str:
        n = sum(len(line.fit.size_bytes) for line in self.lines)
        title = f"<Calibration {self.where or self.source}: {', '.join(self.collectives)}, {n} rows"
        return f"{title}; next: .explain(), .plot(), ml.predict(…, calibration=…)>"

    def _figure_html(self) -> str:
        return implementation(Calibration._figure_html)(self)

    def _repr_html_(self) -> str:
        head, *rest = self.explain().splitlines()
        sentences = "".join(f"<div>{markup.escape(line)}</div>" for line in rest)
        return markup.card("Calibration", head, sentences, self._figure_html())

    def to_document(self) -> dict[str, Any]:
        """Return the calibration as plain data, for JSON."""
        return asdict(self)

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Calibration:
        """Read what `to_document` returned.

        Raises
        ------
        ParseError
            If the document is incomplete, or a value has the wrong type.
        """
        return typed_value(document, Calibration, "calibration")


# -- from results to fits ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    """The rows of one source, with the mesh that they were measured on."""

    results: pd.DataFrame
    mesh: DeviceMesh | None
    placement: Placement | None


def calibrate(
    results: Any,
    cluster: ClusterLike | None = None,
    *,
    mesh: MeshLike | Placement | None = None,
    mode: str | None = None,
    in_place: bool | None = None,
    dtype: str | None = None,
    settings: NcclSettings | None = None,
    keep_outliers: bool = False,
) -> Calibration:
    """Fit a model to measured times, so that predictions hold for this system.

    With a cluster, the model is NCCL's: latency and bandwidth of each algorithm and protocol get a scale, and the rest
    is a residual over the size. Without a cluster, which suits MPI and threads, the model is latency + size /
    bandwidth, and predictions are limited to the measured collectives and group sizes. The band is the error at
    held-out sizes. If `results` is a run, it keeps the calibration, and `Run.save` writes it.

    Parameters
    ----------
    results : RunData, DataFrame, path, object with ``.results``, or a list of these
        Results of one system: a run or its folder, a results frame, or a log of nccl-tests or its path. A list may have
        runs with different numbers of ranks.
    cluster : Cluster or str, optional
        The measured cluster, or the name of a preset. By default none.
    mesh : DeviceMesh, str or Placement, optional
        The mesh that was measured. By default that of the run. Logs have one group of all ranks, on the first devices
        of the cluster. A Placement includes the cluster.
    mode : {"pipelined", "graph", "isolated"}, optional
        The rows to use, if there are several modes.
    in_place : bool, optional
        The rows to use, if there are rows in place and out of place.
    dtype : str, optional
        The rows to use, if there are several element types.
    settings : NcclSettings, optional
        Settings of NCCL during the measurement. By default from the environment that the results contain.
    keep_outliers : bool, default False
        If True, rows that are three times off their neighbours are part of the fit. Use it after a second measurement
        has confirmed them.

    Raises
    ------
    BenchError
        If a result is wrong.
        If the rows mix modes, placements, element types or systems, or were measured on other GPUs than the cluster's.
        If no collective has at least four sizes over two decades on groups of several ranks.
    TopologyError
        If the links of the cluster have no bandwidth.

    Examples
    --------
    >>> import meshlab as ml
    >>> calibration = ml.calibrate(ml.example(), mode="graph")
    >>> calibration.collectives
    ('all_reduce', 'all_gather', 'reduce_scatter', 'broadcast')
    >>> calibration.outliers
    ()
    """
    parts = [_select(part, mode, in_place, dtype) for part in _parts(results)]
    _check(parts)
    if cluster is None and not isinstance(mesh, Placement):
        settings = None
    else:
        parts = [replace(part, placement=_placed(part, cluster, mesh)) for part in parts]
        settings = settings or _settings(parts[0].results)
    calibration = _calibrated(parts, settings, keep_outliers)
    if isinstance(results, RunData):
        results.calibration = calibration
    return calibration


def _calibrated(parts: Sequence[_Part], settings: NcclSettings | None, keep_outliers: bool) -> Calibration:
    """Fit the rows of all sources. `settings` are those of NCCL's model, if the fits scale it."""
    fitter = _Fitter(settings, keep_outliers)
    for part in parts:
        for axis, rows in part.results.groupby(part.results["axis"].fillna(""), sort=False):
            for signature, links, group_rows in _by_signature(part, str(axis), rows):
                fitter.add(str(axis), signature, links, group_rows)
    if not fitter.fits:
        raise BenchError(
            f"cannot calibrate: {'; '.join(fitter.left_out)}",
            hint=Hint("measure each collective at 8 sizes or more, such as {}", Argument("sizes", "1K:64M")),
        )
    first = parts[0].results
    in_place = _only(first, "in_place", None)
    return Calibration(
        tuple(fitter.fits),
        where_text(first),
        str(_only(first, "source", "")),
        str(_only(first, "mode", "")),
        str(_only(first, "dtype", "")),
        None if in_place is None else bool(in_place),
        settings,
        tuple(fitter.outliers),
        tuple(fitter.left_out),
    )


def _only(rows: pd.DataFrame, column: str, missing: Any) -> Any:
    """Return the value of a column in which all rows agree, or `missing` if no row has one."""
    values = rows[column].dropna()
    return values.iloc[0] if len(values) else missing


def as_calibration(value: Any, cluster: ClusterLike | None = None, mode: str | None = None) -> Calibration:
    """Return a calibration unchanged, that of a run, or calibrate from results."""
    if isinstance(value, Calibration):
        return value
    if isinstance(value, (str, os.PathLike)) and is_folder(value):
        value = load(Path(value))
    if isinstance(value, RunData) and value.calibration is not None:
        return value.calibration
    results = [frames.results for frames in frames_of(value, _read_log)]
    is_gpu = any(frame["source"].isin(GPU_SOURCES).any() for frame in results)
    # Logs of nccl-tests have rows in place and out of place, of which the latter are used.
    has_both = any(frame["in_place"].nunique() > 1 for frame in results)
    return calibrate(value, cluster if is_gpu else None, mode=mode, in_place=False if has_both else None)


def _read_log(path: Path) -> Any:
    from meshlab.nccl_tests._reader import read

    return read(path)


def _parts(source: Any) -> Iterator[_Part]:
    """Yield the results of each source, with its mesh."""
    for part in source if isinstance(source, list) else [source]:
        loaded = load(Path(part)) if isinstance(part, (str, os.PathLike)) and is_folder(part) else part
        for frames in frames_of(loaded, _read_log, needs_end=True):
            yield _Part(frames.results, loaded.mesh if isinstance(loaded, RunData) else None, None)


def _select(part: _Part, mode: str | None, in_place: bool | None, dtype: str | None) -> _Part:
    """Return the measured rows of all groups together, reduced to the caller's choice."""
    rows = part.results
    rows = rows[is_plain(rows) & ~is_pair(rows) & rows["time_us"].gt(0) & rows["size_bytes"].gt(0)]
    rows = rows[rows["status"].isin(["ok", "wrong"]) | rows["status"].isna()]
    for name, value in (("mode", mode), ("in_place", in_place), ("dtype", dtype)):
        if value is not None:
            rows = rows[rows[name].eq(value).fillna(False).astype(bool)]
    return replace(part, results=rows)


def _check(parts: Sequence[_Part]) -> None:
    """Raise unless the rows are of one system, measured in one way, and correct."""
    if not parts or not any(len(part.results) for part in parts):
        raise BenchError(
            "cannot calibrate: no measured rows with all groups of an axis together are left",
            hint=Hint(
                "pass results with sizes, and check {}, {} and {}", *map(Argument, ("mode", "in_place", "dtype"))
            ),
        )
    for part in parts:
        wrong = part.results[is_wrong(part.results)]
        if len(wrong):
            row = wrong.iloc[0]
            raise BenchError(
                f"cannot calibrate: {len(wrong)} of {len(part.results)} rows have wrong results, such as "
                f"{row['collective']} at {format_size(row['size_bytes'])}, so their times are meaningless",
                hint="find the cause first, or drop them: results[results['status'] == 'ok']",
            )
    # A fit of mixed rows would be a curve between two, on which no call lies.
    for name, word in _UNIFORM.items():
        values = {value: None for part in parts for value in part.results[name].dropna().unique().tolist()}
        if len(values) > 1:
            words = {True: "in place", False: "out of place"} if name == "in_place" else {}
            names = [str(words.get(value, value)) for value in values]
            fix = (
                "pass the results of one of them"
                if name == "source"
                else Hint("choose one, such as {}", Argument(name, next(iter(values))))
            )
            raise BenchError(f"cannot calibrate: the rows mix the {word} {', '.join(names)}", hint=fix)
    for option in dict.fromkeys(name for part in parts for name in differing_options(part.results)):
        labels = {value_label(option, value): None for part in parts for value in part.results[option].unique()}
        raise BenchError(
            f"cannot calibrate: the rows mix {', '.join(labels)}",
            hint=f"pass the rows of one of them, such as results[results[{option!r}] == …]",
        )
    for name in ("gpu", "library", "environment"):
        systems = {str(part.results.attrs.get(name) or ""): None for part in parts}
        if len(systems) > 1:
            raise BenchError(
                f"cannot calibrate: the results are of several systems or configurations, whose {name} differs: "
                f"{' and '.join(text or 'unknown' for text in systems)}",
                hint="calibrate each of them separately",
            )


def _settings(rows: pd.DataFrame) -> NcclSettings:
    mode = _only(rows, "mode", "")
    return NcclSettings.of_environment(rows.attrs.get("environment") or {}, mode=mode if mode in MODES else "pipelined")


def _check_gpu(rows: pd.DataFrame, placement: Placement) -> None:
    """Raise if the results are of another GPU than that of the cluster."""
    gpu = str(rows.attrs.get("gpu") or "")
    names = {device.name for template in placement.cluster.templates for device in template.devices}
    measured, expected = models_in(gpu), {model for name in names for model in models_in(name)}
    if measured and expected and not measured & expected:  # names without a model cannot be compared
        raise BenchError(
            f"cannot calibrate: the results are of {gpu}, but the cluster has {', '.join(sorted(names))}",
            hint="pass the cluster that was measured",
        )


def _placed(part: _Part, cluster: ClusterLike | None, mesh: MeshLike | Placement | None) -> Placement:
    """Place the mesh of a source on the cluster, or raise if the source measured other GPUs."""
    if isinstance(mesh, Placement):
        placement = as_placement(mesh, cluster)
    else:
        shape = as_mesh(mesh) if mesh is not None else part.mesh or _mesh_of_group(part.results)
        placement = as_placement(shape, grown(cluster, shape))
    _check_gpu(part.results, placement)
    return placement


def _mesh_of_group(rows: pd.DataFrame) -> DeviceMesh:
    """Return the mesh of the only group of some results, or raise if they have several."""
    axes, sizes = rows["axis"].dropna().unique(), rows["n_ranks"].dropna().unique()
    if len(sizes) != 1 or rows["group"].nunique() > 1 or len(axes) > 1:
        raise BenchError(
            "cannot calibrate with a cluster: the results do not show which ranks form a group",
            hint=Hint("pass {}, or the run itself, or one log per number of ranks", Argument("mesh")),
        )
    return DeviceMesh([(str(axes[0]) if len(axes) else _ALL_RANKS, int(sizes[0]))])


def grown(cluster: ClusterLike | None, mesh: DeviceMesh) -> ClusterLike | None:
    """Return a preset with enough hosts for a mesh. A Cluster is returned unchanged."""
    from meshlab.topology.model._presets import find_preset, preset

    if not isinstance(cluster, str):
        return cluster
    machine = find_preset(cluster)
    per_host = len(machine.node().devices)
    return preset(cluster, nodes=max(machine.nodes, -(-mesh.world_size // per_host)))


def _by_signature(
    part: _Part, axis: str, rows: pd.DataFrame
) -> Iterator[tuple[Signature, GroupLinks | None, pd.DataFrame]]:
    """Yield the rows of one axis by the signature of their groups."""
    if part.placement is not None:
        mesh = part.placement.mesh
        name = axis if axis else mesh.axis_names[0]
        links, of_group = GroupLinks.of(part.placement, name)
        groups = mesh[name]
        row_of = dict(zip(groups.names, of_group.tolist(), strict=True))
        row_of_links = rows["group"].map(lambda group: row_of.get(group, 0), na_action=None)
        for number in sorted(set(row_of_links)):
            yield Signature.of(links, number, len(groups)), links.rows(np.array([number])), rows[row_of_links == number]
        return
    n_groups = max(rows["group"].nunique(), 1)
    for n in rows["n_ranks"].dropna().unique().tolist():
        yield Signature(int(n), n_groups), None, rows[rows["n_ranks"] == n]


class _Fitter:
    """Collects the fits of all groups, the outliers, and the reasons why rows are left out."""

    def __init__(self, settings: NcclSettings | None, keep_outliers: bool) -> None:
        self.settings, self.keep_outliers = settings, keep_outliers
        self.fits: list[Calibrated] = []
        self.outliers: list[tuple[str, str, int, float]] = []
        self.left_out: list[str] = []

    def add(self, axis: str, signature: Signature, links: GroupLinks | None, rows: pd.DataFrame) -> None:
        """Fit each collective of one signature, and the scales that the others share."""
        fits: list[Calibrated] = []
        shapes: list[ModelTimes] = []
        for name, measured in rows.groupby("collective", sort=False):
            what = f"{name} along {axis}" if axis else f"{name} on {signature}"
            if signature.n_ranks < 2:
                self.left_out.append(f"{what} has one rank, so nothing is sent")
                continue
            if links is not None and name not in COLLECTIVES:
                self.left_out.append(f"{what} has no model of NCCL; the models are {', '.join(COLLECTIVES)}")
                continue
            sizes, times, spread = times_by_size(measured)
            latency, gbs = float(times.min()), float((sizes / times).max()) / 1e3
            if links is None or self.settings is None:
                shape = hockney(sizes, latency, gbs)
            else:
                dtype = str(measured["dtype"].iloc[0])
                shape = ModelTimes.of(self._formula(links, str(name), sizes, dtype), 0)
            is_usual = self._without_outliers(shape, times, what, (str(name), axis))
            if is_usual is None:
                continue
            shape, times = shape[is_usual], times[is_usual]
            fitted = fit(shape, times, spread=spread)
            own_shape = (latency, gbs) if links is None else (None, None)
            fits.append(Calibrated(str(name), axis, signature, fitted, tuple(times.tolist()), *own_shape))
            shapes.append(shape)
        if links is not None and fits:
            pooled = fit_scales(shapes, [np.array(calibrated.time_us) for calibrated in fits], OTHER_COLLECTIVE)
            fits.append(Calibrated("", axis, signature, pooled))
        self.fits += fits

    def _formula(self, links: GroupLinks, collective: str, sizes: Floats, dtype: str) -> Cost:
        """Return the formula alone, so that new published runs do not change what a calibration predicts."""
        settings = self.settings or NcclSettings()
        return cost(links, collective, sizes, dtype=dtype, settings=settings, evidence=no_errors())

    def _without_outliers(
        self, shape: ModelTimes, times: Floats, what: str, key: tuple[str, str]
    ) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the rows to fit, or None, with a reason, if they do not suffice."""
        bad = find_outliers(shape, times) & (not self.keep_outliers)
        if bad.mean() > _MOST_OUTLIERS:
            self.left_out.append(
                f"{what} is too noisy: {bad.sum()} of {bad.size} sizes are three times off their neighbours. Measure "
                "again on an idle machine, or pass keep_outliers=True"
            )
            return None
        sizes = shape.size_bytes
        self.outliers += [(*key, int(size), float(time)) for size, time in zip(sizes[bad], times[bad], strict=True)]
        sizes = sizes[~bad]
        if sizes.size < FEWEST_ROWS:
            self.left_out.append(f"{what} has {sizes.size} sizes, but a fit needs {FEWEST_ROWS}")
            return None
        # Fewer decades do not separate the latency from the bandwidth.
        if np.log10(sizes[-1] / sizes[0]) < _FEWEST_DECADES:
            span = f"{format_size(sizes[0])} to {format_size(sizes[-1])}"
            self.left_out.append(f"{what} covers {span}, but a fit needs two decades of size")
            return None
        return np.asarray(~bad)


def times_by_size(rows: pd.DataFrame) -> tuple[Floats, Floats, float]:
    """Return sizes and times of one collective, and the spread of repeated measurements."""
    # The slowest group of a launch counts, as in tables, and then the median of the launches.
    keys = ["size_bytes", "run_id", "launch"]
    slowest = rows.groupby(keys, dropna=False)["time_us"].max().reset_index()
    sizes = np.sort(slowest["size_bytes"].unique()).astype(np.float64)
    times = [slowest["time_us"][slowest["size_bytes"] == size].to_numpy(dtype=np.float64) for size in sizes]
    return sizes, np.array([np.median(repeats) for repeats in times]), spread_of(times)
