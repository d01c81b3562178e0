from __future__ import annotations

import functools
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import ParseError
from meshlab.frames._schema import RESULTS
from meshlab.nccl_tests._info import NO_FACTS
from meshlab.nccl_tests._pieces import TYPES, may_have_type
from tests.examples import examples

LAYOUTS = ("2.0", "2.10", "2.13", "2.17", "2.19")
NAMES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv")
PREFIXES = {
    "mpirun": lambda number: "[1,0]<stdout>:",
    "mpirun with a space": lambda number: "[1,0]<stdout>: ",
    "srun": lambda number: " 0: ",
    "kubectl": lambda number: "[pod/nccl-0/worker] ",
    "time stamps": lambda number: f"2026-07-10T12:00:00.{number % 7 * 11111}Z ",
    "docker compose": lambda number: "worker-1  | ",
    "a quotation": lambda number: "> ",
    "colours": lambda number: "\x1b[32m",
    "a progress bar": lambda number: "epoch 1: 12%\r",
}


def timings(log):
    """Return every printed placement of all sections."""
    return {
        (row.size_bytes, row.count, row.type, row.op, row.root, placement, repr(timing))
        for section in log.sections
        for row in section.rows
        for placement, timing in enumerate((row.out_of_place, row.in_place))
        if timing is not None
    }


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_every_collective_is_read_as_printed(make_log, layout, collective):
    maker = make_log(layout, collective)
    log = ml.nccl_tests.read(maker.text())
    (section,) = log.sections
    assert (log.status, section.collective, section.n_ranks) == ("complete", NAMES.get(collective, collective), 8)
    assert section.warnings == ()
    assert section.average_matches_rows
    assert [row.size_bytes for row in section.rows] == list(maker.sizes)
    for index, row in enumerate(section.rows):
        assert row.line == len(maker.preamble()) + 4 + index
        for timing, in_place in ((row.out_of_place, False), (row.in_place, True)):
            assert timing.time_us == pytest.approx(maker.time(index, in_place), rel=2e-3)
            checked = not (in_place and collective in ("alltoall", "sendrecv"))
            is_old = layout in ("2.0", "2.10")
            assert timing.n_wrong == (0 if checked and not is_old else None)
            assert timing.error == (5e-07 if checked and is_old else None)
            assert timing.min_us == (pytest.approx(timing.time_us * 0.97, rel=2e-3) if layout == "2.19" else None)
    assert section.rows[0].timestamp == ("2026-07-10 12:00:01" if layout == "2.19" else None)


def test_the_preamble_and_the_device_list_are_kept(make_log):
    (section,) = ml.nccl_tests.read(make_log("2.17").text()).sections
    preamble = section.preamble
    assert (preamble.tool, preamble.tool_version, preamble.library_version) == ("nccl-tests", "2.17.8", "2.29.2")
    assert (preamble.iters, preamble.warmup_iters, preamble.step, preamble.step_kind) == (20, 5, 8, "factor")
    assert (section.gpu, section.library, section.mode, section.ranks_per_node) == (
        "NVIDIA X1",
        "NCCL 2.29.2",
        "pipelined",
        8,
    )
    assert section.devices[3]._asdict() == {
        "rank": 3,
        "group": 0,
        "pid": 1003,
        "host": "node00",
        "device": 3,
        "bus_id": "0000:03:00",
        "name": "NVIDIA X1",
    }


@pytest.mark.parametrize("name", PREFIXES)
def test_a_prefix_before_each_line_changes_nothing(make_log, name):
    lines = make_log("2.17", wrong={2: 288}).lines()
    plain = ml.nccl_tests.read("\n".join(lines))
    prefixed = ml.nccl_tests.read("\n".join(PREFIXES[name](number) + line for number, line in enumerate(lines)))
    assert timings(prefixed) == timings(plain)
    assert prefixed.sections[0].unparsable_rows == 0
    assert prefixed.status == "complete"
    assert prefixed.sections[0].n_ranks == 8


@pytest.mark.parametrize(("newline", "encoding"), [("\r\n", "utf-8"), ("\n", "utf-8-sig"), ("\r\n", "utf-16")])
def test_windows_line_ends_and_encodings_are_read(make_log, tmp_path, newline, encoding):
    text = make_log().text()
    path = tmp_path / "log.txt"
    path.write_bytes(text.replace("\n", newline).encode(encoding))
    assert timings(ml.nccl_tests.read(path)) == timings(ml.nccl_tests.read(text))


