"""The command ``meshlab show``, called in this process."""

from __future__ import annotations

import pytest

from meshlab.cli._main import main


def test_show_prints_axes_groups_and_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "dp=2, tp=4", "--axis", "dp"]) == 0
    out = capsys.readouterr().out
    assert "dp  4 groups of 2   dp_0 [0, 4]" in out
    assert "dp=1   4:0  5:1  6:2  7:3" in out


def test_show_stays_short_for_a_large_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "pp=16, dp=128, tp=8"]) == 0
    out = capsys.readouterr().out
    assert len(out) < 4000
    assert "and 2,040 more" in out


@pytest.mark.parametrize("mesh", ["dp=64, tp=64", "tp=64", "pp=2, dp=2, cp=2, tp=8", "pp=16, dp=128, tp=8"])
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_show_fits_the_width_of_the_terminal(
    mesh: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", mesh]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


def test_show_uses_80_columns_if_the_width_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError))
    assert main(["show", "dp=64, tp=64"]) == 0
    assert 60 < max(map(len, capsys.readouterr().out.splitlines())) <= 80
