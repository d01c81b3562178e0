"""Parsing and formatting of sizes, times and bandwidths.

``8M`` is 8 × 2^20 bytes, as in nccl-tests, and so is ``8MiB``, but ``8MB`` is 8 × 10^6 bytes. Sizes are formatted with
binary units, such as ``8 MiB``. Bandwidths are decimal: 1 GB/s is 10^9 bytes per second. A thin space separates a
number from its unit.
"""

from __future__ import annotations

import math
import re

from meshlab.base._errors import ParseError

SEPARATOR = " · "
"""Separates the parts of a title, such as ``4 ranks · MPI on this CPU``."""

THIN = "\N{THIN SPACE}"

SIZES_NOTE = "1G and 1GiB are 2^30 bytes, as 1G is in nccl-tests; 1GB is 10^9 bytes"
"""The units of sizes, for the help of a command."""

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
# Without B, a prefix is binary: nccl-tests reads its first letter alone, so that even its 1GB is 2^30 bytes.
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B)?\s*", re.IGNORECASE)
_DASH = re.compile(rf"({_SIZE.pattern})(?:-|–|\.\.|to)({_SIZE.pattern})", re.IGNORECASE)
_LARGEST_SIZE = 1 << 50
_LONGEST_TEXT = 100  # of a size; the patterns take quadratic time for long texts
_MOST_SIZES = 4096
_MOST_DECIMALS = 3  # of a quantity with a unit


