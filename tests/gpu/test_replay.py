"""Replays on real GPUs: their own transfers are found again, a slow size is named, and options make the same calls."""

from __future__ import annotations

from typing import Any

import pytest

import meshlab as ml
from meshlab.benchmark.rehearsal._replayed import Replay
from tests.traces.job_maker import JobCall, job_trace

pytestmark = pytest.mark.usefixtures("whole_gpus")

SIZES = (4 << 20, 16 << 20, 64 << 20)


def calls_of(times_us: dict[tuple[str, int], float]) -> list[JobCall]:
    return [
        JobCall("tp", collective, float(size), "bfloat16", transfer_us=time_us)
        for _ in range(4)
        for (collective, size), time_us in times_us.items()
    ]


def replay(engines: ml.Engines, trace: ml.Trace, **options: Any) -> Replay:
    return ml.benchmark.replay(engines, trace, **({"budget_s": 3, "progress": False} | options))


@pytest.fixture(scope="module")
def times_us(gpu_engines: ml.Engines, n_ranks: int) -> dict[tuple[str, int], float]:
    """The transfers of this machine, as a replay of a trace with other times measures them."""
    kinds = [(name, size) for name in ("all_reduce", "all_gather", "reduce_scatter") for size in SIZES]
    frame = replay(gpu_engines, job_trace(f"tp={n_ranks}", calls_of(dict.fromkeys(kinds, 100.0)))).frame()
    assert frame["n_wrong"].sum() == 0
    return dict(zip(zip(frame["collective"], frame["size_bytes"], strict=True), frame["now_us"], strict=True))


def test_the_transfers_of_the_machine_are_found_again(
    gpu_engines: ml.Engines, n_ranks: int, times_us: dict[tuple[str, int], float]
) -> None:
    replayed = replay(gpu_engines, job_trace(f"tp={n_ranks}", calls_of(times_us)), gaps=True)
    print(replayed)
    assert replayed.headline.startswith("The transfers agree within 5 %")
    assert not replayed.frame()["is_slow"].any()
    options = replayed.options().iloc[0]
    # Gaps of 100 µs before each call, and the calls themselves.
    assert options["step_us"] > options["calls_us"] + 0.8 * 100 * len(replayed.calls())


def test_a_slow_size_is_named(gpu_engines: ml.Engines, n_ranks: int, times_us: dict[tuple[str, int], float]) -> None:
    planted = ("all_gather", 16 << 20)
    slow = times_us | {planted: 2 * times_us[planted]}
    replayed = replay(gpu_engines, job_trace(f"tp={n_ranks}", calls_of(slow)))
    frame = replayed.frame()
    assert frame.loc[frame["is_slow"], ["collective", "size_bytes"]].to_numpy().tolist() == [[*planted]]
    assert replayed.headline.startswith("all_gather 16")


def test_symmetric_buffers_make_the_same_calls(
    gpu_engines: ml.Engines, n_ranks: int, times_us: dict[tuple[str, int], float]
) -> None:
    replayed = replay(gpu_engines, job_trace(f"tp={n_ranks}", calls_of(times_us)), buffers="symmetric")
    print(replayed)
    assert replayed.options()["side"].tolist() == ["default", "symmetric buffers"]
    assert replayed.frame()["n_wrong"].sum() == 0
