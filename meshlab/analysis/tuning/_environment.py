"""One environment for all sizes: the variables that come closest to a choice per size, and what they lose."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis.tuning._choice import mean_gain
from meshlab.base._collectives import NCCL_FUNCTIONS
from meshlab.base._errors import BenchError
from meshlab.base._units import format_size
from meshlab.frames._schema import plain_value
from meshlab.frames._trials import CASE, DEFAULT, option_key, option_label

if TYPE_CHECKING:
    import pandas as pd

_FUNCTIONS = {name: function.name for name, function in NCCL_FUNCTIONS.items() if function.is_tuned}
"""NCCL's names of the collectives for which NCCL_ALGO and NCCL_PROTO can be set (ncclFuncStr in NCCL's init.cc)."""

_SMALLEST = 0.01
"""The smallest gain, averaged over the collectives, for which an environment is preferred to the default."""

_OWN_VARIABLES = "MPIR_CVAR_"
"""MPICH's variables name their collective, so the settings of several collectives can be combined."""


@dataclass(frozen=True, slots=True)
class EnvironmentLoss:
    """The gain of an environment for a collective, and its loss against a choice per size."""

    collective: str
    """Name of the collective, with further properties if several were tuned."""
    option: str
    """The option that the environment sets, in a few words."""
    gain: float
    """1 - time / time of the default, as a geometric mean over the sizes."""
    choice_gain: float
    """The same with a choice per size."""
    slowest_bytes: int
    """The size that suffers most."""
    slowest: float
    """Time / time of the default at that size."""

    @property
    def loss(self) -> float:
        """The additional time of this environment relative to a choice per size: 0.1 is 10 % more time."""
        return (1 - self.gain) / (1 - self.choice_gain) - 1

    def __str__(self) -> str:
        best = f"a choice per size takes {_change(self.choice_gain)} than the default"
        if self.option == "default":
            return f"{self.collective}: the default at all sizes; {best if self.choice_gain else 'no option is faster'}"
        text = f"{self.collective}: {self.option} at all sizes takes {_change(self.gain)} than the default; {best}"
        if self.slowest > 1.02:
            text += f"; {100 * (self.slowest - 1):.0f} % more than the default at {format_size(self.slowest_bytes)}"
        return text


def _change(gain: float) -> str:
    return f"{100 * gain:.0f} % less time" if gain >= 0 else f"{-100 * gain:.0f} % more time"


@dataclass(frozen=True, slots=True)
class TunedEnvironment:
    """Environment variables that suit all sizes of a tuning. ``str()`` returns lines for a shell."""

    variables: Mapping[str, str]
    """The variables. Empty if the default is the best environment."""
    losses: tuple[EnvironmentLoss, ...]
    """The loss of each collective against a choice per size."""

    def frame(self) -> pd.DataFrame:
        """Return the losses as a frame with one row per collective, and the columns of `EnvironmentLoss`."""
        import pandas as pd

        names = ["collective", "option", "gain", "choice_gain", "loss", "slowest_bytes", "slowest"]
        return pd.DataFrame([[getattr(loss, name) for name in names] for loss in self.losses], columns=names)

    def __str__(self) -> str:
        lines = [f"# {loss}" for loss in self.losses]
        lines.append("# The times of an environment are those of the search. They were not measured again.")
        if not self.variables:
            lines.append("# No single environment is faster than the default over all sizes.")
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, eq=False)
class _Candidate:
    """An option of one collective that environment variables can set, with its times at all sizes."""

    label: str
    ratios: npt.NDArray[np.float64]
    """Time / time of the default at each size."""

    common: tuple[Any, ...]
    """The parts that apply to all collectives: minimum and maximum CTAs, and the CTA policy."""

    setting: str | None
    algorithm: str | None
    protocol: str | None

    @property
    def is_default(self) -> bool:
        return self.setting is None and self.is_setting

    @property
    def is_setting(self) -> bool:
        """True if nothing is chosen per call."""
        return self.common == (None, None, None) and self.algorithm is None and self.protocol is None

    @property
    def score(self) -> float:
        """The mean of log(ratio) over the sizes."""
        return float(np.log(self.ratios).mean())


def tuned_environment(
    lines: Sequence[tuple[str, pd.DataFrame]], trials: pd.DataFrame, settings: Mapping[str, Mapping[str, str]]
) -> TunedEnvironment:
    """Return the environment with the smallest geometric mean of the times. See `Tuning.to_env` and `Tuning.lines`."""
    candidates = [_candidates(tuned, trials) for _, tuned in lines]
    default = [candidate for each in candidates for candidate in each if candidate.is_default]
    if len(default) < len(lines):
        raise BenchError("the default was not measured at every size", hint="tune again")
    plans: list[tuple[Mapping[str, str], list[_Candidate]]] = [({}, default)]
    names = [str(tuned["collective"].iloc[0]) for _, tuned in lines]
    plain = [[candidate for candidate in each if candidate.setting is None] for each in candidates]
    for common in dict.fromkeys(candidate.common for each in plain for candidate in each):
        options = [
            [candidate for candidate in each if candidate.common == common and _is_named(candidate, name)]
            for each, name in zip(plain, names, strict=True)
        ]
        if all(options):
            best = [_best(each) for each in options]
            plans.append((_nccl_variables(best, names, common), best))
    plans += _plans_of_settings(candidates, settings)
    variables, chosen = min(plans, key=lambda plan: _total(plan[1]))
    if _total(chosen) > _total(default) - _SMALLEST * len(lines):
        variables, chosen = plans[0]
    losses = [_loss(label, tuned, candidate) for (label, tuned), candidate in zip(lines, chosen, strict=True)]
    return TunedEnvironment(dict(variables), tuple(losses))


