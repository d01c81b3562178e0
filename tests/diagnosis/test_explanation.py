"""The faces of an explanation: a terminal, a notebook, an issue, JSON and a frame."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.diagnosis._explanation import Explanation
from meshlab.diagnosis._findings import LEVELS
from meshlab.diagnosis._html import as_page
from meshlab.diagnosis._text import LEVEL_MARKS, as_text
from tests.diagnosis.texts_with_rules import HOSTILE, RULES, printer_text

VOID = {"br", "hr", "img", "meta", "input"}


class Elements(HTMLParser):
    """Parses HTML, with the elements and attributes that it contains, and raises if elements are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.shown = ""
        self.feed(text)
        self.close()
        assert self.open in ([], ["html", "body"], ["html"]), self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.shown += data


def explained(extra: str = "") -> Explanation:
    return ml.explain(printer_text(extra), rules=RULES)


def test_the_terminal_shows_the_verdict_then_findings_with_lines_and_what_is_normal() -> None:
    assert str(explained()) == (
        "The printer is jammed: lp0. 1 more warning and 1 consequence.\n"
        "\n"
        "✕ error · paper-jam · lp0\n"
        "  The printer reports a jam.\n"
        "  → Open the tray, and run `lp -r` again.\n"
        "      5 │ lp0: jam in tray 1\n"
        "\n"
        "▲ warning · low-toner · toner low\n"
        "  The toner is low.\n"
        "  → Order some.\n"
        "      4 │ toner low\n"
        "\n"
        "✕ error · job-cancelled · follows from paper-jam · the queue\n"
        "  The queue says 'lp0: job cancelled'.\n"
        "      3 │ lp0: job cancelled\n"
        "\n"
        "● info · paper-loaded · tray 1\n"
        "  Somebody loaded paper.\n"
        "      2 │ paper loaded\n"
        "\n"
        "Looks wrong, but is normal\n"
        "  ○ The printer warms up: lp0. It does so each morning."
    )


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("paper loaded", "No known problem found in 1 line. Worth knowing: Paper was loaded: tray 1."),
        ("warming up\n\n", "No known problem found in 2 lines."),
        ("toner low\ntoner low", "The toner is low: toner low. 1 more warning."),
        ("lp0: jam in tray 1\n" + "toner low\n" * 3, "The printer is jammed: lp0. 3 more warnings."),
        ("x: job cancelled", "A job was cancelled: the queue."),
    ],
)
def test_the_verdict_is_a_sentence_about_the_first_finding(text: str, verdict: str) -> None:
    assert ml.explain(text, rules=RULES).verdict == verdict


@pytest.mark.parametrize("width", [40, 60, 200])
def test_prose_stays_within_the_width_of_the_terminal(width: int) -> None:
    lines = as_text(explained(), width).splitlines()
    assert all(len(line) <= width for line in lines)


def test_every_severity_has_its_own_shape() -> None:
    assert list(LEVEL_MARKS) == list(LEVELS)
    assert len(set(LEVEL_MARKS.values())) == len(LEVELS)


def test_the_frame_has_a_row_per_finding() -> None:
    frame = explained().frame()
    assert frame["code"].tolist() == ["paper-jam", "low-toner", "job-cancelled", "paper-loaded", "warming-up"]
    assert frame["lines"].tolist() == [(5,), (4,), (3,), (2,), (1,)]
    assert frame["follows"].dropna().to_dict() == {2: "paper-jam"}
    assert frame["title"].iloc[0] == "The printer is jammed"


def test_json_has_everything_in_ascii() -> None:
    document = json.loads(explained("\u202e\ud800").to_json())
    assert document["verdict"].startswith("The printer is jammed")
    assert [item["code"] for item in document["normal"]] == ["warming-up"]
    assert document["findings"][0]["lines"] == [5]
    assert explained("\u202e").to_json().isascii()


