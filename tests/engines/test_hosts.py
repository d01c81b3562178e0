"""The parts of a start on other hosts that need none: the choice of hosts, the folder, ssh, and the state of a job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshlab.base._errors import EngineError
from meshlab.engines._host_choice import HostChoice
from meshlab.engines._host_jobs import job_state
from meshlab.engines._hosts import HostedSet


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in PATH, in front of all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)


def test_a_quotation_that_is_not_closed_is_one_sentence() -> None:
    with pytest.raises(EngineError, match="cannot be read: No closing quotation; close its quotation marks"):
        HostChoice.read("slurm --comment='two words")


def test_the_banner_of_a_host_need_not_be_utf_8(programs: Path, tmp_path: Path) -> None:
    write_program(programs / "ssh", r"printf 'Nur f\374r Befugte\n' >&2; exit 255")
    ranks = HostedSet(2, HostChoice.read(["h1", "h2"]), folder=tmp_path)
    replies = ranks._run_on_hosts("true")
    assert [None if reply is None else (reply.code, reply.errors) for reply in replies.values()] == 2 * [
        (255, "Nur f\ufffdr Befugte\n")
    ]


def test_a_folder_whose_name_launchers_split_is_refused(programs: Path, tmp_path: Path) -> None:
    write_program(programs / "ssh", "exit 1")
    with pytest.raises(EngineError, match="two words has the character ' ', which launchers do not pass on"):
        HostedSet(2, HostChoice.read(["h1", "h2"]), folder=tmp_path / "two words")


@pytest.mark.parametrize(
    ("answer", "text", "is_over"),
    [
        ("SUSPENDED|None|h1", "is suspended on h1", False),
        ("RUNNING|None|h[1-2]", "runs on h[1-2]", False),
        ("NODE_FAIL|None|h1", "has ended: NODE_FAIL", True),
        ("PREEMPTED|None|", "has ended: PREEMPTED", True),
    ],
)
def test_a_job_that_slurm_suspends_is_not_over(programs: Path, answer: str, text: str, is_over: bool) -> None:
    write_program(programs / "squeue", f"echo '{answer}'")
    state = job_state("12")
    assert (state.text, state.is_over) == (f"job 12 of Slurm {text}", is_over)
