"""The facts about each collective, for all other modules: its buffers, its bytes, and its names in other programs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Direction = Literal["sends", "receives"]
Elements = Literal["count", "count x n", "nothing"]

Share = Callable[[int], float]
"""A part of the size S of a call (of nccl-tests), by the number of ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class RankShares:
    """The bytes of a call as shares of its size S, for the busiest rank in each direction, over all channels."""

    # By the number of ranks of the group, or with NVLS of one NVLink domain
    sends: Share
    receives: Share

    def busiest(self, n: int) -> float:
        """Return the larger of the two shares, which limits a link with two directions."""
        return max(self.sends(n), self.receives(n))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclFunction:
    """The function of NCCL that runs a collective."""

    name: str  # without "nccl", as in NCCL's log and in NCCL_ALGO
    algorithms: tuple[str, ...] = ()  # among which NCCL's tuner chooses; empty if NCCL has no choice
    kernels: tuple[str, ...] = ()  # for symmetric memory of one NVLink domain; MC is the multicast of NVSwitch
    has_copy_engines: bool = False  # whether copy engines can run the call, on symmetric memory
    nccl4py: str | None = None  # the method of nccl4py's Communicator that takes a configuration

    @property
    def is_tuned(self) -> bool:
        """True if NCCL's tuner chooses the algorithm."""
        return bool(self.algorithms)

    @property
    def in_plugins(self) -> str:
        """The name in the configuration of NCCL's example of a tuner plugin."""
        return self.name.lower()

    @property
    def in_bindings(self) -> str:
        """The name in nccl4py's low-level bindings, such as ``allto_all``."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NcclTest:
    """The program of nccl-tests that measures a collective."""

    program: str  # without "_perf"
    may_print_op: bool = False  # whether a version prints an operation, although the collective does not reduce
    had_op_column: bool = False  # whether the layout before 2.13 has an empty column for it
    prints_own_rates: bool = False  # whether bandwidths are of other bytes than the size, such as the busiest rank's


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MpiFunction:
    """The function of MPI that runs a collective."""

    name: str  # without "MPI_"
    # The algorithms within one communicator of MPICH 4 and 5, from the descriptions that the library contains. "smp",
    # "auto" and algorithms of other libraries are missing, because they choose among the others.
    mpich: tuple[str, ...] = ()
    in_shared_memory: bool = False  # whether MPICH also has an algorithm in shared memory

    @property
    def in_variables(self) -> str:
        """The name in MPICH's control variables."""
        return self.name.upper()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchFunctions:
    """The functions of torch.distributed that run a collective, by their names in Python."""

    names: tuple[str, ...]
    is_even: bool = False  # whether all ranks must pass the same number of elements


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveFacts:
    """Description of a collective."""

    name: str  # in snake case
    sends: Elements = "count"  # elements of the input, in terms of the call's count and the group size n
    receives: Elements = "count"  # elements of the output
    only_root: Direction | None = None  # the buffer that only the root has
    reduces: bool = False  # whether it takes a reduce operation
    rooted: bool = False  # whether it takes a root
    peers: tuple[str, ...] = ()  # the arguments that name other ranks, "dest" and "source": only these take part
    counted: bool = False  # whether every chunk has its own count; `sends` and `receives` then apply to equal counts
    in_place: bool = False  # whether the smaller buffer may be this rank's chunk of the larger one
    synchronises: bool = False  # whether no rank can leave before all ranks have entered
    bus_factor: Share  # busbw / algbw for n ranks, as defined in nccl-tests' PERFORMANCE.md
    # By algorithm: ring, tree, nvls, nvls_tree, pat, or p2p for messages between the ranks
    traffic: Mapping[str, RankShares] = field(default_factory=lambda: MappingProxyType({}))
    is_composed: bool = False  # whether meshlab composes it of other calls, on a backend that does not have it
    is_modelled: bool = False  # whether there is a model of its time
    like: str | None = None  # the collective with a model whose time is the nearest
    axes: tuple[str, ...] = ()  # usual names of mesh axes whose groups call mainly this collective
    # The names and properties in other programs; None if they lack the collective
    nccl: NcclFunction | None = None
    nccl_test: NcclTest | None = None
    mpi: MpiFunction | None = None
    torch: TorchFunctions | None = None
    summary: str

    @property
    def is_configurable(self) -> bool:
        """True if NCCL has a configuration for the call. It runs the others as messages."""
        return not self.peers and not self.counted and self.is_measurable and not self.is_composed

    @property
    def is_measurable(self) -> bool:
        """True if a single call moves data in and out, so that it has a size and a bandwidth."""
        return self.sends != "nothing" and self.receives != "nothing"

    @property
    def has_size(self) -> bool:
        """True if the call moves data, on one side or on both. A barrier does not."""
        return self.sends != "nothing" or self.receives != "nothing"

    @property
    def has_total_size(self) -> bool:
        """True if the size S is the total over ranks, as in nccl-tests."""
        return "count x n" in (self.sends, self.receives)

    @property
    def is_paired(self) -> bool:
        """True if two ranks alone can be measured with it: one message, or one in each direction."""
        return "dest" in self.peers

    def has(self, side: Direction, is_root: bool = True) -> bool:
        """Return True if a rank has an input (``"sends"``) or an output (``"receives"``)."""
        kind = self.sends if side == "sends" else self.receives
        return kind != "nothing" and (is_root or side != self.only_root)

    def elements(self, side: Direction, count: int, n: int) -> int:
        """Return the number of elements of a rank's input (``"sends"``) or output (``"receives"``)."""
        kind = self.sends if side == "sends" else self.receives
        return count if kind == "count" else count * n if kind == "count x n" else 0

    def count_for(self, size_bytes: int, itemsize: int, n: int) -> int:
        """Return the count for a size S in bytes, rounded down to complete elements, but at least 1."""
        return max(1, size_bytes // (itemsize * self._ranks_in_size(n)))

    def size_bytes(self, count: int, itemsize: int, n: int) -> int:
        """Return the size S of a call, in bytes. The inverse of `count_for`."""
        return count * itemsize * self._ranks_in_size(n)

    def _ranks_in_size(self, n: int) -> int:
        return n if self.has_total_size else 1


@dataclass(frozen=True, slots=True)
class _Share:
    """A constant part of a size, and a part that is divided by the number of ranks."""

    whole: float
    chunks: float = 0.0

    def __call__(self, n: int) -> float:
        return (self.whole * n + self.chunks) / n


_ALL = _Share(1)
_NOTHING = _Share(0)
_OTHERS = _Share(1, -1)
_OTHERS_TWICE = _Share(2, -2)
_CHUNK = _Share(0, 1)
_ALL_AND_CHUNK = _Share(1, 1)
_UNDEFINED = _Share(math.nan)


def _traffic(**algorithms: RankShares) -> Mapping[str, RankShares]:
    return MappingProxyType(algorithms)


_COLLECTIVES = (
    CollectiveFacts(
        name="all_reduce",
        reduces=True,
        in_place=True,
        synchronises=True,
        bus_factor=_OTHERS_TWICE,
        traffic=_traffic(
            ring=RankShares(_OTHERS_TWICE, _OTHERS_TWICE),
            # Up and down a chain of n ranks, whose ends differ between the channels.
            tree=RankShares(_OTHERS_TWICE, _OTHERS_TWICE),
            # NVSwitch reads the whole input of a rank to reduce it, and a rank sends its reduced chunk once.
            nvls=RankShares(_ALL_AND_CHUNK, _ALL_AND_CHUNK),
            nvls_tree=RankShares(_ALL_AND_CHUNK, _ALL_AND_CHUNK),
        ),
        is_modelled=True,
        nccl=NcclFunction(
            name="AllReduce",
            algorithms=("ring", "tree", "nvls", "nvlstree", "collnet_direct", "collnet_chain"),
            kernels=(
                *("SYMK_AGxLL_R", "SYMK_AGxLLMC_R", "SYMK_RSxLD_AGxST", "SYMK_RSxLDMC_AGxSTMC"),
                "SYMK_RSxTmaLD_AGxTmaST",
            ),
            nccl4py="allreduce",
        ),
        nccl_test=NcclTest(program="all_reduce"),
        mpi=MpiFunction(
            name="Allreduce",
            mpich=(
                *("recursive_doubling", "recursive_multiplying", "reduce_scatter_allgather"),
                *("k_reduce_scatter_allgather", "recexch", "ring", "tree", "nb"),
            ),
            in_shared_memory=True,
        ),
        torch=TorchFunctions(names=("all_reduce", "all_reduce_coalesced"), is_even=True),
        summary="Reduces the inputs of all ranks. Every rank receives the result.",
    ),
    CollectiveFacts(
        name="all_gather",
        receives="count x n",
        in_place=True,
        synchronises=True,
        bus_factor=_OTHERS,
        traffic=_traffic(
            ring=RankShares(_OTHERS, _OTHERS), nvls=RankShares(_CHUNK, _ALL), pat=RankShares(_OTHERS, _OTHERS)
        ),
        is_modelled=True,
        nccl=NcclFunction(
            name="AllGather",
            algorithms=("ring", "pat", "nvls", "collnet_direct"),
            kernels=("SYMK_LL", "SYMK_LLMC", "SYMK_ST", "SYMK_STMC", "SYMK_TmaST", "SYMK_TmaSTMC"),
            has_copy_engines=True,
            nccl4py="allgather",
        ),
        nccl_test=NcclTest(program="all_gather"),
        mpi=MpiFunction(
            name="Allgather",
            mpich=(*("recursive_doubling", "ring", "brucks", "k_brucks", "recexch_doubling", "recexch_halving"), "nb"),
        ),
        torch=TorchFunctions(
            names=(
                *("all_gather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced"),
                *("all_gather_coalesced", "all_gather_object"),
            ),
            is_even=True,
        ),
        summary="Concatenates the inputs of all ranks on every rank.",
    ),
    CollectiveFacts(
        name="reduce_scatter",
        sends="count x n",
        reduces=True,
        in_place=True,
        synchronises=True,
        bus_factor=_OTHERS,
        traffic=_traffic(
            ring=RankShares(_OTHERS, _OTHERS), nvls=RankShares(_ALL, _CHUNK), pat=RankShares(_OTHERS, _OTHERS)
        ),
        is_modelled=True,
        nccl=NcclFunction(
            name="ReduceScatter",
            algorithms=("ring", "pat", "nvls", "collnet_direct"),
            kernels=("SYMK_LL", "SYMK_LD", "SYMK_LDMC", "SYMK_TmaLD"),
            nccl4py="reduce_scatter",
        ),
        nccl_test=NcclTest(program="reduce_scatter"),
        mpi=MpiFunction(
            name="Reduce_scatter_block", mpich=("recursive_halving", "recursive_doubling", "pairwise", "nb")
        ),
        torch=TorchFunctions(
            names=("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"), is_even=True
        ),
        summary="Reduces the inputs of all ranks. Rank i receives chunk i of the result.",
    ),
    CollectiveFacts(
        name="all_to_all",
        sends="count x n",
        receives="count x n",
        synchronises=True,
        bus_factor=_OTHERS,
        traffic=_traffic(p2p=RankShares(_OTHERS, _OTHERS)),
        is_modelled=True,
        axes=("ep",),
        nccl=NcclFunction(name="AlltoAll", has_copy_engines=True, nccl4py="alltoall"),
        nccl_test=NcclTest(program="alltoall", had_op_column=True),
        mpi=MpiFunction(name="Alltoall", mpich=("pairwise", "scattered", "brucks", "k_brucks", "nb")),
        torch=TorchFunctions(names=("all_to_all", "all_to_all_single")),
        summary="Sends chunk i of the input to rank i and receives one chunk from every rank.",
    ),
    CollectiveFacts(
        name="all_to_all_v",
        sends="count x n",
        receives="count x n",
        counted=True,
        synchronises=True,
        bus_factor=_OTHERS,  # for the bytes of the busiest rank
        traffic=_traffic(p2p=RankShares(_OTHERS, _OTHERS)),
        like="all_to_all",
        nccl_test=NcclTest(program="alltoallv", prints_own_rates=True),
        mpi=MpiFunction(name="Alltoallv"),
        summary="Like all_to_all, with a separate size for every chunk.",
    ),
    CollectiveFacts(
        name="broadcast",
        rooted=True,
        in_place=True,
        bus_factor=_ALL,
        traffic=_traffic(ring=RankShares(_ALL, _ALL)),
        is_modelled=True,
        nccl=NcclFunction(name="Broadcast", algorithms=("ring",), nccl4py="broadcast"),
        nccl_test=NcclTest(program="broadcast"),
        mpi=MpiFunction(
            name="Bcast",
            mpich=(
                *("binomial", "tree", "pipelined_tree", "scatter_recursive_doubling_allgather"),
                *("scatter_ring_allgather", "nb"),
            ),
            in_shared_memory=True,
        ),
        torch=TorchFunctions(names=("broadcast",), is_even=True),
        summary="Copies the root's input to every rank.",
    ),
    CollectiveFacts(
        name="reduce",
        only_root="receives",
        reduces=True,
        rooted=True,
        in_place=True,
        bus_factor=_ALL,
        traffic=_traffic(ring=RankShares(_ALL, _ALL)),
        is_modelled=True,
        nccl=NcclFunction(name="Reduce", algorithms=("ring",), nccl4py="reduce"),
        nccl_test=NcclTest(program="reduce"),
        mpi=MpiFunction(name="Reduce", mpich=("binomial", "reduce_scatter_gather", "nb"), in_shared_memory=True),
        torch=TorchFunctions(names=("reduce",), is_even=True),
        summary="Reduces the inputs of all ranks. The root receives the result.",
    ),
    CollectiveFacts(
        name="gather",
        receives="count x n",
        only_root="receives",
        rooted=True,
        in_place=True,
        bus_factor=_OTHERS,
        traffic=_traffic(p2p=RankShares(_CHUNK, _OTHERS)),
        like="all_gather",
        nccl=NcclFunction(name="Gather", has_copy_engines=True),
        nccl_test=NcclTest(program="gather"),
        mpi=MpiFunction(name="Gather", mpich=("binomial", "nb")),
        torch=TorchFunctions(names=("gather",)),
        summary="Concatenates the inputs of all ranks on the root.",
    ),
    CollectiveFacts(
        name="scatter",
        sends="count x n",
        only_root="sends",
        rooted=True,
        in_place=True,
        bus_factor=_OTHERS,
        traffic=_traffic(p2p=RankShares(_OTHERS, _CHUNK)),
        like="all_gather",
        nccl=NcclFunction(name="Scatter", has_copy_engines=True),
        nccl_test=NcclTest(program="scatter"),
        mpi=MpiFunction(name="Scatter", mpich=("binomial", "nb")),
        torch=TorchFunctions(names=("scatter",)),
        summary="Sends chunk i of the root's input to rank i.",
    ),
    CollectiveFacts(
        name="send",
        receives="nothing",
        peers=("dest",),
        bus_factor=_ALL,
        traffic=_traffic(p2p=RankShares(_ALL, _NOTHING)),
        like="send_recv",
        nccl=NcclFunction(name="Send"),
        mpi=MpiFunction(name="Send"),
        torch=TorchFunctions(names=("send", "isend")),
        summary="Sends the input to one rank, which must receive it.",
    ),
    CollectiveFacts(
        name="recv",
        sends="nothing",
        peers=("source",),
        bus_factor=_ALL,
        traffic=_traffic(p2p=RankShares(_NOTHING, _ALL)),
        nccl=NcclFunction(name="Recv"),
        mpi=MpiFunction(name="Recv"),
        torch=TorchFunctions(names=("recv", "irecv")),
        summary="Receives the input of one rank, which must send it.",
    ),
    CollectiveFacts(
        name="send_recv",
        peers=("dest", "source"),
        bus_factor=_ALL,
        traffic=_traffic(p2p=RankShares(_ALL, _ALL)),
        is_modelled=True,
        axes=("pp",),
        nccl_test=NcclTest(program="sendrecv", may_print_op=True),
        mpi=MpiFunction(name="Sendrecv"),
        summary="Sends the input to one rank and receives the input of another rank simultaneously.",
    ),
    CollectiveFacts(
        name="barrier",
        sends="nothing",
        receives="nothing",
        synchronises=True,
        bus_factor=_UNDEFINED,
        mpi=MpiFunction(name="Barrier"),
        torch=TorchFunctions(names=("barrier", "monitored_barrier")),
        summary="Blocks every rank until all ranks have entered.",
    ),
)

COLLECTIVES: Mapping[str, CollectiveFacts] = MappingProxyType({facts.name: facts for facts in _COLLECTIVES})
"""The collectives, by name."""

COUNTED = next(name for name, collective in COLLECTIVES.items() if collective.counted)
"""The collective whose chunks have their own sizes, which takes a traffic."""

MODELLED = tuple(name for name, collective in COLLECTIVES.items() if collective.is_modelled)
"""The collectives that have a model of their time and of the load of links."""

ALGORITHM_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "ring": "ring",
        "tree": "tree",
        "nvls": "NVLS: NVSwitch reduces",
        "nvls_tree": "NVLSTree: NVSwitch reduces, with a tree between the domains",
        "pat": "PAT",
        "p2p": "messages",
    }
)
"""Each algorithm of `CollectiveFacts.traffic` in words."""

