"""The facts about each backend: its names, its requirements and its capabilities, for all other modules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from meshlab.base._errors import MeshlabError, did_you_mean


@dataclass(frozen=True, slots=True)
class Rates:
    """Assumed latency and bandwidth of a backend: a call takes ``latency_us + size × bus factor / bandwidth_gbs``."""

    latency_us: float  # of the smallest call
    bandwidth_gbs: float  # bus bandwidth of large calls
    data_gbs: float  # rate at which the buffers of a rank are filled and checked
    start_s: float = 0.0  # to start new ranks for another launch


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFacts:
    """The facts about one backend."""

    name: str  # also the source of its results
    synonyms: tuple[str, ...] = ()  # other names that users may give to it, for suggestions
    starts: Literal["mpiexec", "separately", "threads"]  # one mpiexec, a process per rank, threads of the caller
    on_gpus: bool = False  # whether every rank needs a GPU
    enqueues: bool = False  # whether a call returns before it is done, so that a rank that waits has left the call
    # Whether ranks that a fault has blocked can abort, and open the next world in the same process. Otherwise all ranks
    # are replaced.
    survives: bool = False
    opens_beside: bool = False  # whether the ranks of other backends can open it, for groups of a mesh that name it
    libraries: tuple[tuple[str, str], ...] = ()  # modules that it imports, each with the name of its package
    extra: str = ""  # the extra of meshlab with the libraries; empty if they are installed with meshlab
    where: str  # label of the measured system, such as "MPI on this CPU"
    across: str = ""  # the same for ranks on several hosts, with {network}; empty if it names no host
    elsewhere: str = ""  # the same for results of another machine; empty for GPUs, which the results name
    mark: str = ""  # a word that titles of its numbers must contain; empty if they need none
    measures_machine: bool = True  # whether its numbers apply to a machine
    role: str  # a few words on it for the command line
    # The ranks that the workbench offers to start, as the words after their number; {s} is the ending of a plural.
    offer: str = ""
    buffers: tuple[str, ...] = ("plain",)  # the kinds of buffers that a benchmark can use
    variables: tuple[str, ...] = ()  # prefixes of the environment variables of its libraries; empty if unknown
    network_variables: tuple[str, ...] = ()  # variables that choose its interfaces or devices
    interface_prefixes: tuple[str, ...] = ()  # variables with beginnings of the names of its interfaces
    example_variable: str = ""  # a call of `launch` that chooses an algorithm for all calls with a variable, for hints
    why_not_tuned: str  # the reason why it has nothing to tune; empty if `tune` has options for it
    rates: Rates  # conservative: GPUs of one host with NVLink, or a few processes or threads on one CPU
    probed_bytes: int = 4 << 20  # the largest buffers of a step that an estimate always probes
    # The largest message of a rehearsed layer, for backends that take up to a thousand times as long as GPUs.
    rehearsed_bytes: int | None = None

    @property
    def in_process(self) -> bool:
        """Whether the ranks are threads of the caller's process."""
        return self.starts == "threads"

    @property
    def title(self) -> str:
        """The title of its numbers."""
        return self.where if self.measures_machine else f"{self.where}, not a machine's numbers"

    @property
    def caveat(self) -> str:
        """The rest of the sentence "These numbers …" about what its numbers do not apply to. Empty if it has none."""
        if not self.elsewhere:
            return ""
        others = "GPUs or their links" if self.measures_machine else "any machine"
        return f"were measured with {self.elsewhere}. They do not apply to {others}."

    def missing_packages(self) -> list[str]:
        """Return the names of its packages that are not installed. Imports none of them."""
        return [package for module, package in self.libraries if importlib.util.find_spec(module) is None]


_BELOW = (
    *("UCX_", "UCC_", "FI_", "OFI_", "IBV_", "RDMAV_", "MLX4_", "MLX5_", "PSM2_", "PSM3_", "HCOLL_", "SHARP_"),
    *("CUDA_", "HWLOC_", "OMP_", "LD_", "MALLOC_", "GLIBC_TUNABLES", "PYTHON"),
)
"""Prefixes that the libraries below NCCL and MPI read: UCX, UCC, libfabric, rdma-core, PSM, HCOLL, SHARP, CUDA, hwloc
and glibc."""

