from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from meshlab.errors import BenchError, ParseError
from meshlab.files import describe_text, path_of, read_bytes, staged_folder, text_of, write_file


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


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_text_is_read_from_a_string_bytes_and_files(tmp_path: Path, encoding: str, compress) -> None:
    text = "first line\nGröße 4\n"
    path = tmp_path / "any.log"
    path.write_bytes(compress(text.encode(encoding)))
    assert text_of(text, hint="") == (text, None)
    assert text_of(path.read_bytes(), hint="") == (text, None)
    assert text_of(path, hint="") == text_of(str(path), hint="") == (text, str(path))


@pytest.mark.parametrize("text", ["a\nb", "dp=2, tp=4", "<system>", "no\0name", "x" * 300, "x" * 5000, "", " "])
def test_a_string_that_names_no_file_is_the_text(text: str) -> None:
    assert path_of(text, hint="") is None


def test_a_folder_is_refused_with_the_hint_of_the_reader(tmp_path: Path) -> None:
    for folder in (tmp_path, str(tmp_path)):
        with pytest.raises(ParseError, match="this is a folder; pass a log"):
            path_of(folder, hint="pass a log")


def test_a_small_file_does_not_decompress_to_more_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(4 << 20)))
    for source in (path, path.read_bytes(), bytes((1 << 20) + 1)):
        with pytest.raises(ParseError, match="the text is larger than 1 MiB; pass a part of it"):
            read_bytes(source, hint="pass a part of it", largest=1 << 20)


def test_a_truncated_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(os.urandom(1000))[:500])
    with pytest.raises(ParseError, match="cannot decompress the file"):
        text_of(path, hint="")


def test_unknown_texts_are_described() -> None:
    assert describe_text(" \n") == "the text is empty"
    assert describe_text("\x7fELF\0\0") == "the file is binary"
    assert describe_text("a.log", may_be_name=True) == "no file 'a.log' exists, and the text begins with 'a.log'"
    assert describe_text("a\nb", may_be_name=True) == "the text begins with 'a'"
