from __future__ import annotations

import time
from pathlib import Path

import pytest

import meshlab as ml
from tests.traces.log_maker import append
from tests.traces.trace_maker import document, kernel_event, write


@pytest.fixture
def workbench() -> ml.Workbench:
    return ml.Workbench("dgx-h100", "dp=2, tp=2", tab="trace")


def test_a_trace_is_shown_by_its_sentences_and_figures(workbench: ml.Workbench) -> None:
    assert workbench._trace["html"] == ""
    workbench.trace = ml.Trace.example()
    content = workbench._trace
    assert content["html"].count("<svg") == 3
    assert "rank 3 is late in 8 of 8" in content["html"]
    assert content["steps"] == [["", "longest step"], ["0", "step 0"], ["1", "step 1"]]
    workbench.trace = None
    assert workbench._trace["html"] == ""


def test_the_timeline_zooms_and_moves_within_its_step(workbench: ml.Workbench) -> None:
    workbench.trace = ml.Trace.example()
    whole = workbench._trace["html"]
    windows = []
    for message in ({"step": "1"}, {"move": "in"}, {"move": "earlier"}, {"move": "earlier"}, {"move": "out"}):
        workbench._receive(None, {"type": "trace", **message}, None)
        windows.append(workbench._job_tab._window)
    assert windows[0] is None
    assert windows[1] is not None
    assert windows[3] is not None
    assert windows[3][0] == 0.0
    assert windows[4] is None
    assert workbench._trace["step"] == "1"
    assert workbench._trace["html"] != whole


def test_a_folder_is_read_and_a_fault_is_a_note(workbench: ml.Workbench, tmp_path: Path) -> None:
    write(tmp_path, *(document([kernel_event(1.0 + rank, 9.0 - rank)], rank) for rank in (0, 1)))

    def wait_for(text: str) -> None:
        end = time.monotonic() + 30
        while text not in workbench._trace["note"]:
            assert time.monotonic() < end
            time.sleep(0.01)

    workbench._receive(None, {"type": "trace", "path": str(tmp_path)}, None)
    wait_for("ranks 0 and 1")
    workbench._receive(None, {"type": "trace", "path": str(tmp_path / "missing")}, None)
    wait_for("No such file")
    assert workbench._trace["html"]


def test_names_of_a_file_are_escaped(workbench: ml.Workbench, tmp_path: Path) -> None:
    group = {"pg_name": "<script>", "pg_desc": "<img src=x>", "pg_size": 3, "ranks": [0, 1, 5], "backend_config": ""}
    workbench.trace = ml.Trace.read(write(tmp_path, document([kernel_event(1.0, 9.0, group=group)], 0, 8, [group])))
    assert "<script>" not in workbench._trace["html"]
    assert "<img" not in workbench._trace["html"]


def test_a_job_that_runs_is_followed_and_shown(workbench: ml.Workbench, tmp_path: Path) -> None:
    append(tmp_path, range(20))

    def wait_for(text: str) -> None:
        end = time.monotonic() + 30
        while text not in workbench._trace["note"] + workbench._trace["html"]:
            assert time.monotonic() < end
            time.sleep(0.01)

    workbench._receive(None, {"type": "trace", "path": str(tmp_path / "missing"), "follow": True}, None)
    wait_for("does not exist")
    workbench._receive(None, {"type": "trace", "path": str(tmp_path), "follow": True}, None)
    wait_for("ranks 0 to 3 · 80 lines")
    assert isinstance(live := workbench.trace, ml.traces.LiveTrace)
    assert live.mesh() == ml.DeviceMesh("dp=2, tp=2")  # of the workbench
    assert workbench._trace["steps"] == []
    append(tmp_path, range(20, 60), late=1)
    wait_for("<strong>tp: rank 1 is late now")
    workbench._receive(None, {"type": "trace", "path": str(tmp_path)}, None)
    wait_for("NCCL Inspector log")
    assert not live.is_running


def test_a_job_that_code_follows_stays_open(workbench: ml.Workbench, tmp_path: Path) -> None:
    append(tmp_path, range(20))
    with ml.Trace.follow(tmp_path, interval_s=0.1) as live:
        workbench.trace = live
        assert "80 lines" in workbench._trace["note"]
        workbench.trace = None
        assert live.is_running
        append(tmp_path, range(20, 24))
        end = time.monotonic() + 30
        while live.n_calls < 96:
            assert time.monotonic() < end
        assert workbench._trace["html"] == ""
