"""How the durations of a collective respond to a rank that is late: the error of waits that traces show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._collectives import COLLECTIVES, usual_collective
from meshlab.base._errors import BenchError
from meshlab.base._units import parse_size
from meshlab.engines._engines import Engines
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import MeshLike

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.comm._communicator import Communicator

_DELAYS_US = (0.0, 50.0, 250.0, 1000.0)
_WARMUP = 3
_LONGEST_US = 1e6
_TAIL = 5  # percent of the errors below and above the interval


def late_rank(
    engines: Engines,
    mesh: MeshLike | None = None,
    *,
    axis: str | Sequence[str] = WORLD,
    collective: str | None = None,
    size: str | int = "1M",
    delays_us: Sequence[float] = _DELAYS_US,
    repeats: int = 40,
) -> pd.DataFrame:
    """Delay a rank before a collective, and measure how the durations of the other ranks respond.

    A trace shows the wait for a late rank as a longer duration of the other ranks, see `meshlab.Trace`. Here the delay
    is known, so the difference between both is the error of such a wait on this machine. The delays take turns. The
    last rank of each group is delayed, and all groups of an axis run at the same time.

    Parameters
    ----------
    engines : Engines
        The engines.
    mesh : DeviceMesh or str, optional
        The mesh of the groups. Not needed if `axis` is ``"world"``.
    axis : str or sequence of str, default "world"
        The axis or axes along which the collective runs.
    collective : str, optional
        A collective that no rank leaves before all ranks have entered it. By default the usual one of the axis.
    size : str or int, default "1M"
        Size of the call in bytes, as nccl-tests counts it. The elements are float32.
    delays_us : sequence of float, default (0, 50, 250, 1000)
        The delays in µs.
    repeats : int, default 40
        Number of calls with each delay.

    Returns
    -------
    pandas.DataFrame
        A row per group and delay: ``axis``, ``group``, ``collective``, ``size_bytes``, ``late_rank``, ``delay_us``,
        ``late_us`` (the delay that the rank measured, median), ``wait_us`` (duration of the other ranks minus that of
        the late rank, median), and the errors of ``wait_us``: ``error_us`` (median) with the range of nine of ten calls
        from ``error_lo_us`` to ``error_hi_us``. ``attrs["band_us"]`` is the largest error within these ranges.

    Raises
    ------
    BenchError
        If the collective does not make ranks wait for each other, if a group has one rank, or a delay is invalid.
    MeshlabError
        As `Engines.run`.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     frame = ml.benchmark.late_rank(engines, size="4K", delays_us=(0, 2000), repeats=5)
    >>> frame[["late_rank", "delay_us"]].to_numpy().tolist()
    [[1.0, 0.0], [1.0, 2000.0]]
    """
    import pandas as pd

    name = axis if isinstance(axis, str) else "-".join(axis)
    collective = usual_collective(name) if collective is None else collective
    delays = _checked(collective, delays_us, repeats)
    frame = engines.run(_measure, mesh, axis=axis, arguments=(collective, parse_size(size), delays, repeats))
    rows = []
    for group, ranks in frame.groupby("group", sort=False):
        if len(ranks) < 2:
            raise BenchError(f"group {group} has one rank, which waits for no other", hint="choose a larger axis")
        values = np.stack([np.asarray(value) for value in ranks["value"]])  # of shape (ranks, repeats, delays, 2)
        late = len(values) - 1
        durations, lateness = values[..., 0], values[late, ..., 1]
        wait = np.median(np.delete(durations, late, axis=0), axis=0) - durations[late]
        error = wait - lateness
        low, high = np.percentile(error, [_TAIL, 100 - _TAIL], axis=0)
        rows += [
            {
                "axis": name,
                "group": group,
                "collective": collective,
                "size_bytes": parse_size(size),
                "late_rank": int(ranks["rank"].iloc[late]),
                "delay_us": delay,
                "late_us": float(np.median(lateness[:, number])),
                "wait_us": float(np.median(wait[:, number])),
                "error_us": float(np.median(error[:, number])),
                "error_lo_us": float(low[number]),
                "error_hi_us": float(high[number]),
            }
            for number, delay in enumerate(delays)
        ]
    table = pd.DataFrame(rows)
    table.attrs["band_us"] = float(table[["error_lo_us", "error_hi_us"]].abs().to_numpy().max())
    return table


def _checked(collective: str, delays_us: Sequence[float], repeats: int) -> tuple[float, ...]:
    """Return the delays, or raise if an argument is invalid."""
    names = [name for name, facts in COLLECTIVES.items() if facts.synchronises and not facts.counted]
    if collective not in names:
        raise BenchError(
            f"collective {collective!r} does not make all ranks wait for the last one",
            hint=f"choose one of {', '.join(names)}",
        )
    delays = tuple(float(delay) for delay in delays_us)
    if not delays or not all(0 <= delay <= _LONGEST_US for delay in delays):
        raise BenchError(f"delays_us must be times from 0 to {_LONGEST_US:,.0f} µs, not {delays_us!r}")
    if isinstance(repeats, bool) or repeats < 1:
        raise BenchError(f"repeats must be a positive integer, not {repeats!r}")
    return delays


def _measure(
    comm: Communicator, collective: str, size: int, delays: tuple[float, ...], repeats: int
) -> list[list[tuple[float, float]]]:
    """Return the durations of this rank's calls and its delays, both in µs, for each repeat and delay."""
    call = _prepared(comm, collective, size)
    is_late = comm.rank == comm.size - 1
    for _ in range(_WARMUP):
        call()
    rows = []
    for _ in range(repeats):
        row = []
        for delay in delays:
            comm.barrier()
            begin = time.perf_counter()
            # A sleep would last up to 60 µs longer. The loop occupies a core, as a rank that computes does.
            while is_late and (time.perf_counter() - begin) * 1e6 < delay:
                pass
            start = time.perf_counter()
            call()
            row.append(((time.perf_counter() - start) * 1e6, (start - begin) * 1e6))
        rows.append(row)
    return rows


def _prepared(comm: Communicator, collective: str, size: int) -> Any:
    """Return the call to repeat."""
    facts = COLLECTIVES[collective]
    if not facts.has_size:
        return comm.barrier
    count = facts.count_for(size, 4, comm.size)
    send = comm.xp.zeros(max(1, facts.elements("sends", count, comm.size)), dtype="float32")
    out = comm.xp.zeros(max(1, facts.elements("receives", count, comm.size)), dtype="float32")
    return comm.prepare(collective, send, out)