def test_a_tag_before_every_write_is_removed_from_rows(make_log):
    text = make_log("2.13").text()
    tagged = "\n".join(
        "[0] " + (line[:52] + "[0] " + line[52:84] + "[0] " + line[84:] if "float " in line else line)
        for line in text.splitlines()
    )
    assert timings(ml.nccl_tests.read(tagged)) == timings(ml.nccl_tests.read(text))


def test_a_log_without_hash_signs_is_read(make_log):
    text = make_log().text()
    log = ml.nccl_tests.read(text.replace("#", ""))
    assert timings(log) == timings(ml.nccl_tests.read(text))
    assert log.sections[0].n_ranks == 8


def test_columns_with_collapsed_spaces_are_read(make_log):
    text = make_log().text()
    collapsed = "\n".join(" ".join(line.split()) for line in text.splitlines())
    assert timings(ml.nccl_tests.read(collapsed)) == timings(ml.nccl_tests.read(text))


def test_unchecked_results_are_missing_and_not_zero(make_log):
    log = ml.nccl_tests.read(make_log("2.13", checked=False).text())
    assert log.results["n_wrong"].isna().all()
    assert (log.results["status"] == "ok").all()


def test_wrong_results_are_counted_and_do_not_fail_the_run(make_log):
    log = ml.nccl_tests.read(make_log("2.13", wrong={3: 288}).text())
    (section,) = log.sections
    assert (section.status, section.footer.correct, section.footer.out_of_bounds) == ("complete", False, 2)
    wrong = log.results[log.results["n_wrong"] > 0]
    assert wrong["n_wrong"].tolist() == [288, 288]
    assert wrong["status"].tolist() == ["wrong", "wrong"]


def test_an_ambiguous_table_without_checks_leaves_the_collective_unknown(make_log):
    log = ml.nccl_tests.read(make_log("2.13", "all_gather", checked=False).text())
    (section,) = log.sections
    assert (section.collective, section.n_ranks) == (None, 8)
    assert log.results["collective"].isna().all()
    assert log.results["busbw_gbs"].notna().all()


def test_the_command_line_determines_the_collective(make_log):
    text = make_log("2.13", "all_gather", checked=False).text()
    log = ml.nccl_tests.read(f"user@host:~$ ./build/all_gather_perf -b 8 -e 1G -f 2 -g 8 -c 0\n{text}")
    assert log.sections[0].collective == "all_gather"


def test_a_command_line_that_the_rows_contradict_is_ignored(make_log):
    log = ml.nccl_tests.read(f"$ ./build/broadcast_perf -b 8\n{make_log('2.13', 'all_reduce').text()}")
    assert log.sections[0].collective is None
    assert any("broadcast" in note.text for note in log.warnings)


def test_rows_alone_determine_the_number_of_ranks(make_log):
    maker = make_log("2.13", n_ranks=16)
    log = ml.nccl_tests.read("\n".join([*maker.header(), maker.row(5), maker.row(6)]))
    (section,) = log.sections
    assert (section.status, section.n_ranks, section.collective) == ("incomplete", 16, "all_reduce")
    assert ml.nccl_tests.read(maker.row(6) + "\n").sections[0].n_ranks == 16


def test_numbers_of_ranks_that_rounding_hides_stay_unknown(make_log):
    maker = make_log("2.13", n_ranks=4000)
    assert ml.nccl_tests.read("\n".join([*maker.header(), maker.row(5)])).sections[0].n_ranks is None


def test_a_device_list_that_the_rows_contradict_is_ignored(make_log):
    lines = [line for line in make_log("2.13", n_ranks=8).lines() if "Rank  7" not in line]
    log = ml.nccl_tests.read("\n".join(lines))
    assert log.sections[0].n_ranks == 8
    assert any("7 ranks are listed" in note.text for note in log.warnings)


def test_n_ranks_is_the_size_of_one_group_of_a_split(make_log):
    maker = make_log("2.13", "broadcast", n_ranks=8)
    lines = [
        line.replace("Group  0", f"Group  {int(line[8:10]) % 2}") if "Rank" in line else line for line in maker.lines()
    ]
    log = ml.nccl_tests.read("\n".join(lines))
    assert log.sections[0].n_ranks == 4
    assert log.results["group"].isna().all()


