"""Kinds of logs that people have besides a clean run: copies, old rates, lines of JSON, parts of files."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import ParseError
from tests.examples import examples

SETTINGS = (
    "# nThread 1 nGpus {gpus} minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    + ("validation: 1 graph: 0")
)
HEADER = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"""


def device(rank: int, pid: int, host: str = "node1") -> str:
    return f"#  Rank  {rank} Group  0 Pid {pid:6} on {host:>10} device  {rank} [0x0f] NVIDIA H100"


def row(size: int, time: float, factor: float = 1.0) -> str:
    rate = size / time / 1e3
    half = f"{time:9.2f}  {rate:6.2f}  {rate * factor:6.2f}      0"
    return f"{size:12}  {size // 4:12}     float     sum      -1{half}{half}"


def interleaved(copies: int) -> str:
    lines = []
    for line in (SETTINGS.format(gpus=2), "#", "# Using devices"):
        lines += [line] * copies
    lines += [device(rank, 100 + copy, f"node{copy}") for rank in (0, 1) for copy in range(copies)]
    lines += HEADER.splitlines() * copies
    for size in (1 << 20, 1 << 21, 1 << 22):
        lines += [row(size, size / 1e5 + copy) for copy in range(copies)]
    for _ in range(copies):
        lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 98.5"]
    return "\n".join(lines)


@pytest.mark.parametrize("copies", [2, 3, 8])
def test_copies_of_a_test_are_one_section_that_says_so(copies: int) -> None:
    log = ml.nccl_tests.read(interleaved(copies))
    assert len(log.sections) == 1
    assert (log.sections[0].copies, log.sections[0].n_ranks) == (copies, 2)
    assert len(log.sections[0].rows) == 3 * copies
    assert any(f"{copies} copies of the test" in str(note) and "MPI=1" in str(note) for note in log.warnings)


def test_copies_without_a_preamble_are_recognised_by_their_rows() -> None:
    text = "\n".join(interleaved(2).splitlines()[-14:])
    assert [section.copies for section in ml.nccl_tests.read(text).sections] == [2]


SIZES = tuple(1 << power for power in range(10, 24, 2))


@settings(max_examples=examples(40))
@given(st.lists(st.booleans(), min_size=2, max_size=14))
def test_copies_at_their_own_pace_are_recognised_by_their_rows(turns: list[bool]) -> None:
    """One header, as where the output of the second copy was cut at its beginning."""
    rows = [[row(size, size / 1e5 + copy) for size in SIZES] for copy in (0, 1)]
    merged = []
    for turn in turns * 14:
        merged += [rows[turn].pop(0)] if rows[turn] else []
    merged += [*rows[0], *rows[1]]
    (section,) = ml.nccl_tests.read("\n".join([HEADER, *merged])).sections
    is_in_turns = [line.split()[0] for line in merged] != [str(size) for size in SIZES] * 2
    assert section.copies == (2 if is_in_turns else 1)
    assert any("2 copies" in str(note) for note in section.warnings) == is_in_turns


def test_cycles_of_a_run_are_no_copies() -> None:
    cycles = [row(size, size / 1e5 + cycle) for cycle in range(3) for size in SIZES]
    (section,) = ml.nccl_tests.read("\n".join([HEADER, *cycles])).sections
    assert section.copies == 1


@pytest.mark.parametrize(
    "text",
    [
        HEADER,
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.94",
        '{"identifier": "x", "benchmark": [{"1024": {"oop_time": 1.5, "oop_algbw": 2.5, "oop_busbw": 3.5}}]}\n',
    ],
)
def test_a_table_without_rows_is_never_silent(text: str) -> None:
    log = ml.nccl_tests.read(f"NCCL version 2.26.6+cuda12.8\n{text}\n")
    assert len(log.results) == 0
    assert [str(note) for note in log.warnings] == ["no row of the table was found"]


