"""The options among which a tuning searches: those of one call, and those that the environment of a process chooses."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshlab.base._collectives import MPI_FUNCTIONS, NCCL_FUNCTIONS, NcclFunction
from meshlab.base._errors import BenchError, did_you_mean
from meshlab.comm._backend import CONFIGURABLE, Buffers, Capabilities
from meshlab.comm._windows import why_not_symmetric
from meshlab.frames._trials import OPTION, option_label

if TYPE_CHECKING:
    from meshlab.plans._steps import Step

OPTION_NAMES = tuple(name for name in OPTION if name != "setting")
"""The choices of an option for one call."""

_MIN_CTAS, _MAX_CTAS = (16, 32, 64), (1, 2, 4, 8, 16, 32)

_WIDE_BYTES = 1 << 20
"""The size from which NCCL uses enough thread blocks by default that a larger minimum can make a difference."""

_SMALL_BYTES = 1 << 14
"""The size below which NCCL needs one thread block, so that a higher limit cannot make a difference."""


@dataclass(frozen=True, slots=True)
class TuningOption:
    """One way to run a collective, with the fields of a tuning's trials. Without any choice it is the default."""

    setting: str | None = None
    """Name of the environment of the processes. None for that of the engines."""
    buffers: Buffers = "plain"
    algorithm: str | None = None
    protocol: str | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    cta_policy: str | None = None

    @property
    def is_default(self) -> bool:
        """True if the library chooses everything."""
        return self == TuningOption()

    @property
    def is_capped(self) -> bool:
        """True if the option limits the bandwidth, so that it falls further behind the larger a message is."""
        return self.max_ctas is not None or self.protocol == "ll"

    def apply_to(self, step: Step) -> Step:
        """Return the step with this option."""
        return replace(step, **{name: getattr(self, name) for name in OPTION_NAMES})

    def __str__(self) -> str:
        return option_label(asdict(self))


# An algorithm of NCCL that a group of GPUs does not support is an error of the call, and becomes a row with that error.
_WITH_PROTOCOLS = ("ring", "tree")
"""The algorithms that have all protocols, and can be chosen without one. The others are always simple."""

_NEEDS_HOSTS = ("pat", "collnet_direct", "collnet_chain")
"""The algorithms for groups of several hosts: two of them for switches that reduce, and one for one GPU per host."""

_NEEDS_MULTICAST = ("nvls", "nvlstree")

# Variables of NCCL's documentation: NCCL_ALGO and NCCL_PROTO since 2.5, NCCL_MIN_CTAS and NCCL_MAX_CTAS since 2.17.
_NCCL_SETTINGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "ring": {"NCCL_ALGO": "Ring"},
        "tree": {"NCCL_ALGO": "Tree"},
        "ll": {"NCCL_PROTO": "LL"},
        "ll128": {"NCCL_PROTO": "LL128"},
        "simple": {"NCCL_PROTO": "Simple"},
        "at least 32 CTAs": {"NCCL_MIN_CTAS": "32"},
        "at most 16 CTAs": {"NCCL_MAX_CTAS": "16"},
        "at most 8 CTAs": {"NCCL_MAX_CTAS": "8"},
        "at most 4 CTAs": {"NCCL_MAX_CTAS": "4"},
    }
)
_SETTING_OPTION = {
    "NCCL_ALGO": "algorithm",
    "NCCL_PROTO": "protocol",
    "NCCL_MIN_CTAS": "min_ctas",
    "NCCL_MAX_CTAS": "max_ctas",
}


def _is_nccl(capabilities: Capabilities) -> bool:
    """Return whether the options are those of NCCL. Otherwise they are those of MPICH."""
    return capabilities.backend == "nccl"


def chooses_per_call(capabilities: Capabilities) -> bool:
    """Return True if the library can choose algorithms and numbers of thread blocks for each call."""
    return capabilities.facts.get(CONFIGURABLE, "").startswith("yes")


def known_options(capabilities: Capabilities, collectives: Collection[str]) -> tuple[str, ...]:
    """Return the names to which the options of a tuning can be restricted."""
    if not _is_nccl(capabilities):
        functions = [MPI_FUNCTIONS[collective] for collective in collectives if collective in MPI_FUNCTIONS]
        names = [name for function in functions for name in function.mpich]
        return tuple(dict.fromkeys((*names, "no device", "release_gather")))
    names = list(OPTION_NAMES)
    for collective in collectives:
        names += [*_function(collective).algorithms, *settings_for(capabilities, collective)]
    return tuple(dict.fromkeys(names))


def check_options(only: Sequence[str] | None, capabilities: Capabilities, collectives: Collection[str]) -> None:
    """Raise unless all names are known options."""
    choices = known_options(capabilities, collectives)
    for name in only or ():
        if name not in choices:
            raise BenchError(
                f"unknown option {name!r}{did_you_mean(name, choices)}; {capabilities.backend} has {', '.join(choices)}"
            )
    if only is not None and not only:
        raise BenchError("options is empty, so there is nothing to try", hint=f"choose from {', '.join(choices)}")


