"""The command ``meshlab app``, called in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshlab.cli import _app as app
from meshlab.cli._main import main


def test_app_needs_voila(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["app"]) == 2
    assert "Voilà is not installed; run pip install '.[app]'" in capsys.readouterr().err


def test_app_rejects_an_unknown_machine_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert main(["app", "--cluster", "dgx-h1000"]) == 2
    assert "dgx-h1000" in capsys.readouterr().err


def test_the_page_of_the_app_is_a_program_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n")
    for cluster, mesh in ((None, None), ("dgx-h100", "dp=1, tp=8"), ("topo.txt", "tp=2")):
        code = app._app_code(cluster, mesh)
        *lines, last = code.splitlines()
        scope: dict[str, Any] = {}
        exec("\n".join(lines), scope)
        assert eval(last, scope).mesh.world_size == {None: 32, "dgx-h100": 8, "topo.txt": 2}[cluster]
        assert Path.cwd() == tmp_path


def test_the_page_has_the_name_of_meshlab_and_no_address_of_another_host(tmp_path: Path) -> None:
    assert app._notebook_of("1")["metadata"]["title"] == "meshlab"
    app._write_template(tmp_path)
    folder = tmp_path / "voila" / "templates" / "meshlab"
    page = (folder / "index.html.j2").read_text()
    assert "<h1>meshlab</h1>" in page
    assert "http" not in page
    assert "spinner" not in page
    assert json.loads((folder / "conf.json").read_text()) == {"base_template": "lab"}
