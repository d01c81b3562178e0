from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from meshlab.errors import BenchError, ParseError
from meshlab.files import describe_text, path_of, read_bytes, text_of, write_file


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