def options_for(
    capabilities: Capabilities,
    collective: str,
    size_bytes: int,
    *,
    only: Collection[str] | None = None,
    n_hosts: int = 1,
) -> list[TuningOption]:
    """Return the options of one call that can differ at its size, the default first, and simpler ones earlier."""
    if not _is_nccl(capabilities):
        return [TuningOption()]
    has_windows = not why_not_symmetric(capabilities)
    options = [TuningOption(), TuningOption(buffers="registered")]
    if has_windows:
        options.append(TuningOption(buffers="symmetric"))
    if chooses_per_call(capabilities) and collective != "send_recv":  # messages have no configuration
        has_multicast = capabilities.facts.get("NVLS multicast") != "no"
        missing = {*(() if has_multicast else _NEEDS_MULTICAST), *(_NEEDS_HOSTS if n_hosts == 1 else ())}
        algorithms = [name for name in _function(collective).algorithms if name not in missing]
        options += _plain(size_bytes, algorithms)
        if has_windows:
            options += _symmetric(collective, size_bytes, has_multicast)
    return [option for option in dict.fromkeys(options) if only is None or _may_be(option, only)]


def _function(collective: str) -> NcclFunction:
    """Return the function of NCCL. Functions of a user and messages have none, and no choices."""
    return NCCL_FUNCTIONS.get(collective, _NO_FUNCTION)


_NO_FUNCTION = NcclFunction(name="")


def _plain(size_bytes: int, algorithms: Sequence[str]) -> Iterator[TuningOption]:
    for algorithm in algorithms:
        if algorithm in _WITH_PROTOCOLS:
            yield TuningOption(algorithm=algorithm)
            yield from (TuningOption(algorithm=algorithm, protocol=protocol) for protocol in ("ll", "ll128", "simple"))
        else:
            yield TuningOption(algorithm=algorithm, protocol="simple")
    yield TuningOption(cta_policy="efficiency")
    for max_ctas in _MAX_CTAS:
        if size_bytes >= _SMALL_BYTES or max_ctas == 1:
            yield TuningOption(max_ctas=max_ctas)
    for min_ctas in _MIN_CTAS:
        if size_bytes >= _WIDE_BYTES or (size_bytes >= _SMALL_BYTES and min_ctas == 32):
            yield TuningOption(min_ctas=min_ctas)
    if size_bytes >= _WIDE_BYTES and "tree" in algorithms:
        yield TuningOption(algorithm="tree", min_ctas=32)


def _symmetric(collective: str, size_bytes: int, has_multicast: bool) -> Iterator[TuningOption]:
    function = _function(collective)
    kernels = [kernel for kernel in function.kernels if has_multicast or "MC" not in kernel]
    yield from (TuningOption(buffers="symmetric", algorithm=kernel) for kernel in kernels)
    if function.has_copy_engines:
        yield TuningOption(buffers="symmetric", cta_policy="zero")
    if not function.kernels:
        return
    yield from (TuningOption(buffers="symmetric", max_ctas=max_ctas) for max_ctas in _MAX_CTAS)
    if size_bytes >= _WIDE_BYTES:
        for kernel, max_ctas in itertools.product(kernels, (8, 16)):
            if "LL" not in kernel:  # for small messages
                yield TuningOption(buffers="symmetric", algorithm=kernel, max_ctas=max_ctas)
        yield TuningOption(buffers="symmetric", min_ctas=32)


def _may_be(option: TuningOption, only: Collection[str]) -> bool:
    """Return True if an option varies only the allowed choices."""
    default = TuningOption()
    names = [field.name for field in fields(option)]
    varied = [name for name in names if getattr(option, name) != getattr(default, name)]
    is_named = option.algorithm is not None and option.algorithm in only
    return all(name in only or (name in ("algorithm", "protocol") and is_named) for name in varied)


def settings_for(
    capabilities: Capabilities, collective: str, *, only: Collection[str] | None = None
) -> dict[str, dict[str, str]]:
    """Return the environments to try for a collective, by name, for choices that the library cannot make per call."""
    if _is_nccl(capabilities):
        if chooses_per_call(capabilities) or collective == "send_recv":
            return {}
        return {
            name: dict(variables)
            for name, variables in _NCCL_SETTINGS.items()
            if (name != "tree" or collective == "all_reduce")
            and (only is None or {name, *(_SETTING_OPTION[variable] for variable in variables)} & {*only})
        }
    function = MPI_FUNCTIONS.get(collective)
    if function is None or not function.mpich:
        return {}
    part = function.in_variables
    # The device has its own algorithms, which would override those of the collective.
    base = {f"MPIR_CVAR_{part}_DEVICE_COLLECTIVE": "0"}
    settings = {"no device": base}
    settings |= {name: base | {f"MPIR_CVAR_{part}_INTRA_ALGORITHM": name} for name in function.mpich}
    if function.in_shared_memory:
        settings["release_gather"] = {f"MPIR_CVAR_{part}_POSIX_INTRA_ALGORITHM": "release_gather"}
    return {name: variables for name, variables in settings.items() if only is None or name in only}
