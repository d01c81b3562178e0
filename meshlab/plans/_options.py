"""Options of a call: the table of their names, defaults, columns and words, as the fields of one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypedDict

from meshlab.base._collectives import COUNTED
from meshlab.comm._backend import CONFIGURABLE, Buffers, CallConfig
from meshlab.mesh._traffic import Traffic, TrafficLike

CONFIGURED = tuple(item.name for item in fields(CallConfig))
"""The options that a `CallConfig` has, and so the communicator of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The facts about one option of a call."""

    dtype: str = "string"  # the pandas dtype of its column in the results
    text: str  # the description of the column
    words: str  # as in "default algorithm"
    label: Callable[[Any], str]  # describes a value other than the default
    default_label: str = ""  # describes the default; by default "default" and the words if it is None
    help: str  # of its option on the command line
    requires: str = ""  # the fact of `Capabilities` that must be "yes"
    least: int | None = None  # the smallest number; None if it is checked otherwise
    takes_several: bool = True  # whether a plan can have several values
    is_tuned: bool = True  # whether `tune` looks for its best value
    is_chosen_by_library: bool = True  # whether None, as the default, means that the library chose

    @property
    def kind(self) -> type[int] | type[str]:
        """The type of its values."""
        return int if self.dtype == "Int64" else str


def _option(default: Any, **facts: Any) -> Any:
    return field(default=default, metadata={"option": Option(**facts)})


def _ctas(bound: str) -> Callable[[int], str]:
    return lambda value: f"at {bound} {value} CTA{'' if value == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of one call. None means that the library chooses, or that a function makes its own calls."""

    # This is the table of options. A new one is a field here, in `OptionArguments` and in `PlannedOptions`.

    buffers: Buffers | None = _option(  # noqa: RUF009  # which returns a field
        "plain",
        text="plain, registered or symmetric (a window that all ranks of the group have registered). "
        "Missing if unknown.",
        words="buffers",
        label=lambda value: f"{value} buffers",
        default_label="plain buffers",
        help="plain, registered or symmetric buffers",
    )
    algorithm: str | None = _option(
        None,
        text="The algorithm that the calls had to use. Missing if the library chose.",
        words="algorithm",
        label=str,
        help="algorithms of NCCL, such as ring",
        requires=CONFIGURABLE,
    )
    protocol: str | None = _option(
        None,
        text="The protocol that the calls had to use: ll, ll128 or simple. Missing if NCCL chose.",
        words="protocol",
        label=lambda value: str(value).upper(),
        help="protocols of NCCL: ll, ll128 or simple",
        requires=CONFIGURABLE,
    )
    min_ctas: int | None = _option(
        None,
        dtype="Int64",
        text="Minimum number of NCCL's thread blocks. Missing if NCCL chose.",
        words="minimum of CTAs",
        label=_ctas("least"),
        help="minimum numbers of NCCL's thread blocks",
        requires=CONFIGURABLE,
    )
    max_ctas: int | None = _option(
        None,
        dtype="Int64",
        text="Maximum number of NCCL's thread blocks. Missing if NCCL chose.",
        words="maximum of CTAs",
        label=_ctas("most"),
        help="maximum numbers of NCCL's thread blocks",
        requires=CONFIGURABLE,
    )
    cta_policy: str | None = _option(
        None,
        text="NCCL's policy for thread blocks: default, efficiency or zero. Missing if not set.",
        words="CTA policy",
        label=lambda value: f"CTA policy {value}",
        help="NCCL's policies for thread blocks: default, efficiency or zero",
        requires=CONFIGURABLE,
    )
    alignment_bytes: int | None = _option(
        0,
        dtype="Int64",
        text="Offset in bytes of both buffers from an aligned address: nccl-tests' -u times the element size. "
        "Missing if unknown.",
        words="alignment",
        label=lambda value: f"{value} B off alignment",
        default_label="aligned",
        help="offset of the buffers from an aligned address, in bytes",
        takes_several=False,
        is_tuned=False,
    )
    n_aggregated: int | None = _option(
        1,
        dtype="Int64",
        text="Number of calls that were issued together as one group (-m of nccl-tests). The time is that of one "
        "of them. Missing if unknown.",
        words="aggregation",
        label=lambda value: f"{value} calls together",
        default_label="separate calls",
        help="number of calls that are issued together as one group",
        least=1,
        takes_several=False,
        is_tuned=False,
    )
    traffic: str | None = _option(
        None,
        text=f"Name of the traffic of an {COUNTED}, such as even or zipf 1.2. Missing for other collectives, and if "
        "unknown.",
        words="traffic",
        label=lambda value: f"{value} traffic",
        default_label="equal chunks",
        help=f"traffics of {COUNTED}: even, zipf:1.2, zipf:1.2:SEED, spread:0.5, or a file with a matrix of bytes as "
        "for nccl-tests",
        is_tuned=False,
        is_chosen_by_library=False,
    )


