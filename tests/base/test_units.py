from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.base._errors import ParseError
from meshlab.base._units import (
    format_bandwidth,
    format_range,
    format_seconds,
    format_size,
    format_time_us,
    parse_size,
    parse_sizes,
)


@given(st.integers(1, 1023), st.sampled_from("KMGT"))
def test_a_formatted_size_parses_back(number: int, unit: str) -> None:
    size = parse_size(f"{number}{unit}")
    assert parse_size(format_size(size).replace("\u2009", " ")) == size


@pytest.mark.parametrize("text", ["12Q", "", "-1", "0", "1.5", "K", "1 K B", "nan", "1e3", "9999999T"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(ParseError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", (8,)),
        ("1K:8K", (1024, 2048, 4096, 8192)),
        ("1K:5K", (1024, 2048, 4096)),
        ("1M:3M+1M", (1 << 20, 2 << 20, 3 << 20)),
        ("8:1K*4", (8, 32, 128, 512)),
        ("4K, 1K, 4K", (1024, 4096)),
    ],
)
def test_size_lists(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("unit", ["K", "M", "G", "T"])
def test_b_alone_makes_a_size_decimal(unit: str) -> None:
    power = "KMGT".index(unit) + 1
    assert parse_size(f"2{unit}") == parse_size(f"2{unit}iB") == parse_size(f"2 {unit.lower()}ib") == 2 * 1024**power
    assert parse_size(f"2{unit}B") == parse_size(f"2 {unit.lower()}b") == 2 * 1000**power
    assert parse_size("2B") == 2
    assert parse_size("1.5KB") == 1500


@pytest.mark.parametrize("text", ["8K:1K", "1K:", ":1K", "1K:8K*1", "1K:8K*x", "1:1T+1", "1K:2K:3K", ",", "1K:8K+0"])
def test_an_invalid_list_of_sizes_is_rejected(text: str) -> None:
    with pytest.raises(ParseError):
        parse_sizes(text)


def test_the_error_names_the_text_and_the_fix() -> None:
    with pytest.raises(
        ParseError, match=r"'12Q' is not a size; write a number of bytes, optionally followed by K, M, G or T, such"
    ):
        parse_sizes("1K, 12Q")


def test_missing_numbers_are_shown_as_a_dash() -> None:
    assert format_time_us(float("nan")) == format_bandwidth(float("nan")) == format_seconds(float("nan")) == "–"


@given(st.floats(1e-3, 1e9))
def test_times_keep_three_digits(time_us: float) -> None:
    number, unit = format_time_us(time_us).split("\u2009")
    scale = {"µs": 1.0, "ms": 1e3, "s": 1e6}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(time_us, rel=6e-3, abs=6e-4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_size(8), "8 B"),
        (format_size(1536), "1.5 KiB"),
        (format_size(33553920), "32 MiB"),
        (format_time_us(5.97), "5.97 µs"),
        (format_time_us(3296.17), "3.30 ms"),
        (format_time_us(2_500_000), "2.50 s"),
        (format_seconds(0.4), "0.4 s"),
        (format_seconds(75), "1 min 15 s"),
        (format_seconds(3700), "1 h 1 min"),
        (format_bandwidth(325.75), "326 GB/s"),
        (format_bandwidth(0.0834), "0.083 GB/s"),
        (format_range("337\u2009GB/s", "338\u2009GB/s"), "337 to 338 GB/s"),
        (format_range("950\u2009ms", "1.20\u2009s"), "950 ms to 1.20 s"),
    ],
)
def test_quantities_have_a_unit_and_few_digits(text: str, expected: str) -> None:
    assert text.replace("\u2009", " ") == expected
