"""The search that leaves out the lines of NCCL at level INFO."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from meshlab.diagnosis._other_lines import OtherLines, other_lines
from meshlab.diagnosis._paste import Paste

INFO = "nodeA:1:2 [0] NCCL INFO Channel 00 : 0 1 srun"


@given(st.lists(st.sampled_from([INFO, "srun: error: a", "", "step 1", "[rank3]: srun again srun"]), max_size=30))
def test_the_lines_and_numbers_of_the_paste_are_found(lines: list[str]) -> None:
    paste = Paste("\n".join(lines))
    expected = [number for number, line in enumerate(lines, 1) if "srun" in line and line != INFO]
    assert other_lines(paste).numbers("srun", "step 99") == expected
    assert other_lines(paste).find("srun") == [paste.line(number) for number in expected]


def test_a_long_line_may_hold_other_messages_too() -> None:
    paste = Paste(INFO + "x" * 600 + " [rank3]: RuntimeError")
    assert OtherLines(paste).numbers("RuntimeError") == [1]


def test_patterns_are_searched_without_the_prefix() -> None:
    paste = Paste(f"{INFO}\n[rank3]: RuntimeError: 7")
    ((line, match),) = other_lines(paste).matches(re.compile(r"^RuntimeError: (\d)"), "Error")
    assert (line.number, line.rank, match[1]) == (2, 3, "7")