class OptionArguments(TypedDict, total=False):
    """The options as arguments of a plan, each with one value or several."""

    buffers: str | Sequence[str]
    algorithm: str | Sequence[str | None] | None
    protocol: str | Sequence[str | None] | None
    min_ctas: int | Sequence[int | None] | None
    max_ctas: int | Sequence[int | None] | None
    cta_policy: str | Sequence[str | None] | None
    alignment_bytes: int
    n_aggregated: int
    traffic: TrafficLike | Sequence[TrafficLike | None] | None


@dataclass(frozen=True, init=False, repr=False)
class PlannedOptions:
    """The options as fields of a plan, each with all of its values."""

    buffers: tuple[Buffers, ...]
    algorithm: tuple[str | None, ...]
    protocol: tuple[str | None, ...]
    min_ctas: tuple[int | None, ...]
    max_ctas: tuple[int | None, ...]
    cta_policy: tuple[str | None, ...]
    alignment_bytes: int
    n_aggregated: int
    traffic: tuple[Traffic | None, ...]


CALL_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {item.name: item.metadata["option"] for item in fields(CallOptions)}
)
"""The facts about each option, by its name."""

OPTIONS: Mapping[str, Any] = MappingProxyType({item.name: item.default for item in fields(CallOptions)})
"""The columns of the options of a call, with their defaults. None means that the library chose."""

UNKNOWN_IF_MISSING = frozenset(
    name for name, option in CALL_OPTIONS.items() if OPTIONS[name] is not None or not option.is_chosen_by_library
)
"""The options whose missing value is not a value: it is unknown, or the call has no such option."""


def options_of(source: object) -> dict[str, Any]:
    """Return the options of a step, or of any other object that has them as attributes."""
    return {name: getattr(source, name) for name in OPTIONS}


def repr_with_options(value: Any) -> str:
    """Return the repr of a dataclass that inherits the options, with its own fields first."""
    names = sorted((item.name for item in fields(value) if item.repr), key=lambda name: name in OPTIONS)
    return f"{type(value).__qualname__}({', '.join(f'{name}={getattr(value, name)!r}' for name in names)})"


def option_label(key: str, value: Any) -> str:
    """Describe the value of one option of a call (see `OPTIONS`), or return an empty string for its default."""
    import pandas as pd

    return "" if pd.isna(value) or value == OPTIONS[key] else CALL_OPTIONS[key].label(value)


def option_texts(values: Mapping[str, Any]) -> list[str]:
    """Describe the options of a call that are not the default."""
    labels = (option_label(name, values.get(name)) for name in OPTIONS)
    return [label for label in labels if label]


def option_value(key: str, value: Any) -> str:
    """Describe the value of one option of a call, also if it is the default. None stands for a missing value."""
    option, default = CALL_OPTIONS[key], OPTIONS[key]
    if value == default and option.default_label:
        return option.default_label
    if value is None:
        return f"default {option.words}" if default is None else f"{option.words} unknown"
    return option_label(key, value)