def test_several_tests_in_one_file_are_several_sections(make_log):
    text = "".join(make_log("2.17", collective).text() for collective in COLLECTIVES)
    log = ml.nccl_tests.read(text)
    assert [section.collective for section in log.sections] == [NAMES.get(name, name) for name in COLLECTIVES]
    assert log.results["run_id"].nunique() == len(COLLECTIVES)
    assert log.status == "complete"


def test_a_run_that_was_killed_within_its_table_is_incomplete(make_log):
    lines = make_log("2.17", footer=False).lines()
    log = ml.nccl_tests.read("\n".join([*make_log("2.17", "sendrecv").lines(), *lines[:-3]]))
    assert [section.status for section in log.sections] == ["complete", "incomplete"]
    assert log.status == "incomplete"


@pytest.mark.parametrize(
    "line",
    ["node00: Test NCCL failure common.cu:1012 'unhandled system error'", "node00: Test timeout (30s) common.cu:5"],
)
def test_a_failure_message_without_an_average_is_a_failed_run(make_log, line):
    log = ml.nccl_tests.read("\n".join([*make_log("2.13").preamble(), line, line]))
    (section,) = log.sections
    assert (section.status, section.failure_lines, section.n_ranks) == ("failed", 2, 8)
    assert section.collective is None


def test_a_preamble_alone_has_the_status_no_table(make_log):
    log = ml.nccl_tests.read("\n".join(make_log("2.13").preamble()[:3]))
    assert log.status == "no_table"
    assert len(log.results) == 0
    assert list(log.results.columns) == [column.name for column in RESULTS]


def test_a_device_list_at_the_end_of_the_text_is_not_trusted(make_log):
    lines = make_log("2.13").preamble()
    assert ml.nccl_tests.read("\n".join(lines[:8])).sections[0].n_ranks is None


def test_host_times_are_kept_in_rows_and_omitted_from_results(make_log):
    text = make_log("2.13").text().replace("   time ", "cputime ")
    log = ml.nccl_tests.read(text)
    assert log.sections[0].rows[0].out_of_place.time_us > 0
    assert log.results["time_us"].isna().all()
    assert log.results["busbw_gbs"].notna().all()


def test_blocking_and_graph_runs_have_their_own_modes(make_log):
    text = make_log("2.13").text()
    assert set(ml.nccl_tests.read(text.replace("graph: 0", "graph: 20")).results["mode"]) == {"graph"}
    blocking = "# Blocking Enabled: wait for completion and barrier after each collective\n#\n# Using devices"
    assert set(ml.nccl_tests.read(text.replace("#\n# Using devices", blocking)).results["mode"]) == {"isolated"}
    assert ml.nccl_tests.read(make_log("2.10").text()).results["mode"].isna().all()


def test_rccl_tests_are_read(make_log):
    text = make_log("2.13").text().replace("# Using devices", "rccl-tests: Version develop:ae3e635\n# Using devices")
    text = text.replace("Group  0 ", "").replace(":00] NVIDIA X1", ":00.0] AMD Instinct MI300X")
    log = ml.nccl_tests.read("RCCL version : 2.22.3-develop:f5b15f2\n" + text)
    (section,) = log.sections
    assert (section.preamble.tool, section.preamble.tool_version) == ("rccl-tests", "develop:ae3e635")
    assert (section.gpu, section.library, section.n_ranks) == ("AMD Instinct MI300X", "RCCL 2.22.3-develop:f5b15f2", 8)
    assert timings(log) == timings(ml.nccl_tests.read(make_log("2.13").text()))


def test_a_table_of_one_placement_is_that_placement(make_log):
    maker = make_log("2.13")
    names = "# size count type redop root time algbw busbw #wrong"
    rows = [maker.row(row)[: -len(maker.half(row, False))] for row in range(len(maker.sizes))]
    log = ml.nccl_tests.read("\n".join(["#" + " " * 60 + "in-place", names, *rows]))
    assert not log.results.empty
    assert log.results["in_place"].all()
    log = ml.nccl_tests.read("\n".join([*maker.header(), *rows]))
    assert not log.results["in_place"].any()
    blanked = [maker.row(row)[:52] + " " * 32 + maker.half(row, True) for row in range(len(maker.sizes))]
    log = ml.nccl_tests.read("\n".join([*maker.header(), *blanked]))
    assert log.results["in_place"].all()