def test_a_missing_table_is_refused_with_those_that_exist() -> None:
    with pytest.raises(BenchError, match="the text has no table 'rings'"):
        explained().table("rings")


def test_html_shows_severity_by_word_and_shape_and_quotes_lines_with_numbers() -> None:
    html = explained()._repr_html_()
    parsed = Elements(html)
    for text in ("✕", "error · The printer is jammed: lp0", "paper-jam", "→", "5", "lp0: jam in tray 1"):
        assert text in parsed.shown or text in html
    assert "script" not in parsed.names
    assert parsed.shown.index("jammed") < parsed.shown.index("1 thing looks wrong but is normal")


@pytest.mark.parametrize("text", HOSTILE)
def test_html_escapes_what_was_pasted(text: str) -> None:
    """In quoted lines, in subjects and reasons of findings, and in the name of the file."""
    explanation = ml.explain(f"{printer_text(text)}\n{text}: job cancelled\n{text} toner low", rules=RULES)
    explanation.paste.name = text
    harmless = explained()
    for html, plain in (
        (explanation._repr_html_(), harmless._repr_html_()),
        (as_page(explanation), as_page(harmless)),
    ):
        parsed, expected = Elements(html), Elements(plain)
        assert parsed.names <= expected.names | {"details", "summary"}
        assert parsed.attributes <= expected.attributes
        assert html.isprintable() or not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)
        html.encode("utf-8")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_terminal_never_gets_a_control_character(text: str) -> None:
    explanation = ml.explain(f"{printer_text(text)}\n{text}: job cancelled\n{text} toner low", rules=RULES)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", str(explanation))


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_interprets_nothing_that_was_pasted(text: str) -> None:
    mistune = pytest.importorskip("mistune")
    render = mistune.create_markdown(escape=False, plugins=["table", "strikethrough"])
    explanation = ml.explain(f"{printer_text(text)}\n{text}: job cancelled\n{text} toner low", rules=RULES)
    names = set(re.findall(r"<(\w+)", render(explanation.to_markdown())))
    assert names == {"p", "strong", "code", "pre", "ul", "li"}


def test_markdown_is_short_enough_for_an_issue_and_has_the_lines() -> None:
    text = explained().to_markdown()
    assert text.startswith("**The printer is jammed: lp0. 1 more warning and 1 consequence.**\n")
    assert "```text\n    5  lp0: jam in tray 1\n```" in text
    assert "✕ **error** · `job-cancelled` · follows from `paper-jam` · the queue" in text


def test_a_long_paste_does_not_become_a_long_page() -> None:
    text = f"{printer_text()}\n" + "lp0: jam in tray 1 and " * 100 + "\n"
    explanation = ml.explain(text * 2000, rules=RULES)
    assert len(explanation.paste.text) > 4_000_000
    for face in (explanation._repr_html_(), explanation.to_markdown(), str(explanation)):
        assert len(face) < 100_000
    assert "and 3,960 more lines" in explanation._repr_html_()


def test_an_empty_explanation_has_all_faces() -> None:
    explanation = ml.explain("dp=2, tp=4")
    assert explanation.mesh == ml.DeviceMesh("dp=2, tp=4")
    assert repr(explanation) == "<Explanation: no problem found; next: print(…), .frame(), .to_markdown()>"
    Elements(explanation._repr_html_())
    assert explanation.frame().empty


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("node1:91:130 [3] init.cc:9 NCCL WARN Cuda failure 'out of memory'", "failed"),
        ("node1:91:130 [3] NCCL INFO NCCL version 2.27.3+cuda12.9", "not decided"),
        ("node1:91:130 [3] misc/x.cc:9 NCCL WARN nobody has seen this before", "not decided"),
        (
            "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n",
            "passed",
        ),
    ],
)
def test_a_text_without_a_known_problem_is_not_passed(text: str, outcome: str) -> None:
    explanation = ml.explain(text)
    assert explanation.outcome == outcome
    assert json.loads(explanation.to_json())["outcome"] == outcome
