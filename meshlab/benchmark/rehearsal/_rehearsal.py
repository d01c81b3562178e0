"""`Rehearsal`: the measured time of training steps by axis, exposed and hidden, next to the prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._forwarding import implementation
from meshlab.base._units import SEPARATOR, format_size, format_time_us
from meshlab.benchmark.on_ranks._training_step import Variant
from meshlab.frames._statistics import FEWEST_FOR_INTERVAL, summarise
from meshlab.mesh._mesh import DeviceMesh
from meshlab.prediction._step_calls import StepCall

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

_PREDICTED = ("predicted_us", "predicted_us_lo", "predicted_us_hi")
_CALL = ("collective", "what", "phase", "dtype", "overlaps", "calls", "size_bytes")


@dataclass(frozen=True, slots=True)
class RehearsedCall:
    """A call of the job, and its rehearsal.

    Parameters
    ----------
    call : StepCall
        The call of the job.
    axis : int
        The index of its axis.
    size_bytes : int
        The rehearsed message size, in bytes.
    calls : int
        The number of calls in the rehearsed step.
    time_us : float
        The time of one call on its own, in µs.
    n_wrong : int or None
        The number of wrong elements on all ranks. None if the result was not checked.
    predicted_us : tuple of float
        The predicted time of one call of the rehearsed size in µs, with its lower and upper bound. NaN without a
        prediction.
    """

    call: StepCall
    axis: int
    size_bytes: int
    calls: int
    time_us: float
    n_wrong: int | None
    predicted_us: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class RehearsedLayout:
    """The rehearsal of one layout.

    Parameters
    ----------
    name : str
        The name of the layout.
    mesh : DeviceMesh
        The mesh.
    axes : tuple of str
        The axes with communication.
    axis_ranks : tuple of int
        The number of ranks per group of each axis.
    calls : tuple of RehearsedCall
        The calls of the job.
    micro_batches : (int, int)
        The numbers of micro-batches that were rehearsed, and that a step has.
    layers : (int, int)
        The numbers of layers of a pipeline stage that were rehearsed, and that it has.
    bubble : float
        The idle time of the pipeline relative to the rest of the step. NaN if it is unknown.
    variants : tuple of Variant
        The parts of a step that were timed: everything, computation alone, each axis alone, and the steady ones.
    times : numpy.ndarray
        Times in µs of shape (rounds, variants, repetitions, ranks, 2 + 2 × axes). The last dimension has the duration,
        the time on the host, the time for which computation waited for each axis, and the time for which it was busy.
    """

    name: str
    mesh: DeviceMesh
    axes: tuple[str, ...]
    axis_ranks: tuple[int, ...]
    calls: tuple[RehearsedCall, ...]
    micro_batches: tuple[int, int]
    layers: tuple[int, int]
    bubble: float
    variants: tuple[Variant, ...] = field(repr=False)
    times: Floats = field(repr=False)

    @property
    def scale(self) -> float:
        """The rehearsed part of a step. All times are divided by it, or extrapolated from steady micro-batches."""
        (done, total), (n_layers, layers) = self.micro_batches, self.layers
        return n_layers / layers * done / total

    @property
    def part_text(self) -> str:
        """The rehearsed part of a step as text. Empty if it is the whole step."""
        done, total = self.micro_batches
        n_layers, layers = self.layers
        parts = [f"{done} of {total} micro-batches"] if done < total else []
        parts += [f"{n_layers} of {layers} layers"] if n_layers < layers else []
        return " and ".join(parts)

    def _whole_step(self, computes: bool, axes: tuple[int, ...]) -> Floats:
        """Return the times of a whole step, extrapolated from a part: shape (rounds, repetitions, ranks, columns)."""
        done, total = self.micro_batches
        everything = self.times[:, self.variants.index(Variant(computes, axes))]
        # Further micro-batches are like those without the calls that only the first or the last one issues.
        steady = Variant(computes, axes, is_steady=True)
        if steady in self.variants:
            more = self.times[:, self.variants.index(steady)]
        else:
            singles = {call.axis for call in self.calls if call.call.micro_batches < total}
            more = np.zeros_like(everything) if axes and not computes and set(axes) <= singles else everything
        n_layers, layers = self.layers
        return np.asarray((everything + (total - done) / done * more) * (layers / n_layers))

    @cached_property
    def _steps(self) -> Floats:
        """The duration of the whole step on the slowest rank, shape (rounds, repetitions)."""
        return np.asarray(self._whole_step(True, tuple(range(len(self.axes))))[..., 0].max(axis=-1))

    @property
    def rounds_us(self) -> Floats:
        """The median duration of the step in each round, in µs."""
        return np.asarray(np.median(self._steps, axis=1))

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The parts of the step, in µs. ``compute``, ``slowdown`` and ``exposed`` (by axis) add up to ``step``."""
        k = len(self.axes)
        step = summarise(self._steps.ravel())
        whole, compute = self._whole_step(True, tuple(range(k))), self._whole_step(True, ())
        alone = [float(np.median(self._whole_step(False, (axis,))[..., 0].max(axis=-1))) for axis in range(k)]
        compute_us = float(np.median(compute[..., 0].max(axis=-1)))

        # The times are averaged over the ranks, because those that are ahead wait for one that is late.
        def middle(values: Floats) -> Floats:
            return np.asarray(np.median(values.mean(axis=2), axis=(0, 1)))

        waits, busy = middle(whole[..., 2 : 2 + k]), middle(whole[..., 2 + k :])
        slower = float(middle(whole[..., 0] - whole[..., 2 : 2 + k].sum(axis=-1)) - middle(compute[..., 0]))
        beyond = step["time_us"] - compute_us
        # Communication takes memory bandwidth and multiprocessors, so computation may be slower next to it. The rest of
        # the time is divided among the axes by the time for which computation waited for each.
        slowdown = min(max(slower, 0.0), beyond) if waits.sum() > 0 else beyond
        shares = waits / waits.sum() if waits.sum() > 0 else waits
        exposed = (beyond - slowdown) * shares
        return {
            "step": step["time_us"],
            "step_lo": step["time_us_lo"],
            "step_hi": step["time_us_hi"],
            "compute": compute_us,
            "slowdown": slowdown,
            "exposed": exposed,
            "hidden": np.maximum(busy - waits, 0.0),
            "alone": np.array(alone),
            "host": float(np.median(whole[..., 1].max(axis=-1))),
        }

    def predicted(self, axis: int, *, only_exposed: bool = False) -> Floats:
        """Return the predicted time of an axis in a whole step, with its bounds, in µs."""
        total = np.zeros(3)
        for call in self.calls:
            if call.axis == axis and not (only_exposed and call.call.overlaps != "nothing"):
                total += np.array(call.predicted_us) * call.call.calls
        return total


