"""overlap: what a collective and a matrix product on the same devices cost each other, by the options of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args

import numpy as np
import numpy.typing as npt

from meshlab.analysis._turn_ratios import ratio_of_rounds
from meshlab.base._backends import BACKENDS, GPU_BACKENDS
from meshlab.base._errors import BenchError, did_you_mean
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import THIN, format_size, format_time_us
from meshlab.benchmark._bench import DEFAULT_COLLECTIVE, check_fit
from meshlab.benchmark._executor import sharing_of
from meshlab.benchmark._preparation import usable_memory, voting_ranks
from meshlab.benchmark.on_ranks._buffers import block_bytes, release_buffers
from meshlab.benchmark.on_ranks._overlap import PARTS, First, MatrixProduct, PairRounds, PairTrial, measure_pairs
from meshlab.benchmark.tuning._environments import new_ranks
from meshlab.benchmark.tuning._options import TuningOption, check_options, options_for, settings_for
from meshlab.comm._elements import find_dtype
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.frames._labels import is_wrong
from meshlab.frames._statistics import median_interval
from meshlab.frames._trials import OPTION, option_label
from meshlab.mesh._axes import as_integer
from meshlab.mesh._mesh import MeshLike, as_mesh
from meshlab.plans._plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.comm._backend import Capabilities
    from meshlab.engines._engines import Engines
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.plans._steps import Step

Floats = npt.NDArray[np.float64]
Option = str | Mapping[str, Any]
Shape = int | tuple[int, int, int]

_REPEATS = 4
_LONGEST_S = 60.0
"""The time limit of a round in addition to the deadline of the engines, in seconds."""


class OverlapEffort(TypedDict, total=False):
    """The extent of an overlap measurement, and the part of a pair that starts first."""

    rounds: int
    launches: int
    first: First


def overlap(
    engines: Engines,
    mesh: MeshLike,
    *,
    axis: str | Sequence[str],
    collectives: str | Sequence[str] = DEFAULT_COLLECTIVE,
    sizes: str | int | Sequence[int | str] = "1M:256M*4",
    matrix: Shape | Sequence[Shape] = 8192,
    dtype: str | Sequence[str] = "float16",
    options: str | Sequence[Option] | None = None,
    **effort: Unpack[OverlapEffort],
) -> pd.DataFrame:
    """Measure what collectives and a matrix product on the same devices cost each other.

    The product alone, the collective alone, and both together take turns in rounds, with all options of the call. On
    GPUs they run on two streams, captured into graphs, and elsewhere the collective runs in a second thread. Matrices
    and messages are random, because a product of zeros needs less power. Waits until everything is measured.

    Parameters
    ----------
    engines, mesh
        As in `bench`.
    axis : str or sequence of str
        The axis along which to communicate, or several as one. All groups communicate at the same time.
    collectives : str or sequence of str, default "all_reduce"
        Collectives by name, out of place.
    sizes : str, int or sequence of these, default "1M:256M*4"
        Message sizes in bytes, as in `bench`. The elements are float32.
    matrix : int, (int, int, int), or sequence of these, default 8192
        Shapes of the product: (m, n, k) for matrices of (m, k) and (k, n) elements, or one number for all three.
    dtype : str or sequence of str, default "float16"
        Element types of the matrices.
    options : str or sequence of str or mapping, optional
        The options of the calls besides the default: names to vary, as in `tune`, or options such as ``{"buffers":
        "symmetric", "cta_policy": "zero"}``. A ``setting`` (environment variables of `tune`) gets new ranks.
    rounds, launches : int, default 12 and 1
        Numbers of rounds, of which an interval needs 6, and of repetitions on new ranks.
    first : {"call", "product"}, default "call"
        The part that a GPU starts first. A call that starts second waits until most thread blocks of the product ended.

    Returns
    -------
    pandas.DataFrame
        One row per collective, size, product and option: ``axis``, ``collective``, ``size_bytes``, ``m``, ``n``, ``k``,
        ``dtype``, the options, and ``option`` in words. Medians of the slowest rank with 95 % intervals (``_lo``,
        ``_hi``): ``compute_us``, ``communication_us``, ``both_us``, ``exposed_us`` (what the collective adds to the
        product), and ``compute_slowdown`` and ``communication_slowdown`` (the time beside the other, divided by that
        alone). ``gain`` with its interval is 1 - both / both by default in the same rounds, ``overlap`` the saved time
        relative to the shorter one (1 is complete overlap), and ``exposed_share`` is ``exposed_us`` divided by
        ``communication_us``. Also ``n_rounds``, ``n_wrong``, ``status`` and ``message``. ``attrs["verdicts"]`` has a
        sentence per call, and ``attrs["verdict"]`` one for all.

    Raises
    ------
    BenchError
        If an argument is invalid, the memory does not suffice, or the MPI library cannot communicate in a thread.
    EngineError
        If a rank fails, or has no cuBLAS, which the extras for GPUs do not install because of its size.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     frame = ml.benchmark.overlap(engines, "tp=2", axis="tp", sizes="64K", matrix=128, dtype="float32")
    >>> frame[["collective", "size_bytes", "m", "option", "n_wrong"]].to_numpy().tolist()
    [['all_reduce', 65536, 128, 'default', 0]]
    """
    mesh = as_mesh(mesh, fill=engines.world_size)
    lab = _Lab.of(engines, mesh, axis, collectives, sizes, options, effort)
    products = _products(matrix, dtype)
    with Lease(engines, "measuring overlap") as lease:
        try:
            for launch in range(lab.launches):
                lab.measure(lease, products, is_new=launch > 0)
        finally:
            if engines.state == "busy":
                lease.round(release_buffers).run()
    table = overlap_frame(lab.records, sharing_of(engines))
    table.attrs["where"] = engines.where_of(mesh, [lab.steps[0].axis])
    return table


def _products(matrix: Any, dtype: str | Sequence[str]) -> list[MatrixProduct]:
    is_single = isinstance(matrix, str) or not isinstance(matrix, Sequence) or _is_shape(matrix)
    shapes, names = [matrix] if is_single else list(matrix), [dtype] if isinstance(dtype, str) else list(dtype)
    if not shapes or not names:
        raise BenchError("overlap() needs a matrix and an element type", hint="name one of each, or omit the argument")
    return [as_product(shape, name) for shape in shapes for name in names]


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(as_integer(part) is not None for part in value)


def as_product(shape: Any, dtype: str) -> MatrixProduct:
    """Return a product of a shape, after a check."""
    parts = [as_integer(part) for part in (shape if isinstance(shape, Sequence) else [shape] * 3)]
    if isinstance(shape, str) or len(parts) != 3 or any(part is None or part < 1 for part in parts):
        raise BenchError(f"a matrix product is a number or (m, n, k), not {shape!r}", hint="pass (8192, 8192, 8192)")
    m, n, k = (part or 0 for part in parts)
    return MatrixProduct(m, n, k, find_dtype(dtype).name)


@dataclass(frozen=True, eq=False)
class PairRecord:
    """The measurements of an option of a call beside a product."""

    step: Step
    product: MatrixProduct
    option: TuningOption
    trials: list[Sequence[PairTrial]] = field(default_factory=list)
    """Those of all ranks in each launch."""

    @property
    def times_us(self) -> Floats:
        """The times of the slowest rank, shape (launches, rounds, `PARTS`)."""
        launches = [[trial.times_us for trial in trials if trial.times_us is not None] for trials in self.trials]
        return np.stack([np.max(np.stack(ranks), axis=0) for ranks in launches if ranks])

    @property
    def failure(self) -> PairTrial | None:
        """A trial of the option that was not measured, or None."""
        return next((trial for trials in self.trials for trial in trials if trial.times_us is None), None)


@dataclass(frozen=True, eq=False)
class _Lab:
    """The calls of a measurement, their options, and what was measured."""

    mesh: DeviceMesh
    steps: Sequence[Step]
    options: Callable[[Step], list[TuningOption]]
    settings: Mapping[str, Mapping[str, str]]
    how: PairRounds
    launches: int
    records: list[PairRecord] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        engines: Engines,
        mesh: DeviceMesh,
        axis: str | Sequence[str],
        collectives: str | Sequence[str],
        sizes: Any,
        options: str | Sequence[Option] | None,
        effort: OverlapEffort,
    ) -> _Lab:
        """Check the arguments, and return the calls."""
        unknown = next((name for name in effort if name not in OverlapEffort.__annotations__), None)
        if unknown is not None:
            names = [*OverlapEffort.__annotations__, "collectives", "options", "matrix", "sizes"]
            raise BenchError(f"overlap() has no argument {unknown!r}{did_you_mean(unknown, names)}")
        numbers = {"rounds": effort.get("rounds", 12), "launches": effort.get("launches", 1)}
        for name, value in numbers.items():
            if (as_integer(value) or 0) < 1:
                raise BenchError(f"{name} must be an integer of at least 1, not {value!r}")
        first = effort.get("first", "call")
        if first not in get_args(First):
            raise BenchError(f"first must be 'call' or 'product', not {first!r}")
        is_gpu = engines.backend in GPU_BACKENDS
        name = axis if isinstance(axis, str) else "-".join(axis)
        plan = Plan(
            collectives, name, sizes=sizes, in_place=False, mode="graph" if is_gpu else "pipelined", dtype="float32"
        )
        check_fit(engines, mesh, plan)
        if not can_overlap(engines):
            raise BenchError(
                "this MPI library cannot communicate in a second thread, so nothing overlaps",
                hint=Hint(
                    "use another MPI library, or {}",
                    Argument("backend", next(name for name in BACKENDS if BACKENDS[name].in_process)),
                ),
            )
        can = engines.capabilities(engines.backend_of(mesh, name))
        n_hosts = len({info.host for info in engines.ranks})
        choices, settings = _choices(options, can, plan.collective, n_hosts)
        how = PairRounds(int(numbers["rounds"]), _REPEATS, first)
        return cls(mesh, plan.steps(mesh), choices, settings, how, int(numbers["launches"]))

    def measure(self, lease: Lease, products: Sequence[MatrixProduct], *, is_new: bool) -> None:
        """Measure all calls and options once, on the present ranks or on new ones."""
        names = dict.fromkeys(option.setting for step in self.steps for option in self.options(step))
        for setting in names:
            with ExitStack() as stack:
                ranks = lease
                if is_new or setting is not None:
                    variables = {} if setting is None else self.settings[setting]
                    ranks = stack.enter_context(new_ranks(lease, variables))
                memory = usable_memory(ranks, "preparing an overlap")
                for product in products:
                    for step in self.steps:
                        options = [option for option in self.options(step) if option.setting == setting]
                        if options:
                            self._measure_step(ranks, step, product, options, memory)

    def _measure_step(
        self, lease: Lease, step: Step, product: MatrixProduct, options: Sequence[TuningOption], memory: int
    ) -> None:
        lease.task = f"measuring {step.collective}, {format_size(step.size_bytes or 0)}, beside a product"
        needed = product.n_bytes + len({option.buffers for option in options}) * block_bytes(step)
        if needed > memory:
            raise BenchError(
                f"{lease.task} takes {format_size(needed)} per rank, but {format_size(memory)} may be used",
                hint="choose smaller sizes or matrices",
            )
        everyone, (members,) = voting_ranks(self.mesh[step.axis])
        steps = [option.apply_to(step) for option in options]
        replies = lease.round(
            measure_pairs,
            self.mesh,
            step.axis,
            (steps, product, self.how, members),
            also=(everyone,),
            deadline_s=lease.engines.deadline_s + _LONGEST_S,
        ).run()
        raise_first_error(replies, lease.task, lease.engines.ranks)
        for option, trials in zip(options, zip(*(reply.value for reply in replies), strict=True), strict=True):
            self._record(step, product, option).trials.append(trials)

    def _record(self, step: Step, product: MatrixProduct, option: TuningOption) -> PairRecord:
        for record in self.records:
            if (record.step, record.product, record.option) == (step, product, option):
                return record
        self.records.append(PairRecord(step, product, option))
        return self.records[-1]


def can_overlap(engines: Engines) -> bool:
    """Return whether a rank can communicate while it computes. MPI needs the thread level MPI_THREAD_MULTIPLE, 3."""
    return engines.capabilities().facts.get("thread level", "3") == "3"


def _choices(
    options: str | Sequence[Option] | None, can: Capabilities, collectives: Sequence[str], n_hosts: int
) -> tuple[Callable[[Step], list[TuningOption]], dict[str, dict[str, str]]]:
    """Return the options of each call, the default first, and the variables of those that need new ranks."""
    if options is None:
        return (lambda step: [TuningOption()]), {}
    parts: list[Option] = [part.strip() for part in options.split(",")] if isinstance(options, str) else list(options)
    settings: dict[str, dict[str, str]] = {}
    for collective in collectives if not BACKENDS[can.backend].why_not_tuned else ():
        settings |= settings_for(can, collective)
    names = [part for part in parts if isinstance(part, str)]
    if names and len(names) < len(parts):
        raise BenchError(
            "options are either names or mappings, not both", hint="pass names, such as 'buffers, max_ctas'"
        )
    if names:
        check_options(names, can, collectives)

        def varied(step: Step) -> list[TuningOption]:
            in_environment = settings_for(can, step.collective, only=names) if settings else ()
            return [
                *options_for(can, step.collective, step.size_bytes or 0, only=names, n_hosts=n_hosts),
                *(TuningOption(setting=name) for name in in_environment),
            ]

        return varied, settings
    listed = [TuningOption(), *(_as_option(part, settings) for part in parts)]
    return (lambda step: list(dict.fromkeys(listed))), settings


def _as_option(part: Any, settings: Mapping[str, Mapping[str, str]]) -> TuningOption:
    names = [item.name for item in fields(TuningOption)]
    unknown = [name for name in part if name not in names] if isinstance(part, Mapping) else [part]
    if unknown:
        raise BenchError(f"unknown option {unknown[0]!r}{did_you_mean(str(unknown[0]), names)}; choose from {names}")
    option = replace(TuningOption(), **part)
    if option.setting is not None and option.setting not in settings:
        choices = ", ".join(settings) or "none, because this library can choose per call"
        raise BenchError(f"unknown setting {option.setting!r}; these engines have {choices}")
    values = {name: value for name, value in asdict(option).items() if name != "setting"}
    Plan(DEFAULT_COLLECTIVE, "any", "1K", **values)  # checks them
    return option


# -- result ------------------------------------------------------------------------------------------------------------


def overlap_frame(records: Sequence[PairRecord], sharing: str = "") -> pd.DataFrame:
    """Return the frame of an overlap measurement. `sharing` is the reason why its times are not those of a machine."""
    import pandas as pd

    defaults = {(record.step, record.product): record for record in records if record.option.is_default}
    rows = [_row(record, defaults.get((record.step, record.product))) for record in records]
    table = pd.DataFrame(rows).astype(dict.fromkeys(("min_ctas", "max_ctas", "n_wrong"), "Int64"))
    table = table.astype(dict.fromkeys(("setting", "algorithm", "protocol", "cta_policy", "message"), "string"))
    table.attrs["verdicts"] = list(_verdicts(table))
    table.attrs["verdict"] = _summary(table)
    if sharing:
        table.attrs["verdict"] += f"; {sharing}, so the times do not characterise the machine"
    return table


def _row(record: PairRecord, default: PairRecord | None) -> dict[str, Any]:
    step, product, failure = record.step, record.product, record.failure
    first = {"axis": step.axis, "collective": step.collective, "size_bytes": step.size_bytes}
    first |= product._asdict() | {name: getattr(record.option, name) for name in OPTION}
    first["option"] = option_label(asdict(record.option))
    counts = [trial.n_wrong for trials in record.trials for trial in trials if trial.n_wrong is not None]
    last = {"n_wrong": sum(counts) if counts else None, "status": "ok", "message": None}
    if failure is not None:
        return first | dict.fromkeys(_MEASURED, np.nan) | {"n_rounds": 0} | last | {
            "status": failure.status, "message": failure.message
        }  # fmt: skip
    times = record.times_us
    compute, communication, pair, compute_within, communication_within = np.moveaxis(times, -1, 0)
    values = {f"{name}_us": times[..., number] for number, name in enumerate(PARTS[:3])}
    values |= {
        "exposed_us": pair - compute,
        "compute_slowdown": compute_within / compute,
        "communication_slowdown": communication_within / communication,
    }
    measured: dict[str, Any] = {}
    for name, value in values.items():
        measured |= dict(zip((name, f"{name}_lo", f"{name}_hi"), _of_launches(value), strict=True))
    a, b, together = (measured[f"{name}_us"] for name in PARTS[:3])
    measured["overlap"] = (a + b - together) / min(a, b)
    measured["exposed_share"] = measured["exposed_us"] / b
    measured |= dict(zip(("gain", "gain_lo", "gain_hi"), _gain(record, default), strict=True))
    return first | {name: measured[name] for name in _MEASURED} | {"n_rounds": times.shape[0] * times.shape[1]} | last


_WITH_INTERVALS = (
    "compute_us", "communication_us", "both_us", "exposed_us", "compute_slowdown", "communication_slowdown", "gain",
)  # fmt: skip
_MEASURED = (
    *(f"{name}{end}" for name in _WITH_INTERVALS for end in ("", "_lo", "_hi")),
    "overlap",
    "exposed_share",
)


def _of_launches(values: Floats) -> tuple[float, float, float]:
    """Return the median over the launches, and the lowest and highest bound of their intervals."""
    low, high = np.array([median_interval(of_launch) for of_launch in values]).T
    return float(np.median(np.median(values, axis=1))), float(low.min()), float(high.max())


def _gain(record: PairRecord, default: PairRecord | None) -> tuple[float, float, float]:
    """Return the part of the default's time that an option saves, with its interval."""
    if record.option.is_default:
        return 0.0, 0.0, 0.0
    if default is None or default.failure is not None:
        return np.nan, np.nan, np.nan
    pair, others = record.times_us[..., 2], default.times_us[..., 2]
    if pair.shape != others.shape:
        return np.nan, np.nan, np.nan
    ratios = np.log(pair / others)
    # Rounds of one launch share a communicator, so several launches are the unit of the uncertainty.
    ratio = ratio_of_rounds(ratios[0] if len(ratios) == 1 else np.median(ratios, axis=1))
    return 1 - ratio.value, 1 - ratio.high, 1 - ratio.low


