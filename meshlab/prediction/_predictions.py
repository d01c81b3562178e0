"""Predictions: the time of collectives along the axes of a mesh, before anything is measured or after a calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.base._collectives import COLLECTIVES, COUNTED, MODELLED, usual_collective
from meshlab.base._errors import BenchError, MeshError
from meshlab.base._forwarding import implementation
from meshlab.base._units import (
    THIN,
    format_bandwidth,
    format_range,
    format_size,
    format_time_us,
    parse_sizes,
)
from meshlab.comm._catalog import CATALOG
from meshlab.frames._labels import is_wrong
from meshlab.frames._schema import is_pair, is_plain
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.mesh._traffic import Traffic, TrafficLike, as_traffic
from meshlab.plans._plan import Plan
from meshlab.prediction._calibration import Calibrated, Calibration, Signature, as_calibration, grown, times_by_size
from meshlab.prediction._constants import ALGORITHMS, PROTOCOLS
from meshlab.prediction._costs import EXACT_FROM, Cost, cost
from meshlab.prediction._fits import Floats, Ints, ModelTimes
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._prediction_text import UNMEASURED, described, evidence_text, spelled
from meshlab.prediction._published_errors import GroupErrors, PublishedErrors, no_errors
from meshlab.prediction._tuner import NcclSettings
from meshlab.prediction._uneven import Uneven
from meshlab.runs._store import as_results
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._loads import check_takes_traffic, link_loads
from meshlab.topology.placement._placement import Placement, as_placement

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.base._collectives import Direction
    from meshlab.comm._communicator import Communicator
    from meshlab.topology.model._cluster import Cluster


BOUND_FROM = 16 << 20
"""Bandwidths are compared with their bound from this size on, in bytes. Below, latency dominates."""

_MORE_RANKS, _MORE_RANKS_MIDDLE = np.log(1.4), np.log(2.0)
"""Least half-width of an extrapolation to more ranks, and that from 1 MiB to 256 MiB, where algorithms change."""

_OTHER_SIZES = ((1.01, np.log(1.25)), (4.0, np.log(2.0)))
"""Least half-width at sizes beyond the measured ones by more than a factor."""

_MOST_ESTIMATED = 1 << 30
"""NCCL's own estimate needs buffers, so it is limited to this size in bytes."""


