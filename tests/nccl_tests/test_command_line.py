"""The options that nccl-tests does not print, from its command line."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import meshlab as ml
from meshlab.nccl_tests._command_line import CommandOptions, options_in_line, read_options
from meshlab.plans._options import OPTIONS
from tests.nccl_tests.test_json import document
from tests.nccl_tests.test_writer import results, row

UNKNOWN = CommandOptions()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", (0, -1, 1, 0)),
        ("-R 1", (1, -1, 1, 0)),
        ("-R2 -x0x2 -m 010 -u3", (2, 2, 8, 3)),
        ("--local_register=2 --unalign 1 --agg_iters 4 --cta_policy=1", (2, 1, 4, 1)),
        ("--local 2 --una=2", (2, -1, 1, 2)),  # any unambiguous beginning
        ("-b 8 -o -R -R 2", (2, -1, 1, 0)),  # -R is the value of -o
        ("-R 1 -R 2", (2, -1, 1, 0)),
        ("-- -R 2", (0, -1, 1, 0)),
        ("-R two", (None, -1, 1, 0)),
        ("-m", (0, -1, None, 0)),
    ],
)
def test_options_are_read_as_getopt_does(arguments: str, expected: tuple[int | None, ...]) -> None:
    assert tuple(read_options(arguments.split())) == expected


@pytest.mark.parametrize(
    ("line", "register"),
    [
        ("$ ./build/all_reduce_perf -b 8 -e 128M -f 2 -g 8 -R 2", 2),
        ("+ srun -l --mpi=pmix /opt/all_gather_perf_mpi -b 8 -R 1 2>&1 | tee -R 2", 1),
        ("mpirun -x NCCL_DEBUG=INFO -R 7 ./all_reduce_perf -b 8", 0),
        ("bash -c './all_reduce_perf -R 2; ./other -R 1'", 2),
        ("./all_reduce_perf -b 8 > log -R 2", 0),
        ("./all_reduce_perf -b 8 -R $REGISTER", None),
        ("./all_reduce_perf $(cat options)", None),
        ("./all_reduce_perf -b 8 \\", None),
        ("no program here -R 2", None),
    ],
)
def test_the_options_of_a_line_end_where_the_command_ends(line: str, register: int | None) -> None:
    assert options_in_line(line).local_register == register


def test_the_command_line_of_a_log_names_its_buffers(make_log) -> None:
    for number, kind in enumerate(["plain", "registered", "symmetric"]):
        log = ml.nccl_tests.read(f"$ ./all_reduce_perf -b 8 -f 8 -R {number} -x 2\n{make_log(layout='2.19').text()}")
        assert set(log.results["buffers"]) == {kind}
        assert set(log.results["cta_policy"]) == {"zero"}
        assert log.sections[0].preamble.local_register == number
    results = ml.nccl_tests.read(f"$ ./all_reduce_perf -b 8\n{make_log(layout='2.19').text()}").results
    assert results[["buffers", "alignment_bytes", "n_aggregated"]].drop_duplicates().values.tolist() == [
        ["plain", 0, 1]
    ]
    assert results["cta_policy"].isna().all()


def test_a_command_over_several_lines_is_one_command(make_log) -> None:
    text = make_log(layout="2.19").text()
    for command in (
        "mpirun -np 8 \\\n  ./all_reduce_perf -b 8 \\\n   -e 1G \\\n -R 2\n",
        "./all_reduce_perf \\\n-R 2\n",
    ):
        assert set(ml.nccl_tests.read(command + text).results["buffers"]) == {"symmetric"}
    for command in ("./all_reduce_perf -b 8 \\\n", "./all_reduce_perf -R 2 \\\nsome other output\n"):
        log = ml.nccl_tests.read(command + text)
        assert log.results["buffers"].isna().all()
        assert log.status == "complete"


@pytest.mark.parametrize(
    "command",
    [
        "",
        "./all_gather_perf -R 2\n",  # a different test
        "./all_reduce_perf -R 2\n./all_reduce_perf -R 0\n",  # two runs
        "./all_reduce_perf -R 2 -m 4\n",  # the log has one call at a time
        "./all_reduce_perf -R 2 -u 1\n",
        "./all_reduce_perf $OPTIONS\n",
    ],
)
def test_a_command_that_may_be_that_of_another_run_says_nothing(make_log, command: str) -> None:
    for layout in ("2.19", "2.13"):
        log = ml.nccl_tests.read(command + make_log(layout=layout).text())
        if layout == "2.19" or "-u 1" not in command:  # before that version, -u is not printed
            assert log.results["buffers"].isna().all(), layout


def test_a_library_without_windows_registers_the_buffers(make_log) -> None:
    text = make_log(layout="2.19").text().replace("22902", "22603")
    assert set(ml.nccl_tests.read(f"./all_reduce_perf -R 2\n{text}").results["buffers"]) == {"registered"}


def test_the_printed_settings_become_columns(make_log) -> None:
    text = make_log(layout="2.19").text().replace("agg iters: 1", "agg iters: 4").replace("unalign: 0", "unalign: 3")
    results = ml.nccl_tests.read(text).results
    assert set(results["n_aggregated"]) == {4}
    assert set(results["alignment_bytes"]) == {12}
    assert results["buffers"].isna().all()
    old = ml.nccl_tests.read(make_log(layout="2.10").text()).results
    assert old[list(OPTIONS)].isna().all().all()


def test_limits_of_ctas_come_from_the_environment_that_nccl_prints(make_log) -> None:
    start = "node00:1:1 [0] NCCL INFO NCCL_"
    lines = [f"{start}MIN_CTAS set by environment to 2.", f"{start}MAX_CTAS set by environment to 8."]
    results = ml.nccl_tests.read("\n".join([*lines, make_log(layout="2.19").text()])).results
    assert (set(results["min_ctas"]), set(results["max_ctas"])) == ({2}, {8})


def test_the_arguments_in_json_name_the_buffers() -> None:
    found = document()
    assert set(ml.nccl_tests.read(json.dumps(found)).results["buffers"]) == {"plain"}
    found["args"] += ["-R", "2", "-u", "1", "-x", "1"]
    results = ml.nccl_tests.read(json.dumps(found)).results
    assert set(results["buffers"]) == {"symmetric"}
    assert set(results["alignment_bytes"]) == {4}
    assert set(results["cta_policy"]) == {"efficiency"}
    del found["args"]
    assert ml.nccl_tests.read(json.dumps(found)).results["buffers"].isna().all()


@pytest.mark.parametrize("kind", ["plain", "registered", "symmetric"])
@pytest.mark.parametrize("policy", [None, "zero"])
def test_options_survive_a_round_trip_through_text(kind: str, policy: str | None) -> None:
    options = {"buffers": kind, "cta_policy": policy, "alignment_bytes": 8, "n_aggregated": 4}
    frame = results([row(size, n_samples=20, calls=8, **options) for size in (1 << 10, 1 << 20)])
    back = ml.nccl_tests.read(ml.nccl_tests.write(frame)).results
    pd.testing.assert_frame_equal(back[list(options)], frame[list(options)])
    assert set(back["calls"]) == {160}  # of all batches, as one


def test_rows_with_different_options_are_in_separate_tables() -> None:
    frame = results([row(buffers=kind) for kind in ("plain", "symmetric")] + [row(algorithm="ring", buffers="plain")])
    text = ml.nccl_tests.write(frame)
    log = ml.nccl_tests.read(text)
    assert [section.preamble.local_register for section in log.sections] == [0, 2, 0]
    assert "; ring)" in text
