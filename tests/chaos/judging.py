"""The judgement of a fault: whether it was named, whether the ranks recovered, and what was lost or left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.faults import Fault

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "HANG_S",
    "NOTICE_S",
    "Observation",
    "Phase",
    "Victim",
    "judge",
    "named_part",
    "start_limit_s",
    "summarise",
    "to_frame",
]

HANG_S = 15.0
"""The longest time that anything but a start may take after a fault, in seconds."""

NOTICE_S = 2.0
"""The longest time until the death of a rank that is being started raises, in seconds."""

_STOPPED_S = 10.0  # the same for a rank that is stopped, which may be continued within the first 5 s

# Starts of ranks that a function makes one after the other. The first report of a process imports the plots.
_N_STARTS = {"tune": 5, "compare_env": 2, "report_once": 1}

_STARTS = ("launch", "restart", "resume")  # a resumed run measures

_CONTROLLER = re.compile(r"\bcontroller\b")
_LAUNCHER = re.compile(r"\blauncher\b|\bmpiexec\b")
_RANKS = re.compile(r"\branks? ((?:\d+(?:, | and )?)+)")
_PREFIX = re.compile(r"tuning failed at [^:]*: |setting '[^']*' failed in round \d+ of \d+: |rehearsal failed[^:]*: ")
_STARTING = re.compile(r"\bengines?\b|\branks?\b|\blauncher\b|\bstart")


def start_limit_s(command: str, start_s: float, hang_s: float) -> float:
    """Return the longest time that a command may take, in seconds, if a start may take `start_s`."""
    if command in _N_STARTS:
        return hang_s + _N_STARTS[command] * start_s
    return max(start_s, hang_s) if command in _STARTS else hang_s


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that was hit.

    Parameters
    ----------
    pid : int
        The process.
    rank : int or None
        The rank that it is, or belongs to. None if it had no number.
    is_numbered : bool
        Whether it had its number before it became a rank, as with MPI.
    has_survived : bool
        Whether it still ran when the command that was hit had ended.
    """

    pid: int
    rank: int | None
    is_numbered: bool
    has_survived: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """Something that the client did after the fault, such as "restart".

    Parameters
    ----------
    name : str
        The command.
    seconds : float
        Its duration, or the time since the fault if the fault hit the command.
    error : dict, optional
        The error that it raised, see `tests.chaos.client.describe_error`.
    stacks : str
        Where its threads were when it took too long.
    """

    name: str
    seconds: float
    error: dict[str, Any] | None = None
    stacks: str = ""

    @property
    def is_slow_start(self) -> bool:
        """Whether ranks did not start in time, which a busy machine can cause without a fault."""
        return self.name in _STARTS and self.error is not None and "in time" in self.error["text"]


@dataclass(slots=True)
class Observation:
    """What was seen of a fault.

    Parameters
    ----------
    fault : Fault
        The fault.
    was_hit : bool
        False if the moment was over, or the part did not exist, before the fault could hit it.
    client_ended : bool
        Whether the client ended.
    phases : list of Phase
        What the client did, up to the first error.
    victims : list of Victim
        The processes that were hit.
    noticed_s : float or None
        Time from the fault until a start of ranks failed, in seconds. None if it did not.
    recovery : list of Phase
        What the client, or its successor, did to get working ranks.
    works : bool
        Whether the last ranks form the groups of the mesh and add up the right sums.
    n_expected : int
        The number of rows of the complete run. 0 if no run was under way.
    measured : int
        The number of rows that were measured before the fault.
    before, after : list
        Rows (launch, step, group, time) that the resumed run took over, and at its end.
    processes, files : list of str
        What was left.
    file_error : str
        Why a saved run is neither of the two versions that were written. Empty if it is.
    seconds : float
        Time from the fault to working ranks.
    """

    fault: Fault
    was_hit: bool = True
    client_ended: bool = False
    phases: list[Phase] = field(default_factory=list)
    victims: list[Victim] = field(default_factory=list)
    noticed_s: float | None = None
    recovery: list[Phase] = field(default_factory=list)
    works: bool = False
    n_expected: int = 0
    measured: int = 0
    before: list[list[Any]] = field(default_factory=list)
    after: list[list[Any]] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    file_error: str = ""
    seconds: float = 0.0

    @property
    def error(self) -> dict[str, Any] | None:
        """The first error after the fault."""
        return next((phase.error for phase in self.phases if phase.error is not None), None)