MESSAGE = "node00:1000:1004 [5] NCCL INFO 64 Bytes -> Algo 0 proto 0 time 49.6"


@pytest.mark.parametrize("at", [12, 44, 52, 61, 84, 100])
def test_a_row_that_other_output_interrupts_is_joined_again(make_log, at):
    maker = make_log("2.13")
    row = maker.row(4)
    broken = "\n".join(maker.lines()).replace(row, f"{row[:at]}{MESSAGE}\n{MESSAGE}\n{row[at:]}")
    log = ml.nccl_tests.read(broken)
    assert timings(log) == timings(ml.nccl_tests.read(maker.text()))
    assert log.sections[0].unparsable_rows == 0
    assert any("continues in line" in note.text for note in log.warnings)


def test_a_row_that_other_output_interrupts_within_a_word_is_counted(make_log):
    maker = make_log("2.13")
    row = maker.row(4)
    broken = "\n".join(maker.lines()).replace(row, f"{row[:36]}{MESSAGE}\n{MESSAGE}\n{row[36:]}")
    log = ml.nccl_tests.read(broken)
    assert "incomplete row, omitted" in " ".join(note.text for note in log.warnings)
    assert timings(log) < timings(ml.nccl_tests.read(maker.text()))


def test_a_message_after_a_complete_row_does_no_harm(make_log):
    maker = make_log("2.17")
    text = "\n".join(maker.lines()).replace(maker.row(4), maker.row(4) + MESSAGE)
    assert timings(ml.nccl_tests.read(text)) == timings(ml.nccl_tests.read(maker.text()))


def test_halves_of_rows_without_a_counterpart_are_counted(make_log):
    maker = make_log("2.13")
    orphan = "    579.3    0.00    0.00      0    137.0    0.00    0.00      0"
    start = "          64            16     float     sum" + MESSAGE
    lines = [*maker.preamble(), *maker.header(), orphan, maker.row(0), start, maker.row(1), *maker.end()]
    (section,) = ml.nccl_tests.read("\n".join(lines)).sections
    assert (len(section.rows), section.unparsable_rows) == (2, 2)
    assert [note.line for note in section.warnings[:2]] == [len(maker.preamble()) + 4, len(maker.preamble()) + 6]


