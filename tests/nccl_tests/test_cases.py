"""The reader on real logs. MESHLAB_CASES is a folder with logs and their expected values."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError

FOLDER = os.environ.get("MESHLAB_CASES")
LOGS = Path(FOLDER or ".") / "nccl_logs"
EXPECTED = json.loads((Path(FOLDER) / "expected.json").read_text())["nccl_logs"] if FOLDER else {}
NAMES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
PLACEMENTS = ("out_of_place", "in_place")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not FOLDER, reason="MESHLAB_CASES is not set to a folder of real logs"),
]


def cells(log):
    return {
        (row.size_bytes, row.count, row.type, row.op, row.root, name, repr(timing))
        for section in log.sections
        for row in section.rows
        for name in PLACEMENTS
        if (timing := getattr(row, name)) is not None
    }


@pytest.mark.parametrize("name", sorted(EXPECTED) or ["none"])
def test_a_real_log_has_the_expected_sections_and_rows(name):
    expected = EXPECTED[name]
    if expected["sections"] == [] and "NCCL" not in (LOGS / name).read_text():
        with pytest.raises(ParseError, match="no nccl-tests output found"):
            ml.nccl_tests.read(LOGS / name)
        return
    log = ml.nccl_tests.read(LOGS / name)
    assert log.status == expected["file_status"]
    assert len(log.sections) == len(expected["sections"])
    for section, wanted in zip(log.sections, expected["sections"], strict=True):
        assert section.collective == NAMES.get(wanted["collective"], wanted["collective"])
        for key in ("n_ranks", "type", "status", "unparsable_rows", "failure_lines", "average_matches_rows"):
            assert getattr(section, key) == wanted[key], key
        assert section.footer.average_busbw_gbs == wanted["average_busbw"]
        bounds = wanted["out_of_bounds"] or {"count": None, "ok": None}
        assert (section.footer.out_of_bounds, section.footer.correct) == (bounds["count"], bounds["ok"])
        assert len(section.rows) == wanted["rows"]
        for which, index in (("first", 0), ("last", -1)):
            if wanted[which] is not None:
                check_row(section.rows[index], wanted[which])
        for placement in PLACEMENTS:
            wrong = [getattr(row, placement).n_wrong for row in section.rows if getattr(row, placement)]
            total = None if not wrong or None in wrong else sum(wrong)
            assert total == wanted["wrong_total"][placement]


def check_row(row, wanted):
    assert (row.size_bytes, row.count) == (wanted["size"], wanted["count"])
    for placement in PLACEMENTS:
        timing, values = getattr(row, placement), wanted[placement]
        if values is None:
            assert timing is None
        else:
            assert (timing.time_us, timing.algbw_gbs, timing.busbw_gbs) == (
                values["time_us"],
                values["algbw"],
                values["busbw"],
            )
            assert (timing.n_wrong, timing.error) == (values["wrong"], values.get("error"))


@pytest.mark.parametrize("name", sorted(EXPECTED) or ["none"])
def test_damage_to_a_real_log_never_creates_a_row(name):
    text = (LOGS / name).read_text()
    try:
        whole = cells(ml.nccl_tests.read(text))
    except ParseError:
        return
    rng = random.Random(name)
    lines = text.split("\n")
    rows = [
        index
        for index, line in enumerate(lines)
        if any(f" {kind} " in line for kind in ("float", "double", "bfloat16"))
    ]
    for trial in range(12):
        index = rng.choice(rows) if rows and trial % 3 else rng.randrange(len(lines))
        start, stop = sorted(rng.randrange(len(lines[index]) + 1) for _ in range(2))
        line = rng.choice(
            [[lines[index][:start]], [lines[index][stop:]], [lines[index][:start] + lines[index][stop:]], []]
        )
        try:
            log = ml.nccl_tests.read("\n".join([*lines[:index], *line, *lines[index + 1 :], ""]))
        except ParseError:
            continue
        assert cells(log) <= whole, (index + 1, line)


@pytest.mark.parametrize("name", sorted(EXPECTED) or ["none"])
def test_a_real_log_can_be_written_and_read_back(name):
    try:
        results = ml.nccl_tests.read(LOGS / name).results
    except ParseError:
        return
    results = results[results["collective"].notna()]
    if results.empty:
        return
    back = ml.nccl_tests.read(ml.nccl_tests.write(results)).results
    columns = ["collective", "op", "dtype", "root", "in_place", "n_ranks", "count", "size_bytes", "n_wrong", "time_us"]
    assert back[columns].reset_index(drop=True).equals(results[columns].reset_index(drop=True))