def test_runs_after_each_other_are_no_copies() -> None:
    one = "\n".join(
        [SETTINGS.format(gpus=2), "#", "# Using devices", device(0, 1), device(1, 1), HEADER]
        + [row(1 << power, 2.0**power / 1e5) for power in (20, 21, 22, 23)]
        + ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 100"]
    )
    log = ml.nccl_tests.read(f"{one}\n{one}")
    assert [(section.copies, section.n_ranks) for section in log.sections] == [(1, 2), (1, 2)]


def test_rates_of_all_gather_before_june_2020_are_recognised() -> None:
    lines = [
        "./all_gather_perf -b 1M -e 8M -f 2 -g 4",
        "# nThread 1 nGpus 4 minBytes 1048576 maxBytes 8388608 step: 2(factor) warmup iters: 5 iters: 20 validation: 1",
        "#                                             out-of-place                       in-place",
        "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error",
    ]
    for size in (1 << 20, 1 << 21, 1 << 22, 1 << 23):
        time = size / 4e4
        rate = size * 3 / 4 / time / 1e3
        half = f"{time:9.2f}  {rate:6.2f}  {rate:6.2f}  0e+00"
        lines.append(f"{size:12}  {size // 16:12}   float{half}{half}")
    log = ml.nccl_tests.read("\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 30"]))
    assert (log.sections[0].collective, log.sections[0].n_ranks, log.warnings) == ("all_gather", 4, ())
    assert log.results["algbw_gbs"].round(1).unique().tolist() == [40.0]
    assert log.results["busbw_gbs"].round(1).unique().tolist() == [30.0]


def test_bandwidths_of_a_million_have_one_digit() -> None:
    text = f"{HEADER}\n" + "\n".join(
        f"{size:12}  {size // 4:12}     float     sum      -1"
        f"   176.33  {size / 176.33e3:6.2f}    0.00      0     0.10  {rate}    0.00      0"
        for size, rate in ((1 << 26, "671089"), (1 << 27, " 1e+06"), (1 << 28, " 3e+06"))
    )
    assert ml.nccl_tests.read(text).sections[0].unparsable_rows == 0


@pytest.mark.parametrize(("busbw", "n"), [("441.81", 1), ("41.81", 0)])
def test_a_single_row_with_other_widths_is_read_if_its_numbers_agree(busbw: str, n: int) -> None:
    text = (
        "size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        f"1073741824 268435456 float sum -1 4253.0 252.47 {busbw} 0 4251.0 252.59 442.02 0\n# Avg bus bandwidth : 441.9"
    )
    section = ml.nccl_tests.read(text).sections[0]
    assert (len(section.rows), section.unparsable_rows) == (n, 1 - n)


def json_lines() -> list[str]:
    return [
        json.dumps(
            {
                "#wrong": "0",
                "algBw": size / 20e3,
                "busBw": size / 20e3 * 1.5,
                "gpus": 4,
                "inPlace": in_place,
                "name": "AllReduce",
                "redop": "sum",
                "size": size,
                "time": 20.0,
                "type": "float",
            }
        )
        for size in (1024, 2048)
        for in_place in (0, 1)
    ]


def test_lines_of_json_of_rccl_tests_are_read() -> None:
    log = ml.nccl_tests.read("\n".join(json_lines()))
    section = log.sections[0]
    assert (section.collective, section.n_ranks, section.status, section.preamble.tool) == (
        "all_reduce",
        4,
        "complete",
        "rccl-tests",
    )
    assert log.results[["size_bytes", "in_place", "n_wrong"]].to_numpy().tolist() == [
        [1024, False, 0],
        [1024, True, 0],
        [2048, False, 0],
        [2048, True, 0],
    ]
    assert len(ml.nccl_tests.read("\n".join(json_lines() * 2)).sections) == 2