def _cases(table: pd.DataFrame) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each call and product, without those that were not measured or are wrong."""
    usable = table["status"].eq("ok") & ~is_wrong(table)
    for _, rows in table.groupby(["collective", "size_bytes", "m", "n", "k", "dtype"], sort=False):
        yield [{str(name): value for name, value in row.items()} for row in rows[usable[rows.index]].to_dict("records")]


def _verdicts(table: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per call and product."""
    for rows in _cases(table):
        default = next((row for row in rows if row["option"] == "default"), None)
        if default is None:
            continue
        best = _best(rows)
        product = " × ".join(str(default[name]) for name in "mnk")
        exposed = format_time_us(max(default["exposed_us"], 0.0))
        text = (
            f"{default['collective']} of {format_size(default['size_bytes'])} beside a product of {product} "
            f"{default['dtype']} ({format_time_us(default['compute_us'])}): by default the call exposes "
            f"{exposed} (alone it takes {format_time_us(default['communication_us'])}), and the product takes "
            f"{_slowdown_text(default)} until it ends"
        )
        if best is not None:
            interval = f"{100 * best['gain_lo']:.1f} to {100 * best['gain_hi']:.1f}{THIN}%"
            text += (
                f"; {best['option']} exposes {format_time_us(max(best['exposed_us'], 0.0))}, so that both take "
                f"{100 * best['gain']:.1f}{THIN}% less time ({interval})"
            )
            alone = min(rows, key=lambda row: float(row["communication_us"]))
            if alone["option"] != best["option"]:
                exposed = format_time_us(max(alone["exposed_us"], 0.0))
                text += f"; {alone['option']} is the fastest alone, and exposes {exposed}"
        elif len(rows) > 1:
            text += "; no option is clearly faster"
        yield text


