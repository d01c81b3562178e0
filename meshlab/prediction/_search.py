"""Layouts: all meshes on which a job can run, ranked by the expected time of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.base._errors import MeshError
from meshlab.base._forwarding import implementation
from meshlab.base._units import THIN
from meshlab.mesh._axes import as_integer
from meshlab.mesh._mesh import DeviceMesh
from meshlab.prediction._candidates import (
    ARGUMENTS,
    AXES,
    DroppedLayouts,
    SearchArguments,
    WeakestDevice,
    all_factorisations,
    allowed_degrees,
    degrees_at,
    drop_layouts,
    find_fewer_ranks,
    memory_fix,
    memory_state,
    mesh_text,
    nothing_fits,
    parse_orders,
    positive_integers,
)
from meshlab.prediction._group_links import GroupLinks, LinkTable, concatenate
from meshlab.prediction._job import Job
from meshlab.prediction._step_parts import (
    CAVEAT,
    COMPONENT_OF,
    COMPONENTS,
    StepParts,
    links_text,
    priced_exchanges,
    range_text,
    seconds_text,
    step_parts,
)
from meshlab.prediction._tuner import NcclSettings
from meshlab.prediction._volumes import Degrees, Sizes, memory_of, stage_flops
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._levels import Floats
from meshlab.topology.model._presets import ClusterLike, as_cluster

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_MOST_CHUNKS = 1 << 31
_MARGIN = 0.2  # of exposed communication: the error of uncalibrated predictions, which can change an order
_MOST_TIES = 16
_SEGMENT = 16  # hosts of a rack with 18, so that a group of a power of two ranks is inside
_SHOWN = 10


@ARGUMENTS.shown
def search(
    cluster: ClusterLike,
    job: Job | str,
    *,
    world_size: int | None = None,
    segment: int | None = None,
    settings: NcclSettings | None = None,
    **arguments: Unpack[SearchArguments],
) -> Layouts:
    """Find the layouts on which a job can run, and rank them by the expected time of a step, best first.

    All factorisations of the ranks into pp × dp × cp × tp are considered, in all orders of the axes. With experts, each
    of them is combined with every ep that divides the ranks of a stage, so that an expert is on one rank. Layouts that
    do not divide the job are dropped, with the number that would fix them. Memory is an estimate, so layouts that
    exceed it are last, and `Layouts.explain` has the change with which the nearest of them fits.

    A step consists of computation, the bubble of the pipeline, and exposed communication. Computation is the sum of
    its kernels, each at the measured rate for its shape and precision (`meshlab.prediction.ComputeRates`), but at least
    the time in which the host launches them. A schedule hides most of the communication that it can hide (see
    `StepCall`). The range would have contained 87 % of similar published steps. Layouts are tied if their order
    depends on the overlap, or on an error of 20 % in the time of communication. The times of collectives are those of
    `meshlab.prediction._costs`.

    Parameters
    ----------
    cluster : Cluster or str
        The machine, or the name of a preset.
    job : Job or str
        The job, or the name of a model, see `Job.preset`.
    world_size : int, optional
        Number of ranks. By default all devices.
    segment : int, optional
        Hosts that the job takes of each rack if NVLink joins the hosts of a rack, as Slurm's ``--segment``. By default
        16 of 18, if `world_size` is more than one rack and leaves that many hosts out. Then no group of a power of two
        ranks straddles racks.
    pp, dp, cp, tp, ep : int or iterable of int, optional
        The degrees to consider. By default all divisors.
    interleave : int or iterable of int, optional
        Model chunks per stage to consider. By default that of the job.
    order : str or sequence of str, optional
        Order of the axes, slowest first, such as ``"pp, dp, cp, tp"``. By default all orders.
    memory_share : float, default 0.9
        Share of a device's memory that the job may use. The rest is for the CUDA context, buffers of NCCL, and
        fragmentation.
    memory_gib : float, optional
        Memory of a device in GiB. By default that of the smallest device.
    peak : float, optional
        Peak of matrix products in TFLOP/s, which replaces the published one of the slowest product. Without a
        `Job.matmul`, a peak far above that of 16 bits is one of 8 or 4 bits.
    utilisation : (float, float), optional
        Share of the peak that computation reaches, which replaces the rates of kernels: low and high end of the range.
    rates : ComputeRates, optional
        Measured rates of your GPUs, see `meshlab.benchmark.compute_rates`. By default those of an H200, scaled to the
        slowest product.
    exposed_share : float, optional
        Share of the communication that a schedule may hide which stays exposed, as measured on the machine by
        `meshlab.benchmark.overlap` or ``tune(beside=…)``. By default 0.3, fitted to published steps.
    settings : NcclSettings, optional
        Settings of NCCL that change the predicted times.

    Raises
    ------
    MeshError
        If no layout fits. The message names the nearest one, and the change that makes it fit.
    TopologyError
        If the cluster lacks GPUs, link speeds, memory sizes or a known product.

    Examples
    --------
    >>> import meshlab as ml
    >>> layouts = ml.search(ml.preset("dgx-h100", nodes=16), "llama3-70b")
    >>> layouts.mesh(0), layouts.n_tied, len(layouts)
    (DeviceMesh('pp=4, dp=4, cp=2, tp=4'), 10, 466)
    >>> print(layouts.verdict)  # doctest: +ELLIPSIS
    pp=4, dp=4, cp=2, tp=4 is first, tied with 9 others: 50.5 to 82.0...s per step
    >>> for line in layouts.explain().splitlines()[2:5]:
    ...     print(line.partition(",")[0].strip())
    tp: 4 ranks inside NVLink
    cp: 2 ranks inside NVLink
    pp: 4 ranks on 4 hosts
    """
    choice = ARGUMENTS.complete("search", arguments)
    if settings is not None and not isinstance(settings, NcclSettings):
        raise MeshError(f"settings must be NcclSettings, not {type(settings).__name__}")
    machine = _in_segments(as_cluster(cluster), world_size, segment)
    return _searched(machine, _as_job(job), world_size, choice, settings or NcclSettings())


def _in_segments(cluster: Cluster, world_size: int | None, segment: int | None) -> Cluster:
    """Return the cluster with the same number of hosts in each rack, or unchanged if the ranks need them all."""
    number = None if segment is None else as_integer(segment)
    if segment is not None and (number is None or number < 1):
        raise MeshError(f"segment must be a positive number of hosts, not {segment!r}", hint="pass 16")
    if cluster.nvlink_of_node is None:
        return cluster
    racks = cluster.nvlink_of_node
    place = np.arange(len(racks)) - np.searchsorted(racks, racks)  # of a host in its rack
    devices = np.bincount(cluster.node_of, minlength=len(racks))
    size, most = number or _SEGMENT, int(place.max()) + 1
    needed = cluster.n_devices if world_size is None else as_integer(world_size) or 0
    if size >= most or (number is None and needed <= devices[racks == racks[0]].sum()):
        return cluster
    if devices[place < size].sum() < needed:
        if number is None:
            return cluster
        raise MeshError(
            f"{needed:,} ranks do not fit into segments of {size} hosts, which have {devices[place < size].sum():,} "
            "devices",
            hint="use a cluster with more racks",
        )
    return cluster.without_node(*np.flatnonzero(place >= size).tolist())


def _as_job(job: Job | str) -> Job:
    work = Job.preset(job) if isinstance(job, str) else job
    if not isinstance(work, Job):
        raise MeshError(f"job must be a Job or the name of a model, not {type(job).__name__}", hint="see ml.Job.preset")
    return work


def _searched(
    cluster: Cluster, job: Job, world_size: int | None, choice: Mapping[str, Any], settings: NcclSettings
) -> Layouts:
    """Return the layouts of a job, or raise with the nearest one if it cannot run on any."""
    table = GroupLinks.by_stride(cluster, world_size)
    ranks = table.world_size
    hardware = WeakestDevice.of(cluster, ranks, job, choice)
    choices = {name: choice[name] for name in (*AXES, "ep")}
    if not job.experts and choices["ep"] is None:
        choices["ep"] = 1
    degrees_of = {name: None if value is None else positive_integers(name, value) for name, value in choices.items()}
    allowed = {name: allowed_degrees(name, values, ranks) for name, values in degrees_of.items()}
    interleaves = positive_integers(
        "interleave", job.interleave if choice["interleave"] is None else choice["interleave"]
    )
    chunks = sorted({min(number, _MOST_CHUNKS) for number in interleaves})  # more than the layers of any job
    candidates = all_factorisations(ranks, allowed, chunks)
    can_run, dropped = drop_layouts(job, candidates)
    if not can_run.any():
        raise nothing_fits(job, ranks, dropped, find_fewer_ranks(job, ranks, degrees_of, chunks))
    degrees = degrees_at(candidates, np.flatnonzero(can_run))
    placed = _Placed.of(table, job, degrees, parse_orders(choice["order"]))
    times = _times(job, hardware, degrees, placed, settings)
    return Layouts(cluster, job, ranks, hardware, degrees, placed, times, dropped)


# -- placement ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Placed:
    """Layouts with an order of their axes: arrays of shape (k,), and one table of links."""

    links: GroupLinks  # distinct signatures
    which: Sizes  # index of the degrees of every layout
    orders: list[tuple[str, ...]]  # the order of every layout
    merged: Sizes  # number of orders in which all groups have the same links
    rows: dict[str, Sizes]  # signature of the groups of every role

    @classmethod
    def of(cls, table: LinkTable, job: Job, d: Degrees, orders: list[tuple[str, ...]]) -> _Placed:
        """Return the layouts with all orders, and one of those whose groups have the same links."""
        count = len(d.pp)
        which = np.tile(np.arange(count), len(orders))
        strides: dict[str, list[Sizes]] = {name: [] for name in AXES}
        for names in orders:
            inner = np.ones(count, dtype=np.int64)
            for name in reversed(names):
                strides[name].append(inner)
                inner = inner * getattr(d, name)
        stride = {name: np.concatenate(parts) for name, parts in strides.items()}
        size = {name: getattr(d, name)[which] for name in (*AXES, "ep", "edp")}
        is_placed = np.ones(len(which), dtype=bool)
        if job.experts:
            is_placed = _place_experts(size, stride)
        axes: list[str] = [name for name in ("tp", "cp", "pp", "ep", "edp") if name in stride]
        rows: dict[str, Sizes] = {
            name: table.index(size[name], np.where(size[name] > 1, stride[name], 1)) for name in axes
        }
        links, rows["data"] = _unions(table, size, stride)
        if job.experts:
            rows["expert_data"] = rows.pop("edp")
        # Orders whose groups have the same links have the same times, so one of them represents all.
        links, number = _distinct(links)
        rows = {role: number[row[is_placed]] for role, row in rows.items()}
        which, order = which[is_placed], np.repeat(np.arange(len(orders)), count)[is_placed]
        keys = np.stack([which, *rows.values()])
        _, first, times = np.unique(_mixed(keys), return_index=True, return_counts=True)
        return cls(
            links=links,
            which=which[first],
            orders=[orders[i] for i in order[first].tolist()],
            merged=times,
            rows={role: row[first] for role, row in rows.items()},
        )


def _place_experts(size: dict[str, Sizes], stride: dict[str, Sizes]) -> npt.NDArray[np.bool_]:
    """Add the strides of ep and edp, and return the layouts that have them."""
    # Experts use the same ranks in a second factorisation, in which a pipeline stage keeps its ranks, and ep has the
    # fastest of them. If the axis pp is between them, only an ep that fills all ranks inside pp leaves edp whole.
    pp, ep, inner = size["pp"], size["ep"], stride["pp"]
    is_outer = (pp == 1) | (inner == ep * size["edp"])
    is_inner = ~is_outer & (inner == 1)
    stride["ep"] = np.where(is_inner, pp, 1)
    stride["edp"] = np.where(is_outer, ep, pp * ep)
    return np.asarray(is_outer | is_inner | (inner == ep))


def _unions(table: LinkTable, size: dict[str, Sizes], stride: dict[str, Sizes]) -> tuple[GroupLinks, Sizes]:
    """Return the links of all axes and of the unions of dp and cp, and the row of the union of every layout."""
    dp, cp, s_dp, s_cp = size["dp"], size["cp"], stride["dp"], stride["cp"]
    adjacent = (dp == 1) | (cp == 1) | (s_cp * cp == s_dp) | (s_dp * dp == s_cp)
    lowest = np.where(dp == 1, s_cp, np.where(cp == 1, s_dp, np.minimum(s_dp, s_cp)))
    n = dp * cp
    row = np.zeros(len(dp), dtype=np.int64)
    row[adjacent] = table.index(n[adjacent], np.where(n > 1, lowest, 1)[adjacent])
    apart = np.flatnonzero(~adjacent)
    if not len(apart):
        return table.links, row
    pairs = np.stack([dp, cp, s_dp, s_cp])[:, apart]
    _, first, number = np.unique(_mixed(pairs), return_index=True, return_inverse=True)
    unique = pairs[:, first].T
    row[apart] = len(table.links) + number.ravel()
    return concatenate([table.links, table.union(unique[:, :2], unique[:, 2:])]), row


def _mixed(columns: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Return one integer per column of the array, equal for equal columns: a linear hash that is fast to sort."""
    # Random odd factors of 64 bits: for 10^5 columns, the probability that two of them collide is below 10^-9.
    factors = np.random.default_rng(0).integers(1, 1 << 63, len(columns), dtype=np.uint64) * 2 + 1
    return np.asarray((columns.astype(np.int64).view(np.uint64) * factors[:, None]).sum(axis=0))


