"""Strings from outside that try to control a browser, a spreadsheet, a terminal or a Markdown page."""

from __future__ import annotations

import csv
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.cli._main import main
from meshlab.runs._rundata import RunData

HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "attribute": "\"' onmouseover='alert(1)' style=\"background:url(//x)\"",
    "svg": "</text></svg><svg onload=alert(1)><a href='javascript:alert(1)'>",
    "json": '</script><script>alert(1)</script>\\u003c!--","rows":[]}',
    "template": "{{ 7 * 7 }}{% raw %}${7*7}",
    "markdown": "x](javascript:alert(1)) ![](http://x/y) | a | <b> `` ` ``",
    "formula": "=cmd|' /C calc'!A0",
    "terminal": "\x1b]0;owned\x07\x1b[2J\x1b]8;;http://x\x07 \x9b31m",
    "direction": "gpu\u202e0x\u2066",
}
TEXTS = [" ".join(HOSTILE.values()), HOSTILE["formula"], "\t=1+1", "\r\n@SUM(1)"]


def _is_foreign(address: str | None) -> bool:
    return (address or "").strip().startswith(("javascript:", "http:", "//"))


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    @property
    def dangerous(self) -> list[tuple[str, dict[str, str | None]]]:
        """Scripts that run, handlers of events, and links that execute or load something."""
        return [
            (tag, attrs)
            for tag, attrs in self.found
            if (tag == "script" and attrs.get("type") != "application/gzip")
            or tag in ("iframe", "object", "embed", "link", "base", "form")
            or any(name.startswith("on") for name in attrs)
            or any(_is_foreign(attrs.get(name)) for name in ("href", "src"))
        ]


def hostile_run(make_results: Any, text: str) -> RunData:
    results = make_results("dp=2, tp=2", axes=("tp",), exponents=(10,), collectives=("all_reduce",))
    results["stop_reason"], results["status"] = text, "failed"
    results.attrs = {"where": text, "note": text, "library": text, "gpu": text, "environment": {text: text}}
    return RunData(
        ml.Plan("all_reduce", "tp", sizes="1K"),
        ml.DeviceMesh("dp=2, tp=2"),
        run_id="r1",
        source="mpi",
        where=text,
        state="failed",
        error=BenchError(text),
        hosts=[text],
        devices=[{"when": "before", "host": text, "device": 0, "throttle": text}],
        environment={"Run": {"note": text, text: text}, text: {text: text}},
        log=[text],
        results=results,
    )


@pytest.mark.parametrize("text", TEXTS)
def test_a_hostile_run_controls_neither_a_page_nor_a_terminal(
    text: str, make_results: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = hostile_run(make_results, text).save(tmp_path / "run")
    report = ml.Report(ml.Run.load(folder), title=text)
    if text is TEXTS[0]:  # figures take seconds
        assert Tags(report.html()).dangerous == [("script", {})]  # the one that sorts tables
    assert Tags(report.markdown()).dangerous == []
    assert not re.search(r"(?<!\\)\]\(", report.markdown())
    assert "49" not in report.markdown().splitlines()[0]
    assert main(["compare", str(folder), str(folder), "--anyway"]) in (0, 1, 2)
    assert main(["report", str(folder), "--out", str(tmp_path / f"{text.replace('/', '')[:60]}.txt")]) == 2
    printed = "".join(capsys.readouterr())
    assert not set(printed) & set("\x1b\x07\x9b\u202e\u2066")
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.strip()[:1] in ("=", "@") or cell.startswith(("\t", "\r"))]


@pytest.mark.parametrize("text", TEXTS[:1])
def test_a_hostile_log_controls_neither_a_page_nor_a_terminal(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "node7:41:52 [0] NCCL WARN Call to connect to 10.0.0.4<41301> failed : Connection refused"
    path = tmp_path / "a.log"
    path.write_text(f"{log} {text}\n{text}\n{text}:41:52 [0] NCCL WARN {text}\n", encoding="utf-8")
    for options in ([], ["--redact"], ["--format", "html"], ["--format", "markdown"], ["--format", "json"]):
        assert main(["explain", str(path), *options]) == 1
        printed = "".join(capsys.readouterr())
        assert not set(printed) & set("\x1b\x07\x9b\u202e\u2066")
        if options[1:] == ["html"]:
            assert Tags(printed).dangerous == []