def _total(chosen: Sequence[_Candidate]) -> float:
    """Return the sum of the scores of all collectives."""
    return sum(candidate.score for candidate in chosen)


def _best(options: Sequence[_Candidate]) -> _Candidate:
    """Return the fastest option of a collective, or the default if it is as good."""
    fastest = min(options, key=lambda candidate: candidate.score)
    default = next((candidate for candidate in options if candidate.is_default), fastest)
    return default if default.score < fastest.score + _SMALLEST else fastest


def _is_named(candidate: _Candidate, collective: str) -> bool:
    """Return whether NCCL_ALGO can name the collective, if an algorithm or a protocol is chosen."""
    return (candidate.algorithm is None and candidate.protocol is None) or collective in _FUNCTIONS


def _plans_of_settings(
    candidates: Sequence[Sequence[_Candidate]], settings: Mapping[str, Mapping[str, str]]
) -> Iterable[tuple[Mapping[str, str], list[_Candidate]]]:
    """Return the environments that consist of named settings."""
    named = [[candidate for candidate in each if candidate.is_setting] for each in candidates]
    for name in dict.fromkeys(each.setting for each in itertools.chain(*named) if each.setting is not None):
        same = [candidate for candidate in itertools.chain(*named) if candidate.setting == name]
        if len(same) == len(candidates):
            yield settings[name], same
    best = [_best(each) for each in named if each]
    variables: dict[str, str] = {}
    for candidate in best:
        for name, value in (settings[candidate.setting] if candidate.setting is not None else {}).items():
            if not name.startswith(_OWN_VARIABLES) or variables.get(name, value) != value:
                return
            variables[name] = value
    yield variables, best


def _candidates(tuned: pd.DataFrame, trials: pd.DataFrame) -> list[_Candidate]:
    """Return the options that were measured at every size of these rows, and that variables can set."""
    keys = [name for name in CASE if name not in ("count", "size_bytes")]
    first = tuned.iloc[0]
    same = trials[trials["launch"].fillna("search").eq("search") & trials["buffers"].eq("plain")]
    same = same[same["status"].fillna("ok").isin(["ok", "dropped"]) & same["time_us"].gt(0)]
    for name in keys:
        same = same[
            same[name].isna() if plain_value(first[name]) is None else same[name].eq(first[name]).fillna(value=False)
        ]
    sizes = tuned["size_bytes"].tolist()
    times: dict[tuple[Any, ...], dict[int, tuple[float, float, float]]] = {}
    labels: dict[tuple[Any, ...], str] = {}
    for row in same.to_dict("records"):
        key = option_key(row)
        labels[key] = option_label(row)
        time, low, high = (float(row[f"time_us{end}"]) for end in ("", "_lo", "_hi"))
        interval = (time, time if math.isnan(low) else low, time if math.isnan(high) else high)
        times.setdefault(key, {})[int(row["size_bytes"])] = interval
    default = times.get(DEFAULT, {})
    candidates = []
    for key, by_size in times.items():
        setting, _, algorithm, protocol, *common = key
        if all(size in by_size and size in default for size in sizes):
            ratios = np.array([by_size[size][0] / default[size][0] for size in sizes])
            worst = float(np.log([by_size[size][2] / default[size][1] for size in sizes]).mean())
            # Better than the default also at the ends of the intervals. Settings have to be confirmed at one size, too.
            is_confirmed = setting is None or tuned["setting"].eq(setting).fillna(value=False).any()
            if key == DEFAULT or (worst < 0 and is_confirmed):
                candidates.append(_Candidate(labels[key], ratios, tuple(common), setting, algorithm, protocol))
    return candidates


def _nccl_variables(best: Sequence[_Candidate], collectives: Sequence[str], common: tuple[Any, ...]) -> dict[str, str]:
    """Return NCCL's variables. Algorithm and protocol are set for each collective, which NCCL 2.24 introduced."""
    variables = {}
    for name, attribute in (("NCCL_ALGO", "algorithm"), ("NCCL_PROTO", "protocol")):
        values = [
            (_FUNCTIONS[collective], str(getattr(candidate, attribute)).replace("_", ""))
            for candidate, collective in zip(best, collectives, strict=True)
            if getattr(candidate, attribute) is not None
        ]
        if values:
            variables[name] = ";".join(f"{function}:{value}" for function, value in dict(values).items())
    for name, value in zip(("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CTA_POLICY"), common, strict=True):
        if value is not None:
            variables[name] = str(value).upper()
    return variables


def _loss(label: str, tuned: pd.DataFrame, candidate: _Candidate) -> EnvironmentLoss:
    worst = int(candidate.ratios.argmax())
    return EnvironmentLoss(
        label,
        candidate.label,
        float(1 - np.exp(candidate.score)),
        mean_gain(tuned),
        int(tuned["size_bytes"].iloc[worst]),
        float(candidate.ratios[worst]),
    )