@dataclass(frozen=True, eq=False)
class PredictedLine:
    """The predicted times of one collective on the identical groups of an axis."""

    axis: str
    collective: str
    dtype: str
    members: Ints  # indices of these groups in the axis
    n_ranks: int  # per group
    size_bytes: Floats
    algorithm: tuple[str, ...]  # that NCCL chooses for each size
    protocol: tuple[str, ...]
    basis: tuple[str, ...]  # the evidence for each time, a key of `meshlab.prediction._prediction_text.BASES`
    latency_us: Floats  # the two parts of the time
    transfer_us: Floats
    band: tuple[Floats, Floats]  # both ends of log(measured / predicted), between which 9 of 10 measured times are
    nodes: int = 0  # NVLink domains that a group spans; 0 without a cluster
    ranks_per_node: int = 0
    bound_gbs: float = float("nan")  # bus bandwidth that the hardware allows at most; NaN without a cluster
    bound_gbs_lo: float = float("nan")  # that it allows at least, less where its figure is uncertain
    bound: str = ""  # the hardware that sets the bound
    above_wire: str = ""  # why busbw may exceed the bandwidth of a wire
    estimate_us: Floats | None = None  # NCCL's own estimates, if there are engines
    sources: tuple[str, ...] = ()  # of the published runs of this class
    traffic: Traffic | None = None  # of the largest size, None for even calls
    busiest_nic: str = ""  # with a traffic, such as "node1/NIC3"; empty if nothing leaves a domain

    @property
    def groups(self) -> int:
        """Number of identical groups."""
        return self.members.size

    @cached_property
    def time_us(self) -> Floats:
        """The predicted times, in µs."""
        return self.latency_us + self.transfer_us

    @property
    def time_us_lo(self) -> Floats:
        """The lower bounds of the band, in µs. They are not shorter than at the bound of the hardware."""
        low = self.time_us * np.exp(self.band[0])
        return np.maximum(low, np.minimum(self.time_us, self.bound_us)) if np.isfinite(self.bound_gbs) else low

    @property
    def time_us_hi(self) -> Floats:
        """The upper bounds of the band, in µs."""
        return self.time_us * np.exp(self.band[1])

    @cached_property
    def busbw_gbs(self) -> Floats:
        """The predicted bus bandwidths, in GB/s."""
        return self.size_bytes / self.time_us / 1e3 * CATALOG[self.collective].bus_factor(self.n_ranks)

    @property
    def of_bound(self) -> Floats:
        """Bus bandwidth divided by its bound. NaN for small sizes."""
        return np.where(self.size_bytes >= BOUND_FROM, self.busbw_gbs / self.bound_gbs, np.nan)

    @property
    def bound_us(self) -> Floats:
        """The times at the bound, in µs: the asymptote of the times."""
        factor = CATALOG[self.collective].bus_factor(self.n_ranks)
        return self.size_bytes * factor / self.bound_gbs / 1e3

    @property
    def choices(self) -> list[tuple[int, str]]:
        """The indices at which NCCL's choice changes, with the choice, such as (12, "ring Simple")."""
        names = [spelled(a, p) for a, p in zip(self.algorithm, self.protocol, strict=True)]
        return [(k, name) for k, name in enumerate(names) if name and (k == 0 or name != names[k - 1])]

    @property
    def title(self) -> str:
        """The axis with its groups, and the collective."""
        count = f"{self.groups:,} group{'s' * (self.groups != 1)} of {self.n_ranks:,}"
        return f"{self.collective} · {self.axis} ({count})"


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Predicted times of collectives along the axes of a mesh. `meshlab.predict` creates one.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh.
    cluster : Cluster or None
        The cluster. None if only a calibration was used.
    lines : tuple of PredictedLine
        One line per axis, signature and collective.
    constants : str
        The NCCL version of the model's constants. Empty without a cluster.
    where : str
        Label of the calibrated system. Empty without a calibration.
    notes : tuple of str
        Remarks on the prediction.
    """

    mesh: DeviceMesh
    cluster: Cluster | None
    lines: tuple[PredictedLine, ...]
    constants: str
    where: str = ""
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The machine, or the calibrated system."""
        if self.cluster is None:
            return self.where
        return ", ".join(part for part in (self.cluster.title, self.cluster.summary) if part)

    def frame(self) -> pd.DataFrame:
        """Return the prediction as a table.

        Returns
        -------
        pandas.DataFrame
            One row per axis, signature, collective and size: ``axis``, ``groups`` (number of identical groups),
            ``n_ranks``, ``nodes`` (NVLink domains), ``ranks_per_node``, ``collective``, ``dtype``, ``size_bytes``,
            ``algorithm`` and ``protocol`` that NCCL would choose, ``time_us`` with its band ``time_us_lo`` and
            ``time_us_hi``, its parts ``latency_us`` and ``transfer_us``, ``busbw_gbs``, ``bound_gbs`` and ``bound``
            (the hardware's limit and its reason), ``bound_gbs_lo`` (less than ``bound_gbs`` where the hardware's figure
            is uncertain), ``of_bound`` (from 16 MiB on), ``basis`` (calibrated, other collective, extrapolated,
            published, formula only), ``sources`` (of the published runs), ``nccl_estimate_us`` (with engines) and
            ``constants`` (NCCL version of the model). With a traffic also ``traffic`` (its name), ``imbalance``, and
            ``busiest_nic``.

        Examples
        --------
        >>> import meshlab as ml
        >>> frame = ml.predict("dp=2, tp=8", "dgx-h100", sizes="1G").frame()
        >>> frame[["axis", "nodes", "algorithm", "bound"]].values.tolist()
        [['dp', 2, 'ring', '1 NIC'], ['tp', 1, 'nvls', 'NVSwitch reduction']]
        """
        import pandas as pd

        parts = []
        for line in self.lines:
            facts = {name: getattr(line, name) for name in _COLUMNS}
            facts |= {"nodes": line.nodes or None, "ranks_per_node": line.ranks_per_node or None}
            facts |= {"nccl_estimate_us": line.estimate_us, "constants": self.constants}
            facts["sources"] = ["; ".join(line.sources) if basis == "published" else "" for basis in line.basis]
            if line.traffic is not None:
                facts |= {"traffic": line.traffic.name, "imbalance": line.traffic.imbalance}
                facts["busiest_nic"] = line.busiest_nic
            parts.append(pd.DataFrame(facts))
        kinds = {"nodes": "Int64", "ranks_per_node": "Int64", "size_bytes": "int64", "nccl_estimate_us": "float64"}
        return pd.concat(parts, ignore_index=True).astype(kinds)

    def explain(self) -> str:
        """Describe each line in sentences: the links, NCCL's choices, the largest size and the evidence."""
        is_supported = any(basis != "formula only" for line in self.lines for basis in line.basis)
        lines = [described(line) + (evidence_text(line) if is_supported else "") for line in self.lines]
        return "\n".join([*lines, *([] if is_supported else [UNMEASURED]), *self.notes])

    def plot(self, results: Any = None, *, ax: Axes | None = None) -> Axes:
        """Draw time against message size, with bands, bounds and measured points.

        See `meshlab.plots.prediction`.

        Parameters
        ----------
        results : RunData, DataFrame, path, object with ``.results``, or a list of these, optional
            Measured times, drawn as points, with their ratio to the prediction below.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default a new figure is created.
        """
        return implementation(Prediction.plot)(self, results, ax=ax)

    def measured(self, line: PredictedLine, results: Any) -> tuple[Floats, Floats]:
        """Return the measured sizes in bytes and times in µs of a line: the slowest group, the median of all launches.

        Parameters
        ----------
        line : PredictedLine
            One of `lines`.
        results : RunData, DataFrame, path, object with ``.results``, or a list of these
            Measured results. Rows without an axis belong to every axis with their number of ranks.

        Raises
        ------
        BenchError
            If the rows mix timing modes.
        """
        rows = as_results(results)
        rows = rows[is_plain(rows) & ~is_pair(rows) & ~is_wrong(rows) & rows["time_us"].gt(0)]
        rows = rows[rows["collective"].eq(line.collective) & rows["n_ranks"].eq(line.n_ranks)]
        rows = rows[rows["axis"].isna() | rows["axis"].eq(line.axis)]
        members = [self.mesh[line.axis].names[k] for k in line.members]
        rows = rows[rows["axis"].isna() | rows["group"].isin(members)]
        modes = rows["mode"].dropna().unique()
        if len(modes) > 1:
            raise BenchError(
                f"the results mix the modes {', '.join(modes)}",
                hint=f"choose one: results[results['mode'] == '{modes[0]}']",
            )
        sizes, times, _ = times_by_size(rows)
        return sizes, times

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(f"{line.collective} along {line.axis}" for line in self.lines))
        return f"<Prediction {self.mesh} on {self.title}: {names}; next: .explain(), .frame(), .plot()>"

    def __str__(self) -> str:
        return f"{self.summary()}\n\n{self.explain()}"

    def summary(self) -> str:
        """Return a table with a few sizes of each line, as text."""
        header, rows = self._table()
        return f"{self.mesh} on {self.title}\n\n{markup.text_table([header, *rows])}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of a small table: a few sizes of each line."""
        header = ["axis", "collective", "size", "NCCL takes", "time", "band", "busbw", "of bound", "basis"]
        rows = []
        for line in self.lines:
            n = line.size_bytes.size
            for k in np.unique(np.linspace(0, n - 1, min(n, _SIZES_SHOWN)).round().astype(int)):
                share = line.of_bound[k]
                rows.append(
                    [
                        line.axis,
                        line.collective,
                        format_size(line.size_bytes[k]),
                        spelled(line.algorithm[k], line.protocol[k]),
                        format_time_us(line.time_us[k]),
                        format_range(format_time_us(line.time_us_lo[k]), format_time_us(line.time_us_hi[k])),
                        format_bandwidth(line.busbw_gbs[k]),
                        "" if np.isnan(share) else f"{100 * share:.0f} %",
                        line.basis[k],
                    ]
                )
        return header, rows

    def _figure_html(self) -> str:
        return implementation(Prediction._figure_html)(self)

    def _repr_html_(self) -> str:
        header, rows = self._table()
        rows = [[cell.replace(THIN, _NO_BREAK).replace(" ", _NO_BREAK) for cell in row] for row in rows]
        sentences = "".join(f"<div>{markup.escape(line)}</div>" for line in self.explain().splitlines())
        table = markup.table(header, rows, most=_ROWS_SHOWN, right=(2, 4, 5, 6, 7))
        return markup.card(f"Prediction {self.mesh}", self.title, sentences, self._figure_html(), table)


