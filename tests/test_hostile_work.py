"""Readers do little work for each line of a hostile text, counted in calls or pieces, because times vary."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

import meshlab as ml
from meshlab import prefixes
from meshlab.diagnosis.text_findings import rule
from meshlab.documents import LimitError
from meshlab.errors import MeshlabError


def n_calls(function: Callable[[], Any]) -> int:
    """Return the number of calls of functions, in Python and in C, that a function makes."""
    n = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    except MeshlabError:
        pass
    finally:
        sys.setprofile(None)
    return n


class _Untouched:
    def search(self, *arguments: Any) -> None:
        raise AssertionError("the slow pattern was used")

    match = search


def test_a_line_without_the_end_of_a_frame_is_not_searched_for_its_name(monkeypatch):
    monkeypatch.setattr(prefixes, "_FRAME_START", _Untouched())
    assert prefixes.find_prefix("[rank3]: " + "watchdog " * 20).rank == 3
    with pytest.raises(AssertionError):
        prefixes.find_prefix("[rank3]: node1:12:34 [0] NCCL INFO")


def test_explain_pauses_the_collector_and_starts_it_again():
    paused = []

    @rule("for-a-test", "A rule", source="a test")
    def look(paste):
        paused.append(not gc.isenabled())
        return ()

    ml.explain("NCCL version 2.26.6\n", rules=[look])
    assert paused == [True]
    assert gc.isenabled()


def test_a_limit_ends_explain_instead_of_becoming_a_finding():
    @rule("for-a-test", "A rule", source="a test")
    def refuse(paste):
        raise LimitError("too many", hint="pass fewer")

    with pytest.raises(LimitError, match="too many"):
        ml.explain("NCCL version 2.26.6\n", rules=[refuse])
