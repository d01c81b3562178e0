"""The verdicts of nodes that are accepted by themselves, of which one does not start its ranks."""

from __future__ import annotations

import argparse
import socket
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshlab.base._errors import BenchError, EngineError
from meshlab.cli._per_node import accept_per_node


@pytest.fixture(autouse=True)
def step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of one task on each of two nodes."""
    for name, value in {"JOB_ID": "12", "STEP_ID": "0", "STEP_NUM_NODES": "2", "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def accept_on(host: str, out: Path, result: Exception | Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the task of a host, whose acceptance returns or raises `result`."""
    monkeypatch.setattr(socket, "gethostname", lambda: host)

    def accept(options: argparse.Namespace) -> tuple[int, Any]:
        if isinstance(result, Exception):
            raise result
        Path(options.out).mkdir(parents=True)
        (Path(options.out) / "junit.xml").write_text('<testsuites><testsuite name="acceptance"/></testsuites>')
        return 0, result

    return accept_per_node(argparse.Namespace(out=str(out), resume=None, files=[]), accept)


PASSED = SimpleNamespace(outcome="passed", verdict="Passed: 5 stages.")


@pytest.mark.parametrize("first", ["h1", "h2"])
def test_a_node_whose_ranks_do_not_start_is_among_the_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], first: str
) -> None:
    stale = tmp_path / "h1" / "junit.xml"  # of an earlier acceptance, in which the node passed
    stale.parent.mkdir()
    stale.write_text('<testsuites><testsuite name="acceptance"/></testsuites>')
    for host in sorted(("h1", "h2"), key=lambda host: host != first):
        if host == "h2":
            assert accept_on(host, tmp_path, PASSED, monkeypatch) == 0
        else:
            with pytest.raises(EngineError):
                accept_on(host, tmp_path, EngineError("rank 1 did not start", hint="look"), monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    failed = "✕ h1  The acceptance did not run: rank 1 did not start"
    assert lines == ["", "1 of 2 nodes accepted", failed, "✓ h2  Passed: 5 stages.", str(tmp_path / "junit.xml")]
    suites = {str(suite.get("name")): suite for suite in ET.parse(tmp_path / "junit.xml").getroot()}
    assert set(suites) == {"h1: meshlab acceptance", "h2: acceptance"}
    assert suites["h1: meshlab acceptance"].findall(".//error")


def test_bad_input_leaves_the_verdict_of_an_earlier_acceptance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept_on("h1", tmp_path, PASSED, monkeypatch)
    before = (tmp_path / "h1" / "verdict.json").read_text()
    with pytest.raises(BenchError):
        accept_on("h1", tmp_path, BenchError("the folder holds another acceptance"), monkeypatch)
    assert (tmp_path / "h1" / "verdict.json").read_text() == before
