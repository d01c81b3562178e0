"""The journal of a run: exact, and readable after a crash, a full disk and damage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.runs._journal import Journal, JournalContent, is_journal_open, read_journal
from meshlab.runs._rundata import results_frame, samples_frame
from tests.examples import examples


def rows_of(content: JournalContent) -> list[int]:
    return [row["step"] for row in content.rows]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A journal with four records."""
    path = tmp_path / "steps-0.jsonl"
    journal = Journal(path)
    for step in range(4):
        samples = {"step": np.full(5, step), "time_us": np.linspace(0.1, 1 / 3, 5), "is_warmup": np.zeros(5, bool)}
        journal.append(
            [{"step": step, "time_us": np.float64(1 / 3)}], [samples], {"n_done": step + 1, "log": [str(step)]}
        )
    journal.close()
    return path


def buckets(comm: Any) -> Callable[[], None]:
    """A function to measure, which has no size."""
    return comm.barrier  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["groupings and a concurrent axis", "a function"])
def test_the_rows_and_samples_of_a_run_are_kept_exactly(thread_engines: ml.Engines, tmp_path: Path, kind: str) -> None:
    choice: dict[str, Any] = {"grouping": ["together", "alone", "pairs"], "concurrent": {"dp": "reduce_scatter"}}
    plan = ml.Plan(
        "send_recv" if kind.startswith("g") else [buckets, "broadcast"],
        "tp",
        sizes="1K",
        mode="isolated",
        sampling=ml.Sampling(max_s=0.02, min_batches=6),
        **(choice if kind.startswith("g") else {}),
    )
    run = ml.bench(thread_engines, "dp=2, tp=2", plan)
    run.wait(60)
    journal = Journal(tmp_path / "steps-0.jsonl")
    rows, samples = run.since(0, 0)
    journal.append(rows[:3], samples[:5], {})
    journal.append(rows[3:], samples[5:], {})
    journal.close()
    found = read_journal(tmp_path / "steps-0.jsonl")
    fixed: dict[str, Any] = {"fixed": {}, "attrs": {}}
    pd.testing.assert_frame_equal(results_frame(found.rows, **fixed), results_frame(rows, **fixed), check_exact=True)
    pd.testing.assert_frame_equal(
        samples_frame(found.samples, **fixed), samples_frame(samples, **fixed), check_exact=True
    )


def test_a_journal_that_is_cut_off_anywhere_has_all_complete_records(written: Path) -> None:
    content = written.read_bytes()
    ends = [index for index, byte in enumerate(content) if byte == ord("\n")]
    for size in sorted({*range(0, len(content), 7), *(end + step for end in ends for step in (0, 1))}):
        written.write_bytes(content[:size])
        found = read_journal(written)
        n = sum(end < size for end in ends)
        assert (rows_of(found), found.n_damaged) == (list(range(n)), 0)
        assert found.n_cut_off == (size > 0 and content[size - 1 : size] != b"\n")
        assert found.facts == {"log": [str(step) for step in range(n)]} | ({"n_done": n} if n else {})


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_damage_costs_only_the_damaged_records(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("journal") / "steps-0.jsonl"
    journal = Journal(path)
    for step in range(4):
        journal.append([{"step": step}], [], {})
    journal.close()
    content = bytearray(path.read_bytes())
    line_of = [content[:index].count(b"\n") for index in range(len(content))]
    index = data.draw(st.integers(0, len(content) - 1))
    is_break = content[index] == ord("\n")
    content[index] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    found = read_journal(path)
    lost = {line_of[index], line_of[index] + 1} if is_break else {line_of[index]}
    assert rows_of(found) == [step for step in range(4) if step not in lost]
    assert found.n_damaged + found.n_cut_off > 0


def test_a_removed_record_is_counted(written: Path) -> None:
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(b"".join([lines[0], *lines[2:]]))
    found = read_journal(written)
    assert (rows_of(found), found.n_damaged, found.n_cut_off) == ([0, 2, 3], 1, 0)


def test_a_record_that_does_not_fit_on_the_disk_leaves_no_part_and_can_be_written_later(tmp_path: Path) -> None:
    path = tmp_path / "steps-0.jsonl"
    done = subprocess.run([sys.executable, "-c", WRITER, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = read_journal(path)
    assert (rows_of(found), found.n_cut_off, found.n_damaged) == ([0, 1, 2], 0, 0)


# With a limit of the file size, the kernel writes a part of the record and then fails, as on a full disk.
WRITER = """
import resource, signal, sys
from pathlib import Path
from meshlab.runs._journal import Journal

path = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(path)
journal.append([{"step": 0}], [], {})
size = path.stat().st_size
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, most))
try:
    journal.append([{"step": 1}], [], {})
except OSError:
    assert path.stat().st_size == size
else:
    raise SystemExit("the limit has no effect")
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
journal.append([{"step": 1}], [], {})
journal.append([{"step": 2}], [], {})
"""


def test_a_journal_is_open_as_long_as_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "steps-0.jsonl"
    assert not is_journal_open(path)
    journal = Journal(path)
    assert is_journal_open(path)
    journal.close()
    assert not is_journal_open(path)


def test_a_journal_never_replaces_a_file_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "steps-0.jsonl").symlink_to(tmp_path / "mine.txt")
    (tmp_path / "steps-1.jsonl").symlink_to(tmp_path / "missing")
    for name in ("mine.txt", "steps-0.jsonl", "steps-1.jsonl"):
        with pytest.raises(FileExistsError):
            Journal(tmp_path / name)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not (tmp_path / "missing").exists()
