"""The command ``meshlab explain``, called in this process."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshlab.cli._main import main

CUT_LOG = "     1048576        262144     float     sum      -1    20.00   52.43   52.43      0\n"


@pytest.mark.parametrize(
    ("form", "start"),
    [("text", "No known problem"), ("markdown", "**No known"), ("html", "<!doctype html>"), ("json", '{\n "verdict"')],
)
def test_explain_prints_or_writes_every_format(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str, start: str
) -> None:
    log = tmp_path / "run.log"
    log.write_text(CUT_LOG)
    assert main(["explain", str(log), "--format", form]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(start)
    out = tmp_path / f"out.{ {'text': 'txt', 'markdown': 'md'}.get(form, form) }"
    assert main(["explain", str(log), "--out", str(out)]) == 0
    assert out.read_text() == printed
    assert capsys.readouterr().out.splitlines()[-1] == str(out)


def test_explain_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CUT_LOG.encode("utf-16"))))
    assert main(["explain", "-"]) == 0
    assert "peak busbw 52.4 GB/s" in capsys.readouterr().out


def test_explain_reads_several_files_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, text in (("a.log", CUT_LOG), ("b.txt", "DeviceMesh('dp=2, tp=4')")):
        (tmp_path / name).write_text(text)
    assert main(["explain", str(tmp_path / "a.log"), str(tmp_path / "b.txt")]) == 0
    printed = capsys.readouterr().out
    assert "peak busbw 52.4 GB/s" in printed
    assert "dp=2, tp=4: 8 ranks" in printed


def test_explain_exits_with_1_for_an_error_and_with_2_if_nothing_is_recognised(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshlab.diagnosis import _explain as explaining
    from tests.diagnosis.texts_with_rules import RULES, printer_text

    log = tmp_path / "a.log"
    log.write_text(printer_text())
    assert main(["explain", str(log)]) == 2
    assert re.search(r"nothing was recognised: .*; paste ", capsys.readouterr().err)
    assert main(["explain", str(tmp_path / "missing.log")]) == 2
    assert "missing.log: No such file" in capsys.readouterr().err
    monkeypatch.setitem(explaining.explain.__kwdefaults__, "rules", RULES)
    assert main(["explain", str(log)]) == 1
    assert capsys.readouterr().out.startswith("The printer is jammed: lp0.")
    log.write_text("toner low")
    assert main(["explain", str(log)]) == 0


def test_explain_imports_neither_pandas_nor_matplotlib_nor_engines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("node1:1:2 [0] NCCL INFO NCCL version 2.26.6\n")
    code = (
        "import sys; from meshlab.cli._main import main; main(['explain', sys.argv[1]]); "
        "print([name for name in ('pandas', 'matplotlib', 'scipy', 'meshlab.engines._engines') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
