"""Horovod's stall report: tensors that some ranks submitted and others did not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from meshlab.base._numerals import whole
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import Seen, TextFormat
from meshlab.diagnosis.formats._torch_lines import ranks_of

# Until 0.16 a line per tensor, at first with the ranks that had submitted it; then a line per rank below a head.
_TENSOR = re.compile(r"(?<![^\s,\]:])(?P<tensor>[^\s,\]:]+) \[(?P<which>missing|ready) ranks: ?(?P<ranks>\d[\d, ]*)\]")
_RANK = re.compile(r"(?<![\w.,])(?P<rank>\d+)!?: \[(?P<tensors>[A-Za-z][^\]]*)")
_HEADS = ("Stalled ranks:", "Missing ranks:")
_HEAD = "waiting for remainder of ranks for more than"
_LITERALS = (_HEAD, "[missing ranks:", "[ready ranks:", _HEADS[0])


class StalledTensor(NamedTuple):
    """A tensor that not all ranks submitted."""

    tensor: str
    missing: tuple[int, ...]  # empty if the line names only those that submitted it
    ready: tuple[int, ...]
    line: int


def read_stalled_tensors(paste: Paste) -> tuple[StalledTensor, ...]:
    """Read the reports in a paste, in the order of the lines."""
    return tuple(_stalled(paste))


def _stalled(paste: Paste) -> Iterator[StalledTensor]:
    for line in other_lines(paste).find("[missing ranks:", "[ready ranks:"):
        for match in _TENSOR.finditer(line.text):
            ranks = ranks_of(match["ranks"])
            is_missing = match["which"] == "missing"
            yield StalledTensor(match["tensor"], ranks if is_missing else (), () if is_missing else ranks, line.number)
    for number in other_lines(paste).numbers(*_HEADS):
        missing: dict[str, list[int]] = {}
        for position in range(number + 1, len(paste) + 1):
            if (of_rank := _RANK.search(paste.line(position).raw)) is None:  # not a label of srun
                break
            for tensor in of_rank["tensors"].removesuffix(" ...").split(", "):
                missing.setdefault(tensor.strip(), []).append(whole(of_rank["rank"]))
        for tensor, absent in missing.items():
            yield StalledTensor(tensor, tuple(sorted(set(absent))), (), number)


def _find(paste: Paste) -> list[int]:
    return other_lines(paste).numbers(*_LITERALS)


def _see(paste: Paste) -> Seen:
    tensors = dict.fromkeys(item.tensor for item in paste.once(read_stalled_tensors))
    return Seen(facts={"stalled tensors": str(len(tensors))} if tensors else {})


HOROVOD = TextFormat("Horovod log", _find, _see, "Horovod's report of stalled tensors")
