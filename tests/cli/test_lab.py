"""The command ``meshlab lab``, called in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshlab.cli._main import main


@pytest.mark.slow
@pytest.mark.full
def test_lab_opens_the_first_notebook(tmp_path: Path) -> None:
    import socket
    import urllib.request

    pytest.importorskip("jupyterlab")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folders = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    (tmp_path / "work").mkdir()
    server = [f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=secret", "--ip=127.0.0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "meshlab", "lab", str(tmp_path / "work"), "--", "--no-browser", "--allow-root", *server],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **folders},
        start_new_session=True,
    )
    with process:
        try:
            deadline = time.monotonic() + 180
            while True:
                try:
                    request = urllib.request.Request(
                        f"http://127.0.0.1:{port}/api/contents", headers={"Authorization": "token secret"}
                    )
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        assert "01_first_mesh.ipynb" in answer.read().decode()
                    break
                except OSError:
                    assert process.poll() is None, process.stderr.read() if process.stderr else ""
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=120)
    assert (tmp_path / "work" / "01_first_mesh.ipynb").stat().st_size > 1000


def test_lab_does_not_overwrite_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "01_first_mesh.ipynb").write_text("mine")
    called: list[list[str]] = []
    monkeypatch.setattr("meshlab.cli._lab.subprocess.call", lambda command: called.append(command) or 0)
    assert main(["lab", str(tmp_path)]) == 0
    assert (tmp_path / "01_first_mesh.ipynb").read_text() == "mine"
    assert called[0][-1] == str(tmp_path / "01_first_mesh.ipynb")
    assert main(["lab", str(tmp_path / "missing")]) == 2


@pytest.mark.parametrize(
    ("words", "notebook"),
    [
        ([], "01_first_mesh"),
        (["03"], "03_predictions"),
        (["predictions"], "03_predictions"),
        (["05_layout_search.ipynb"], "05_layout_search"),
        (["trace", "."], "08_traces_of_a_job"),
    ],
)
def test_lab_opens_a_copy_of_the_named_notebook(
    words: list[str], notebook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr("meshlab.cli._lab.subprocess.call", lambda command: called.append(command) or 0)
    monkeypatch.chdir(tmp_path)
    assert main(["lab", *words, "--", "--no-browser"]) == 0
    assert called[0][-2:] == [f"{notebook}.ipynb", "--no-browser"]
    assert (tmp_path / f"{notebook}.ipynb").stat().st_size > 1000


def test_lab_lists_the_notebooks_if_none_matches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "0"]) == 2  # the beginning of all
    assert "01_first_mesh, 02_on_gpus" in capsys.readouterr().err