def _with_bubble(layout: RehearsedLayout) -> float:
    """Return the duration of a step with the idle time of the pipeline, relative to the step alone."""
    return 1.0 if math.isnan(layout.bubble) else 1 + layout.bubble


def _traffic(layout: RehearsedLayout, axis: int) -> tuple[int, int, int | None]:
    """Return the calls and bytes of an axis in a step of the job, and its wrong elements. None if unchecked."""
    calls = [call for call in layout.calls if call.axis == axis]
    counts = [call.n_wrong for call in calls]
    n_wrong = None if None in counts else sum(count or 0 for count in counts)
    total_bytes = sum(call.call.calls * call.call.size_bytes for call in calls)
    return sum(call.call.calls for call in calls), total_bytes, n_wrong


@dataclass(frozen=True, eq=False, repr=False)
class Rehearsal:
    """Training steps that were rehearsed on engines. Created by `rehearse`.

    Parameters
    ----------
    layouts : tuple of RehearsedLayout
        The layouts, in the order of the arguments.
    where : str
        Label of the measured system.
    backend : str
        Name of the backend.
    sharing : str
        A clause such as "4 ranks share 2 cores" if the times do not characterise the machine. Empty otherwise.
    size_scale : float
        The rehearsed message size and computation per call, relative to those of the job.
    compute : {"products", "wait"}
        The computation between the calls.
    flops_per_us : float
        The rate of the computation: of matrix products as measured, or of the waits that replace them.
    why_wait : str
        The reason why the ranks wait instead of multiplying. Empty if they multiply.
    overlaps : bool
        False if the backend cannot communicate while a rank computes.
    why_unpredicted : str
        The reason why there is no prediction. Empty if there is one.
    effect : float
        The smallest relevant relative difference between layouts.

    Examples
    --------
    >>> import meshlab as ml
    >>> from meshlab.prediction import StepCall
    >>> call = StepCall(
    ...     ("tp",), "all_reduce", 1 << 16, "float32", "activations", "forward", 0, 2, 1, 1e9, "nothing", 0.0
    ... )
    >>> with ml.launch(2, backend="threads") as engines:
    ...     found = ml.rehearse(engines, "tp=2", [call], rounds=1, steps=1)
    >>> found.frame()["part"].tolist()
    ['compute', 'slowdown', 'communication']
    """

    layouts: tuple[RehearsedLayout, ...]
    where: str
    backend: str
    sharing: str
    size_scale: float
    compute: str
    flops_per_us: float
    why_wait: str
    overlaps: bool
    why_unpredicted: str
    effect: float

    def frame(self) -> pd.DataFrame:
        """Return the parts of the step of each layout.

        Returns
        -------
        pandas.DataFrame
            One row per layout and part. The columns are:

            - ``layout``, ``part`` (compute, slowdown or communication), ``axis`` (of communication), ``n_ranks``.
            - ``exposed_us``: the part of the step. The parts of a layout add up to ``step_us``. Compute is the time
              of the step without communication, and slowdown the additional time of the computation with it.
            - ``hidden_us``: the time for which the axis communicated while the ranks computed.
            - ``alone_us``: the time of the axis without computation and other axes.
            - ``predicted_us``, ``predicted_us_lo``, ``predicted_us_hi``: the prediction for ``alone_us``.
            - ``calls``, ``total_bytes``: calls and bytes of a step of the job.
            - ``rehearsed_calls``, ``rehearsed_bytes``: those that were rehearsed. ``scale`` and ``size_scale`` are the
              rehearsed part of a step, which the times are extrapolated from, and the relative size of the messages.
            - ``step_us``, ``step_us_lo``, ``step_us_hi``: the step of the layout, and its 95 % interval.
            - ``bubble``: the idle time of the pipeline relative to the step, which is computed and not rehearsed.
            - ``n_wrong``: the number of wrong elements, missing if unchecked.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for layout in self.layouts:
            parts = layout.parts
            shared = {
                "scale": layout.scale,
                "size_scale": self.size_scale,
                "step_us": parts["step"],
                "step_us_lo": parts["step_lo"],
                "step_us_hi": parts["step_hi"],
                "bubble": layout.bubble,
            }
            rows += [
                {"layout": layout.name, "part": part, "exposed_us": parts[part]} | shared
                for part in ("compute", "slowdown")
            ]
            for axis, name in enumerate(layout.axes):
                calls = [call for call in layout.calls if call.axis == axis]
                n_calls, total_bytes, n_wrong = _traffic(layout, axis)
                rows.append(
                    {
                        "layout": layout.name,
                        "part": "communication",
                        "axis": name,
                        "n_ranks": layout.axis_ranks[axis],
                        "exposed_us": parts["exposed"][axis],
                        "hidden_us": parts["hidden"][axis],
                        "alone_us": parts["alone"][axis],
                        **dict(zip(_PREDICTED, layout.predicted(axis), strict=True)),
                        "calls": n_calls,
                        "total_bytes": total_bytes,
                        "rehearsed_calls": sum(call.calls for call in calls),
                        "rehearsed_bytes": sum(call.calls * call.size_bytes for call in calls),
                        "n_wrong": n_wrong,
                    }
                    | shared
                )
        frame = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
        frame.attrs = {"where": self.where, "notes": self._short_notes()}
        return frame

    def steps(self) -> pd.DataFrame:
        """Return one row per layout, the fastest one first.

        Returns
        -------
        pandas.DataFrame
            ``layout``; ``step_us``, ``step_us_lo`` and ``step_us_hi``, the duration of the step; ``bubble``, the idle
            time of the pipeline relative to the step, which is computed and not rehearsed, and ``total_us``, the step
            with it; ``exposed_us`` and ``exposed_share``, the communication that is not hidden, also relative to the
            step; ``predicted_exposed_us_lo`` and ``predicted_exposed_us_hi``, the predicted one if all that may be
            hidden is hidden, and if nothing is; ``host_us``, the time to enqueue the step (missing if calls block);
            ``ratio``, the total relative to the fastest layout; and ``verdict``.
        """
        import pandas as pd

        rows = []
        for layout, ratio, verdict in zip(self.layouts, self._ratios(), self._verdicts(), strict=True):
            parts, k = layout.parts, range(len(layout.axes))
            exposed = float(parts["exposed"].sum() + parts["slowdown"])
            rows.append(
                {
                    "layout": layout.name,
                    "step_us": parts["step"],
                    "step_us_lo": parts["step_lo"],
                    "step_us_hi": parts["step_hi"],
                    "bubble": layout.bubble,
                    "total_us": parts["step"] * _with_bubble(layout),
                    "exposed_us": exposed,
                    "exposed_share": exposed / parts["step"],
                    "predicted_exposed_us_lo": sum(float(layout.predicted(axis, only_exposed=True)[1]) for axis in k),
                    "predicted_exposed_us_hi": sum(float(layout.predicted(axis)[2]) for axis in k),
                    "host_us": parts["host"],
                    "ratio": ratio,
                    "verdict": verdict,
                }
            )
        return pd.DataFrame(rows).sort_values("total_us", kind="stable", ignore_index=True)

    def calls(self) -> pd.DataFrame:
        """Return one row per call of the job.

        Returns
        -------
        pandas.DataFrame
            ``layout``, ``axis``, ``collective``, ``what``, ``phase``, ``dtype`` and ``overlaps``, as in the job;
            ``calls`` and ``size_bytes`` of the job; ``rehearsed_calls`` and ``rehearsed_size_bytes``; ``time_us``, the
            time of one rehearsed call on its own, and its prediction, ``predicted_us``, ``predicted_us_lo`` and
            ``predicted_us_hi``; and ``n_wrong``.
        """
        import pandas as pd

        rows = [
            {
                "layout": layout.name,
                "axis": layout.axes[call.axis],
                **{name: getattr(call.call, name) for name in _CALL},
                "rehearsed_calls": call.calls,
                "rehearsed_size_bytes": call.size_bytes,
                "time_us": call.time_us,
                **dict(zip(_PREDICTED, call.predicted_us, strict=True)),
                "n_wrong": call.n_wrong,
            }
            for layout in self.layouts
            for call in layout.calls
        ]
        return pd.DataFrame(rows).astype({"n_wrong": "Int64"})

    # -- verdicts ------------------------------------------------------------------------------------------------------

    def _totals(self) -> Floats:
        """Return the duration of the step with the bubble in each round, shape (layouts, rounds)."""
        return np.array([_with_bubble(layout) * layout.rounds_us for layout in self.layouts])

    def _best(self) -> int:
        return int(np.argmin(self._ratios()))

    def _ratios(self) -> Floats:
        totals = np.array([layout.parts["step"] * _with_bubble(layout) for layout in self.layouts])
        return np.asarray(totals / totals.min())

    def _verdicts(self) -> list[str]:
        if len(self.layouts) == 1 or self.sharing:
            return [""] * len(self.layouts)
        totals, best = self._totals(), self._best()
        verdicts = []
        for index, ratio in enumerate(self._ratios()):
            ratios = totals[index] / totals[best]
            if index == best:
                verdicts.append("fastest")
            elif len(ratios) < FEWEST_FOR_INTERVAL:
                verdicts.append("unclear")
            elif (ratios > 1).all():  # by chance in 1 of 2^rounds cases
                verdicts.append("slower" if ratio > 1 + self.effect else "same")
            else:
                verdicts.append("same" if abs(ratios - 1).max() <= self.effect else "unclear")
        # A layout is the fastest only if it clearly beats all others.
        if any(verdict in ("unclear", "same") for verdict in verdicts):
            verdicts[best] = "among the fastest"
        return verdicts

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        frame = self.steps()
        if len(frame) == 1:
            row = frame.iloc[0]
            size = "" if self.size_scale == 1 else f", at {fraction(self.size_scale)} of the size,"
            return (
                f"{row['layout']}: a step{size} takes {format_time_us(row['step_us'])}, of which communication adds "
                f"{format_time_us(row['exposed_us'])} ({100 * row['exposed_share']:.0f} %)"
            )
        if self.sharing:
            return f"No verdict on times: {self.sharing}"
        first = frame.iloc[0]
        close = frame[frame["verdict"].isin(["unclear", "same"])]
        if len(close):
            names = " and ".join([str(first["layout"]), *close["layout"]])
            return f"{names} cannot be distinguished in {self._totals().shape[1]} rounds"
        second = frame.iloc[1]
        return (
            f"{first['layout']} is the fastest: {format_time_us(first['total_us'])} a step. "
            f"{second['layout']}, the next one, takes {100 * (second['ratio'] - 1):.0f} % longer"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the scale of the rehearsal, and about what it leaves out."""
        notes = []
        if self.sharing:
            notes.append(f"{self.sharing}, so the times do not characterise the machine")
        cuts: dict[str, list[str]] = {}
        for layout in self.layouts:
            cuts.setdefault(layout.part_text, []).append(layout.name)
        for text, names in cuts.items():
            if text:
                of = f" of {' and of '.join(names)}" if len(cuts) > 1 else ""
                notes.append(f"only {text}{of} were rehearsed, and the times are extrapolated to a whole step")
        if self.size_scale != 1:
            notes.append(f"messages and computation per call are {fraction(self.size_scale)} of the job's")
        rate = f"{self.flops_per_us / 1e6:,.3g} TFLOP/s"
        if self.compute == "products":
            notes.append(f"matrix products in float16 at {rate} between the calls")
        else:
            why = f": {self.why_wait}" if self.why_wait else ""
            notes.append(f"waits instead of computation, at {rate}{why}")
        if not self.overlaps:
            notes.append("this MPI library cannot communicate in a second thread, so nothing overlaps")
        elif self.backend not in GPU_BACKENDS:
            notes.append("calls that may overlap run in a separate thread")
        if any(call.call.collective == "send_recv" for layout in self.layouts for call in layout.calls):
            notes.append(
                "messages between stages go around a ring, and the pipeline's bubble is calculated, not rehearsed"
            )
        if self.why_unpredicted:
            notes.append(f"no prediction: {self.why_unpredicted}")
        else:
            notes.append("predictions from NCCL's formulas, not calibrated on this machine")
        bound = [layout.name for layout in self.layouts if layout.parts["host"] > 0.95 * layout.parts["step"]]
        if bound:
            notes.append(f"the host needs a whole step to enqueue its calls ({', '.join(bound)}), so the GPUs wait")
        return tuple(notes)

    def _short_notes(self) -> tuple[str, ...]:
        """The scale of the rehearsal in a few words, for figures."""
        shares = sorted(100 * layout.scale for layout in self.layouts)
        low, high = f"{shares[0]:.2g}", f"{shares[-1]:.2g}"
        notes = [f"{low if low == high else f'{low} to {high}'} % of a step rehearsed"] if shares[0] < 100 else []
        if self.size_scale != 1:
            notes.append(f"{fraction(self.size_scale)} of the job's message size and computation")
        return (*notes, "matrix products" if self.compute == "products" else "waits instead of computation")

    def explain(self) -> str:
        """Describe the result, each part of each step, and the limits of the rehearsal.

        Returns
        -------
        str
            Sentences, one per line.
        """
        lines = [f"{self.headline}."]
        for layout in self.layouts:
            parts = layout.parts
            interval = (
                ""
                if math.isnan(parts["step_lo"])
                else f" ({format_time_us(parts['step_lo'])} to {format_time_us(parts['step_hi'])})"
            )
            lines.append(
                f"{layout.name} on {self.where}: {format_time_us(parts['step'])} a step{interval}. Computation takes "
                f"{format_time_us(parts['compute'])} of it in isolation, and {format_time_us(parts['slowdown'])} "
                "more during communication."
            )
            if layout.bubble > 0:
                lines.append(
                    f"The bubble of the pipeline adds {100 * layout.bubble:.0f} %: "
                    f"{format_time_us(parts['step'] * (1 + layout.bubble))} in all (calculated, not rehearsed)."
                )
            lines += [self._explain_axis(layout, axis) for axis in range(len(layout.axes))]
        wrong = sum(call.n_wrong or 0 for layout in self.layouts for call in layout.calls)
        if wrong:
            lines.append(f"WRONG: {wrong:,} elements of the results are wrong; see calls().")
        lines += [f"{note[:1].upper()}{note[1:]}." for note in self.notes]
        return "\n".join(lines)

    @staticmethod
    def _explain_axis(layout: RehearsedLayout, axis: int) -> str:
        parts = layout.parts
        n, total, _ = _traffic(layout, axis)
        middle, lo, hi = layout.predicted(axis)
        predicted = (
            ""
            if math.isnan(middle)
            else f" Predicted: {format_time_us(middle)} ({format_time_us(lo)} to {format_time_us(hi)})."
        )
        return (
            f"{layout.axes[axis]} ({layout.axis_ranks[axis]} ranks, {n:,} call{'s' * (n != 1)}, {format_size(total)} a "
            f"step): {format_time_us(parts['exposed'][axis])} exposed, {format_time_us(parts['hidden'][axis])} hidden; "
            f"{format_time_us(parts['alone'][axis])} on its own.{predicted}"
        )

    # -- display -------------------------------------------------------------------------------------------------------

    def plot(self, **options: Any) -> Axes:
        """Draw the parts of each step. See `meshlab.plots.rehearsal`, which documents the options."""
        return implementation(Rehearsal.plot)(self, **options)

    def __repr__(self) -> str:
        return f"<Rehearsal on {self.where}: {self.headline}; next: .explain(), .plot()>"

    __str__ = explain

    def _figure_html(self) -> str:
        return implementation(Rehearsal._figure_html)(self)

    def _repr_html_(self) -> str:
        header, rows = _steps_table(self)
        axis_header = ["layout", "axis", "ranks", "exposed", "hidden", "alone", "predicted", "calls", "bytes", "wrong"]
        axis_rows = [
            [
                layout.name,
                name,
                layout.axis_ranks[axis],
                *(format_time_us(float(layout.parts[key][axis])) for key in ("exposed", "hidden", "alone")),
                _interval_text(layout.predicted(axis)[1:]),
                *_traffic_texts(*_traffic(layout, axis)),
            ]
            for layout in self.layouts
            for axis, name in enumerate(layout.axes)
        ]
        notes = f'<div class="ml-sub">{markup.escape(SEPARATOR.join(self.notes))}</div>'
        return markup.card(
            self.headline,
            f"Rehearsal of a training step on {self.where}",
            self._figure_html(),
            markup.table(header, rows, right=range(1, len(header) - 1)),
            markup.table(axis_header, axis_rows, right=range(2, len(axis_header))),
            notes,
        )