_COLUMNS = (
    *("axis", "groups", "n_ranks", "nodes", "ranks_per_node", "collective", "dtype", "size_bytes"),
    *("algorithm", "protocol", "time_us", "time_us_lo", "time_us_hi", "latency_us", "transfer_us"),
    *("busbw_gbs", "bound_gbs", "bound_gbs_lo", "bound", "of_bound", "basis"),
)
"""The attributes of a line that are columns of the frame."""

_SIZES_SHOWN, _ROWS_SHOWN = 5, 60
_NO_BREAK = "\N{NO-BREAK SPACE}"


# -- predict -----------------------------------------------------------------------------------------------------------


def predict(
    mesh: MeshLike | Placement,
    cluster: ClusterLike | None = None,
    collectives: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    sizes: str | int | Sequence[int | str] = "8:4G",
    *,
    axis: str | Sequence[str] | None = None,
    dtype: str = "float32",
    calibration: Any = None,
    settings: NcclSettings | None = None,
    engines: Any = None,
    traffic: TrafficLike | None = None,
) -> Prediction:
    """Predict the time of collectives along the axes of a mesh, while all groups of an axis run at the same time.

    NCCL's algorithm and protocol are those that its own tuner would choose. Their time is computed from the bandwidth
    that a group has while its neighbours use the same links, and from the error that this formula has on published runs
    of machines like this one. A band is meant to contain 9 of 10 measured times. It is narrow where published runs
    agree, and wide for classes of machines without any, whose ``basis`` is "formula only". docs/prediction.md has the
    errors, and the shares of times inside the bands, by network and size.

    Parameters
    ----------
    mesh : DeviceMesh, str or Placement
        The mesh. A Placement includes the cluster.
    cluster : Cluster or str, optional
        The cluster, or the name of a preset, which gets as many hosts as the mesh needs. It may be omitted with a
        calibration, for example for MPI.
    collectives : str, sequence of str or mapping, optional
        Collectives for all axes, or by axis, such as ``{"tp": "all_gather, reduce_scatter"}``. By default send_recv for
        pp, all_to_all for ep, and all_reduce for all other axes.
    sizes : str, int or sequence of these, default "8:4G"
        Message sizes in bytes, as in `meshlab.bench`.
    axis : str or sequence of str, optional
        Axes or groups of the mesh. By default all axes with several ranks, or those of the mapping.
    dtype : str, default "float32"
        Element type.
    calibration : Calibration, RunData, DataFrame, path or False, optional
        A calibration, or results to calibrate with. By default the published runs of machines of this class are the
        calibration. False for the formula alone.
    settings : NcclSettings, optional
        Settings of NCCL. By default those of the calibration, or NCCL's defaults.
    engines : Engines, optional
        Running NCCL engines with the mesh's world size, which add NCCL's own estimate.
    traffic : Traffic or str, optional
        The bytes between the ranks of each group in an all_to_all_v, by default along ep for a pattern, and on the
        axes with its number of ranks for a matrix. The busiest link decides the time.

    Raises
    ------
    BenchError
        If a collective has no model and is not calibrated.
        If there is neither a cluster nor a calibration.
    TopologyError
        If the cluster has no GPUs, or the bandwidth of its links is unknown.
        If a collective has no traffic.
    MeshError
        If the mesh does not have an axis, or no axis has the number of ranks of a traffic.

    Examples
    --------
    >>> import meshlab as ml
    >>> prediction = ml.predict("pp=2, dp=4, tp=8", "dgx-h100", sizes="1M:1G")
    >>> [line.collective for line in prediction.lines]
    ['send_recv', 'all_reduce', 'all_reduce']
    >>> skewed = ml.predict("ep=16", "dgx-h100", sizes="256M", traffic=ml.Traffic.zipf(1.2)).frame()
    >>> skewed[["collective", "bound", "busiest_nic"]].values.tolist()
    [['all_to_all_v', '8 NICs', 'node0/NIC2']]
    """
    request = _Request.of(mesh, cluster, dtype, calibration, settings)
    if traffic is not None:
        return _uneven_prediction(request, as_traffic(traffic), axis, collectives, sizes)
    lines = [
        line
        for name, chosen in _by_axis(request.mesh, axis, collectives, request.source)
        for line in request.lines(Plan(chosen, name, sizes, dtype=dtype), name)
    ]
    if engines is not None:
        lines = [_with_estimates(line, engines, request.mesh) for line in lines]
    return request.prediction(lines, is_choice=axis is not None or isinstance(collectives, Mapping))