def test_masked_numbers_are_counted_as_incomplete_rows(make_log):
    row = (
        "   268435456       4194304     float    none      -1    XXXXX  XXX.XX  XXX.XX    N/A   XXXXXX  XXX.XX  XXX.XX"
    )
    maker = make_log("2.13")
    lines = [*maker.header(), row, row, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : XXX.XX"]
    (section,) = ml.nccl_tests.read("\n".join(lines)).sections
    assert (section.status, len(section.rows), section.unparsable_rows) == ("incomplete", 0, 2)


def test_rows_that_an_author_omitted_show_in_the_average(make_log):
    lines = make_log("2.13").lines()
    row = next(index for index, line in enumerate(lines) if "float " in line)
    log = ml.nccl_tests.read("\n".join([*lines[: row + 1], "...", *lines[row + 4 :]]))
    assert log.status == "complete"
    assert log.sections[0].average_matches_rows is False
    assert any("rows are missing" in note.text for note in log.warnings)
    assert any(note.text == "lines are omitted here" and note.line == row + 2 for note in log.warnings)


def test_a_header_that_a_terminal_wrapped_is_read(make_log):
    maker = make_log("2.10")
    text = maker.text().replace("#" + " " * 60 + "out-of-place", "#" + " " * 42 + "\n" + " " * 12 + "out-of-place")
    assert timings(ml.nccl_tests.read(text)) == timings(ml.nccl_tests.read(maker.text()))


def test_other_tables_around_the_run_are_ignored(make_log):
    noise = "Counter  Samples  Min  (/s)  Mean\natu_cache_evictions    1   4   0.2   4   0.2\n  3  1  0.0  1  0.0\n"
    text = make_log("2.13").text()
    log = ml.nccl_tests.read(noise + text + noise)
    assert timings(log) == timings(ml.nccl_tests.read(text))
    assert log.sections[0].unparsable_rows == 0


ALL = st.sampled_from([(layout, collective) for layout in LAYOUTS for collective in COLLECTIVES])
SIZES = st.sampled_from([tuple(2**power for power in range(8, 27, 3)), (1 << 20,), (4096, 1 << 24)])


@functools.cache
def whole_timings(text):
    """The rows of an undamaged log, of which there are few."""
    return timings(ml.nccl_tests.read(text))


def test_a_row_that_ends_within_an_exponent_is_cut(make_log):
    whole = make_log("2.10", "all_reduce", sizes=(1 << 20,)).text()
    cut = re.sub(r"(\n +1048576 .*\de[-+]\d)\d", r"\1", whole)
    assert len(cut) == len(whole) - 1
    (section,) = (found := ml.nccl_tests.read(cut)).sections
    assert timings(found) == set()
    assert section.unparsable_rows == 1


@pytest.mark.parametrize("n_lost", [1, 2])
def test_a_row_that_lost_the_end_of_its_wrong_elements_is_cut(make_log, n_lost):
    maker = make_log("2.17", "all_reduce", sizes=(1 << 20,), wrong={0: 512})
    lines = maker.lines()
    (index,) = (number for number, line in enumerate(lines) if line.endswith(" 512"))
    assert len(ml.nccl_tests.read("\n".join(lines)).results) == 2
    lines[index] = lines[index][:-n_lost]
    assert len(ml.nccl_tests.read("\n".join(lines)).results) == 0


@settings(max_examples=examples(400), deadline=None)
@given(ALL, SIZES, st.data())
def test_damage_to_a_log_never_creates_a_row(make_log, which, sizes, data):
    maker = make_log(*which, sizes=sizes, wrong={0: 512, 2: 288, 5: 12345})
    lines = maker.lines()
    first = len(maker.preamble())
    index = data.draw(st.integers(0, len(lines) - 1) | st.integers(first, len(lines) - 3))
    start = data.draw(st.integers(0, len(lines[index])))
    stop = data.draw(st.integers(start, len(lines[index])))
    kept = data.draw(st.sampled_from(["left", "right", "both", "nothing"]))
    line = {
        "left": lines[index][:start],
        "right": lines[index][stop:],
        "both": lines[index][:start] + lines[index][stop:],
    }
    changed = lines[:index] + ([line[kept]] if kept in line else []) + lines[index + 1 :]
    log = ml.nccl_tests.read("\n".join(changed))
    assert timings(log) <= whole_timings("\n".join(lines))
    named = {section.collective for section in log.sections}
    assert named <= {NAMES.get(which[1], which[1]), None}


@settings(max_examples=examples(100), deadline=None)
@given(ALL, st.integers(0, 10_000))
def test_a_truncated_text_has_the_rows_before_its_end(make_log, which, end):
    text = make_log(*which).text()
    end %= len(text)
    try:
        log = ml.nccl_tests.read(text[:end] + "\n")
    except ParseError:
        assert "minBytes" not in text[: max(0, end - 60)]
        return
    whole = whole_timings(text)
    complete = sum("float " in line for line in text[:end].split("\n")[:-1])
    assert timings(log) <= whole
    assert len(timings(log)) >= 2 * complete


@settings(max_examples=examples(200), deadline=None)
@given(st.text())
def test_any_text_is_read_or_raises_a_parse_error(text):
    try:
        log = ml.nccl_tests.read(text + "\n")
    except ParseError:
        return
    assert log.sections or log.nccl != NO_FACTS


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"", "empty"),
        (b"start failed on node00: no device\nsecond line\n", "2 lines, the first is 'start failed on node00"),
        (b"<!DOCTYPE html>\n<html></html>\n", "HTML"),
        (b"\x7fELF\x02\x01\x00\x00\xff\xfe\n" * 20, "binary"),
        (b'{"name": "another document"}', "another document"),
        (b"x" * 200_000, "1 line"),
    ],
)
def test_other_files_are_rejected_and_described(tmp_path, content, seen):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ParseError, match="no nccl-tests output found") as caught:
        ml.nccl_tests.read(path)
    assert seen in str(caught.value)
    assert caught.value.file == "file"