_COLUMNS = {
    **dict.fromkeys(("layout", "part", "axis"), "string"),
    "n_ranks": "Int64",
    **dict.fromkeys(("exposed_us", "hidden_us", "alone_us", *_PREDICTED), "float64"),
    **dict.fromkeys(("calls", "total_bytes", "rehearsed_calls", "rehearsed_bytes"), "Int64"),
    **dict.fromkeys(("scale", "size_scale", "step_us", "step_us_lo", "step_us_hi", "bubble"), "float64"),
    "n_wrong": "Int64",
}
"""The columns of `Rehearsal.frame`, with their dtypes."""


def _steps_table(rehearsal: Rehearsal) -> tuple[list[str], list[list[object]]]:
    """Return the header and the rows of a table of the layouts."""
    rows: list[list[object]] = [
        [
            row["layout"],
            format_time_us(row["step_us"]),
            "–" if math.isnan(row["bubble"]) else f"{100 * row['bubble']:.0f} %",
            format_time_us(row["total_us"]),
            f"{format_time_us(row['exposed_us'])} ({100 * row['exposed_share']:.0f} %)",
            _interval_text((row["predicted_exposed_us_lo"], row["predicted_exposed_us_hi"])),
            f"{row['ratio']:.2f}×",
            row["verdict"],
        ]
        for _, row in rehearsal.steps().iterrows()
    ]
    return ["layout", "step", "bubble", "with bubble", "exposed", "predicted", "ratio", "verdict"], rows


def _interval_text(bounds: Sequence[float] | Floats) -> str:
    return "–" if np.isnan(bounds).any() else f"{format_time_us(float(bounds[0]))} – {format_time_us(float(bounds[1]))}"


def _traffic_texts(n_calls: int, total_bytes: int, n_wrong: int | None) -> tuple[str, str, str]:
    return f"{n_calls:,}", format_size(total_bytes), "–" if n_wrong is None else f"{n_wrong:,}"


def fraction(value: float) -> str:
    """Return a fraction as text, such as 1/4."""
    inverse = 1 / value
    return f"1/{inverse:.0f}" if inverse > 1.5 and abs(inverse - round(inverse)) < 1e-6 else f"{value:.3g}"
