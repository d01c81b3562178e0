"""Several files of a folder are replaced as one change."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import meshlab.base._folders
from meshlab.base._errors import BenchError, ParseError
from meshlab.base._folders import check_writable, digest_of, read_recorded, staged_folder

RECORDED = ("*.bin",)


def write(target: Path, text: str, *others: str) -> None:
    """Write a version of a folder: a pointer that records a file, that file, and other files."""
    with staged_folder(target, pointer="pointer", recorded=RECORDED, replaces=["report*"]) as stage:
        (stage / "a.bin").write_text(text)
        for name in others:
            (stage / name).write_text(text)
        (stage / "pointer").write_text(f"{text} {digest_of(text.encode())}")


def read(target: Path) -> str:
    """Return the version of a folder, and check that all files belong to it."""
    text, digest = (target / "pointer").read_text().split()
    assert read_recorded(target, "a.bin", digest).decode() == text
    for report in target.glob("report*"):
        assert report.read_text() == text
    return text


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_new_folder_has_all_files_and_its_parents_are_created(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "out", "new", "report")
    assert read(tmp_path / "deep" / "out") == "new"
    assert names(tmp_path) == {"deep", "deep/out", "deep/out/pointer", "deep/out/a.bin", "deep/out/report"}


def test_an_error_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    def fail_halfway() -> None:
        with staged_folder(tmp_path / "deep" / "out", pointer="pointer") as stage:
            (stage / "pointer").write_text("a")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert list(tmp_path.iterdir()) == []


def test_other_files_stay_and_those_of_the_earlier_version_go(tmp_path: Path) -> None:
    write(tmp_path, "old", "report", "report-2", "extra")
    (tmp_path / "b.bin").write_text("recorded earlier")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "mine.bin").mkdir()
    write(tmp_path, "new", "report", "extra")
    assert read(tmp_path) == "new"
    assert names(tmp_path) == {"pointer", "a.bin", "report", "extra", "mine.txt", "mine.bin"}
    assert (tmp_path / "extra").read_text() == "new"


class StoppedError(Exception):
    """An error in the middle of a change."""


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Raise at the given call of a function that changes names, counted from now on. The count is the second item."""
    state = [0, 0]
    for name in ("rename", "replace", "mkdir", "unlink", "rmdir"):
        honest = getattr(Path, name)

        def wrapped(*arguments: Any, _honest: Any = honest, **options: Any) -> Any:
            state[1] += 1
            if state[1] == state[0]:
                raise StoppedError
            return _honest(*arguments, **options)

        monkeypatch.setattr(Path, name, wrapped)
    return state


def test_an_error_at_any_change_leaves_the_old_version_or_the_new_one(tmp_path: Path, stop_at: list[int]) -> None:
    folder = tmp_path / "run"
    states = set()
    for number in range(1, 100):
        shutil.rmtree(folder, ignore_errors=True)
        stop_at[:] = [0, 0]
        write(folder, "old", "report", "report-2")
        stop_at[:] = [number, 0]
        try:
            write(folder, "new", "report")
        except StoppedError:
            pass
        else:
            break
        finally:
            stop_at[:] = [0, 0]
        states.add(read(folder))
        if read(folder) == "old":  # nothing has happened
            assert names(folder) == {"pointer", "a.bin", "report", "report-2"}
        write(folder, "last", "report")
        assert read(folder) == "last"
        assert names(folder) == {"pointer", "a.bin", "report"}
    assert states == {"old", "new"}
    assert 6 <= number < 99


def test_a_file_that_is_not_the_recorded_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a")
    (tmp_path / "a.bin").write_text("changed")
    with pytest.raises(ParseError, match="the file is not the one that was saved; copy it again"):
        read(tmp_path)
    (tmp_path / "a.bin").unlink()
    with pytest.raises(FileNotFoundError):
        read(tmp_path)


HOLDER = """
import sys, time
from pathlib import Path
from meshlab.base._folders import staged_folder

with staged_folder(sys.argv[1], pointer="pointer") as stage:
    (stage / "pointer").write_text("theirs")
    print(stage.name, flush=True)
    sys.stdin.read()
"""


def test_the_unfinished_files_of_others_are_removed_only_if_their_process_is_gone(tmp_path: Path) -> None:
    write(tmp_path, "old")
    (tmp_path / ".meshlab-mine.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.txt").write_text("mine")
    (tmp_path / ".meshlab-link.partial").symlink_to(tmp_path / "elsewhere")
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        stage = tmp_path / process.stdout.readline().strip()
        write(tmp_path, "new")
        assert (stage / "pointer").read_text() == "theirs"
        process.kill()
    assert stage.exists()
    write(tmp_path, "newer")
    assert not stage.exists()
    assert (tmp_path / ".meshlab-mine.txt").exists()
    assert (tmp_path / ".meshlab-link.partial" / "mine.txt").exists()
    assert read(tmp_path) == "newer"