def _uneven_prediction(
    request: _Request, traffic: Traffic, axis: str | Sequence[str] | None, collectives: Any, sizes: Any
) -> Prediction:
    """Return the prediction of an all_to_all_v with a traffic, on the axes with its number of ranks."""
    names = collectives.values() if isinstance(collectives, Mapping) else [collectives]
    for name in names:
        check_takes_traffic(name)
    if request.placement is None:
        raise BenchError("the prediction of a traffic needs a cluster", hint="pass the name of a preset")
    chosen = [name for name, _ in _by_axis(request.mesh, axis, collectives, request.source)]
    groups = [request.mesh[name] for name in chosen]
    if axis is None and not isinstance(collectives, Mapping):
        exchanges = [name for name in chosen if usual_collective(name) == usual_collective("ep")]
        if traffic.n_ranks is not None:
            chosen = [part.name for part in groups if part.size == traffic.n_ranks]
        elif exchanges:
            chosen = exchanges
    if not chosen:
        parts = " and ".join(f"{part.size} ({part.name})" for part in groups)
        raise MeshError(
            f"the traffic {traffic.name!r} is for {traffic.n_ranks} ranks, but the mesh has groups of {parts}",
            hint="pass a traffic for one of them, or a pattern",
        )
    lines = [line for name in chosen for line in request.uneven(name, traffic, sizes)]
    if not lines:
        raise BenchError(
            f"nothing is predicted, because the traffic {traffic.name!r} sends no bytes", hint="pass larger sizes"
        )
    return request.prediction(lines, is_choice=axis is not None or traffic.n_ranks is not None)


