"""Readers do little work for each line of a hostile text, counted in calls or pieces, because times vary."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshlab as ml
from meshlab import prefixes
from meshlab.diagnosis.text_findings import rule
from meshlab.documents import LimitError
from meshlab.errors import MeshlabError, ParseError
from meshlab.topology.readers.hostlists import expand_hosts
from meshlab.topology.readers.slurm import looks_like_slurm, read_slurm_topology


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


# -- Slurm -------------------------------------------------------------------------------------------------------------

_CONF = re.compile(r"^[ \t]*(?:SwitchName|BlockName)[ \t]*=", re.IGNORECASE | re.MULTILINE)
_YAML = re.compile(r"^[ \t]*(?:-[ \t]*)?topology[ \t]*:", re.MULTILINE)


@given(st.lists(st.sampled_from(["SwitchName", "blockname", "topology", ":", "=", " ", "\t", "\n", "-", "x"])))
def test_a_key_of_slurm_is_found_where_a_pattern_for_lines_finds_it(parts):
    text = "".join(parts)
    assert looks_like_slurm(text) == bool(_CONF.search(text) or _YAML.search(text))


SWITCHES = "".join(f"SwitchName=s{number} Nodes=n[1-2]\n" for number in range(100_001))


@pytest.mark.parametrize("read", [read_slurm_topology, ml.read, ml.explain])
def test_a_topology_of_slurm_has_at_most_100000_switches(read):
    with pytest.raises(LimitError, match="more than 100,000 switches or blocks"):
        read(SWITCHES)


def test_a_topology_yaml_has_a_limited_number_of_values():
    with pytest.raises(LimitError, match="more than 600,000 lists, keys and values"):
        read_slurm_topology("- topology: [" + "1," * 600_000 + "]\n")


def test_switches_of_switches_are_limited_together():
    lines = [f"SwitchName=s{number} Switches=x[1-999999]\n" for number in range(3)]
    with pytest.raises(LimitError, match="list more than 1,048,576 other switches"):
        read_slurm_topology("".join(lines))


def test_a_list_of_plain_names_has_at_most_as_many_hosts_as_one_of_ranges():
    with pytest.raises(ParseError, match="has more than 1,048,576 hosts"):
        expand_hosts("n," * 1_048_577)