def named_part(error: dict[str, Any] | None) -> str:
    """Return the part that an error blames: "rank 2", "controller", "launcher", "interrupt", "start" or "other"."""
    if error is None:
        return ""
    if error["is_interrupt"]:
        return "interrupt"
    text = _PREFIX.sub("", error["text"]).split(";")[0]
    if error["rank"] is not None:
        return f"rank {error['rank']}"
    if _CONTROLLER.search(text):
        return "controller"
    if _LAUNCHER.search(text):
        return "launcher"
    found = _RANKS.match(text)
    if found:
        return f"rank {found[1]}"
    return "start" if _STARTING.search(text) else "other"


def is_named_right(seen: Observation) -> bool:
    """Return whether an error, or its absence, is right for a fault."""
    fault, error, client_ended = seen.fault, seen.error, seen.client_ended
    if fault.ends_client:
        return client_ended
    if client_ended and fault.moment != "exit":
        return False
    if error is None:
        return _may_be_silent(seen)
    if fault.kind == "interrupt":
        return bool(error["is_interrupt"]) or "interrupt" in error["text"]
    if not error["is_meshlab"]:
        return False
    named = named_part(error)
    if (fault.moment in ("start", "restart") or fault.hits_new_ranks) and fault.target not in ("hub", "scheduler"):
        return _is_named_in_start(seen, error)
    if fault.target in ("rank", "nanny", "shell"):
        text = error["text"]
        if fault.kind in ("other_call", "return_early") and named != f"rank {fault.rank}":
            # The calls of two or all ranks are listed, because nobody knows which ones are right.
            return any(fault.rank in _numbers(found) for found in _RANKS.findall(text))
        return named == f"rank {fault.rank}" and str(fault.rank) in "".join(_RANKS.findall(text))
    if fault.target in ("hub", "scheduler"):
        return named == "controller"
    if fault.target in ("launcher", "proxy"):
        return named == "launcher"
    return False  # nothing else may make a call fail


def _is_named_in_start(seen: Observation, error: dict[str, Any]) -> bool:
    """Return whether the error of ranks that have just been started names the process that was hit."""
    fault, text, named = seen.fault, error["text"], named_part(error)
    victim = seen.victims[0] if seen.victims else None
    is_rank = victim is not None and victim.rank is not None and named == f"rank {victim.rank}"
    if fault.target != "rank" or fault.kind == "pause":
        return named in ("start", "launcher") or (is_rank and fault.target in ("nanny", "shell"))
    if victim is None:
        return False
    if "during start-up" not in text:  # all ranks had just started
        return is_rank
    name = f"rank {victim.rank} (process {victim.pid})" if victim.is_numbered else f"(process {victim.pid})"
    how = {"kill": "killed by signal 9", "stop": "stopped"}.get(fault.kind, "")
    return name in text and how in text


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _may_be_silent(seen: Observation) -> bool:
    """Return whether it is right that a fault has no effect that the client reports."""
    fault = seen.fault
    if fault.kind in ("pause", "interrupt") or fault.moment in ("close", "exit", "restart"):
        return True
    if fault.kind == "stop" and fault.target in ("shell", "launcher", "proxy"):
        return True  # they only wait for their children
    if fault.kind == "terminate" and fault.target == "proxy":
        return True  # MPICH's proxy ignores SIGTERM
    if fault.kind == "terminate" and fault.target == "launcher":
        # MPICH's launcher passes SIGTERM on to the processes that it has started, and ignores it if it has none yet.
        return any(victim.has_survived for victim in seen.victims)
    return fault.target in ("nanny", "scheduler", "hub", "reaper")


def lost_rows(seen: Observation) -> int:
    """Return how many rows were lost, doubled or changed: measured before the fault, and not the same afterwards."""
    if not seen.n_expected and not seen.measured:
        return 0
    lost = max(0, seen.measured - len(seen.before))
    kept = {tuple(row[:3]): row[3] for row in seen.before}
    after = Counter(tuple(row[:3]) for row in seen.after)
    times = {tuple(row[:3]): row[3] for row in seen.after}
    lost += sum(times.get(key) != time for key, time in kept.items())
    lost += sum(n - 1 for n in after.values())
    return lost + max(0, seen.n_expected - len(after))