def test_a_missing_file_is_rejected():
    with pytest.raises(ParseError, match=r"'missing\.log' is neither a file"):
        ml.nccl_tests.read("missing.log")
    with pytest.raises(ParseError, match="neither a file"):
        ml.nccl_tests.read("x" * 100_000)


def test_one_very_long_line_takes_little_memory(tmp_path):
    path = tmp_path / "zeros"
    with path.open("wb") as file:
        file.truncate(1 << 28)
    tracemalloc.start()
    try:
        with pytest.raises(ParseError, match="binary"):
            ml.nccl_tests.read(path)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_results_have_the_schema_and_are_copies(make_log):
    log = ml.nccl_tests.read(make_log("2.17").text())
    frame = log.results
    assert {column.name: column.dtype for column in RESULTS} == {
        name: str(dtype) for name, dtype in frame.dtypes.items()
    }
    assert frame.attrs["gpu"] == "NVIDIA X1"
    assert frame.attrs["library"] == "NCCL 2.29.2"
    assert (frame["source"] == "nccl-tests").all()
    assert frame["calls"].eq(20).all()
    row = log.sections[0].rows[frame["step"].iloc[4] // 2]
    assert frame["time_us"].iloc[4] == row.out_of_place.time_us
    assert frame["busbw_gbs"].iloc[4] == pytest.approx(row.out_of_place.busbw_gbs, rel=5e-3)
    frame["time_us"] = 0.0
    assert (log.results["time_us"] > 0).all()
    assert len(log.samples) == 0


def test_one_rank_has_no_bus_bandwidth(make_log):
    text = make_log("2.13", "reduce", n_ranks=1).text()
    log = ml.nccl_tests.read(f"$ ./reduce_perf -g 1\n{text}")
    assert log.sections[0].n_ranks == 1
    assert log.results["busbw_gbs"].isna().all()
    assert any("one rank" in note.text for note in log.warnings)


def test_the_html_of_a_log_is_escaped(make_log):
    text = make_log("2.13").text().replace("NVIDIA X1", "<script>alert(1)</script>")
    log = ml.nccl_tests.read(text)
    assert "all_reduce, 8 ranks" in repr(log)
    assert "<script>alert" not in log._repr_html_()
    assert "&lt;script&gt;" in log._repr_html_()


def test_half_a_row_is_incomplete_if_other_rows_have_both_halves(make_log):
    maker = make_log("2.13")
    text = maker.text().replace(maker.half(3, True), "")
    (section,) = ml.nccl_tests.read(text).sections
    assert [row.size_bytes for row in section.rows] == [size for size in maker.sizes if size != maker.sizes[3]]
    assert section.unparsable_rows == 1


def test_a_setting_that_may_be_truncated_is_unknown(make_log):
    text = make_log("2.13").text()
    preamble = (
        ml.nccl_tests.read(text.replace("iters: 20 agg iters: 1 validation: 1 graph: 0", "iters: 2"))
        .sections[0]
        .preamble
    )
    assert (preamble.max_bytes, preamble.warmup_iters, preamble.iters) == (1 << 26, 5, None)


def test_a_folder_is_rejected(tmp_path):
    with pytest.raises(ParseError, match=r"this is a folder; pass a log, or load the folder of a run"):
        ml.nccl_tests.read(tmp_path)


@pytest.mark.parametrize("old", [" 1048576 ", " 262144 ", " -1 ", "iters: 20 "])
def test_numbers_that_ran_together_are_not_read(make_log, old):
    text = make_log("2.17").text().replace(old, f"{old.rstrip()}{'9' * 30} ", 1)
    log = ml.nccl_tests.read(text)
    assert len(log.results) >= len(log.sections[0].rows)
    assert log.results["size_bytes"].max() < 1 << 53


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_type_may_be_behind_a_message(name: str) -> None:
    assert may_have_type(f"NCCL INFO 8 2 {name}", 9)
    assert not may_have_type(f"{name} NCCL INFO 8 2", len(name))


def test_the_first_ring_of_a_channel_counts() -> None:
    channels = ["00/02 :    0   1", "01/02 :    1   0", "00/02 :    1   0", "1/02 :    0   1", "02/"]
    text = "".join(f"node1:1:2 [0] NCCL INFO Channel {one}\n" for one in channels)
    assert dict(ml.nccl_tests.read(text).prelude.rings) == {0: (0, 1), 1: (1, 0)}
