"""The faults of the chaos test: what is done to which part, and when. Each one is drawn from a seed and its number."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshlab.base._backends import BACKENDS

__all__ = [
    "CLIENTS",
    "FUNCTION_KINDS",
    "KINDS",
    "MEASUREMENTS",
    "MOMENTS",
    "SIGNAL_KINDS",
    "SWEEPS",
    "TARGETS",
    "Fault",
    "draw",
    "draw_all",
]

SIGNAL_KINDS = ("kill", "terminate", "stop", "pause")
"""Signals to a process: SIGKILL, SIGTERM, SIGSTOP for good, and SIGSTOP followed by SIGCONT."""

FUNCTION_KINDS = ("raise", "stay_away", "return_early", "other_call", "sys_exit", "os_exit", "abort", "memory")
"""Things that a function does on one rank while the other ranks enter a collective."""

KINDS = (*SIGNAL_KINDS, *FUNCTION_KINDS, "interrupt")

SWEEPS = ("step", "between", "graph")
"""Moments of a benchmark: within a step, between two steps, and within a step whose calls are replayed as a graph."""

MEASUREMENTS = ("tune", "compare_env", "rehearse")
"""Moments of the other functions that measure. The first two start ranks of their own."""

MOMENTS = ("start", "idle", "call", *SWEEPS, *MEASUREMENTS, "save", "report", "close", "exit", "restart")

CLIENTS = ("program", "kernel")
"""The processes that use meshlab: a program, and the Jupyter kernel of a notebook."""

_KERNELS = 0.3  # the share of the faults whose client is a kernel
_BLOCK = 8  # consecutive faults with the same client, because another one has to start first

_OF_THE_SET = ("rank", "nanny", "hub", "scheduler", "reaper")
_OF_BACKENDS = {"mpi": ("shell", "launcher", "proxy"), "gloo": ("shell",)}

TARGETS = (*_OF_THE_SET, *_OF_BACKENDS["mpi"], "client", "reaper and client", "terminal")
"""The processes of a set of ranks. A terminal sends SIGINT to all processes of its foreground group."""

# Functions fail in many ways that are handled alike. Ranks are the parts that fail most often, and the only ones whose
# number has to be right.
_KIND_WEIGHTS = dict.fromkeys(SIGNAL_KINDS, 4) | {"interrupt": 3}
_WEIGHTS = {"rank": 6, "client": 3, "reaper and client": 2, "hub": 2, "scheduler": 2}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Parameters
    ----------
    number : int
        Its position in the sequence of its seed.
    kind : str
        One of `KINDS`.
    target : str
        One of `TARGETS`. For a function it is the rank.
    rank : int
        The rank that is hit, or to which the process that is hit belongs.
    moment : str
        One of `MOMENTS`.
    delay : float
        When within the moment, from 0 to 1: at its beginning or its end.
    is_before : bool
        For the moments "close" and "exit": whether the fault precedes the call, instead of hitting it.
    pause_s : float
        Time until a paused process continues, in seconds.
    from_folder : bool
        Whether the run is resumed from its folder instead of from memory. For the moment "tune": whether ranks that the
        tuning has started are hit, instead of those that it was called with.
    client : str
        One of `CLIENTS`.
    """

    number: int
    kind: str
    target: str
    rank: int
    moment: str
    delay: float
    is_before: bool = False
    pause_s: float = 0.0
    from_folder: bool = False
    client: str = "program"

    @property
    def hits_new_ranks(self) -> bool:
        """Whether the fault hits ranks that exist only while a function measures."""
        is_process = self.kind in SIGNAL_KINDS and "client" not in self.target
        return is_process and (self.moment == "compare_env" or (self.moment == "tune" and self.from_folder))

    @property
    def ends_client(self) -> bool:
        """Whether the client does not survive the fault."""
        return "client" in self.target and self.kind in ("kill", "terminate")

    def __str__(self) -> str:
        part = f"{self.target} {self.rank}" if self.target in ("rank", "nanny", "shell") else self.target
        before = " (before)" if self.is_before else ""
        moment = f"{self.moment} of new ranks" if self.hits_new_ranks and self.moment == "tune" else self.moment
        kernel = " · kernel" if self.client == "kernel" else ""
        return f"{self.kind} · {part} · {moment}{before} at {self.delay:.2f}{kernel}"


