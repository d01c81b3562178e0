"""A short run of the fuzzer, and what long ones have found."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshlab as ml
from meshlab import units
from meshlab.frames.store import as_results
from tests.fuzz.campaign import Campaign
from tests.fuzz.entries import ENTRIES

SLOW = {"run", "tuning", "report", "words", "explain-several"}
"""Entry points whose inputs take long. They get few of them here."""


@pytest.mark.parametrize("names", [sorted(ENTRIES.keys() - SLOW), sorted(SLOW)], ids=["quick", "slow"])
def test_no_bad_input_raises_anything_but_a_meshlab_error(names: list[str]) -> None:
    campaign = Campaign(first=0, names=tuple(names))
    campaign.run(batch=2 if names[0] in SLOW else 8, rounds=2)  # mutated inputs, and then structured ones
    assert set(campaign.counts) == set(names)
    assert not [f"{one.kind} in {one.place}: {one.example!r}" for one in campaign.failures.values()]


@pytest.mark.parametrize("name", ["\0", "x" * 300, "\ud800", "a\rb", " "])
@pytest.mark.parametrize(
    "read",
    [
        *(ml.read, ml.explain, ml.topology.read, ml.nccl_tests.read, ml.frames.list_runs, ml.frames.RunData.load),
        *(ml.analysis.Tuning.load, ml.Report.read, as_results),
    ],
    ids=lambda read: read.__qualname__,
)
def test_a_text_that_no_file_can_be_named_is_an_error_of_meshlab(read, name: str) -> None:
    with pytest.raises(ml.MeshlabError) as caught:
        read(name)
    str(caught.value).encode()


def test_sizes_that_no_number_holds_are_parse_errors() -> None:
    for size in ("9" * 400, "9" * 5000, "²", "1" * 400 + "K", 10**400, -(10**5000), "1e999", "nan"):
        with pytest.raises(ml.errors.ParseError) as caught:
            units.parse_size(size)
        assert len(str(caught.value)) < 400


def test_numbers_that_are_not_finite_are_formatted_as_a_dash() -> None:
    for value in (float("nan"), float("inf"), -float("inf"), 10**400):
        for write in (units.format_size, units.format_time_us, units.format_seconds, units.format_bandwidth):
            assert write(value) == "–"


@pytest.mark.parametrize("data", [b"\x1f\x8b\x08\x00", b"\xff\xfe\x00\xd8", b"a\rb\r", b"\xed\xa0\x80", b"\0\0"])
def test_bytes_that_are_no_text_are_an_error_of_meshlab(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(data)
    for read in (ml.read, ml.explain, ml.topology.read, ml.nccl_tests.read):
        with pytest.raises(ml.MeshlabError):
            read(path)


def test_a_plan_needs_whole_numbers() -> None:
    for values in ({"root": "x"}, {"seed": 10**30}, {"launches": 1.5}, {"buffers": 2.5}):
        with pytest.raises(ml.MeshlabError):
            ml.Plan("all_reduce", "tp", **values)
