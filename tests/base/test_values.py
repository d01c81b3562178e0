"""Values of documents and lines of logs: integers, types and prefixes."""

from __future__ import annotations

import gc

import pytest

from meshlab.base._errors import ParseError
from meshlab.base._garbage import collector_paused
from meshlab.base._numerals import LARGEST, whole, whole_or_none
from meshlab.base._prefixes import find_prefix, lines_by_source
from meshlab.base._typed_values import typed_fields, typed_value

PAIRS = tuple[tuple[str, int], ...]


def test_integers_have_at_most_64_bits() -> None:
    assert (whole("12"), whole("1b", 16), whole("9" * 5000)) == (12, 27, LARGEST)
    values = (3, "3", 3.0, 2.5, "x", None, [3], float("nan"), 10**30)
    assert [whole_or_none(value) for value in values] == [3, 3, 3, 2, None, None, None, None, LARGEST]


def test_plain_values_are_converted_to_a_type() -> None:
    assert typed_value([["tp", 4]], PAIRS, "mesh.axes") == (("tp", 4),)
    kinds = {"rank": int, "host": str, "pid": int}
    values = {"rank": 3, "host": "n1", "x": 0}
    assert typed_fields(values, kinds, "", optional=["pid"]) == {"rank": 3, "host": "n1"}


def test_a_wrong_type_is_an_error_with_the_path_of_the_value() -> None:
    with pytest.raises(ParseError, match=r"mesh\.axes\[0\]\[1\] must be an integer, not '4'; copy the file again"):
        typed_value([["tp", "4"]], PAIRS, "mesh.axes")


def test_prefixes_name_the_rank_and_the_lines_of_a_rank_are_joined() -> None:
    assert find_prefix("[1,3]<stdout>:nodeA:12:34 [0] NCCL INFO Connected all rings") == (14, 3, None)
    assert find_prefix("GPU0  X  NV18") == (0, None, None)
    assert lines_by_source("[1,0]<stdout>:a\n[1,1]<stdout>:c\n[1,0]<stdout>:b") == "a\nb\nc"


def test_the_collector_is_paused_within_the_block() -> None:
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
