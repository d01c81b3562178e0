from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError


def test_the_others_wait_for_the_delay_of_a_rank(thread_engines: ml.Engines) -> None:
    frame = ml.benchmark.late_rank(thread_engines, "dp=2, tp=2", axis="tp", size="4K", delays_us=(0, 20_000), repeats=8)
    assert frame["group"].tolist() == ["tp_0"] * 2 + ["tp_1"] * 2
    assert frame["late_rank"].tolist() == [1, 1, 3, 3]
    delayed = frame[frame["delay_us"].eq(20_000)]
    assert delayed["late_us"].ge(20_000).all()
    assert (frame["error_lo_us"] <= frame["error_hi_us"]).all()
    assert frame.attrs["band_us"] >= frame["error_hi_us"].max()


def test_arguments_are_checked(thread_engines: ml.Engines) -> None:
    for arguments, message in (
        ({"collective": "broadcast"}, "collective 'broadcast' does not make all ranks wait"),
        ({"delays_us": (-1,)}, "delays_us must be times"),
        ({"repeats": 0}, "repeats must be a positive integer"),
    ):
        with pytest.raises(BenchError, match=message):
            ml.benchmark.late_rank(thread_engines, **arguments)  # type: ignore[arg-type]
    with pytest.raises(BenchError, match="group tp_0 has one rank"):
        ml.benchmark.late_rank(thread_engines, "dp=4, tp=1", axis="tp", repeats=1)
