"""`compare_now`: two sides that take turns on the same ranks, in rounds on new communicators."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from meshlab.analysis._sides import Difference
from meshlab.analysis._turn_ratios import BUDGET_S, FEWEST_ROUNDS, MOST_ROUNDS, RoundRatio, round_ratio
from meshlab.analysis._turns import TurnComparison, TurnRow, compare_turns
from meshlab.base._errors import BenchError, EngineError, did_you_mean
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_size
from meshlab.benchmark._bench import DEFAULT_COLLECTIVE, check_fit
from meshlab.benchmark._executor import describe_sharing
from meshlab.benchmark._interruptible import Interruptible
from meshlab.benchmark._preparation import check_engines, plan_registered, usable_memory, voting_ranks
from meshlab.benchmark._progress import move_bar, progress_bar
from meshlab.benchmark.on_ranks._buffers import block_bytes, release_buffers
from meshlab.benchmark.on_ranks._turns import TurnTimes, measure_turns, neighbours
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.frames._schema import CALL
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plans._arguments import DEFAULTS, PlanArguments, check_arguments, takes_plan_arguments
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling
from meshlab.plans._steps import Function, Step

_OF_RUNS = ("grouping", "concurrent", "launches", "shuffle", "seed")
"""The arguments of a plan that say how a run measures several steps, which take turns here."""

_OF_BOTH = (*_OF_RUNS, "sampling", "check")

_SAMPLING = Sampling(batch_us=250.0)
"""The batches of a side: shorter than the few milliseconds after which a scheduler exchanges processes."""

_SHORTEST_BLOCK_S = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class _TurnPair:
    """A call of each side, with the functions of the sides that have one."""

    steps: tuple[Step, Step]
    functions: tuple[Function | None, Function | None]

    def needed_bytes(self) -> int:
        """Return the memory for the buffers of both sides. Plain ones are shared, see `measure_turns`."""
        if all(step.buffers in ("plain", None) for step in self.steps):
            return max(step.buffer_bytes for step in self.steps)
        return sum(block_bytes(step) for step in self.steps if step.count is not None)


@takes_plan_arguments
def compare_now(
    engines: Engines,
    mesh: MeshLike | None,
    sides: Mapping[str, Mapping[str, Any] | str | Function],
    collective: str | Function = DEFAULT_COLLECTIVE,
    *,
    axis: str | Sequence[str] | None = None,
    sizes: str | int | Sequence[int | str] = "1K:16M",
    budget_s: float = BUDGET_S,
    effect: float = 0.05,
    progress: bool | None = None,
    **arguments: Unpack[PlanArguments],
) -> TurnComparison:
    """Compare two ways to make the same calls, in turns within the same seconds.

    Batches of both sides alternate in the order A, B, B, A. They take a fraction of a millisecond if the calls are
    short enough, so that other programs on the host, clocks and temperatures affect both sides alike. Each of up to 40
    rounds opens new communicators. The ratio of a round is the median of its pairs of neighbouring batches. The rounds
    are tested by the signed-rank test of Wilcoxon, with a p-value of at most 2 % (adjusted for the number of rows) for
    SLOWER and FASTER. Other verdicts are those of `compare`. So differences can be detected on a host where two
    launches differ by a factor of ten, but there they are relative: ranks that wait for cores do not show how long a
    call takes. Waits until everything is measured.

    Parameters
    ----------
    engines : Engines
        The ranks. They are busy until the end.
    mesh : DeviceMesh or str, optional
        The mesh whose groups are measured, with one rank per engine. None stands for a mesh with all ranks on one axis.
    sides : mapping of str to mapping, callable or str
        The two sides by name: arguments of `bench` that describe calls, such as ``{"algorithm": "ring"}``,
        ``{"in_place": True}`` or ``{"collective": function}``. A function, or the name of a collective, stands for the
        latter. The second side is compared with the first.
    collective : str or callable, default "all_reduce"
        The collective, or the function, of sides that have none.
    axis, sizes
        Axes of the mesh (by default all) and message sizes in bytes, as in `bench`.
    budget_s : float, default 60
        The duration in seconds, which all rows share. Slow calls take longer, because seven rounds are always measured.
    effect : float, default 0.05
        The smallest relevant relative difference.
    progress : bool, optional
        Whether to draw a progress bar, by default as in `rehearse`.
    **arguments
        The arguments of `Plan` for both sides. Of a `sampling`, only the length of a batch is used.

    Returns
    -------
    TurnComparison
        The ratios of the second side to the first, and the verdicts.

    Raises
    ------
    BenchError
        If there are not two sides with the same axes and sizes, or the backend does not support their calls.
    EngineError, KeyboardInterrupt
        If the engines are busy, a rank fails, or the caller is interrupted, after the current turns. The attribute
        ``measured`` of the exception has the rounds so far as a `TurnComparison`, or None.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     sides = {"separate": {"in_place": False}, "in place": {"in_place": True}}
    ...     comparison = ml.benchmark.compare_now(engines, "tp=2", sides, sizes="1K", budget_s=0.5)
    >>> print(comparison.differences[0])
    in place: False before, True after
    """
    check_arguments("compare_now", arguments)
    mesh = _checked(engines, mesh, budget_s, effect)
    plans = _plans(sides, collective, mesh.axis_names if axis is None else axis, sizes, arguments)
    for plan in plans.values():
        check_fit(engines, mesh, plan)
    turns = _Turns(engines, mesh, _pairs(plans, mesh), tuple(plans), next(iter(plans.values())), budget_s, effect)
    with progress_bar(progress, unit="round", total=MOST_ROUNDS * len(turns.pairs)) as bar:
        return turns.run(bar)


def _checked(engines: Any, mesh: MeshLike | None, budget_s: Any, effect: Any) -> DeviceMesh:
    """Return the mesh, after a check of the arguments that do not describe calls."""
    check_engines(engines)
    for name, value, most in (("budget_s", budget_s, math.inf), ("effect", effect, 1.0)):
        if not isinstance(value, (int, float, np.number)) or not 0 < value < most:
            raise BenchError(f"{name} must be a positive number{' below 1' * (most == 1)}, not {value!r}")
    return DeviceMesh(all_ranks=engines.world_size) if mesh is None else as_mesh(mesh, fill=engines.world_size)


def _plans(sides: Any, collective: Any, axis: Any, sizes: Any, arguments: Mapping[str, Any]) -> dict[str, Plan]:
    """Return the plan of each side by its name."""
    if not isinstance(sides, Mapping) or len(sides) != 2:
        number = f"{len(sides)} ({', '.join(map(str, sides))})" if isinstance(sides, Mapping) else repr(sides)
        raise BenchError(
            f"compare_now() needs two sides, not {number}", hint='pass two by name: {"ring": {…}, "tree": {…}}'
        )
    for name in _OF_RUNS:
        if arguments.get(name, DEFAULTS[name]) != DEFAULTS[name]:
            raise BenchError(f"{name} cannot be chosen for sides that take turns", hint=Hint("omit {}", Argument(name)))
    plans = {}
    for name, side in sides.items():
        options = dict(side) if isinstance(side, Mapping) else {"collective": side}
        names = ["collective", *(argument for argument in DEFAULTS if argument not in _OF_BOTH)]
        for option in options:
            if option not in names:
                reason = "is the same for both sides" if option in (*_OF_BOTH, "axis", "sizes") else "is unknown"
                raise BenchError(
                    f"option {option!r} of side {name!r} {reason}{did_you_mean(option, names)}; "
                    f"choose from {', '.join(names)}"
                )
        plans[str(name)] = Plan(
            options.pop("collective", collective), axis, sizes, **{"sampling": _SAMPLING, **arguments, **options}
        )
    return plans


def _pairs(plans: Mapping[str, Plan], mesh: DeviceMesh) -> list[_TurnPair]:
    """Return the calls of both sides at each axis and size."""
    steps = [plan.steps(mesh) for plan in plans.values()]
    pairs = []
    for pair in zip(*steps, strict=False):
        functions = [plan.functions.get(step.collective) for plan, step in zip(plans.values(), pair, strict=True)]
        pairs.append(_TurnPair((pair[0], pair[1]), (functions[0], functions[1])))
    sizes = [{step.size_bytes for step in pair.steps if step.size_bytes is not None} for pair in pairs]
    if len(steps[0]) != len(steps[1]) or any(len({step.axis for step in pair.steps}) > 1 for pair in pairs):
        numbers = " and ".join(f"{name} has {len(of_side)}" for name, of_side in zip(plans, steps, strict=True))
        raise BenchError(
            f"the sides need the same number of calls to take turns, but {numbers}",
            hint="choose one value of each option for both sides, or the same values",
        )
    if different := next((several for several in sizes if len(several) > 1), None):
        texts = " and ".join(format_size(size) for size in sorted(different))
        raise BenchError(f"the sides must have calls of the same size, not {texts}", hint="choose different sizes")
    return pairs


@dataclass(eq=False)
class _Turns:
    """The turns under way. It measures in a thread, so that an interrupt of the caller ends it between two calls."""

    engines: Engines
    mesh: DeviceMesh
    pairs: Sequence[_TurnPair]
    names: tuple[str, ...]
    plan: Plan
    budget_s: float
    effect: float
    rounds: dict[tuple[int, str], list[RoundRatio]] = field(default_factory=dict)
    """The ratios of each round, by the index of the pair and the name of the group."""
    n_wrong: dict[tuple[int, str], tuple[int | None, int | None]] = field(default_factory=dict)
    too_large: dict[int, str] = field(default_factory=dict)
    waiting: list[float] = field(default_factory=list)

    def run(self, bar: Any) -> TurnComparison:
        """Measure all rounds, and move the bar."""
        self._began, self._turns_s, self._n_done, self._task = time.monotonic(), 0.0, 0, "starting"
        self._thread = Interruptible(self._work, partial(self._show, bar), self._kill, "meshlab turns")
        try:
            self._thread.run()
        except KeyboardInterrupt as interrupt:
            interrupt.measured = self._partial_result()  # type: ignore[attr-defined]
            raise
        except EngineError as error:
            raise EngineError(
                f"the turns of {' and '.join(self.names)} failed at {self._task}: {error.summary}",
                rank=error.rank,
                host=error.host,
                log=error.log,
                measured=self._partial_result(),
            ) from error
        if self._thread.is_stopped:
            raise EngineError("the engines were closed during the turns", measured=self._partial_result())
        return self._result()

    def _show(self, bar: Any) -> None:
        text = f"interrupted, completing {self._task}" if self._thread.is_stopped else self._task
        move_bar(bar, self._n_done, text)

    def _kill(self) -> None:
        if self.engines.state != "closed":
            self.engines.kill()

    def _work(self) -> None:
        with Lease(self.engines, f"turns of {' and '.join(self.names)}", cancel=self._thread.stop) as lease:
            try:
                self._plan_memory(lease)
                for number in range(MOST_ROUNDS):
                    if number >= FEWEST_ROUNDS and self._left_s() <= 0:
                        break
                    # Where a communicator and its memory are placed may favour one side.
                    lease.renew("for the next round of turns")
                    for index in self._order(number):
                        if self._thread.is_stopped:
                            return
                        self._measure(lease, index, number)
            finally:
                if self.engines.state == "busy":  # neither closed nor broken
                    lease.round(release_buffers).run()

    def _order(self, number: int) -> Iterator[int]:
        """Return the pairs that fit into the memory, in the opposite order in every second round."""
        indices = [index for index in range(len(self.pairs)) if index not in self.too_large]
        return iter(indices[:: -1 if number % 2 else 1])

    def _left_s(self) -> float:
        return self._began + self.budget_s - time.monotonic()

    def _plan_memory(self, lease: Lease) -> None:
        """Leave out pairs that exceed the memory, and set the sizes of registered buffers."""
        most = usable_memory(lease, "preparing turns")
        for index, pair in enumerate(self.pairs):
            if (needed := pair.needed_bytes()) > most:
                self.too_large[index] = (
                    f"its buffers take {format_size(needed)} per rank, but {format_size(most)} may be used"
                )
        if len(self.too_large) == len(self.pairs):
            raise BenchError(f"nothing fits into the memory of the ranks: {self.too_large[0]}")
        sets = (pair.steps for index, pair in enumerate(self.pairs) if index not in self.too_large)
        raise_first_error(plan_registered(lease, sets, most), "preparing turns", self.engines.ranks)

    def _measure(self, lease: Lease, index: int, number: int) -> None:
        """Measure the turns of a pair in one round."""
        pair = self.pairs[index]
        self._task = lease.task = f"round {number + 1} of {MOST_ROUNDS}: {pair.steps[0]}"
        n_left = MOST_ROUNDS * (len(self.pairs) - len(self.too_large)) - self._n_done
        # On a busy host, new communicators and the check take seconds. The turns get at least two thirds of the time,
        # so the budget may end before the last round.
        overhead_s = (time.monotonic() - self._began - self._turns_s) / max(self._n_done, 1)
        block_s = max(self._left_s() / n_left - overhead_s, 2 * overhead_s, _SHORTEST_BLOCK_S)
        groups = self.mesh[pair.steps[0].axis]
        everyone, (members,) = voting_ranks(groups)
        sampling = replace(self.plan.sampling, max_s=block_s)
        replies = lease.round(
            measure_turns,
            self.mesh,
            pair.steps[0].axis,
            (pair.steps, pair.functions, sampling, self.plan.check and not number, members),
            also=(everyone,),
            deadline_s=max(self.engines.deadline_s, 5 * block_s + 30),
        ).run()
        raise_first_error(replies, f"measuring {pair.steps[0]} in turns", self.engines.ranks)
        times: dict[int, TurnTimes] = {reply.rank: reply.value for reply in replies}
        for group in groups:
            # A collective takes as long as its slowest rank.
            slowest = np.max([times[rank].time_us for rank in group.ranks], axis=0)
            self.rounds.setdefault((index, group.name), []).append(round_ratio(neighbours(slowest)))
            if not number:
                wrong = np.array([times[rank].n_wrong for rank in group.ranks], dtype=object)
                before, after = (None if None in counts else sum(counts) for counts in wrong.T.tolist())
                self.n_wrong[index, group.name] = before, after
        self._turns_s += block_s
        self.waiting.append(float(np.mean([item.waiting for item in times.values()])))
        self._n_done += 1

    def _partial_result(self) -> TurnComparison | None:
        return self._result() if self.rounds else None

    def _result(self) -> TurnComparison:
        columns, differences = _described(self.pairs)
        rows = [
            TurnRow(
                {**columns[index], "group": group.name},
                self.rounds.get((index, group.name), ()),
                self.n_wrong.get((index, group.name), (None, None)),
                self.too_large.get(index, ""),
            )
            for index, pair in enumerate(self.pairs)
            for group in self.mesh[pair.steps[0].axis]
        ]
        return compare_turns(
            rows,
            (self.names[0], self.names[1]),
            effect=self.effect,
            differences=differences,
            waiting=float(np.mean(self.waiting)) if self.waiting else math.nan,
            sharing=describe_sharing(self.engines.ranks),
            duration_s=time.monotonic() - self._began,
        )


def _described(pairs: Sequence[_TurnPair]) -> tuple[list[dict[str, Any]], list[Difference]]:
    """Return the columns of each pair that both sides share, and the differences of the sides in the others."""
    rows: list[dict[str, Any]] = [{} for _ in pairs]
    differences = []
    for name in (*CALL, "axis", "n_ranks", "size_bytes"):
        values = [[getattr(step, name) for step in pair.steps] for pair in pairs]
        if all(before == after for before, after in values):
            for row, (value, _) in zip(rows, values, strict=True):
                row[name] = value
            continue
        before, after = (", ".join(dict.fromkeys(map(str, column))) for column in zip(*values, strict=True))
        differences.append(Difference(_WORDS.get(name, name), before, after, blocks=False))
        if name == "collective":
            for row in rows:
                row[name] = "call"
    return rows, differences


_WORDS = {"in_place": "in place"}
