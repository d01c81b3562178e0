"""The command ``meshlab doctor``, called in this process."""

from __future__ import annotations

import pytest

from meshlab.cli._main import main


def test_doctor_lists_the_parts_of_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("python", "numpy", "ipyparallel", "mpi ", "mpiexec", "shared memory", "cupy"):
        assert word in out
    assert "broken" not in out


def test_doctor_reports_a_broken_part_and_its_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHLAB_MPIEXEC", "/no/such/mpiexec")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "/no/such/mpiexec does not exist" in out
    assert "→ correct or unset MESHLAB_MPIEXEC" in out
