from __future__ import annotations

import gzip
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, ParseError
from meshlab.base._files import describe_text, is_file, path_of, read_bytes, read_file, text_of, write_file


def test_a_file_is_replaced_or_untouched(tmp_path: Path) -> None:
    write_file(tmp_path / "a.txt", "é")
    assert (tmp_path / "a.txt").read_bytes() == "é".encode()
    with pytest.raises(BenchError, match=r"^cannot write "):
        write_file(tmp_path / "missing" / "a.txt", "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_the_name_of_a_temporary_file_cannot_be_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    real = os.open

    def record(path: Path, *arguments: int) -> int:
        names.append(Path(path).name)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", record)
    for _ in range(20):
        write_file(tmp_path / "a.txt", "x")
    assert len(set(names)) == 20
    assert all(len(name) >= 32 and "a.txt" not in name for name in names)


def test_a_planted_link_at_the_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda n: "known")  # an attacker who guesses right
    victim, away = tmp_path / "victim.txt", tmp_path / "away"
    victim.write_text("precious")
    away.mkdir()
    write_file(tmp_path / "a.txt", "old")
    planted = tmp_path / ".meshlab-known.partial"
    for aim in (victim, tmp_path / "not_there_yet", away):
        planted.symlink_to(aim)
        with pytest.raises(BenchError, match=r"^cannot write .*File exists"):
            write_file(tmp_path / "a.txt", "new")
        assert planted.is_symlink()
        planted.unlink()
    assert (victim.read_text(), (tmp_path / "a.txt").read_text()) == ("precious", "old")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["a.txt", "away", "victim.txt"]


def test_a_link_with_the_name_of_the_file_is_replaced(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim.txt", tmp_path / "report.html"
    victim.write_text("precious")
    for aim in (victim, tmp_path / "missing"):
        link.symlink_to(aim)
        write_file(link, "report")
        assert not link.is_symlink()
        assert link.read_text() == "report"
        link.unlink()
    assert victim.read_text() == "precious"


def test_a_loop_of_links_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    write_file(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o007])
def test_modes_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_file(tmp_path / "a.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "content")
    reader.join()
    assert (received, pipe.is_fifo()) == (["content"], True)
    assert write_file("/dev/null", "x").is_char_device()


def test_a_pipe_that_nobody_reads_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BenchError, match=r"^cannot write "):
        write_file(tmp_path / "pipe", "content")


def test_a_link_to_a_pipe_is_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "report.html"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(link, "content")
    assert (os.read(reader, 1), link.is_symlink(), link.read_text()) == (b"", False, "content")
    os.close(reader)


def test_an_open_file_of_the_process_is_written_where_it_is(tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("wb", buffering=0) as file:
        file.write(b"before ")
        write_file(f"/dev/fd/{file.fileno()}", "content")
        file.write(b" after")
    assert (tmp_path / "out.txt").read_text() == "before content after"


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_the_output_of_a_command_is_read(pause: float) -> None:
    reading, writing = os.pipe()

    def write() -> None:
        time.sleep(pause)
        os.write(writing, b"first line\n")
        time.sleep(pause)
        os.write(writing, b"second line\n")
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    path = Path(f"/dev/fd/{reading}")
    assert is_file(path)
    assert text_of(path, hint="")[0] == "first line\nsecond line\n"
    writer.join()
    os.close(reading)


def test_what_has_no_end_or_no_content_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "pipe") == read_file("/dev/null") == b""
    (tmp_path / "link.csv").symlink_to("/dev/zero")
    for name in ("/dev/zero", "/dev/full", tmp_path / "link.csv"):
        with pytest.raises(ParseError, match="this is a device; pass a file"):
            read_file(name)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ParseError, match="the file is larger than 1024 MiB"):
        read_file(tmp_path / "sparse")


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    texts = [letter * 20_000 for letter in "abcd"]
    write_file(path, texts[0])

    def write(text: str) -> None:
        for _ in range(300):
            write_file(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, texts))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    write_file(tmp_path / "a.txt", "old")
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "a.txt", "new")
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]


def test_the_longest_name_of_a_file_system_can_be_written(tmp_path: Path) -> None:
    assert write_file(tmp_path / ("n" * 255), "x").read_text() == "x"


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


@pytest.mark.parametrize("read", [ml.read, ml.explain, ml.nccl_tests.read, ml.topology.read])
@pytest.mark.parametrize("source", [None, 3, [[]], object(), {"a": 1}, ml.example()])
def test_what_is_neither_text_nor_a_file_is_refused(read, source: object) -> None:
    with pytest.raises(ParseError):
        read(source)


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
    assert describe_text("a.log", may_be_name=True) == "no file 'a.log' exists"
    assert describe_text("a\nb", may_be_name=True) == "the text begins with 'a'"


@pytest.mark.parametrize(
    "name", ["topo.txt", "logs/run-7", "./a", "~/x.log", "C:\\logs\\a.txt", "my run 1.txt", "trace_rank_3"]
)
def test_a_line_that_looks_like_a_name_may_be_a_file_that_is_not_there(name: str) -> None:
    assert describe_text(name, may_be_name=True).startswith("no file ")


@pytest.mark.parametrize(
    "line",
    [
        "Jul 09 12:01:02 node7 sshd[12]: Connection closed",
        "ncclInternalError",
        "NCCL_DEBUG=INFO",
        "srun: job 12 queued and waiting for resources",
        "/opt/mpi/bin/mpirun -np 4 ./a.out",
        "The server of this job was at node7.example.com",
        "RuntimeError: see train.py",
        "x" * 5000 + ".txt",
    ],
)
def test_a_line_of_a_log_is_never_a_missing_file(line: str) -> None:
    assert describe_text(line, may_be_name=True).startswith("the text begins with")


@pytest.mark.parametrize(
    "text", ['{"a": 1}', "{", "{}", "[", "[1, 2]", '["a"]', "[[1]]", '[{"a": 1}]', "[true, null]", "[ 1.5e3 ]"]
)
def test_a_text_that_looks_like_json(text: str) -> None:
    assert describe_text(text) == "the text looks like JSON"


@pytest.mark.parametrize(
    "text",
    ["[rank0]: boom", "[mpiexec@n1] main", "[1,0]<stderr>:hello", "[12] hello", "[2026-01-02 03:04:05] x", "{'a': 1}"],
)
def test_the_prefix_of_a_log_is_no_json(text: str) -> None:
    assert describe_text(text).startswith("the text begins with")