def _best(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the fastest pair of those that are clearly faster than the default, or None."""
    return min((row for row in rows if row["gain_lo"] > 0), key=lambda row: float(row["both_us"]), default=None)


def _slowdown_text(row: Mapping[str, Any]) -> str:
    """Return how much longer the product takes beside a call, with the interval if there is one."""
    low, high = row["compute_slowdown_lo"], row["compute_slowdown_hi"]
    interval = f" ({low:.2f} to {high:.2f})" if np.isfinite([low, high]).all() else ""
    return f"{row['compute_slowdown']:.2f} times as long{interval}"


def _summary(table: pd.DataFrame) -> str:
    """Return one sentence about all calls."""
    wrong = table[is_wrong(table)]
    parts = []
    if len(wrong):
        names = ", ".join(dict.fromkeys(f"{row.collective} with {row.option}" for row in wrong.itertuples()))
        parts.append(f"WRONG results of {names}")
    cases = [rows for rows in _cases(table) if rows]
    if not cases:
        return "; ".join([*parts, f"nothing could be measured: {table['message'].iloc[0]}"])
    compared = [rows for rows in cases if len(rows) > 1 and any(row["option"] == "default" for row in rows)]
    if compared:
        bests = [best for rows in compared if (best := _best(rows)) is not None]
        at_most = f", at most by {100 * max(best['gain'] for best in bests):.1f}{THIN}%" if bests else ""
        parts.append(
            f"another option than the default makes the pair faster in {len(bests)} of {len(compared)} cases{at_most}"
        )
    slowest = max((row for rows in cases for row in rows), key=lambda row: float(row["compute_slowdown"]))
    call = f"{slowest['collective']}, {format_size(slowest['size_bytes'])}, {slowest['option']}"
    # The largest of several medians is the one that noise raised most, so its interval belongs to it.
    parts.append(f"beside a collective the product takes up to {_slowdown_text(slowest)}: {call}")
    return "; ".join(parts)