def _distinct(links: GroupLinks) -> tuple[GroupLinks, Sizes]:
    """Return the distinct signatures, and the index of every row among them."""
    facts = np.stack([np.nan_to_num(getattr(links, f.name).astype(float), nan=-1.0) for f in fields(GroupLinks)])
    _, first, number = np.unique(_mixed(facts.view(np.int64)), return_index=True, return_inverse=True)
    return links.rows(first), number.ravel()


# -- times -------------------------------------------------------------------------------------------------------------


def _times(job: Job, hardware: WeakestDevice, d: Degrees, placed: _Placed, settings: NcclSettings) -> StepParts:
    """Price the communication of every layout."""
    compute = hardware.compute_time(job, d)
    which = placed.which
    calls = priced_exchanges(job, d, which, placed.links, placed.rows, compute=compute, settings=settings)
    return step_parts(job, hardware, d, which, calls, compute)


def _ties(times: StepParts, memory: Floats, limit: float) -> tuple[Sizes, Sizes]:
    """Return an order of the layouts by their expected time, and the number of the tie of each, in that order."""
    # A layout is tied with the best one of a group unless it is slower at both ends of the overlap by more than the
    # error of its communication. The layouts after the first groups form a single group. Those that exceed the memory
    # are last, the nearest first.
    ends, exposed = times.ends(), times.exposed.sum(axis=1)
    is_over = memory_state(memory, limit) == "over"
    fitting, over = np.flatnonzero(~is_over), np.flatnonzero(is_over)
    left = fitting[np.argsort(times.expected()[fitting], kind="stable")]
    order: list[Sizes] = []
    tie: list[Sizes] = []
    while len(left):
        best = left[0]
        margin = _MARGIN * np.maximum(exposed[:, left], exposed[:, [best]])
        tied = (ends[:, left] - ends[:, [best]] <= margin).any(axis=0) | (len(tie) == _MOST_TIES)
        order.append(left[tied])
        tie.append(np.full(int(tied.sum()), len(tie)))
        left = left[~tied]
    order.append(over[np.argsort(memory[over], kind="stable")])
    tie.append(np.full(len(over), len(tie)))
    return np.concatenate(order), np.concatenate(tie)