def _late(seen: Observation, notice_s: float) -> str:
    """Return how late the end of a rank that was being started raised. An empty string if it was not late."""
    fault, limits = seen.fault, {"kill": notice_s, "terminate": notice_s, "stop": max(notice_s, _STOPPED_S)}
    if fault.target != "rank" or seen.noticed_s is None or seen.noticed_s <= limits.get(fault.kind, seen.noticed_s):
        return ""
    return f"named after {seen.noticed_s:.1f} s"


def judge(
    seen: Observation, *, seed: int, start_s: float = HANG_S, hang_s: float = HANG_S, notice_s: float = NOTICE_S
) -> dict[str, Any]:
    """Return one row of the result.

    A start may take `start_s` seconds, and be repeated once if that is not enough. Everything else may take `hang_s`.
    """
    fault, error = seen.fault, seen.error
    slow = [
        phase for phase in (*seen.phases, *seen.recovery) if phase.seconds > start_limit_s(phase.name, start_s, hang_s)
    ]
    failed = [phase for phase in seen.recovery if phase.error is not None]
    n_slow_starts = sum(phase.is_slow_start for phase in seen.recovery)
    if n_slow_starts == 1:
        failed = [phase for phase in failed if not phase.is_slow_start]
    lost = lost_rows(seen) + bool(seen.file_error)
    named_right = is_named_right(seen)
    row = {
        "seed": seed,
        "number": fault.number,
        "kind": fault.kind,
        "target": fault.target,
        "rank": fault.rank,
        "moment": fault.moment,
        "client": fault.client,
        "is_before": fault.is_before,
        "was_hit": seen.was_hit,
        "named": "client ended" if seen.client_ended else named_part(error),
        "named_right": named_right or not seen.was_hit,
        "recovered": seen.works and not failed,
        "slow_starts": n_slow_starts,
        "seconds": seen.seconds,
        "notice_s": seen.phases[-1].seconds if seen.phases else 0.0,
        "late": _late(seen, notice_s),
        "hang": "; ".join(f"{phase.name} took {phase.seconds:.0f} s" for phase in slow),
        "orphans": "; ".join(seen.processes),
        "left_files": "; ".join(seen.files),
        "lost_rows": lost,
        "error": "" if error is None else error["text"],
        "recovery_error": "; ".join(
            [*(f"{phase.name}: {phase.error['text']}" for phase in failed if phase.error), seen.file_error]
        ).strip("; "),
        "stacks": "\n".join(phase.stacks for phase in (*seen.phases, *seen.recovery) if phase.stacks),
    }
    is_bad = lost or any(row[name] for name in ("late", "hang", "orphans", "left_files"))
    return row | {"is_good": bool(row["named_right"] and row["recovered"] and not is_bad)}


def to_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return the result: one row per fault."""
    import pandas as pd

    return pd.DataFrame(rows)


def summarise(frame: pd.DataFrame) -> str:
    """Return the counts of a result as text: in total, by kind and target, and by moment."""
    counts = {
        "faults": ("number", "size"),
        "good": ("is_good", "sum"),
        "named right": ("named_right", "sum"),
        "recovered": ("recovered", "sum"),
        "late": ("late", lambda column: (column != "").sum()),
        "hangs": ("hang", lambda column: (column != "").sum()),
        "with orphans": ("orphans", lambda column: (column != "").sum()),
        "with files left": ("left_files", lambda column: (column != "").sum()),
        "lost rows": ("lost_rows", "sum"),
        "missed": ("was_hit", lambda column: (~column).sum()),
        "median s": ("seconds", "median"),
        "longest s": ("seconds", "max"),
    }
    frame = frame.assign(total="all")
    tables = [frame.groupby(keys).agg(**counts) for keys in (["kind", "target"], ["moment"], ["client"], ["total"])]  # type: ignore[call-overload]
    return "\n\n".join(table.round(1).to_string() for table in tables)
