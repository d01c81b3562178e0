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
from meshlab.frames._trials import option_label

if TYPE_CHECKING:
    from meshlab.plans._steps import Step


OPTION_NAMES = ("buffers", "algorithm", "protocol", "min_ctas", "max_ctas", "cta_policy")
"""What an option can choose for one call."""

_MIN_CTAS, _MAX_CTAS = (16, 32, 64), (1, 2, 4, 8, 16, 32)

_WIDE_BYTES = 1 << 20
"""The size from which NCCL uses so many thread blocks on its own that a larger minimum can make a difference."""

_SMALL_BYTES = 1 << 14
"""The size below which NCCL needs one thread block, so that a higher limit cannot make a difference."""


@dataclass(frozen=True, slots=True)
class TuningOption:
    """One way to run a collective. Without any choice it is the default.

    The fields have the names of the columns of a tuning's trials.

    Parameters
    ----------
    setting : str, optional
        Name of the environment of the processes. None for the environment that the engines have anyway.
    buffers : {"plain", "registered", "symmetric"}, default "plain"
        The kind of buffers, see `meshlab.comm.BUFFERS`.
    algorithm, protocol, cta_policy : str, optional
        The algorithm, the protocol and the policy for thread blocks of NCCL. By default NCCL chooses.
    min_ctas, max_ctas : int, optional
        Minimum and maximum number of NCCL's thread blocks. By default NCCL chooses.
    """

    setting: str | None = None
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


# An algorithm of NCCL that a group of GPUs does not support is an error of the call, and becomes a row that says so.
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
_SETTING_OPTION = {"NCCL_ALGO": "algorithm", "NCCL_PROTO": "protocol", "NCCL_MIN_CTAS": "min_ctas"}


def _is_nccl(capabilities: Capabilities) -> bool:
    """Return whether the options are those of NCCL. Otherwise they are those of MPICH."""
    return capabilities.backend == "nccl"


def chooses_per_call(capabilities: Capabilities) -> bool:
    """Return True if the library can choose algorithms and numbers of thread blocks for each call."""
    return capabilities.facts.get(CONFIGURABLE, "").startswith("yes")


def known_options(capabilities: Capabilities, collectives: Collection[str]) -> tuple[str, ...]:
    """Return the names to which the options of a tuning can be restricted."""
    if not _is_nccl(capabilities):
        names = (name for one in collectives if one in MPI_FUNCTIONS for name in MPI_FUNCTIONS[one].mpich)
        return tuple(dict.fromkeys((*names, "no device", "release_gather")))
    known = [name for one in collectives for name in (*_function(one).algorithms, *settings_for(capabilities, one))]
    return (*OPTION_NAMES, *dict.fromkeys(known))


def check_options(only: Sequence[str] | None, capabilities: Capabilities, collectives: Collection[str]) -> None:
    """Raise unless all names are known options."""
    known = known_options(capabilities, collectives)
    for name in only or ():
        if name not in known:
            raise BenchError(
                f"unknown option {name!r}{did_you_mean(name, known)}; {capabilities.backend} has {', '.join(known)}"
            )
    if only is not None and not only:
        raise BenchError("options is empty, so there is nothing to try", hint=f"choose from {', '.join(known)}")


