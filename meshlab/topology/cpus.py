"""CPU lists and CPU masks, as Linux, nvidia-smi and NCCL write them."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["count_cpus", "cpus_of_mask", "format_cpus", "parse_cpus"]

_MOST_CPUS = 1 << 16
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def parse_cpus(text: str | None) -> tuple[int, ...]:
    """The CPUs of a list such as ``"0-3,8"``; empty when the text is none.

    Examples
    --------
    >>> parse_cpus("0-3,8"), parse_cpus("N/A")
    ((0, 1, 2, 3, 8), ())
    """
    cpus: set[int] = set()
    for part in (text or "").split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        cpus.update(range(first, min(last, _MOST_CPUS) + 1))
    return tuple(sorted(cpus))


def count_cpus(text: str | None) -> int:
    """How many CPUs a list has.

    Examples
    --------
    >>> count_cpus("0-55,112-167")
    112
    """
    return len(parse_cpus(text))


def format_cpus(cpus: tuple[int, ...]) -> str:
    """Write CPUs as a list of ranges.

    Examples
    --------
    >>> format_cpus((0, 1, 2, 8))
    '0-2,8'
    """
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


@lru_cache(maxsize=512)
def cpus_of_mask(text: str) -> str:
    """Turn a mask in words of 32 bits, highest first, into a list; empty when the text is none.

    Examples
    --------
    >>> cpus_of_mask("0000000f,f0000000")
    '28-35'
    """
    words = text.split(",")
    if (
        not text
        or len(words) * 32 > _MOST_CPUS
        or any(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) is None for word in words)
    ):
        return ""
    mask = int("".join(word.zfill(8) for word in words), 16)
    return format_cpus(tuple(bit for bit, digit in enumerate(reversed(f"{mask:b}")) if digit == "1"))