NCCL_FUNCTIONS: Mapping[str, NcclFunction] = MappingProxyType(
    {name: collective.nccl for name, collective in COLLECTIVES.items() if collective.nccl is not None}
)
"""The functions of NCCL, by collective."""

MPI_FUNCTIONS: Mapping[str, MpiFunction] = MappingProxyType(
    {name: collective.mpi for name, collective in COLLECTIVES.items() if collective.mpi is not None}
)
"""The functions of MPI, by collective."""

NCCL_TESTS: Mapping[str, NcclTest] = MappingProxyType(
    {name: collective.nccl_test for name, collective in COLLECTIVES.items() if collective.nccl_test is not None}
)
"""The programs of nccl-tests, by collective."""

TORCH_FUNCTIONS: Mapping[str, TorchFunctions] = MappingProxyType(
    {name: collective.torch for name, collective in COLLECTIVES.items() if collective.torch is not None}
)
"""The functions of torch.distributed, by collective."""

_USUAL = MappingProxyType({axis: name for name, collective in COLLECTIVES.items() for axis in collective.axes})


def usual_collective(axis: str) -> str:
    """Return the usual collective of an axis."""
    return _USUAL.get(axis, "all_reduce")


def usual_collectives_text() -> str:
    """Describe the usual collectives of all axes."""
    return ", ".join([*(f"{name} for {axis}" for axis, name in _USUAL.items()), "all_reduce for other axes"])