def _is_measured_by(mesh: DeviceMesh, axis: str, source: str) -> bool:
    """Return whether times of a source are those of the backend of an axis."""
    return mesh.backend_of(axis) in (None, source) or not source


def _by_axis(
    mesh: DeviceMesh, axis: str | Sequence[str] | None, collectives: Any, source: str
) -> Iterator[tuple[str, Any]]:
    """Yield each axis with its collectives. `source` is the backend that the times are those of."""
    if axis is not None:
        axes = [part.strip() for part in axis.split(",")] if isinstance(axis, str) else list(axis)
    elif isinstance(collectives, Mapping):
        axes = list(collectives)
    else:
        axes = [part.name for part in mesh.axes if part.size > 1]
        if not axes:
            raise BenchError(f"the mesh {mesh} has one rank, so nothing is sent", hint="choose a larger mesh")
        axes = [name for name in axes if _is_measured_by(mesh, name, source)] or axes
    for name in axes:
        if not _is_measured_by(mesh, name, source):
            raise BenchError(
                f"times of {source} are predicted, but {name} of the mesh uses {mesh.backend_of(name)}",
                hint="choose other axes, or create the mesh without backends=",
            )
        if mesh[name].size < 2:
            others = ", ".join(part.name for part in mesh.axes if part.size > 1)
            raise BenchError(
                f"the groups of {name} have one rank, so nothing is sent",
                hint=f"choose another axis: {others}" if others else "choose a larger mesh",
            )
        chosen = collectives.get(name) if isinstance(collectives, Mapping) else collectives
        yield mesh[name].name, usual_collective(name) if chosen is None else chosen