_BACKENDS = (
    BackendFacts(
        name="nccl",
        synonyms=("cuda", "gpu"),
        starts="separately",
        on_gpus=True,
        enqueues=True,
        survives=True,
        libraries=(("cupy", "CuPy"), ("nccl", "nccl4py")),
        interface_prefixes=("NCCL_SOCKET_IFNAME",),
        where="NCCL",
        role="one GPU per rank",
        offer="GPU{s}, one rank each",
        buffers=("plain", "registered", "symmetric"),
        variables=("NCCL_", *_BELOW),
        example_variable="launch(env={'NCCL_ALGO': 'Ring'})",
        why_not_tuned="",
        rates=Rates(15.0, 200.0, 100.0, 8.0),
        probed_bytes=64 << 20,
    ),
    BackendFacts(
        name="mpi",
        starts="mpiexec",
        libraries=(("mpi4py", "mpi4py"),),
        where="MPI on this CPU",
        across="MPI over {network}",
        elsewhere="MPI on a CPU",
        mark="MPI",
        role="processes",
        offer="MPI ranks on this CPU",
        variables=(
            *("MPIR_", "MPICH_", "MPIEXEC_", "HYDRA_", "PMI_", "OMPI_", "OPAL_", "PMIX_", "PRTE_", "I_MPI_", "MV2_"),
            *_BELOW,
        ),
        network_variables=("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "OMPI_MCA_btl_tcp_if_include"),
        example_variable="launch(env={'MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM': 'ring'}) of MPICH",
        why_not_tuned="",
        rates=Rates(10.0, 1.5, 0.5, 4.0),
        rehearsed_bytes=4 << 20,
    ),
    BackendFacts(
        name="gloo",
        synonyms=("torch", "cpu"),
        starts="separately",
        opens_beside=True,
        libraries=(("torch", "torch"),),
        extra="gloo",
        where="Gloo on this CPU",
        across="Gloo over {network}",
        elsewhere="Gloo on a CPU",
        mark="Gloo",
        role="processes, with Gloo",
        network_variables=("GLOO_SOCKET_IFNAME",),
        why_not_tuned="Gloo chooses its algorithms without settings",
        rates=Rates(150.0, 0.6, 0.5, 8.0),
    ),
    BackendFacts(
        name="threads",
        synonyms=("thread",),
        starts="threads",
        where="threads in this process",
        elsewhere="threads in one process",
        mark="threads",
        measures_machine=False,
        role="in this process, for experiments",
        offer="threads, for experiments",
        why_not_tuned="threads have one algorithm per collective",
        rates=Rates(100.0, 1.0, 0.5),
        rehearsed_bytes=1 << 20,
    ),
)

BACKENDS: Mapping[str, BackendFacts] = MappingProxyType({facts.name: facts for facts in _BACKENDS})
"""All backends by name, in the order in which ``backend="auto"`` prefers them."""

BACKEND_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {synonym: facts.name for facts in _BACKENDS for synonym in facts.synonyms}
)
"""Names that users may give to backends, for suggestions."""

GPU_BACKENDS = tuple(facts.name for facts in _BACKENDS if facts.on_gpus)
"""The backends that run on GPUs."""

CPU_BACKENDS = tuple(facts.name for facts in _BACKENDS if not facts.on_gpus)
"""The backends that run on a CPU."""

PROCESS_BACKENDS = tuple(facts.name for facts in _BACKENDS if not facts.in_process)
"""The backends whose ranks are processes."""

FRAMEWORK_BACKENDS = ("ccl", "fake", "hccl", "ucc", "xccl", "xla")
"""Backends of frameworks that a mesh may name, although engines cannot open them."""


def package_version(package: str) -> str:
    """Return the version of an installed package, or "unknown"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def automatic_backend(*, has_gpus: bool) -> str:
    """Return the backend that ``"auto"`` stands for. `has_gpus`: every rank has a GPU, with its packages installed."""
    return next(facts.name for facts in _BACKENDS if has_gpus or not facts.on_gpus)


def openable_backends(engines: str) -> tuple[str, ...]:
    """Return the backends that the ranks of a backend can open: their own, and those that open next to it."""
    return tuple(dict.fromkeys((engines, *(facts.name for facts in _BACKENDS if facts.opens_beside))))


def choice_text(names: Iterable[str], word: str = "or") -> str:
    """Write names as a choice, each in quotation marks."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} {word} {last}" if others else last


def check_backend(
    name: object, error: type[MeshlabError], *, names: Collection[str] = tuple(BACKENDS), what: str = "backend"
) -> None:
    """Raise an error of a class unless a name is that of a backend. `what` is the subject of the message."""
    if name not in names:
        similar = did_you_mean(name, names, synonyms=BACKEND_SYNONYMS)
        raise error(f"unknown {what} {name!r}{similar}", hint=f"choose one of {', '.join(names)}")