def test_a_cut_line_of_json_is_counted() -> None:
    text = "\n".join(json_lines())[:-30]
    assert (len(ml.nccl_tests.read(text).results), len(ml.nccl_tests.read(text).warnings)) == (3, 1)
    with pytest.raises(ParseError):
        ml.nccl_tests.read('{"inPlace": 1, "busBw": 3, "gpus": 4, "x')


def document() -> str:
    half = {"time": 20.0, "alg_bw": 0.0512, "bus_bw": 0.0512, "nwrong": 0}
    results = [
        {
            "size": 1024,
            "count": 256,
            "type": "float",
            "redop": "sum",
            "root": -1,
            "out_of_place": half,
            "in_place": half,
        }
    ] * 3
    return json.dumps({"version": 3, "args": ["./all_reduce_perf"], "config": {"nthreads": 1}, "results": results})


def test_complete_results_are_read_from_any_part_of_a_document() -> None:
    text = document()
    for cut in range(text.index('"size"') - 1, text.index('"size"') + 20):
        log = ml.nccl_tests.read(text[cut:])
        assert len(log.results) in (4, 6)
        assert "the JSON is truncated" in [note.text for note in log.warnings]


@pytest.mark.parametrize("name", ["rccl-tests", "nccl-tests"])
def test_the_tool_is_named_by_its_first_line(name: str) -> None:
    prefix = name[:4]
    text = f"# {name} version 2.17.9-develop:25 {prefix}-headers=22803 {prefix}-library=22707\n{HEADER}"
    preamble = ml.nccl_tests.read(text).sections[0].preamble
    assert (preamble.tool, preamble.tool_version, preamble.library_version) == (name, "2.17.9-develop:25", "2.27.7")


def test_runs_with_other_settings_that_list_no_devices_are_no_copies() -> None:
    settings = SETTINGS.format(gpus=2)
    several = [settings.replace("maxBytes 1024", f"maxBytes {most}") for most in (64, 128)]
    text = "".join(f"{line}\n#\n# Using devices\n" for line in several)
    assert [section.copies for section in ml.nccl_tests.read(text).sections] == [1, 1]


# -- versions until March 2019, which print milliseconds ---------------------------------------------------------------

OLD_SETTINGS = (
    "nThread 1 nGpus 4 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 validation: 1"
)
OLD_DEVICES = [
    f"#   Rank {rank:2d} on {'node1':>10} device {rank:2d} [0x{rank + 16:02x}] Tesla P100" for rank in range(4)
]
OLD_SIZES = (1 << 20, 1 << 21, 1 << 22)


def old_half(size: float, milliseconds: float, factor: float, error: str = "  0e+00") -> str:
    rate = size / milliseconds / 1e6
    return f"  {milliseconds:7.3f}  {rate:5.2f}  {rate * factor:5.2f}  {error}"


def old_log(header: str, rows: list[str]) -> str:
    lines = [OLD_SETTINGS, "# NCCL Tests compiled with NCCL 2.2", "# Using devices", *OLD_DEVICES, "", header, *rows]
    return "\n".join([*lines, " Out of bounds values : 0 OK", " Avg bus bandwidth    : 0", ""])


OLD_REDUCE = (
    "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res"
)


@pytest.mark.parametrize("error", ["  0e+00", "\tN/A", "    N/A"])
def test_times_until_march_2019_are_milliseconds(error: str) -> None:
    rows = [
        f"{size:12}  {size // 4:12}   float     sum{old_half(size, size / 4e6, 1.5, error)}"
        f"{old_half(size, size / 5e6, 1.5, error)}"
        for size in OLD_SIZES
    ]
    (section,) = ml.nccl_tests.read(old_log(OLD_REDUCE, rows)).sections
    assert (section.collective, section.n_ranks, section.unparsable_rows) == ("all_reduce", 4, 0)
    assert [row.size_bytes for row in section.rows] == list(OLD_SIZES)
    first = section.rows[0]
    assert (first.out_of_place.time_us, first.in_place.time_us, first.in_place.busbw_gbs) == (262.0, 210.0, 7.5)
    assert first.out_of_place.n_wrong is None
    assert first.out_of_place.error == (0.0 if "0e" in error else None)
    assert [(device.host, device.pid, device.name) for device in section.devices][1] == ("node1", None, "Tesla P100")
    # A paste may begin in the middle of a table, in which only three decimals show that these are milliseconds.
    (section,) = ml.nccl_tests.read("\n".join(rows)).sections
    assert [row.out_of_place.time_us for row in section.rows] == [262.0, 524.0, 1049.0]