class _Request(NamedTuple):
    """The parts of a prediction that all lines share."""

    placement: Placement | None
    mesh: DeviceMesh
    dtype: str
    calibration: Calibration | None
    settings: NcclSettings
    evidence: PublishedErrors | None  # None for all published runs

    @classmethod
    def of(
        cls,
        mesh: MeshLike | Placement,
        cluster: ClusterLike | None,
        dtype: str,
        calibration: Any,
        settings: NcclSettings | None,
    ) -> _Request:
        evidence = no_errors() if calibration is False else None
        if isinstance(calibration, PublishedErrors):
            evidence = calibration
        is_measured = calibration is not None and evidence is None
        calibrated = as_calibration(calibration, cluster) if is_measured else None
        placement: Placement | None
        if isinstance(mesh, Placement):
            placement, shape = as_placement(mesh, cluster), mesh.mesh
        elif cluster is None and calibrated is None:
            raise BenchError(
                "a prediction needs a cluster or a calibration",
                hint="pass the name of a preset, such as 'dgx-h100', or measured results to calibrate with",
            )
        else:
            shape = as_mesh(mesh)
            placement = None if cluster is None else as_placement(shape, grown(cluster, shape))
        settings = settings or (None if calibrated is None else calibrated.settings)
        return cls(placement, shape, dtype, calibrated, settings or NcclSettings(), evidence)

    @property
    def source(self) -> str:
        """The backend whose times are predicted."""
        return "nccl" if self.placement is not None or self.calibration is None else self.calibration.source

    def prediction(self, lines: Sequence[PredictedLine], *, is_choice: bool) -> Prediction:
        """Return the lines with their notes. Axes that are missing are no surprise if the caller chose the axes."""
        if not lines:
            raise BenchError(
                "nothing is predicted, because none of the collectives has a size",
                hint=f"choose one of {', '.join(MODELLED)}",
            )
        notes, placement = list(self._notes()), self.placement
        others = [part.name for part in self.mesh.axes if part.size > 1]
        others = [name for name in others if not _is_measured_by(self.mesh, name, self.source)]
        if others and not is_choice:
            notes.append(f"Without {', '.join(others)}, whose backend is not {self.source}.")
        cluster, version = (None, "") if placement is None else (placement.cluster, self.settings.version)
        where = "" if self.calibration is None else self.calibration.where
        return Prediction(self.mesh, cluster, tuple(lines), version, where, tuple(notes))

    def _notes(self) -> Iterator[str]:
        calibration = self.calibration
        if calibration is not None:
            origin = [part for part in (calibration.where or calibration.source, calibration.mode) if part]
            yield f"Calibrated with {', '.join(origin)}."
            if calibration.dtype and calibration.dtype != self.dtype:
                yield f"The calibration was measured with {calibration.dtype}, not {self.dtype}."
            if self.placement is not None and calibration.settings is None:
                yield "The calibration has no cluster, so its times are matched by the number of ranks and groups."
        if self.settings.plugin:
            yield f"The tuner plugin {self.settings.plugin} may choose other algorithms than NCCL."

    def lines(self, plan: Plan, axis: str) -> Iterator[PredictedLine]:
        """Yield the lines of one axis."""
        groups = self.mesh[axis]
        by_collective: dict[str, list[int]] = {}
        for step in plan.steps(self.mesh):
            if step.size_bytes is not None:
                by_collective.setdefault(step.collective, []).append(step.size_bytes)
        if self.placement is None:
            signature = Signature(groups.size, len(groups))
            for name, sizes in by_collective.items():
                yield self._measured(axis, name, np.array(sorted(sizes), dtype=np.float64), signature)
            return
        links, of_group = GroupLinks.of(self.placement, axis)
        for name, sizes in by_collective.items():
            yield from self._modelled(axis, name, np.array(sorted(sizes), dtype=np.float64), links, of_group)

    def uneven(self, axis: str, traffic: Traffic, sizes: Any) -> Iterator[PredictedLine]:
        """Yield the lines of an all_to_all_v with a traffic: those of an all_to_all whose links are busy for longer."""
        placement, n = self.placement, self.mesh[axis].size
        assert placement is not None  # checked by the caller
        matrices = [traffic.of(n, size) for size in (parse_sizes(sizes) if traffic.is_pattern else [None])]
        by_size = {matrix.size_bytes: matrix for matrix in matrices if matrix.size_bytes}
        if not by_size:
            return
        largest = by_size[max(by_size)]
        links, of_group = GroupLinks.of(placement, axis)
        factors, row, of_group = Uneven.of(placement, axis, largest, links, of_group)
        call: dict[str, Any] = {"collective": COUNTED, "traffic": largest}
        call["busiest_nic"] = link_loads(placement, axis, traffic=largest).busiest_nic
        for line in self._modelled(
            axis,
            usual_collective("ep"),
            np.array(sorted(by_size), dtype=np.float64),
            links.rows(row),
            of_group,
            factors,
        ):
            yield replace(line, **call)

    def _costs(
        self, links: GroupLinks, collective: str, size_bytes: Floats, uneven: Uneven | None = None
    ) -> tuple[Cost, Cost]:
        """Return the costs with the errors of published runs, and those of the formula, which a calibration scales."""
        size = size_bytes.astype(np.int64)
        settings: dict[str, Any] = {"dtype": self.dtype, "settings": self.settings, "uneven": uneven}
        return (
            cost(links, collective, size, evidence=self.evidence, **settings),
            cost(links, collective, size, evidence=no_errors(), **settings),
        )

    def _modelled(
        self,
        axis: str,
        collective: str,
        size_bytes: Floats,
        links: GroupLinks,
        of_group: npt.NDArray[np.int32],
        uneven: Uneven | None = None,
    ) -> Iterator[PredictedLine]:
        """Yield one line per signature, from NCCL's model and its calibration."""
        groups = self.mesh[axis]
        if collective not in MODELLED:
            near = COLLECTIVES[collective].like if collective in COLLECTIVES else None
            raise BenchError(
                f"{collective} has no cost model",
                hint=f"choose {near}, which is the nearest" if near else f"choose one of {', '.join(MODELLED)}",
            )
        all_costs, formula = self._costs(links, collective, size_bytes, uneven)
        for row in range(len(links)):
            algorithm = tuple(ALGORITHMS[k] for k in all_costs.algorithm[row])
            protocol = tuple(PROTOCOLS[k] for k in all_costs.protocol[row])
            signature = Signature.of(links, row, len(groups))
            match = self._find(collective, axis, signature)
            latency, transfer, basis, band = _timed(
                ModelTimes.of(all_costs if match is None else formula, row), match, all_costs.errors, row
            )
            yield PredictedLine(
                axis=axis,
                collective=collective,
                dtype=self.dtype,
                members=np.flatnonzero(of_group == row),
                n_ranks=signature.n_ranks,
                nodes=int(links.domains[row]),
                ranks_per_node=int(links.ranks_per_domain[row]),
                size_bytes=size_bytes,
                algorithm=algorithm,
                protocol=protocol,
                basis=basis,
                latency_us=latency,
                transfer_us=transfer,
                band=band,
                bound_gbs=float(all_costs.bound_gbs[row]),
                bound_gbs_lo=float(all_costs.bound_gbs_lo[row]),
                bound=all_costs.bound[row],
                above_wire=all_costs.above_wire[row],
                sources=all_costs.errors.sources(row) if "published" in basis else (),
            )

    def _measured(self, axis: str, collective: str, size_bytes: Floats, signature: Signature) -> PredictedLine:
        """Return a line that a calibration alone determines."""
        match = self._find(collective, axis, signature)
        if match is None:
            assert self.calibration is not None
            lines = [f"{line.collective} on {line.signature}" for line in self.calibration.lines]
            raise BenchError(
                f"{collective} on {signature} was not measured, and without NCCL's model nothing can be inferred from "
                f"other collectives or group sizes; the calibration has {', '.join(dict.fromkeys(lines))}",
                hint="measure it, or predict one of these",
            )
        latency, transfer, basis, band = _timed(match[0].own_shape(size_bytes), match)
        groups, empty = self.mesh[axis], ("",) * size_bytes.size
        return PredictedLine(
            axis=axis,
            collective=collective,
            dtype=self.dtype,
            members=np.arange(len(groups)),
            n_ranks=groups.size,
            size_bytes=size_bytes,
            algorithm=empty,
            protocol=empty,
            basis=basis,
            latency_us=latency,
            transfer_us=transfer,
            band=band,
        )

    def _find(self, collective: str, axis: str, signature: Signature) -> tuple[Calibrated, str] | None:
        return None if self.calibration is None else self.calibration.find(collective, axis, signature)


