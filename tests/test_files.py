from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshlab.errors import BenchError
from meshlab.files import staged_folder, write_file


def test_a_folder_appears_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with staged_folder(target) as stage:
        (stage / "a.txt").write_text("a")
        assert not target.exists()
    assert (target / "a.txt").read_text() == "a"
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "deep", target, target / "a.txt"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail_halfway() -> None:
        with staged_folder(tmp_path / "deep" / "out") as stage:
            (stage / "a.txt").write_text("a")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_keeps_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    (tmp_path / "out" / "a.txt").write_text("old")
    with staged_folder(tmp_path / "out") as stage:
        (stage / "a.txt").write_text("new")
    assert {file.name: file.read_text() for file in (tmp_path / "out").iterdir()} == {
        "mine.txt": "mine",
        "a.txt": "new",
    }
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_replaced_files_are_removed_when_the_new_ones_appear(tmp_path: Path) -> None:
    for name in ("report.html", "report-bandwidth-dp.png", "mine.txt"):
        (tmp_path / name).write_text("old")
    with staged_folder(tmp_path, replaces=["report.html", "report-*.png"]) as stage:
        (stage / "report.html").write_text("new")
        assert (tmp_path / "report.html").read_text() == "old"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"report.html": "new", "mine.txt": "old"}


def test_an_existing_file_is_an_error_before_the_block_runs(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(BenchError, match=r"^cannot write "), staged_folder(tmp_path / "out"):
        pytest.fail("the body must not run")
    assert (tmp_path / "out").read_text() == "a file"


def test_a_folder_inside_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BenchError, match=r"^cannot write "), staged_folder(tmp_path / "file" / "out"):
        pytest.fail("the body must not run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_read_only_folder_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BenchError, match="Permission denied"), staged_folder(tmp_path / "out"):
        pytest.fail("the body must not run")


def test_a_file_is_replaced_or_untouched(tmp_path: Path) -> None:
    write_file(tmp_path / "a.txt", "é")
    assert (tmp_path / "a.txt").read_bytes() == "é".encode()
    with pytest.raises(BenchError, match=r"^cannot write "):
        write_file(tmp_path / "missing" / "a.txt", "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
