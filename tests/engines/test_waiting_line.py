"""The line about a long wait."""

from __future__ import annotations

import sys

import pytest

from meshlab.engines import _host_queue
from meshlab.engines._host_queue import waiting_line


def test_only_a_long_wait_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([10.0, 11.0, 14.0, 14.5, 15.1])
    monkeypatch.setattr(_host_queue.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with waiting_line(after_s=4.0) as show:
        show("waiting for 4 ranks")
        show("waiting for 4 ranks")
        assert capsys.readouterr().err == ""
        for _ in range(3):
            show("waiting for 4 ranks")
    assert capsys.readouterr().err.split("\r\033[K") == [
        "",
        "waiting for 4 ranks for 4.0\N{THIN SPACE}s; an interrupt cancels it",
        "waiting for 4 ranks for 5.1\N{THIN SPACE}s; an interrupt cancels it",
        "",
    ]
