"""The pages of the documentation that are made from the table of rules."""

from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.diagnosis.rules._table import RULES
from tests.diagnosis.pages import PAGES, ROOT, examples
from tests.diagnosis.questions import QUESTIONS, Question


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    """Run python -m tests.diagnosis.pages if it is not."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name]()


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.code)
def test_the_first_finding_answers_the_question(question: Question) -> None:
    assert ml.explain(question.text).findings[0].code == question.code


def test_ten_questions_are_answered() -> None:
    assert len({question.code for question in QUESTIONS}) == len(QUESTIONS) == 10


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_has_a_title_a_source_and_says_what_it_looks_for(rule: ml.diagnosis.Rule) -> None:
    assert rule.title[:1].isupper() or rule.title[:1] == "/"
    assert not rule.title.endswith(".")
    assert rule.source
    assert (rule.check.__doc__ or "").strip().endswith((".", "."))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_recognises_a_text_of_the_tests(rule: ml.diagnosis.Rule) -> None:
    assert examples()[rule]