Band = tuple[Floats, Floats]


def _timed(
    shape: ModelTimes, match: tuple[Calibrated, str] | None, errors: GroupErrors | None = None, row: int = 0
) -> tuple[Floats, Floats, tuple[str, ...], Band]:
    """Return latency, transfer time, basis and both ends of the band at each size."""
    sizes = shape.size_bytes
    if match is None:
        assert errors is not None
        bases = tuple(
            "published" if is_supported else "formula only" for is_supported in errors.supports(row, sizes).tolist()
        )
        return shape.latency_us, shape.transfer_us, bases, errors.band(row, sizes)
    fitted, basis = match
    if fitted.gbs is not None:
        shape = fitted.own_shape(sizes)
    other_ranks = basis == "extrapolated"
    latency, transfer = (fitted.fit.time_parts_elsewhere if other_ranks else fitted.fit.time_parts)(shape)
    low, high = fitted.fit.size_bytes[0], fitted.fit.size_bytes[-1]
    half_width = fitted.fit.half_widths(sizes)
    for beyond, least in _OTHER_SIZES:
        is_beyond = (sizes * beyond < low) | (sizes > high * beyond)
        half_width = np.where(is_beyond, np.maximum(half_width, least), half_width)
    if other_ranks:
        is_middle = (sizes >= 1 << 20) & (sizes < EXACT_FROM)
        half_width = np.maximum(half_width, np.where(is_middle, _MORE_RANKS_MIDDLE, _MORE_RANKS))
    is_inside = (sizes * 1.01 >= low) & (sizes <= high * 1.01)
    bases = tuple(basis if inside else "extrapolated" for inside in is_inside)
    return latency, transfer, bases, (-half_width, half_width)