def options_for(
    capabilities: Capabilities,
    collective: str,
    size_bytes: int,
    *,
    only: Collection[str] | None = None,
    n_hosts: int = 1,
) -> list[TuningOption]:
    """Return the options of one call within one set of processes, the default first, and simpler ones earlier.

    Parameters
    ----------
    capabilities : Capabilities
        The capabilities of the engines.
    collective : str
        Name of the collective.
    size_bytes : int
        The message size in bytes. Options that cannot differ from another one at this size are left out.
    only : collection of str, optional
        The choices that may vary, of `OPTION_NAMES`, and algorithms by name. By default all of them.
    n_hosts : int, default 1
        The number of hosts of the engines.

    Examples
    --------
    >>> can = Capabilities("nccl", "NCCL 2.28.9", "", "", (), (), (), (), True, {"symmetric memory": "yes"})
    >>> [str(option) for option in options_for(can, "all_reduce", 1024)]
    ['default', 'registered buffers', 'symmetric window']
    >>> can.facts["algorithm choice per call"] = "yes"
    >>> len(options_for(can, "all_reduce", 1 << 20, only=["max_ctas"]))
    7
    """
    if not _is_nccl(capabilities):
        return [TuningOption()]
    has_windows = not why_not_symmetric(capabilities)
    found = [TuningOption(), TuningOption(buffers="registered")]
    if has_windows:
        found.append(TuningOption(buffers="symmetric"))
    if chooses_per_call(capabilities) and collective != "send_recv":  # a message has no configuration of its own
        has_multicast = capabilities.facts.get("NVLS multicast") != "no"
        missing = {*(() if has_multicast else _NEEDS_MULTICAST), *(_NEEDS_HOSTS if n_hosts == 1 else ())}
        found += _plain(size_bytes, [one for one in _function(collective).algorithms if one not in missing])
        if has_windows:
            found += _symmetric(collective, size_bytes, has_multicast)
    return [option for option in dict.fromkeys(found) if only is None or _may_be(option, only)]


def _function(collective: str) -> NcclFunction:
    """Return the function of NCCL. Functions of a user and messages have none, and no choices."""
    return NCCL_FUNCTIONS.get(collective, _NO_FUNCTION)


_NO_FUNCTION = NcclFunction(name="")


def _plain(size_bytes: int, algorithms: Sequence[str]) -> Iterator[TuningOption]:
    for algorithm in algorithms:
        if algorithm in _WITH_PROTOCOLS:
            yield TuningOption(algorithm=algorithm)
            yield from (TuningOption(algorithm=algorithm, protocol=one) for one in ("ll", "ll128", "simple"))
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
    kernels = [one for one in function.kernels if has_multicast or "MC" not in one]
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
    """Return True if an option varies nothing but what is allowed."""
    default = TuningOption()
    varied = [one.name for one in fields(option) if getattr(option, one.name) != getattr(default, one.name)]
    is_named = option.algorithm is not None and option.algorithm in only
    return all(name in only or (name in ("algorithm", "protocol") and is_named) for name in varied)


def settings_for(
    capabilities: Capabilities, collective: str, *, only: Collection[str] | None = None
) -> dict[str, dict[str, str]]:
    """Return the environments to try for a collective, by name: what the library cannot choose for each call.

    Parameters
    ----------
    capabilities : Capabilities
        The capabilities of the engines.
    collective : str
        Name of the collective.
    only : collection of str, optional
        The names of the choices or algorithms to try. By default all of them.

    Examples
    --------
    >>> can = Capabilities("mpi", "MPICH 5.0.2", "", "", (), (), (), (), True)
    >>> settings_for(can, "all_reduce", only=["ring"])
    {'ring': {'MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE': '0', 'MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM': 'ring'}}
    """
    if _is_nccl(capabilities):
        if chooses_per_call(capabilities) or collective == "send_recv":
            return {}
        return {
            name: dict(variables)
            for name, variables in _NCCL_SETTINGS.items()
            if (name != "tree" or collective == "all_reduce")
            and (only is None or name in only or any(_SETTING_OPTION.get(one, "max_ctas") in only for one in variables))
        }
    function = MPI_FUNCTIONS.get(collective)
    if function is None or not function.mpich:
        return {}
    part = function.in_variables
    # The device has its own algorithms, which would override those of the collective.
    base = {f"MPIR_CVAR_{part}_DEVICE_COLLECTIVE": "0"}
    found = {"no device": base}
    found |= {name: base | {f"MPIR_CVAR_{part}_INTRA_ALGORITHM": name} for name in function.mpich}
    if function.in_shared_memory:
        found["release_gather"] = {f"MPIR_CVAR_{part}_POSIX_INTRA_ALGORITHM": "release_gather"}
    return {name: variables for name, variables in found.items() if only is None or name in only}
