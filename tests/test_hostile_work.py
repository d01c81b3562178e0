"""Readers do little work for each line of a hostile text, counted in calls or pieces, because times vary."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base import _prefixes as prefixes
from meshlab.base._documents import LimitError, decode_json, parse_json, parse_own_json
from meshlab.base._errors import MeshlabError, ParseError
from meshlab.diagnosis._findings import rule
from meshlab.nccl_tests import _json as json_reader
from meshlab.nccl_tests import _reader as nccl_reader
from meshlab.nccl_tests._pieces import ends_before_message
from meshlab.nccl_tests._row_checks import _repeated
from meshlab.nccl_tests._rows import RowBuffer
from meshlab.runs._store import as_results
from meshlab.topology.readers import _slurm as slurm
from meshlab.topology.readers._hostlists import _patterns, expand_hosts
from meshlab.topology.readers._slurm import looks_like_slurm, read_slurm_topology
from tests import hostile_inputs


def n_steps(function: Callable[[Any], Any], argument: Any) -> int:
    """Return the number of instructions that Python executes in a call, those of loops in comprehensions included."""
    n = 0

    def count(frame: Any, event: str, value: Any) -> Any:
        nonlocal n
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        n += event == "opcode"
        return count

    sys.settrace(count)
    try:
        function(argument)
    except MeshlabError:
        pass
    finally:
        sys.settrace(None)
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


def test_a_text_has_at_most_50000_rows_of_nvidia_smi():
    with pytest.raises(LimitError, match="more than 50,000 rows of matrices"):
        ml.topology.read("\tGPU0\tGPU1\n" + "".join(f"GPU{k}\t X \tNV18\n" for k in range(50_001)))


def test_a_topology_yaml_has_a_limited_number_of_values():
    with pytest.raises(LimitError, match="more than 600,000 lists, keys and values"):
        read_slurm_topology("- topology: [" + "1," * 600_000 + "]\n")


def test_switches_of_switches_are_limited_together(monkeypatch):
    monkeypatch.setattr(slurm, "MOST_HOSTS", 1_000)
    lines = [f"SwitchName=s{number} Switches=x[1-400]\n" for number in range(3)]
    with pytest.raises(LimitError, match="list more than 1,000 other switches"):
        read_slurm_topology("".join(lines))


def test_a_list_of_plain_names_has_at_most_as_many_hosts_as_one_of_ranges():
    with pytest.raises(ParseError, match="has more than 1,048,576 hosts"):
        expand_hosts("n," * 1_048_577)


# -- dumps of the flight recorder --------------------------------------------------------------------------------------


def dump_of(entries: str, more: str = "") -> str:
    return f'{{"version": "2.4", {more}"entries": [{entries}]}}\n'


def call_of(number: int) -> str:
    return (
        f'{{"record_id": {number}, "process_group": ["g{number}", "a group"], "collective_seq_id": {number}, '
        '"profiling_name": "nccl:all_reduce", "input_sizes": [[8]], "state": "scheduled"}'
    )


def calls_of(n: int) -> str:
    return ", ".join(call_of(number) for number in range(n))


@pytest.mark.parametrize(
    "text_of",
    [
        lambda n: dump_of(calls_of(n)),
        lambda n: dump_of(calls_of(n), f'"pg_config": {json.dumps({f"k{k}": {"name": f"g{k}"} for k in range(n)})}, '),
        lambda n: "".join(dump_of(call_of(number)) for number in range(n)),
    ],
    ids=["calls of different groups", "groups with other keys", "dumps of different groups"],
)
def test_the_work_for_dumps_grows_with_their_length(text_of):
    few, many = (n_steps(ml.explain, text_of(n)) for n in (60, 240))
    assert many < 5 * few


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"version": "2.3", "entries": [{"record_id": 1, "pg_id"\n' * 2000, "more than 1,112 dumps"),
        ('{"entries": []}\n' * 2000, "more than 1,032 dumps"),
        (dump_of(", ".join(["{}"] * 20_000)), "more than 10,800 calls"),
        ('{"entries": 1}\n' + "{}\n" * 20_000, "more than 11,200 values of JSON"),
        ('{"entries": 1}\n' + '{"\n' * 20_000, "more than 11,200 values of JSON"),
    ],
)
def test_a_text_has_no_more_dumps_than_its_length_allows(text, what):
    with pytest.raises(LimitError, match=what):
        ml.explain(text)


def test_lines_with_the_rank_in_brackets_are_not_tried_as_dumps():
    text = dump_of(calls_of(2)) + "[rank3]: waits\n[2025-11-29 12:00:00] waits\n" * 20_000
    (seen,) = [one for one in ml.explain(text).recognised if one.kind.startswith("flight recorder")]
    assert seen.n_lines == 1


def test_the_number_of_elements_stays_within_64_bits():
    shapes = "[" + ", ".join(["9223372036854775807"] * 3000) + "]"
    text = "".join(
        dump_of(
            f'{{"record_id": 1, "process_group": ["0", "a"], "collective_seq_id": 1, "input_sizes": [{shape}], '
            '"profiling_name": "nccl:all_reduce", "state": "started"}',
            f'"rank": {rank}, "pg_config": {{"0": {{"ranks": "[0, 1]"}}}}, ',
        )
        for rank, shape in enumerate((shapes, "[8]"))
    )
    (found,) = [one for one in ml.explain(text).findings if one.code == "size-mismatch"]
    assert "9,223,372,036,854,775,807 elements" in str(found)


# -- logs of nccl-tests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["interrupted rows", "sizes before messages"])
def test_interrupted_rows_are_tried_up_to_a_number_of_them(kind, monkeypatch):
    tried = []
    monkeypatch.setattr(nccl_reader, "_MOST_PIECES", 50)
    monkeypatch.setattr(
        nccl_reader, "ends_before_message", lambda raw, at: tried.append(raw) or ends_before_message(raw, at)
    )
    log = ml.nccl_tests.read(hostile_inputs.KINDS[kind](40_000))
    assert len(tried) <= 100
    assert "50 messages of NCCL have parts of rows; those in later messages are not read" in str(log.warnings)


def test_texts_are_tried_as_rows_up_to_a_number_in_a_file(monkeypatch):
    monkeypatch.setattr(nccl_reader, "_MOST_JOINED_IN_FILE", 1000)
    tried = []
    add = RowBuffer.add_joined
    monkeypatch.setattr(
        RowBuffer, "add_joined", lambda self, texts, *rest, **how: tried.extend(texts) or add(self, texts, *rest, **how)
    )
    run = hostile_inputs.KINDS["interrupted rows"](20_000) + "# Avg bus bandwidth    : 1\n"
    counts = []
    for n in (10, 30):
        tried.clear()
        ml.nccl_tests.read(run * n)
        counts.append(len(tried))
    assert counts[1] < counts[0] + 30 * 200


@given(st.text("a:1 [].\t-", max_size=20), st.sampled_from(["node0:17:18 [0] ", "10.0.0.7:1:2 ", ":1:2:3 [4] ", ""]))
def test_the_host_before_a_message_is_found_as_by_one_pattern(before, head):
    raw = f"{before}{head}NCCL INFO x"
    texts, likely = ends_before_message(raw, raw.index("NCCL"))
    whole = re.search(r"([^\s:]*):\d+:\d+ (?:\[\d+\] )?$", before + head)
    assert texts[-1] == (before + head if whole is None else (before + head)[: whole.start(1)])
    assert likely in texts


def test_rows_that_are_repeated_are_found_as_by_a_dictionary():
    row = "{:>12}  {:>12}     float     sum      -1    20.00   {:5.2f}   91.75      0    20.00   52.43   91.75      0\n"
    sizes = [1024, 2048, 1024, 0, 0, 1024, 2048]
    text = hostile_inputs.HEADER + "".join(row.format(size, size // 4, size / 2e4) for size in sizes)
    table = ml.nccl_tests.read(text).sections[0].table
    notes = list(_repeated(table))
    assert [(note.line, note.text) for note in notes] == [
        (table.line[2], f"this row repeats the row of line {table.line[0]}"),
        (table.line[5], f"this row repeats the row of line {table.line[0]}"),
        (table.line[6], f"this row repeats the row of line {table.line[1]}"),
    ]


def test_the_work_for_repeated_rows_is_little_for_each_of_them():
    table = ml.nccl_tests.read(hostile_inputs.KINDS["rows"](500 * 128)).sections[0].table
    different = replace(table, size_bytes=np.arange(1, len(table) + 1))
    assert n_steps(lambda rows: list(_repeated(rows)), different) < 60 * len(table)


def test_json_has_no_more_results_than_its_length_allows(monkeypatch):
    monkeypatch.setattr(json_reader, "_MOST_RESULTS", 10)
    result = '{"size": 8, "count": 2, "type": "float", "out_of_place": {"time": 1.5}}, '
    for text in (hostile_inputs.KINDS["cut JSON of nccl-tests"](20_000), result * 300):
        with pytest.raises(LimitError, match=r"more than \d+ results"):
            ml.nccl_tests.read(text)


def test_lines_without_a_word_of_nccl_tests_take_no_step_each():
    steps = [n_steps(ml.nccl_tests.read, "- a: 1\n" * n) for n in (1_000, 10_000)]
    assert steps[1] < 1.2 * steps[0]


# -- documents and tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        parse_json,
        parse_own_json,
        lambda text: decode_json(text, 0),
        lambda text: ml.explain('{"entries": ' + text),
        lambda text: ml.nccl_tests.read('{"results": ' + text),
    ],
)
def test_json_has_a_limited_number_of_lists_and_objects(read):
    with pytest.raises(LimitError, match="lists and objects"):
        read("[" + "[]," * 2_500_000 + "[]]")


def test_the_first_key_that_occurs_twice_is_found_in_one_pass():
    def text(n: int) -> str:
        return "{" + ", ".join(f'"k{number}": 1' for number in range(n)) + f', "k{n - 1}": 2}}'

    few, many = (n_steps(parse_own_json, text(n)) for n in (200, 800))
    assert many < 5 * few
    with pytest.raises(ParseError, match="the key 'k199' occurs twice"):
        parse_own_json(text(200))


def test_the_rows_of_another_table_are_not_read(tmp_path):
    steps = []
    for n in (1_000, 10_000):
        path = tmp_path / f"{n}.csv"
        path.write_text("a,b\n" + "1,2\n" * n)
        with pytest.raises(ParseError, match="unknown columns a, b"):
            as_results(path)
        steps.append(n_steps(as_results, path))
    assert steps[1] < 1.1 * steps[0]


def test_the_apostrophes_of_a_table_take_no_step_each(tmp_path):
    steps = []
    for n in (1_000, 10_000):
        path = tmp_path / f"{n}.csv"
        path.write_text("collective,size_bytes\n" + "''all_reduce,8\n" * n)
        assert set(as_results(path)["collective"]) == {"'all_reduce"}
        steps.append(n_steps(as_results, path))
    assert steps[1] < 2 * steps[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [("a," * 2_000 + "b\n1\n", "more than 1,000 columns"), ("size_bytes\n" + "8\n" * 200_000, "200,001 lines")],
)
def test_a_table_has_no_more_cells_than_a_frame(tmp_path, text, what):
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(LimitError, match=what):
        as_results(path)


# -- host lists --------------------------------------------------------------------------------------------------------


def result_of(function: Callable[[], Any]) -> Any:
    """Return the value of a function, or the position of the bracket that it refuses."""
    try:
        return function()
    except ParseError as error:
        return error.column


def split_by_depth(text: str) -> list[str]:
    """Split a host list at the commas outside brackets, mark by mark."""
    found, depth, start = [], 0, 0
    for match in re.finditer(r"[\[\],\s]", text):
        depth += {"[": 1, "]": -1}.get(match[0], 0)
        if depth not in (0, 1):
            raise ParseError("they do not match", text=text, column=match.start())
        if depth == 0 and match[0] in ", \t\n":
            found += [text[start : match.start()]] * (match.start() > start)
            start = match.end()
    if depth:
        raise ParseError("not closed")
    return [*found, text[start:]] if start < len(text) else found


@given(st.text("ab1[],-\n \r", max_size=12))
def test_a_host_list_is_split_outside_brackets(text):
    assert result_of(lambda: list(_patterns(text))) == result_of(lambda: split_by_depth(text))


def test_a_host_list_is_refused_before_its_parts_are_read():
    def read(text: str) -> None:
        with pytest.raises(ParseError, match="has more than 1,048,576 hosts"):
            expand_hosts(text)

    assert n_steps(read, "n[" + "1," * 2_000_000 + "1]") < 10_000
