"""The log of ranks that fail is explained by the rules for pasted texts."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError, brief_explanation, explained_text
from meshlab.base._hints import NEW_RANKS, Hint
from meshlab.cli._output import error_text, print_error
from meshlab.engines._guard import library_log_of

WARNING = (
    "node1:91:130 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Q7d to 33030532 bytes, "
    "error: No space left on device (28)"
)
FOUND = "✕ /dev/shm is full or too small: node1 GPU 1, /dev/shm. "


def test_a_run_whose_rank_dies_shows_what_its_library_printed(
    mpi_engines: ml.Engines, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    warning = WARNING  # the function is sent to the ranks by value

    def die(comm: Any) -> None:
        if comm.world_rank == 1:
            # As a library does, and more lines than the message quotes.
            os.write(1, "\n".join(["", warning, *(f"frame {number}" for number in range(30)), ""]).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()

    run = ml.bench(mpi_engines, None, die)
    with pytest.raises(EngineError, match=r"rank 1 .* was killed by signal 9") as caught:
        run.wait(60)
    error = caught.value
    assert FOUND not in str(error)
    assert warning not in error.log
    explanation = error.explain()
    assert explanation is not None
    assert FOUND in explanation.brief()
    (finding,) = (item for item in explanation.findings if item.code == "shm-too-small")
    assert explanation.paste.line(finding.lines[0]).raw.endswith("No space left on device (28)")
    html = run._repr_html_()
    assert "ml-finding" in html
    assert "/dev/shm is full or too small" in html
    print_error(error_text(error.with_hint("run it again")))
    assert FOUND in capsys.readouterr().err
    assert FOUND in str(ml.Run.load(run.save(tmp_path / "run")).error)


@pytest.mark.full
def test_ranks_that_meshlab_ended_itself_are_not_explained_as_killed(
    mpi_engines: ml.Engines, deadline_at: Callable[..., None]
) -> None:
    def wait(comm: Any) -> None:
        import time

        if comm.world_rank:
            comm.barrier()
        else:
            time.sleep(60)

    deadline_at(0, 1, 1, 1)
    with pytest.raises(EngineError) as caught:
        mpi_engines.run(wait, deadline_s=1.0)
    assert brief_explanation(caught.value) == ""
    assert "signal" not in str(caught.value)


def test_an_error_that_a_function_raises_is_explained(thread_engines: ml.Engines) -> None:
    def fail(comm: Any) -> None:
        raise RuntimeError(WARNING)

    with pytest.raises(EngineError) as caught:
        thread_engines.run(fail)
    assert FOUND in brief_explanation(caught.value)


def test_the_log_of_a_library_is_read_from_its_files(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = ["", WARNING, *[""] * (thread_engines.world_size - 2)]
    monkeypatch.setattr(thread_engines._rank_set, "library_logs", lambda: logs, raising=False)
    assert library_log_of(thread_engines._rank_set) == f"[rank1]: {WARNING}"


@pytest.mark.parametrize("log", ["", "Traceback (most recent call last):\n  ValueError: no", "\0\1\2"])
def test_a_log_without_a_cause_is_appended_as_it_is(log: str) -> None:
    error = EngineError("rank 1 failed", hint="do it again", log=log)
    assert str(error) == explained_text(error) == f"rank 1 failed; do it again\n{log}".rstrip("\n")


def test_the_explanation_follows_the_text_of_the_error() -> None:
    error = EngineError("rank 1 failed", hint=Hint("{}", NEW_RANKS), log=WARNING)
    assert str(error) == f"rank 1 failed; call engines.restart() to start new ranks\n{WARNING}"
    assert explained_text(error) == f"{error}\n{brief_explanation(error)}"
    assert error_text(error).startswith(f"rank 1 failed; run the command again\n{WARNING}\nThe log shows")
    assert explained_text(BenchError("no results")) == "no results"


def test_an_explained_error_can_be_sent_to_another_process() -> None:
    error = EngineError("rank 1 failed", rank=1, library_log=WARNING)
    assert FOUND in brief_explanation(error)
    assert explained_text(pickle.loads(pickle.dumps(error))) == explained_text(error)
