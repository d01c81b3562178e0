"""Rules that are rows of a table."""

from __future__ import annotations

import re

from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._line_rules import LineRule, having, matching, rules_of

JAMS = re.compile(r"jam in (?P<tray>\w+)")


def row(**fields: object) -> LineRule:
    """A row about a printer, with other fields."""
    texts = {"code": "jam", "title": "A jam", "looks_for": "Looks for jams.", "why": "It jams.", "source": "manual"}
    return LineRule(**{"find": having("jam in"), **texts, **fields})  # type: ignore[arg-type]


def test_a_row_becomes_a_rule_of_its_module() -> None:
    (rule,) = rules_of("printers", row(causes=("late",)))
    assert (rule.code, rule.title, rule.source, rule.causes) == ("jam", "A jam", ("manual",), ("late",))
    assert (rule.check.__doc__, rule.check.__module__) == ("Looks for jams.", "printers")


def test_a_row_names_the_groups_of_its_first_match() -> None:
    (rule,) = rules_of("printers", row(find=matching(JAMS, "jam"), why="{tray} is jammed.", do="Open {tray}."))
    (finding,) = rule(Paste("jam in A\nno jam\njam in B"))
    assert (finding.severity, finding.why, finding.do) == ("error", "A is jammed.", "Open A.")
    assert finding.lines == (1, 3)


def test_the_texts_of_a_row_without_values_may_contain_braces() -> None:
    (rule,) = rules_of("printers", row(why="Set ${TRAY}."))
    assert rule(Paste("jam in A"))[0].why == "Set ${TRAY}."


def test_a_subject_names_those_who_printed_the_lines() -> None:
    text = "n1:1:1 [0] NCCL WARN jam in A\nn2:1:1 [3] NCCL WARN jam in A"
    subjects = ("{affected}, tray", "{hosts}", "the tray", lambda paste, numbers: f"{len(paste)} lines, {numbers}")
    rules = rules_of("printers", *(row(subject=subject) for subject in subjects))
    assert [rule(Paste(text))[0].subject for rule in rules] == [
        "n1 GPU 0, n2 GPU 3, tray",
        "n1 and n2",
        "the tray",
        "2 lines, [1, 2]",
    ]


def test_a_normal_finding_keeps_200_lines() -> None:
    (rule,) = rules_of("printers", row(level="normal"))
    assert len(rule(Paste("jam in A\n" * 300))[0].lines) == 200
