"""The functions that recognise rows, programs and versions in single lines."""

from __future__ import annotations

from meshlab.nccl_tests._infer import find_program
from meshlab.nccl_tests._info import variable_value, version_from_code
from meshlab.nccl_tests._log import DeviceLines
from meshlab.nccl_tests._pieces import beginnings_of_row, is_part_of_row
from meshlab.nccl_tests._rows import ranks_in_size, read_header


def test_a_header_determines_the_placements() -> None:
    placement = ("time", "algbw", "busbw", "#wrong")
    shape = read_header(("size", "count", "type", "redop", "root", *placement, *placement), in_place_only=False)
    assert shape is not None
    assert shape.placements == (0, 1)


def test_a_size_is_one_or_the_number_of_ranks_times_the_count() -> None:
    assert ranks_in_size(1024, 256, "float") == 1
    assert ranks_in_size(1024, 32, "float") == 8
    assert ranks_in_size(1000, 256, "float") == -1


def test_parts_of_rows_are_recognised_by_their_numbers() -> None:
    assert beginnings_of_row(["[1,0]<stdout>:    1024    25", "loading the model"]) == ["1024    25"]
    for line in ("4   float   sum   -1   20.1   0.00   0.01", "1.5   0.3   0.3   0"):
        assert is_part_of_row(line, line.split())
    assert not is_part_of_row("step 3 of 4", ["step", "3", "of", "4"])


def test_a_command_line_names_its_test() -> None:
    assert find_program("$ srun -n 8 ./build/all_reduce_perf -b 8 -e 1G") == "all_reduce"
    assert find_program("cc -c all_reduce_perf.o") is None


def test_versions_and_values_are_read_as_nccl_prints_them() -> None:
    assert [version_from_code(code) for code in (22902, 2804, 0)] == ["2.29.2", "2.8.4", None]
    assert [variable_value(text) for text in ("1.", "/etc/nccl.d/a.")] == ["1", "/etc/nccl.d/a."]


def test_a_line_of_the_device_list_is_parsed_on_demand() -> None:
    devices = DeviceLines(["Rank  0 Group  0 Pid   1000 on     node00 device  0 [0x53] NVIDIA H100"])
    assert (devices[0].rank, devices[0].host, devices[0].bus_id, devices[0].name) == (
        0,
        "node00",
        "0x53",
        "NVIDIA H100",
    )