def test_old_temporary_files_are_removed_and_new_ones_stay(tmp_path: Path) -> None:
    for name, age_s in (("old", 100_000), ("new", 0)):
        path = tmp_path / f".meshlab-{name}.partial"
        path.write_text("of write_file")
        os.utime(path, (time.time() - age_s,) * 2)
    write(tmp_path, "a")
    assert names(tmp_path) == {"pointer", "a.bin", ".meshlab-new.partial"}


def test_the_last_of_many_writers_wins_and_readers_never_see_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "meshlab.base._folders._PATIENCE_S", 120.0
    )  # nobody takes turns, so a writer may wait for all others
    write(tmp_path, "start")
    problems: list[BaseException] = []
    last: list[str] = []
    is_over = threading.Event()

    def write_often(writer: int) -> None:
        try:
            for number in range(15):
                write(tmp_path, f"{writer}-{number}")
            last.append(f"{writer}-14")
        except BaseException as error:
            problems.append(error)

    def read_often() -> None:
        while not is_over.is_set():
            before = (tmp_path / "pointer").read_text()
            try:
                read(tmp_path)
            except (ParseError, OSError) as error:
                if (tmp_path / "pointer").read_text() == before:  # otherwise it was replaced in the meantime
                    problems.append(error)

    writers = [threading.Thread(target=write_often, args=(writer,)) for writer in range(4)]
    reader = threading.Thread(target=read_often)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    is_over.set()
    reader.join()
    assert problems == []
    assert read(tmp_path) in last
    assert names(tmp_path) == {"pointer", "a.bin"}


def test_a_writer_that_never_finishes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshlab.base._folders, "_PATIENCE_S", 0.1)
    write(tmp_path, "old")
    file = os.open(tmp_path, os.O_RDONLY)
    assert meshlab.base._locks.try_lock(file)
    with pytest.raises(BenchError, match="another process is still writing to it"):
        write(tmp_path, "new")
    meshlab.base._locks.release(file)
    assert read(tmp_path) == "old"
    assert names(tmp_path) == {"pointer", "a.bin"}


def test_a_folder_that_vanishes_is_an_error(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    with (  # noqa: PT012
        pytest.raises(BenchError, match=r"^cannot write the folder '.*out': No such file or directory; choose"),
        staged_folder(target, pointer="pointer") as stage,
    ):
        (stage / "pointer").write_text("a")
        shutil.rmtree(target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("check", [check_writable, lambda target: write(target, "a")])
def test_a_file_in_the_way_is_an_error_before_anything_is_written(tmp_path: Path, check: Any) -> None:
    (tmp_path / "file").write_text("a file")
    for target in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(BenchError, match=r"^cannot write the folder "):
            check(target)
    (tmp_path / "out" / "a.bin").mkdir(parents=True)
    with pytest.raises(BenchError, match=r"a.bin is a folder"):
        write(tmp_path / "out", "a")
    assert names(tmp_path) == {"file", "out", "out/a.bin"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_read_only_folder_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    for target in (tmp_path, tmp_path / "out"):
        with pytest.raises(BenchError, match="Permission denied"):
            check_writable(target)
        with pytest.raises(BenchError, match="Permission denied"):
            write(target, "a")


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda n: "known")  # an attacker who guesses right
    (tmp_path / "away").mkdir()
    (tmp_path / ".meshlab-known.partial").symlink_to(tmp_path / "away")
    with pytest.raises(BenchError, match=r"^cannot write .*File exists"):
        write(tmp_path, "a")
    assert names(tmp_path) == {"away", ".meshlab-known.partial"}


def test_links_with_the_names_of_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    for name in ("pointer", "a.bin", "report", "report-2"):
        (tmp_path / name).symlink_to(tmp_path / ("victim" if name != "a.bin" else "missing"))
    write(tmp_path, "new", "report")
    assert read(tmp_path) == "new"
    assert (tmp_path / "victim").read_text() == "precious"
    assert names(tmp_path) == {"pointer", "a.bin", "report", "victim"}


def test_a_link_to_a_folder_receives_the_files(tmp_path: Path) -> None:
    (tmp_path / "disk" / "real").mkdir(parents=True)
    for name in ("real", "new"):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
        check_writable(tmp_path / name)
        write(tmp_path / name, "a")
        assert (tmp_path / name).is_symlink()
        assert read(tmp_path / name) == read(tmp_path / "disk" / name) == "a"


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(BenchError, match=r"^cannot write "):
        write(tmp_path / "a", "a")


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_modes_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "out", "a")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("out", "out/a.bin", "out/pointer")]
    assert modes == [0o777 & ~mask, 0o666 & ~mask, 0o666 & ~mask]


def test_the_longest_name_of_a_file_system_can_be_written(tmp_path: Path) -> None:
    write(tmp_path / ("f" * 255), "a")
    assert read(tmp_path / ("f" * 255)) == "a"