def draw(
    seed: int,
    number: int,
    *,
    backend: str,
    ranks: int,
    kinds: Collection[str] = (),
    targets: Collection[str] = (),
    moments: Collection[str] = (),
    client: str = "program",
) -> Fault:
    """Draw one fault. The same arguments give the same fault, whatever was drawn before.

    Parameters
    ----------
    seed, number : int
        The sequence, and the position in it.
    backend : {"mpi", "gloo", "nccl", "threads"}
        Threads have no processes other than the client. Ranks of NCCL and Gloo have no launcher.
    ranks : int
        The number of ranks.
    kinds, targets, moments : collection of str, default ()
        Those to choose from. By default all that the backend has.
    client : {"program", "kernel", "mixed"}, default "program"
        The client. If mixed, it depends on the seed and the number.
    """
    chance = random.Random(f"{seed} {number}")
    possible = [
        (kind, target, moment)
        for kind in KINDS
        for target in _targets(kind, backend)
        for moment in _moments(kind, target, backend)
        # Only NCCL has graphs. Other backends measure without, so that this part of the harness can be tried with them.
        if (moment != "graph" or backend == "nccl" or "graph" in moments)
        and all(not some or one in some for one, some in ((kind, kinds), (target, targets), (moment, moments)))
    ]
    if not possible:
        raise ValueError(f"{backend} has no fault of these kinds, targets and moments: {kinds}, {targets}, {moments}")
    # In three draws instead of one, so that a kind is not frequent because it has many moments.
    known = sorted({one[0] for one in possible})
    (kind,) = chance.choices(known, [_KIND_WEIGHTS.get(name, 1) for name in known])
    known = sorted({one[1] for one in possible if one[0] == kind})
    (target,) = chance.choices(known, [_WEIGHTS.get(name, 1) for name in known])
    moment = chance.choice(sorted({one[2] for one in possible if one[:2] == (kind, target)}))
    return Fault(
        number,
        kind,
        target,
        chance.randrange(ranks),
        moment,
        chance.random(),
        is_before=moment in ("close", "exit") and chance.random() < 0.5,
        pause_s=chance.uniform(0.5, 2.5) if kind == "pause" else 0.0,
        from_folder=chance.random() < 0.5,
        client=_client(seed, number) if client == "mixed" else client,
    )


def _client(seed: int, number: int) -> str:
    is_kernel = random.Random(f"{seed} client {number // _BLOCK}").random() < _KERNELS
    return "kernel" if is_kernel else "program"


def draw_all(seed: int, n: int, **options: object) -> list[Fault]:
    """Draw the first `n` faults of a seed."""
    return [draw(seed, number, **options) for number in range(n)]  # type: ignore[arg-type]


def _targets(kind: str, backend: str) -> Sequence[str]:
    if kind in FUNCTION_KINDS:
        # Threads share their process with the client, which these end too.
        return () if backend == "threads" and kind in ("os_exit", "abort") else ("rank",)
    if kind == "interrupt":
        return "client", "terminal"
    clients = ("client",) if kind in ("stop", "pause") or backend == "threads" else ("client", "reaper and client")
    if kind == "stop":
        clients = ()  # a client that is stopped for good has nobody to report to
    if backend == "threads":
        return clients
    return *_OF_THE_SET, *_OF_BACKENDS.get(backend, ()), *clients


def _moments(kind: str, target: str, backend: str) -> Sequence[str]:
    if kind in FUNCTION_KINDS:
        return "call", "step", "graph"
    facts = BACKENDS[backend]
    # Threads have no environment to compare. NCCL takes long to start.
    without = {"tune": facts.why_not_tuned, "compare_env": not facts.variables, "start": backend == "nccl"}
    possible = tuple(moment for moment in MOMENTS if not without.get(moment))
    if kind == "interrupt":
        quiet = ("idle", "between", "graph", "exit")
        return tuple(moment for moment in possible if moment not in quiet)
    return possible