def test_broadcasts_until_march_2019_have_one_placement() -> None:
    header = "#      bytes             N    type    root     time  algbw  busbw      res"
    rows = [f"{size:12}  {size // 4:12}   float       2{old_half(size, size / 4e6, 1.0)}" for size in OLD_SIZES]
    (section,) = ml.nccl_tests.read(old_log(header, rows)).sections
    assert (section.n_ranks, len(section.rows), section.unparsable_rows) == (4, 3, 0)
    assert {(row.root, row.in_place, row.op) for row in section.rows} == {(2, None, None)}
    assert [row.out_of_place.time_us for row in section.rows] == [262.0, 524.0, 1049.0]


def test_rates_of_all_gather_until_march_2019_become_those_of_today() -> None:
    header = "#      bytes             N    type     time  algbw  busbw      res     time  algbw  busbw      res"
    rows = [f"{size:12}  {size // 16:12}   float" + 2 * old_half(size * 3 / 4, size / 4e6, 1.0) for size in OLD_SIZES]
    log = ml.nccl_tests.read("./all_gather_perf -g 4\n" + old_log(header, rows))
    assert (log.sections[0].collective, log.sections[0].n_ranks) == ("all_gather", 4)
    assert log.results["algbw_gbs"].round(1).unique().tolist() == [4.0]
    assert log.results["busbw_gbs"].round(1).unique().tolist() == [3.0]


def test_a_row_until_march_2019_that_lost_a_digit_is_omitted() -> None:
    rows = [f"{size:12}  {size // 4:12}   float     sum" + 2 * old_half(size, size / 4e6, 1.5) for size in OLD_SIZES]
    for whole, cut in (("0.524", "0.24"), ("6.00", "6.0"), ("0e+00", "0e+0")):
        damaged = [rows[0], rows[1].replace(whole, cut, 1), rows[2]]
        (section,) = ml.nccl_tests.read(old_log(OLD_REDUCE, damaged)).sections
        assert ([row.size_bytes for row in section.rows], section.unparsable_rows) == ([1 << 20, 1 << 22], 1)


def test_copies_until_march_2019_are_recognised_by_their_hosts() -> None:
    devices = "\n".join(f"#   Rank  0 on    node{host} device  0 [0x00] Tesla M60" for host in (1, 2))
    (section,) = ml.nccl_tests.read(f"# Using devices\n{devices}\n\n{OLD_REDUCE}\n").sections
    assert section.copies == 2


def test_microseconds_stay_microseconds() -> None:
    text = "\n".join(row(size, size / 1e5) for size in OLD_SIZES)
    assert ml.nccl_tests.read(text).sections[0].rows[0].out_of_place.time_us == 10.49


# -- rows that messages interrupt twice --------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["[0] ", "", "[1,0]<stdout>:"])
def test_the_middle_of_a_row_is_joined_with_both_of_its_ends(prefix: str) -> None:
    message = "node1:497888:497888 [0] NCCL INFO 128 Bytes -> Algo 0 proto 0 time 25.214764"
    start = f"{128:12}  {32:12}     float     sum      -1"
    middle, end = (f"  {time}    0.00    0.00      0" for time in ("  61.58", "  60.11"))
    lines = [*HEADER.splitlines(), f"{start}{message}", message, f"{middle}{message}", message, end]
    (section,) = ml.nccl_tests.read("\n".join(prefix + line for line in lines)).sections
    assert [(r.out_of_place.time_us, r.in_place.time_us) for r in section.rows] == [(61.58, 60.11)]
    cut = [*HEADER.splitlines(), f"{start}{message}", f"{middle}{message}", message]
    (section,) = ml.nccl_tests.read("\n".join(prefix + line for line in cut)).sections
    assert (len(section.rows), section.unparsable_rows) == (0, 1)


