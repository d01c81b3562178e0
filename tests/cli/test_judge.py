"""meshlab judge, and --nodes of the commands that name a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshlab.cli._main import main
from tests.analysis.test_judge import log_of, p5


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "all_reduce.log"
    file.write_text(log_of(p5(5.5)))
    return file


def test_a_slow_log_exits_with_1_and_lists_its_rows(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(log), "--nics", "8x400", "--runs"]) == 1
    text = capsys.readouterr().out
    assert "(467 to 488)" in text
    assert "slow." in text
    assert "next step: Run the test once on one host" in " ".join(text.split())
    assert "https://github.com/KeitaW/p5-nccl-test-2024-07-19" in text


def test_a_normal_log_exits_with_0_and_a_missing_fact_with_1(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "normal.log"
    file.write_text(log_of(p5()))
    out = tmp_path / "verdicts.json"
    assert main(["judge", str(file), "--cluster", "aws-p5", "-o", str(out)]) == 0
    assert json.loads(out.read_text())[0]["verdict"] == "normal"
    halved = tmp_path / "halved.log"
    halved.write_text(log_of(p5(2)))
    capsys.readouterr()
    assert main(["judge", str(halved)]) == 1
    assert "the NICs are missing" in " ".join(capsys.readouterr().out.split())


def test_bad_statements_are_one_message(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--nics", "many"], ["--cluster", "dgx-h10"], ["--out", "verdicts.html"]):
        assert main(["judge", str(log), *options]) == 2
        assert capsys.readouterr().err.startswith("meshlab: ")


def test_a_log_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "nowhere.log"]) == 2
    assert capsys.readouterr().err.startswith("meshlab: cannot read nowhere.log: No such file or directory")


def test_curves_of_a_site_are_added(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHLAB_CURVES", str(tmp_path / "site" / "curves.parquet"))
    assert main(["judge", str(log), "--nics", "8x200", "--add", "our hosts"]) == 0
    assert (tmp_path / "site" / "curves.parquet").is_file()
    assert "1 curve added" in capsys.readouterr().out
    out = tmp_path / "verdicts.csv"
    assert main(["judge", str(log), "--nics", "8x200", "--add", "our hosts", "-o", str(out)]) == 2
    assert "--add judges nothing" in capsys.readouterr().err


def test_the_hosts_of_a_log_size_the_preset_of_a_report(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.md"
    assert main(["report", str(log), "--cluster", "dgx-h100", "-o", str(out)]) == 1
    text = out.read_text()
    assert "2 nodes, 16 × H100" in text
    assert "published runs reach" in text
    assert "## Expected performance" in text
    assert "Published runs" in text
    capsys.readouterr()


def test_nodes_size_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "dp=8", "all_reduce", "--cluster", "dgx-h100", "--nodes", "4", "--sizes", "1G"]) == 0
    assert capsys.readouterr().out
    assert main(["predict", "dp=8", "all_reduce", "--nodes", "4", "--sizes", "1G"]) == 2
    assert "--nodes is the size of a preset" in capsys.readouterr().err
