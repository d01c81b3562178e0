"""Following the logs of Inspector while they grow: late and lost ranks, rotation, and equality with the whole log."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import BenchError, MeshError, ParseError
from meshlab.cli._main import main
from meshlab.traces._live_calls import LiveCalls
from tests.examples import examples
from tests.traces.log_maker import MESH, append, line, lines, log_of

DEADLINE_S = 12.0
INTERVAL_S = 0.1


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def same_totals(first: pd.DataFrame, second: pd.DataFrame) -> None:
    names = [name for name in first.columns if name not in ("late_rank", "late_calls", "counted_calls", "late_us")]
    left, right = (table.sort_values("n_ranks").sort_values("axis")[names] for table in (first, second))
    pd.testing.assert_frame_equal(left.reset_index(drop=True), right.reset_index(drop=True), check_dtype=False)


def test_a_growing_log_is_the_table_of_the_whole_log(tmp_path: Path) -> None:
    append(tmp_path, range(5))
    with ml.Trace.follow(tmp_path, interval_s=INTERVAL_S, error_us=0.0) as live:
        assert live.n_calls == 20
        for begin in range(5, 45, 5):
            append(tmp_path, range(begin, begin + 5), late=1)
            wait_for(lambda begin=begin: live.n_calls == 4 * (begin + 5))
        assert live.mesh() == MESH
        assert live.ranks == (0, 1, 2, 3)
    assert not live.is_running
    whole = ml.read(tmp_path)
    pd.testing.assert_frame_equal(live.by_axis(), whole.by_axis(steps=False), check_dtype=False)
    assert live.trace().frame().equals(whole.frame())
    assert "tp: 33 calls, 34.6 MB" in "\n".join(live.sentences()).replace("\N{THIN SPACE}", " ")


def test_what_is_written_before_the_end_is_read(tmp_path: Path) -> None:
    live = ml.Trace.follow(tmp_path, interval_s=60.0)
    assert live.sentences()[0].startswith("No rank has written a call")
    with pytest.raises(ParseError, match="no rank has written a call yet"):
        live.trace()
    append(tmp_path, range(9))
    live.close()
    live.close()
    assert live.n_calls == 36


def test_a_late_rank_is_named_within_two_intervals(tmp_path: Path) -> None:
    append(tmp_path, range(20))
    with ml.Trace.follow(tmp_path, MESH, interval_s=INTERVAL_S) as live:
        assert live.late == ()
        append(tmp_path, range(20, 60), late=3)
        begin = time.monotonic()
        wait_for(lambda: live.n_calls == 240)
        assert live.late == (3,)
        assert time.monotonic() - begin < 2 * INTERVAL_S + 1.0  # of a loaded machine
        assert any(text.startswith("tp: rank 3 is late now, by 199") for text in live.sentences())
        append(tmp_path, range(60, 100))
        wait_for(lambda: live.n_calls == 400 and not live.late)


def test_a_rank_that_stops_is_lost_and_comes_back(tmp_path: Path) -> None:
    append(tmp_path, range(20))
    with ml.Trace.follow(tmp_path, interval_s=INTERVAL_S) as live:
        numbers = iter(range(20, 100_000))

        def goes_on() -> bool:
            append(tmp_path, [next(numbers)], ranks=(0, 1, 3))
            return live.lost == (2,)

        wait_for(goes_on)
        assert live.sentences()[0].startswith("Rank 2 is lost: node1-pid2.log has not grown for")
        append(tmp_path, range(20, next(numbers)), ranks=[2])
        wait_for(lambda: not live.lost)


def test_ranks_that_stop_together_are_not_lost(tmp_path: Path) -> None:
    append(tmp_path, range(20))
    with ml.Trace.follow(tmp_path, interval_s=INTERVAL_S) as live:
        append(tmp_path, [20], ranks=(0, 1, 3))  # they wait for rank 2 in the next call
        wait_for(lambda: any(text.startswith("No rank has finished a call") for text in live.sentences()))
        stopped = next(text for text in live.sentences() if text.startswith("No rank has finished"))
        assert stopped.endswith("Rank 2 finished fewer calls than the others.")


@pytest.mark.parametrize("how", ["rename", "copy", "compress"])
def test_files_that_rotate_are_counted_once(tmp_path: Path, how: str) -> None:
    append(tmp_path, range(10))
    with ml.Trace.follow(tmp_path, interval_s=INTERVAL_S, error_us=0.0) as live:
        append(tmp_path, range(10, 20))
        for rank in range(4):
            path = log_of(tmp_path, rank)
            if how == "rename":
                path.rename(f"{path}.1")
            elif how == "compress":
                path.with_suffix(".log.1.gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()
            else:
                path.with_suffix(".log.1").write_bytes(path.read_bytes())
                path.write_bytes(b"")
        append(tmp_path, range(20, 30))
        wait_for(lambda: live.n_calls == 120)
        time.sleep(3 * INTERVAL_S)
        assert live.n_calls == 120
    (tmp_path / "whole").mkdir()
    append(tmp_path / "whole", range(30))
    same_totals(live.by_axis(), ml.read(tmp_path / "whole").by_axis(steps=False))


def test_a_line_that_is_cut_or_damaged_does_not_stop_the_others(tmp_path: Path) -> None:
    append(tmp_path, range(8))
    with log_of(tmp_path, 0).open("a") as file:
        file.write('{"header": broken}\nnot JSON\n' + lines(0, [8])[:60])
    with ml.Trace.follow(tmp_path, interval_s=INTERVAL_S) as live:
        assert live.n_calls == 32
        with log_of(tmp_path, 0).open("a") as file:
            file.write(lines(0, [8])[60:])
        wait_for(lambda: live.n_calls == 33)


def test_only_the_job_that_wrote_last_is_shown(tmp_path: Path) -> None:
    now = int(time.time() * 1e6)
    for rank in range(4):
        (tmp_path / f"old{rank}.log").write_text(lines(rank, range(12), job=7, dumped_us=now - 10**9))
    with ml.Trace.follow(tmp_path, interval_s=INTERVAL_S) as live:
        assert live.by_axis()["calls"].sum() == 12
        for rank in range(4):
            log_of(tmp_path, rank).write_text(lines(rank, range(8), dumped_us=now))
        wait_for(lambda: live.by_axis()["calls"].sum() == 8)
        assert live.ranks == (0, 1, 2, 3)
        assert live.trace().world_size == 4


def test_a_job_after_another_one_has_its_own_communicators(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    with ml.Trace.follow(tmp_path, interval_s=60.0) as live:  # so that all ranks of the second job appear at once
        for rank in range(4):
            text = lines(rank, range(5), job=7, dumped_us=int(time.time() * 1e6))
            (tmp_path / f"second{rank}.log").write_text(text)
    assert live.n_calls == 60
    assert live.by_axis().set_index("axis")["calls"].to_dict() == {"dp-tp": 1, "tp": 3, "dp": 1}


def test_ranks_without_a_communicator_of_all_are_not_numbered(tmp_path: Path) -> None:
    append(tmp_path, range(1, 20))
    with ml.Trace.follow(tmp_path, interval_s=INTERVAL_S) as live:
        assert live.n_calls == 76
        assert live.sentences()


def test_unusable_folders_and_meshes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="this folder does not exist"):
        ml.Trace.follow(tmp_path / "missing")
    append(tmp_path, range(4))
    with pytest.raises(MeshError, match=r"the mesh .*dp=2.* has 2 ranks, but the job in .* has 4"):
        ml.Trace.follow(tmp_path, "dp=2")
    with pytest.raises(BenchError, match="interval_s must be at least"):
        ml.Trace.follow(tmp_path, interval_s=0.0)
    with ml.Trace.follow(tmp_path, "pp=8", interval_s=INTERVAL_S) as live:
        assert "The mesh has 8 ranks, but the largest communicator has 4." in live.sentences()
    with ml.Trace.follow(tmp_path, "a=4", interval_s=INTERVAL_S) as live:
        assert any("is not along axes of the mesh" in text for text in live.sentences())
    other = tmp_path / "other"
    other.mkdir()
    (other / "rank0.json").write_text('{"traceEvents": []}')
    with pytest.raises(ParseError, match="no file of this folder is a log of NCCL Inspector"):
        ml.Trace.follow(other)


def test_a_folder_that_vanishes_ends_the_thread(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    append(folder, range(4))
    live = ml.Trace.follow(folder, interval_s=INTERVAL_S)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    wait_for(lambda: not live.is_running)
    assert isinstance(live.error, ParseError)
    assert "is gone" in live.sentences()[0]
    live.close()


@pytest.mark.hypothesis
@given(
    cuts=st.lists(st.integers(0, 6000), max_size=12),
    late=st.sampled_from([None, 0, 3]),
    durations=st.lists(st.integers(1, 500), min_size=4, max_size=40),
)
@settings(max_examples=examples(60), deadline=None)
def test_arbitrary_chunks_are_the_whole_file(
    cuts: list[int], late: int | None, durations: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    contents = []
    for rank in range(4):
        rows = [line(rank, 0, 50.0, "world")]
        for number, duration in enumerate(durations, 1):
            axis = "dp" if duration % 3 == 0 else "tp"
            rows.append(line(rank, number, duration + (200 if late == rank else rank), axis))
        contents.append("".join(f"{row}\n" for row in rows).encode())
    live = ml.Trace.follow(folder, interval_s=60.0, error_us=0.0)
    try:
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
            for rank, content in enumerate(contents):
                with log_of(folder, rank).open("ab") as file:
                    file.write(content[begin:end])
            live._poll()
    finally:
        live.close()
    whole = ml.read(folder)
    pd.testing.assert_frame_equal(live.by_axis(), whole.by_axis(steps=False), check_dtype=False)
    assert live.trace().frame().equals(whole.frame())


def test_a_reader_that_catches_up_matches_all_calls() -> None:
    calls = LiveCalls(10.0)
    for rank in range(2):  # the whole file of one rank before that of the other
        calls.add([line(rank, number, 9.0).encode() for number in range(6000)], f"log{rank}", 0.0)
    (comm,) = calls.comms.values()
    assert (comm.n_matched, len(comm.pending)) == (6000, 0)


def test_memory_is_bounded_for_ranks_whose_calls_never_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshlab.traces._live_calls._MOST_OPEN", 8192)
    calls = LiveCalls(10.0)
    for begin in range(0, 20_000, 1000):
        calls.add([line(0, number, 9.0).encode() for number in range(begin, begin + 1000)], "log", 0.0)
    (comm,) = calls.comms.values()
    assert len(comm.pending) <= 4096
    assert calls.n_lines == 20_000


def test_a_job_is_followed_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path, range(9))
    command = [sys.executable, "-u", "-m", "meshlab", "trace", str(tmp_path), "--follow", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        watchdog = threading.Timer(DEADLINE_S, process.kill)
        watchdog.start()
        assert "36 lines · " in process.stdout.readline()
        append(tmp_path, range(9, 49), late=1)
        while "late: rank 1" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(2)
        rest = process.stdout.read()
        assert process.wait(DEADLINE_S) == 0
        watchdog.cancel()
    assert "ended " in rest
    assert "rank 1 is late in" in rest
    assert main(["trace", str(tmp_path / "missing"), "--follow"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["trace", str(tmp_path), "--follow", "--steps"]) == 2


def test_totals_of_messages_and_of_other_collectives_have_no_wait(tmp_path: Path) -> None:
    for rank in range(4):
        text = lines(rank, [0]) + lines(rank, range(1, 9)).replace("AllReduce", "Broadcast")
        log_of(tmp_path, rank).write_text(text)
    with ml.Trace.follow(tmp_path, interval_s=60.0, error_us=0.0) as live:
        pass
    table = live.by_axis()
    same_totals(table, ml.read(tmp_path).by_axis(steps=False))
    assert np.isnan(table.set_index("axis").loc["tp", "wait_us"])