def test_a_single_row_of_iteration_times_that_lost_digits_is_omitted() -> None:
    half = "    27.43   38.22   66.89     512    26.61    28.80    28.53     1.41"
    line = f"{1 << 20:12}  {1 << 18:12}     float     sum      -1{half}{half}"
    names = "time algbw busbw #wrong i_min i_max i_p99 i_cv% "
    header = f"#       size         count      type   redop    root {names}{names}"
    (section,) = ml.nccl_tests.read(f"{header}\n{line}\n").sections
    assert (len(section.rows), section.unparsable_rows) == (1, 0)
    (section,) = ml.nccl_tests.read(f"{header}\n{line[:-12]}{line[-8:]}\n").sections
    assert (len(section.rows), section.unparsable_rows) == (0, 1)


@settings(max_examples=examples(100))
@given(
    places=st.lists(st.integers(0, 120), max_size=12),
    tag=st.sampled_from(["[1,0]<stdout>:", "[node7,3]<stderr>:", "[default0]:"]),
)
def test_a_tag_anywhere_in_a_row_changes_nothing(places: list[int], tag: str) -> None:
    lines = [*HEADER.splitlines(), *(row(size, size / 1e5, 1.75) for size in SIZES)]
    tagged = []
    for number, line in enumerate(lines):
        pieces = [0, *sorted({place % len(line) for place in places}), len(line)] if number > 4 else [0, len(line)]
        tagged.append("".join(tag + line[start:end] for start, end in itertools.pairwise(pieces)))
    (section,) = ml.nccl_tests.read("\n".join(tagged)).sections
    assert [item.out_of_place for item in section.rows] == [
        item.out_of_place for item in ml.nccl_tests.read("\n".join(lines)).sections[0].rows
    ]
    assert (section.n_ranks, section.unparsable_rows) == (8, 0)


# -- rates until June 2020, tables of other tools, matrices, the number of ranks ---------------------------------------

OLD_RATES = """# nThread: 1 nGpus: 8 minBytes: 33554432 maxBytes: 33554432 step: 1048576(bytes) warmupIters: 5 iters: 20
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
    33554432       1048576   float     sum     4000    7.34    7.34  1e-07     4100    7.16    7.16  1e-07
"""


def test_a_single_row_with_the_rates_until_june_2020_is_read() -> None:
    (section,) = ml.nccl_tests.read(f"./reduce_scatter_perf -g 8\n{OLD_RATES}").sections
    assert (section.collective, section.n_ranks, section.unparsable_rows) == ("reduce_scatter", 8, 0)
    assert section.rows[0].out_of_place.time_us == 4000
    for whole, damaged in (("4000", "4900"), ("7.34    7.34", "7.84    7.84"), ("1048576   float", "1048577   float")):
        (section,) = ml.nccl_tests.read(OLD_RATES.replace(whole, damaged)).sections
        assert (len(section.rows), section.unparsable_rows) == (0, 1)


OTHER_TABLES = {
    "MSCCL": """# Initializing MSCCL++
#                                    in-place                       out-of-place
#       size         count     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     4194304        131072    61.20   68.53   64.25       0
""",
    "nccom-test": """   size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)
   4194304         4194304   uint8             120          34.95          61.17
Avg bus bandwidth:    61.1700GB/s
""",
}