# -- NCCL's own estimate -----------------------------------------------------------------------------------------------


def _with_estimates(line: PredictedLine, engines: Any, mesh: DeviceMesh) -> PredictedLine:
    """Add NCCL's own estimates, computed on the ranks of the line's first group."""
    sizes = [int(size) for size in line.size_bytes if size <= _MOST_ESTIMATED]
    frame = engines.run(estimates, mesh, axis=line.axis, arguments=(line.collective, line.dtype, sizes))
    values = frame["value"][frame["group"] == mesh[line.axis].names[line.members[0]]].iloc[0]
    padded = np.full(line.size_bytes.size, np.nan)
    padded[: len(values)] = [value if value > 0 else np.nan for value in values]  # 0 if NCCL's tuner has no plan
    return replace(line, estimate_us=padded)


def estimates(comm: Communicator, collective: str, dtype: str, sizes: Sequence[int]) -> list[float]:
    """Return NCCL's estimate for each size, in µs. Runs on the engines."""
    from meshlab.comm._elements import carrier, find_dtype

    row, element = CATALOG[collective], find_dtype(dtype)
    dest, source = ((comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size) if row.peers else (None, None)
    is_root = comm.rank == 0
    values = []
    for size in sizes:
        count = row.count_for(size, element.itemsize, comm.size)
        send, out = (
            comm.empty(row.elements(side, count, comm.size), carrier(element)) if row.has(side, is_root) else None
            for side in _SIDES
        )
        values.append(comm.prepare(collective, send, out, dest=dest, source=source).estimate_us())
    return values


_SIDES: tuple[Direction, Direction] = ("sends", "receives")