# -- the result --------------------------------------------------------------------------------------------------------


class Layouts:
    """The layouts of a job on a cluster, best first. Created by `search`.

    Attributes
    ----------
    cluster : Cluster
        The machine.
    job : Job
        The job.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: Job,
        ranks: int,
        hardware: WeakestDevice,
        degrees: Degrees,
        placed: _Placed,
        times: StepParts,
        dropped: DroppedLayouts,
    ) -> None:
        self.cluster, self.job, self.ranks = cluster, job, ranks
        self._hardware, self._placed, self._times, self._dropped = hardware, placed, times, dropped
        self._all_degrees = degrees
        needed = np.sum(memory_of(job, degrees), axis=0)
        self._memory = needed[placed.which]
        self._order, self._tie = _ties(times, self._memory, hardware.memory)

    @cached_property
    def _degrees(self) -> Degrees:
        return degrees_at(self._all_degrees, self._placed.which[self._order])

    def __len__(self) -> int:
        return len(self._order)

    @property
    def utilisation(self) -> tuple[float, float]:
        """Share of the peak that computation reaches: low and high end, of the first layout unless it was passed."""
        if self._hardware.utilisation is not None:
            return self._hardware.utilisation
        first = self._order[:1]
        flops = stage_flops(self.job, degrees_at(self._all_degrees, self._placed.which[first]))[0]
        share = float(flops / self._times.compute[first][0] / self._hardware.flops)
        return share / self._hardware.compute_error, share * self._hardware.compute_error

    @property
    def basis(self) -> str:
        """What the range of the times rests on, in a sentence."""
        return self._hardware.basis

    @property
    def rate_text(self) -> str:
        """What the time of computation rests on, in a few words."""
        return self._hardware.rate_text

    @property
    def n_tied(self) -> int:
        """Number of layouts that are tied for the first place, with the first one."""
        return int(np.count_nonzero(self._tie == 0))

    def _check(self, i: int) -> int:
        if isinstance(i, bool) or not isinstance(i, int | np.integer) or not 0 <= i < len(self):
            raise MeshError(f"unknown layout {i!r}", hint=f"choose a number from 0, the best, to {len(self) - 1:,}")
        return int(i)

    def mesh(self, i: int = 0) -> DeviceMesh:
        """Return the mesh of a layout.

        Parameters
        ----------
        i : int, default 0
            Position of the layout in the ranking. 0 is the best.

        Raises
        ------
        MeshError
            If the position is out of range.
        """
        return DeviceMesh(self._text(self._check(i)))

    def experts(self, i: int = 0) -> DeviceMesh | None:
        """Return the expert layout of `mesh(i)` (see `DeviceMesh.view`), or None for a job without experts."""
        text = self._expert_text(self._check(i))
        return self.mesh(i).view(text) if text else None

    def _text(self, i: int) -> str:
        return mesh_text(self._degrees, i, self._placed.orders[int(self._order[i])])

    def _expert_text(self, i: int) -> str:
        if not self.job.experts:
            return ""
        d, order = self._degrees, self._placed.orders[int(self._order[i])]
        pp, ep, edp = (int(getattr(d, name)[i]) for name in ("pp", "ep", "edp"))
        inner = math.prod(int(getattr(d, name)[i]) for name in order[order.index("pp") + 1 :])
        names = ["edp", "ep"]
        if pp > 1:
            # As in `_place_experts`: pp is outermost, innermost, or between the two.
            names.insert(0 if inner == ep * edp else 2 if inner == 1 else 1, "pp")
        sizes = {"pp": pp, "ep": ep, "edp": edp}
        return ", ".join(f"{name}={sizes[name]}" for name in names if sizes[name] > 1) or "ep=1"

    def frame(self, most: int | None = None) -> pd.DataFrame:
        """Return a table with one row per layout, best first.

        Parameters
        ----------
        most : int, optional
            Maximum number of rows. By default all.

        Returns
        -------
        pandas.DataFrame
            ``tie`` (layouts with equal numbers are tied), ``mesh``, ``experts`` (the expert layout), ``pp``, ``dp``,
            ``cp``, ``tp``, ``ep``, ``interleave``, ``micro_batches``, ``step_s`` (expected), ``step_s_lo`` and
            ``step_s_hi`` (its range), ``compute_s``, ``bubble_s``, ``exposed_s_lo`` and ``exposed_s_hi`` (everything
            hidden that can be, and nothing hidden), the same for each axis (``tp_s_lo``, …; ``dp`` includes the
            reductions over dp and cp), ``mfu_lo`` and ``mfu_hi`` (model operations over the peak, of the range),
            ``memory_gib`` per device, ``memory`` (``fits``, ``tight`` or ``over`` by the estimate), and ``orders``
            (number of orders of the axes whose groups have the same links). Times are seconds per step.
        """
        import pandas as pd

        if most is not None and (as_integer(most) or 0) < 1:
            raise MeshError(f"the number of layouts must be a positive integer, not {most!r}")
        rows = self._order[:most]
        count = len(rows)
        d, times = self._degrees, self._times
        ends, exposed = times.range()[:, rows], times.exposed[:, :, rows]
        columns: dict[str, Any] = {"tie": self._tie[:count], "mesh": [self._text(i) for i in range(count)]}
        if self.job.experts:
            columns["experts"] = [self._expert_text(i) for i in range(count)]
        columns |= {name: getattr(d, name)[:count] for name in (*AXES, "ep")}
        columns["interleave"] = d.chunks[:count]
        columns["micro_batches"] = d.micro_batches(self.job)[:count]
        columns |= {"step_s": times.expected()[rows], "step_s_lo": ends[0], "step_s_hi": ends[1]}
        columns |= {"compute_s": times.compute[rows], "bubble_s": times.bubble[rows]}
        columns |= {"exposed_s_lo": exposed[0].sum(axis=0), "exposed_s_hi": exposed[1].sum(axis=0)}
        for number, name in enumerate(COMPONENTS):
            columns |= {f"{name}_s_lo": exposed[0, number], f"{name}_s_hi": exposed[1, number]}
        best = self.job.model_flops / self.ranks / self._hardware.flops
        columns |= {"mfu_lo": best / ends[1], "mfu_hi": best / ends[0]}
        columns["memory_gib"] = self._memory[rows] / 2**30
        columns["memory"] = memory_state(self._memory[rows], self._hardware.memory)
        columns["orders"] = self._placed.merged[rows]
        return pd.DataFrame(columns)

    def dropped(self, *, every: bool = False) -> pd.DataFrame:
        """Return the layouts on which the job cannot run, with the reason and the number that would fix it.

        Parameters
        ----------
        every : bool, default False
            True for one row per layout. By default there is one row per kind of reason.

        Returns
        -------
        pandas.DataFrame
            ``kind``, ``layouts`` (their number), ``example`` (a mesh), ``reason`` and ``fix``. Layouts that differ only
            in the order of their axes count once.
        """
        import pandas as pd

        d = self._dropped
        examples = [(1, i) for i in np.flatnonzero(d.kind >= 0).tolist()] if every else list(d.groups())
        rows = [(count, self._dropped_text(i), *map(str, d.reason(i))) for count, i in examples]
        frame = pd.DataFrame(rows, columns=["layouts", "example", "kind", "reason", "fix"])
        return frame[["kind", "layouts", "example", "reason", "fix"]]

    def _dropped_text(self, i: int) -> str:
        ep = int(self._dropped.degrees.ep[i])
        return mesh_text(self._dropped.degrees, i, AXES) + (f"; ep={ep}" if ep > 1 else "")

    def summary(self, most: int = _SHOWN) -> str:
        """Return a text table of the best layouts.

        Parameters
        ----------
        most : int, default 10
            Maximum number of layouts.
        """
        header, rows = self._rows(most)
        table = markup.text_table([header, *rows], right=[k for k, name in enumerate(header) if name not in _NAMES])
        more = len(self) - len(rows)
        return f"{table}\nand {more:,} more layouts" if more else table

    def _rows(self, most: int) -> tuple[list[str], list[list[str]]]:
        """Return the header and the cells of a table."""
        frame = self.frame(most)
        shows = [("experts", self.job.experts > 0), ("interleave", bool((frame["interleave"] > 1).any()))]
        more = [name for name, is_shown in shows if is_shown]
        rows = [
            [f"{row['tie'] + 1}", row["mesh"], *(str(row[name]) for name in more), *_cells(row)]
            for _, row in frame.iterrows()
        ]
        return ["place", "mesh", *more, "step", "compute", "bubble", "exposed communication", "memory"], rows

    def explain(self) -> str:
        """Explain which layout is best, and which axes and links make other layouts slower."""
        return "\n".join(self._sentences())

    def plot(self, *, most: int = 12, ax: Axes | None = None) -> Axes:
        """Draw a bar per layout, see `meshlab.plots.step_times`.

        Parameters
        ----------
        most : int, default 12
            Maximum number of bars.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default a new figure is created.
        """
        return implementation(Layouts.plot)(self, most=most, ax=ax)

    # -- text ----------------------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """The best layout and its expected time, in one sentence."""
        row = self.frame(1).iloc[0]
        mesh = self._label(row)
        tied = self.n_tied - 1
        ties = f", tied with {tied} other{'s' * (tied != 1)}" if tied else ""
        return f"{mesh} is first{ties}: {range_text(row['step_s_lo'], row['step_s_hi'])} per step"

    def _label(self, row: pd.Series) -> str:
        """Return the mesh of a row of the frame, with its expert layout and the chunks per stage."""
        more = [f"experts {row['experts']}"] if self.job.experts else []
        more += [f"interleave={row['interleave']}"] if row["interleave"] > 1 else []
        return str(row["mesh"]) + (f" ({', '.join(more)})" if more else "")

    def _sentences(self) -> list[str]:
        frame = self.frame()
        first = frame.iloc[0]
        compute, bubble = seconds_text(first["compute_s"]), seconds_text(first["bubble_s"])
        exposed = range_text(first["exposed_s_lo"], first["exposed_s_hi"])
        lines = [
            f"{self.verdict}, {_percent_range(first['mfu_lo'], first['mfu_hi'])} of the peak (MFU), "
            f"{first['memory_gib']:.0f}{THIN}GiB per device.",
            f"It computes for {compute}, idles in the bubble for {bubble}, and exposes {exposed} of communication"
            f"{_largest(first)}.",
        ]
        lines += [f"  {name}: {self._links(0, role)}" for name, role in _ROLES if self._size(0, role) > 1]
        others = list(self._contrasts(frame[frame["memory"] != "over"])) if first["memory"] != "over" else []
        if others:
            lines.append("Why other layouts are slower:")
            lines += [f"  {contrast}" for contrast in others]
        tied = frame[(frame["tie"] == 0)].iloc[1:]
        if len(tied):
            names = [self._label(row) for _, row in tied.head(4).iterrows()]
            more = f" and {len(tied) - len(names)} more" if len(tied) > len(names) else ""
            lines.append(
                f"Tied: {'; '.join(names)}{more}. Overlap, or an error of {100 * _MARGIN:.0f}{THIN}% in communication, "
                "decides between them."
            )
        kinds = self.dropped()
        if len(kinds):
            parts = [f"{count:,} by {kind}" for kind, count in zip(kinds["kind"], kinds["layouts"], strict=True)]
            lines.append(f"Dropped: {', '.join(parts)}.")
        over = frame[frame["memory"] == "over"]
        if len(over):
            lines.append(self._memory_sentence(len(over), int(over.index[0])))
        lines.append(f"{self.basis} {CAVEAT}")
        return lines

    def _memory_sentence(self, over: int, i: int) -> str:
        """Describe the layouts that exceed the memory, with the change that makes the nearest of them fit."""
        needed, limit = float(self._memory[self._order[i]]), self._hardware.memory
        fix = memory_fix(self.job, degrees_at(self._degrees, np.array([i])), limit)
        exceed = "layout exceeds the memory and comes" if over == 1 else "layouts exceed the memory and come"
        nearest = "It" if over == 1 else "The nearest of them"
        return (
            f"By this estimate, {over:,} {exceed} last. {nearest}, {self._text(i)}, needs {needed / 2**30:.0f} of "
            f"{limit / 2**30:.0f}{THIN}GiB: {fix}."
        )

    def _size(self, i: int, role: str) -> int:
        return int(self._placed.links.n_ranks[self._row(i, role)]) if role in self._placed.rows else 1

    def _row(self, i: int, role: str) -> int:
        return int(self._placed.rows[role][self._order[i]])

    def _links(self, i: int, role: str) -> str:
        """Describe the links of the groups of a role."""
        return links_text(self._placed.links, self._row(i, role), self.cluster)

    def _contrasts(self, frame: pd.DataFrame) -> Iterator[str]:
        """Compare the first layout with the best ones with half or twice its size of an axis, or a different order."""
        first = frame.iloc[0]
        seen = {0}
        domain = int(self._placed.links.ranks_per_domain.max())
        for axis in ("tp", *(["ep"] if self.job.experts else []), "cp", "pp", "dp"):
            beyond = [2 * domain] if axis in ("tp", "ep") else []  # the first size that leaves NVLink
            for size in dict.fromkeys([first[axis] // 2, 2 * first[axis], *beyond]):
                rows = frame.index[frame[axis] == size]
                if len(rows) and frame["tie"][rows[0]] > 0 and rows[0] not in seen:
                    seen.add(rows[0])
                    yield self._contrast(frame, int(rows[0]), f"{axis}={size}")
        names = [*AXES, "ep", "interleave"]
        rows = frame.index[(frame[names] == first[names]).all(axis=1) & (frame["tie"] > 0)]
        if len(rows):
            yield self._contrast(frame, int(rows[-1]), "the worst order")

    def _contrast(self, frame: pd.DataFrame, i: int, label: str) -> str:
        first, other = frame.iloc[0], frame.iloc[i]
        slower = other["step_s"] / first["step_s"] - 1
        columns = {"computation": ("compute_s",) * 2, "the bubble": ("bubble_s",) * 2}
        columns |= {name: (f"{name}_s_lo", f"{name}_s_hi") for name in COMPONENTS}
        change = {name: other[list(pair)].mean() - first[list(pair)].mean() for name, pair in columns.items()}
        cause = max(change, key=lambda name: change[name])
        roles = [role for _, role in _ROLES if COMPONENT_OF[role] == cause and self._size(i, role) > 1]
        detail = f" ({self._links(i, roles[0])})" if roles else ""
        return (
            f"{label}, at best {other['mesh']}: {100 * slower:+.0f}{THIN}%, "
            f"because {cause} takes {seconds_text(change[cause])} more{detail}"
        ).replace("the worst order, at best", "the worst order,")

    def __repr__(self) -> str:
        count = len(self)
        counted = f"{count:,} layout{'s' * (count != 1)}"
        title = f"<Layouts of {self.job.title} on {self.ranks:,} ranks: {counted}, {self.verdict}"
        return f"{title}; next: .summary(), .mesh(0), .plot()>"

    def _repr_html_(self) -> str:
        header, rows = self._rows(_SHOWN)
        dropped = self.dropped()
        parts = [f"<div><b>{markup.escape(self.verdict)}</b></div>", markup.table(header, rows)]
        if len(self) > _SHOWN:
            parts.append(f'<div class="ml-sub">and {len(self) - _SHOWN:,} more layouts; see .frame()</div>')
        if len(dropped):
            names = ["kind", "layouts", "example", "reason", "fix"]
            parts.append('<div class="ml-sub">Dropped</div>' + markup.table(names, dropped[names].values.tolist()))
        parts.append(f'<div class="ml-sub">{markup.escape(CAVEAT)}</div>')
        return markup.card(f"Layouts of {self.job.title}", f"{self.ranks:,} ranks · {self.cluster.summary}", *parts)


_NAMES = ("mesh", "experts")
"""Columns of a table that are left-aligned."""

_ROLES = (*((name, name) for name in ("tp", "cp", "ep", "pp")), ("dp × cp", "data"), ("expert dp", "expert_data"))
"""Labels of the groups that an explanation describes, and their roles."""


def _cells(row: pd.Series) -> tuple[str, ...]:
    """Return the times and the memory of a row of the frame, as text."""
    step, exposed = (range_text(row[f"{name}_lo"], row[f"{name}_hi"]) for name in ("step_s", "exposed_s"))
    compute, bubble = (seconds_text(row[name]) for name in ("compute_s", "bubble_s"))
    state = "" if row["memory"] == "fits" else f", {row['memory']}"
    return step, compute, bubble, exposed, f"{row['memory_gib']:.0f}{THIN}GiB{state}"


def _percent_range(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f}{THIN}%"


def _largest(row: pd.Series) -> str:
    name = max(COMPONENTS, key=lambda component: row[f"{component}_s_hi"])
    return f", mostly {name}" if row[f"{name}_s_hi"] > 0 else ""