@pytest.mark.parametrize("tool", OTHER_TABLES)
def test_the_table_of_another_tool_is_refused_by_its_name(tool: str) -> None:
    with pytest.raises(ParseError, match=rf"{tool}.*meshlab does not read"):
        ml.nccl_tests.read(OTHER_TABLES[tool])
    own = "\n".join([SETTINGS.format(gpus=8), *HEADER.splitlines(), *(row(size, size / 1e5, 1.75) for size in SIZES)])
    both = ml.nccl_tests.read(f"{OTHER_TABLES[tool]}{own}\n{OTHER_TABLES[tool]}{own}\n")
    assert [len(section.rows) for section in both.sections] == [len(SIZES)] * 2
    assert any(tool in str(note) for note in both.sections[0].warnings)


MATRIX = """# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: alltoallv_perf
# nThread 4 nGpus 1 minBytes 4096 maxBytes 4096 step: 1048576(bytes) warmup iters: 1 iters: 20 validation: 1
#
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
        4096             0     float    none      -1# NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=matrix nranks=4 scale=1
#   rank=0 send_bytes=1024 recv_bytes=4096 alg_bw=0.20 bus_bw=0.15
#   rank=1 send_bytes=4096 recv_bytes=1024 alg_bw=0.20 bus_bw=0.15
    20.48    0.20    0.15       0# NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=matrix nranks=4 scale=1
#   rank=0 send_bytes=1024 recv_bytes=4096 alg_bw=0.22 bus_bw=0.16
    18.61    0.22    0.16    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.157
"""
MATRIX_ROW = (
    f"{4096:12}  {0:12}     float    none      -1    20.48    0.20    0.15       0    18.61    0.22    0.16    N/A"
)


def test_a_row_of_a_traffic_matrix_is_read_although_its_summary_cuts_it() -> None:
    lines = MATRIX.splitlines()
    for text in (MATRIX, "\n".join([*lines[:5], MATRIX_ROW, *lines[-2:]])):
        (section,) = ml.nccl_tests.read(text).sections
        (item,) = section.rows
        assert (section.collective, section.unparsable_rows, item.size_bytes, item.count) == (
            "all_to_all_v",
            0,
            4096,
            0,
        )
        assert (item.out_of_place.time_us, item.in_place.time_us, item.in_place.n_wrong) == (20.48, 18.61, None)
    part = {"time": 20.48, "alg_bw": 0.2, "bus_bw": 0.15, "nwrong": 0.0}
    result = {"size": 4096, "count": 0, "type": "float", "redop": "none", "root": "-1", "out_of_place": part}
    document = {"version": 3, "args": ["./alltoallv_perf", "-t", "4"], "config": {"nthreads": 4, "ngpus": 1}}
    (section,) = ml.nccl_tests.read(json.dumps({**document, "results": [result]})).sections
    assert (len(section.rows), section.unparsable_rows) == (1, 0)


@pytest.mark.parametrize(
    ("command", "n_ranks"),
    [
        ("mpirun -n 64 -npernode 8 -x NCCL_DEBUG=WARN ./build/all_reduce_perf -b 8 -g 1", 64),
        ("$ srun --ntasks=16 -N 2 all_reduce_perf -t 2 -g4", 128),
        ("srun -n 8 all_reduce_perf -b $MIN", None),
        ("mpirun -np 64 -x NCCL_TESTS_SPLIT=%8 ./all_reduce_perf", None),
        ("mpirun -np 2 ./all_reduce_perf -g 2", None),  # the rates are those of more ranks
    ],
)
def test_a_launcher_gives_the_number_of_ranks_that_the_rates_allow(command: str, n_ranks: int | None) -> None:
    ranks = n_ranks or 64
    rows = [row(size, size / 1e4, 2 * (ranks - 1) / ranks) for size in SIZES]
    (section,) = ml.nccl_tests.read("\n".join([command, *HEADER.splitlines(), *rows])).sections
    assert (section.collective, section.n_ranks) == ("all_reduce", n_ranks)
