"""Interrupted and changed rows: the reader restores them, or counts them, or warns about them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import meshlab as ml
from tests.nccl_tests import damage
from tests.nccl_tests.log_maker import LogMaker

FOLDER = os.environ.get("MESHLAB_CASES")
SIZES = tuple(2**power for power in range(14, 27, 2))


@pytest.mark.parametrize("kind", damage.INTERRUPTIONS)
def test_a_row_that_is_interrupted_anywhere_is_read_or_counted(kind):
    lines = LogMaker("2.17", sizes=SIZES[:3], n_ranks=2).lines()
    whole = damage.read("\n".join(lines))
    row, start = damage.rows_of(lines)[1]
    for name, at, damaged in damage.interruptions(lines, row, start):
        if name == kind:
            found = damage.read(damaged)
            assert not found.cells - whole.cells, at
            assert found.cells == whole.cells or found.n_unparsable > 0, at


def test_a_row_with_a_message_behind_its_size_is_counted_if_its_rest_is_missing():
    maker = LogMaker("2.13")
    row = maker.row(4)
    text = "\n".join(maker.lines()).replace(row, f"{row[:12]}{damage.INFO}\n{row[12:80]}{damage.INFO}")
    (section,) = ml.nccl_tests.read(text).sections
    assert (len(section.rows), section.unparsable_rows) == (len(maker.sizes) - 1, 1)


@pytest.mark.parametrize("layout", ["2.10", "2.17"])
def test_rows_that_do_not_belong_to_the_run_are_never_silent(layout):
    lines = LogMaker(layout, sizes=SIZES).lines()
    other = LogMaker(layout, "all_gather", n_ranks=4, sizes=SIZES, bandwidth_gbs=60).lines()
    foreign = [other[row] for row, _ in damage.rows_of(other)]
    whole = damage.read("\n".join(lines))
    generator = damage.mutations(lines, foreign, random.Random(3))
    for _ in range(120):
        kind, changed = next(generator)
        assert damage.judge(whole, damage.read(changed)) != "silent", (kind, changed)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("repeat", "", "this row repeats the row of line 17"),
        ("swap", "", "the size 64\N{THIN SPACE}KiB follows 256\N{THIN SPACE}KiB, although sizes grow"),
        ("remove", "", "the settings of the run make 4 rows, but the table has 3"),
        (" 19.56", " 16.95", "the out-of-place busbw of 16.95 does not fit the algbw of 11.17 and the time"),
        ("sum      -1  ", "         -1  ", "this row has no operation, unlike the other rows"),
    ],
)
def test_the_warning_names_the_row_and_its_fault(old, new, text):
    maker = LogMaker("2.13", sizes=tuple(4**power for power in range(7, 11)))
    lines = [line.replace("step: 8", "step: 4") for line in maker.lines()]
    rows = [row for row, _ in damage.rows_of(lines)]
    if old == "repeat":
        lines.insert(rows[2], lines[rows[1]])
    elif old == "swap":
        lines[rows[1]], lines[rows[2]] = lines[rows[2]], lines[rows[1]]
    elif old == "remove":
        del lines[rows[1]]
    else:
        assert old in lines[rows[2]]
        lines[rows[2]] = lines[rows[2]].replace(old, new, 1)
    assert any(text in str(note) for note in ml.nccl_tests.read("\n".join(lines)).warnings)


@pytest.mark.long
@pytest.mark.skipif(not FOLDER, reason="MESHLAB_CASES is not set to a folder of real logs")
def test_damage_to_real_logs_is_noticed():
    rng = random.Random(0)
    logs = damage.logs_in(Path(FOLDER) / "nccl_logs")
    silent, n_changes = [], 0
    for name, text in logs.items():
        lines, whole = text.split("\n"), damage.read(text)
        if not whole.cells:
            continue
        row, start = rng.choice(damage.rows_of(lines))
        for kind, at, damaged in damage.interruptions(lines, row, start):
            found = damage.read(damaged)
            assert not found.cells - whole.cells, (name, row, kind, at)
            assert damage.judge(whole, found) != "silent", (name, row, kind, at)
        generator = damage.mutations(lines, [], rng)
        for _ in range(150):
            kind, changed = next(generator)
            n_changes += 1
            if damage.judge(whole, damage.read(changed)) == "silent":
                silent.append((name, kind))
    # Some changes cannot be seen: times of small messages, whose bandwidths are printed as 0.00, and logs of one row.
    assert len(silent) < 0.02 * n_changes, silent