def parse_size(text: str | int) -> int:
    """Return a size such as ``8M``, ``8 MiB`` or 512 in bytes, from 1 to 1 PiB. ``8 MB`` is 8 × 10^6 bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        size: float = text
        if not 1 <= size <= _LARGEST_SIZE:
            number = str(text) if text.bit_length() <= 64 else f"of {text.bit_length():,} bits"
            raise ParseError(f"size {number} is not between 1 byte and 1 PiB")
    else:
        written = str(text).strip()
        match = _SIZE.fullmatch(written) if len(written) <= _LONGEST_TEXT else None
        if match is None:
            dash = _DASH.fullmatch(written) if len(written) <= _LONGEST_TEXT else None
            if dash is not None:
                similar = f"{dash[1].strip()}:{dash[5].strip()}"
                raise ParseError(
                    f"{str(text)!r} is not a size (did you mean {similar!r}?)",
                    hint="write first:last for a range of sizes",
                )
            raise ParseError(
                f"{str(text)!r} is not a size",
                hint="write a number of bytes, optionally followed by K, M, G or T, such as 64M",
            )
        is_decimal = (match[3] or "").upper() == "B"
        size = float(match[1]) * (1000 if is_decimal else 1024) ** _POWERS[match[2].upper()]
    if not 1 <= size <= _LARGEST_SIZE:  # before the conversion to an integer, which infinity does not have
        raise ParseError(f"size {text!r} is {size:.16g} bytes, but must be between 1 byte and 1 PiB")
    if size != int(size):
        raise ParseError(f"size {text!r} is {size} bytes, but must be an integer number of bytes")
    return int(size)


def parse_sizes(text: str | int | list[int | str] | tuple[int | str, ...]) -> tuple[int, ...]:
    """Return the sizes of a list, or of a text such as ``"1K, 8:1G*4, 1M:8M+1M"``, in bytes, ascending and unique."""
    if isinstance(text, (list, tuple)):
        parts: list[int | str] = list(text)
    elif isinstance(text, str):
        parts = [part.strip() for part in text.split(",") if part.strip()]
    else:
        parts = [text]
    if len(parts) > 16 * _MOST_SIZES:
        raise ParseError(
            f"the list has {len(parts):,} sizes, but at most {_MOST_SIZES:,} are supported", hint="use fewer"
        )
    sizes: set[int] = set()
    for part in parts:
        sizes.update(_parse_range(part) if isinstance(part, str) and ":" in part else [parse_size(part)])
    if not sizes:
        raise ParseError(f"{text!r} contains no size", hint="write a size or a range, such as 1K:64M")
    if len(sizes) > _MOST_SIZES:
        raise ParseError(
            f"{text!r} has {len(sizes)} sizes, but at most {_MOST_SIZES} are supported", hint="use fewer sizes"
        )
    return tuple(sorted(sizes))


def _parse_range(text: str) -> list[int]:
    match = re.fullmatch(r"([^:*+]+):([^:*+]+)(?:([*+])([^:*+]+))?", text)
    if match is None:
        raise ParseError(
            f"{text!r} is not a range of sizes",
            hint="write first:last, optionally followed by *factor or +step, such as 1M:8M+1M",
        )
    first, last = parse_size(match[1]), parse_size(match[2])
    if first > last:
        raise ParseError(
            f"the first size of {text!r} exceeds the last one", hint=f"write {match[2].strip()}:{match[1].strip()}"
        )
    if match[3] == "+":
        step = parse_size(match[4])
        if (last - first) // step >= _MOST_SIZES:
            raise ParseError(
                f"{text!r} has more than {_MOST_SIZES} sizes, which is the maximum", hint="use a larger step"
            )
        return list(range(first, last + 1, step))
    factor = 2.0
    if match[3] == "*":
        try:
            factor = float(match[4])
        except ValueError:
            raise ParseError(f"the factor in {text!r} must be a number, not {match[4]!r}") from None
        if not factor > 1.0001:  # a smaller factor would repeat sizes and never reach the last one
            raise ParseError(f"the factor in {text!r} must be greater than 1, not {match[4]}")
    sizes: list[int] = []
    size = float(first)
    while size <= last and len(sizes) <= _MOST_SIZES:
        sizes.append(int(size))
        size *= factor
    return sizes


def format_size(size: int | float) -> str:
    """Format a size in bytes with a binary unit."""
    if not _is_finite(size):
        return "–"
    if size < 1024:
        return f"{int(size)}{THIN}B"
    power = min(int(math.log2(size) // 10), 4)
    value = size / 1024**power
    if power < 4 and round(value, 2) >= 1024:
        power, value = power + 1, value / 1024
    return f"{round(value, 2):g}{THIN}{('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _is_finite(value: float) -> bool:
    """Return False for numbers that cannot be formatted, among them integers that are larger than any float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def format_number(value: float, n_digits: int = 3, most_decimals: int = 9) -> str:
    """Format a number with one to three significant digits, and a missing one as a dash."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    if value == 0:
        return "0"
    if n_digits == 3 and abs(value) >= 1e3:  # with all digits before the point, because no interval limits them
        return f"{value:,.0f}"
    digits = n_digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{min(max(digits, 0), most_decimals)}f}"


def format_time_us(time_us: float, n_digits: int = 3) -> str:
    """Format a time in microseconds with up to three significant digits and a suitable unit."""
    if not _is_finite(time_us):
        return "–"
    for limit, divisor, unit in ((1e3, 1.0, "µs"), (1e6, 1e3, "ms")):
        if abs(time_us) < limit:
            return f"{format_number(time_us / divisor, n_digits, _MOST_DECIMALS)}{THIN}{unit}"
    return f"{format_number(time_us / 1e6, n_digits, _MOST_DECIMALS)}{THIN}s"


def format_seconds(seconds: float) -> str:
    """Format a duration in seconds for reading, such as ``1 min 15 s``."""
    if not _is_finite(seconds):
        return "–"
    if seconds < 9.95:
        return f"{seconds:.1f}{THIN}s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded}{THIN}s"
    if rounded < 3600:
        return f"{rounded // 60}{THIN}min {rounded % 60}{THIN}s"
    return f"{rounded // 3600}{THIN}h {rounded % 3600 // 60}{THIN}min"


def format_bandwidth(gbs: float) -> str:
    """Format a bandwidth in GB/s with three digits."""
    if not _is_finite(gbs):
        return "–"
    return f"{format_number(gbs, most_decimals=_MOST_DECIMALS)}{THIN}GB/s"


def format_range(low: str, high: str) -> str:
    """Join two formatted quantities to a range, with a common unit written once. Equal ones are a single quantity."""
    if low == high:
        return low
    number, separator, unit = low.partition(THIN)
    return f"{number if separator and high.endswith(THIN + unit) else low} to {high}"


def format_seconds_range(low_s: float, high_s: float) -> str:
    """Format a range of durations, such as "10 to 25 s"."""
    low, high = format_seconds(low_s), format_seconds(high_s)
    if low == high:
        return low
    return format_range(low, high) if high_s < 60 else f"{low} to {high}"
