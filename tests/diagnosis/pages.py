"""Writes the pages docs/diagnosis.md and docs/questions.md: ``python -m tests.diagnosis.pages``.

The example of a rule is the shortest text that it recognises in the modules of tests that name codes of rules. If they
have none, it comes from the other tests, such as those of formats, redaction and display, whose texts may be fragments
or hostile. So a new rule appears with the text of its test.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from meshlab.base._files import write_file
from meshlab.base._markup import markdown_text, visible
from meshlab.diagnosis._explain import explain
from meshlab.diagnosis._findings import LEVELS, Rule, TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._quoting import fenced
from meshlab.diagnosis.formats._table import FORMATS
from meshlab.diagnosis.rules._table import RULES
from tests.diagnosis.questions import QUESTIONS

__all__ = ["PAGES", "questions_page", "rules_page"]

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).parent
_LONGEST = 6000  # characters of a text
_SHORTEST = 12


class Example(NamedTuple):
    """A text that a rule recognises, and what the rule finds in it."""

    text: str
    findings: tuple[TextFinding, ...]


@functools.cache
def texts_of_tests() -> tuple[str, ...]:
    """All strings of the tests that may be pasted texts: first those of tests of rules, each part shortest first."""
    codes = {rule.code for rule in RULES}
    of_rules: dict[str, bool] = {question.text: True for question in QUESTIONS}
    for path in sorted(TESTS.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.stem in ("pages", "test_pages"):
            continue
        # The real texts, which only functions read, must not become a part of the pages.
        may_call = "MESHLAB_CASES" not in source
        module = importlib.import_module(f"tests.diagnosis.{path.stem}")
        nodes = list(ast.walk(ast.parse(source)))
        names_a_code = any(isinstance(node, ast.Constant) and node.value in codes for node in nodes)
        for node in nodes:
            text = textwrap.dedent(_text_of(node, module, may_call=may_call)).strip("\n")
            if _SHORTEST <= len(text) <= _LONGEST:
                of_rules[text] = of_rules.get(text, False) or names_a_code
    return tuple(sorted(of_rules, key=lambda text: (not of_rules[text], len(text), text)))


def _text_of(node: ast.AST, module: ModuleType, *, may_call: bool) -> str:
    """The value of a string, a sum, or a call of a function of the module that returns a text; otherwise empty."""
    if isinstance(node, ast.Call):
        function = vars(module).get(node.func.id) if isinstance(node.func, ast.Name) else None
        is_text = inspect.isfunction(function) and function.__annotations__.get("return") in ("str", "Paste")
        is_text = is_text and may_call
    else:
        is_text = isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Name))
    if not is_text:
        return ""
    try:
        value = eval(compile(ast.Expression(node), str(module.__file__), "eval"), dict(vars(module)))
    except Exception:  # it needs a variable of its function
        return ""
    return value.text if isinstance(value, Paste) else value if isinstance(value, str) else ""


@functools.cache
def examples() -> dict[Rule, list[Example]]:
    """The texts of the tests that each rule recognises, the one for the page first."""
    by_rule: dict[Rule, list[Example]] = {rule: [] for rule in RULES}
    for text in texts_of_tests():
        paste = Paste(text)
        for rule in RULES:
            findings = rule(paste)
            if findings:
                by_rule[rule].append(Example(text, tuple(findings)))
    return by_rule


def severities(rule: Rule) -> list[str]:
    """The severities of the findings of a rule in all texts of the tests, most severe first."""
    seen = {finding.severity for example in examples()[rule] for finding in example.findings}
    return [level for level in LEVELS if level in seen]


def rules_page() -> str:
    """The page of all rules: a table, and a section for each of them."""
    blocks = [
        "# The rules of `ml.explain`",
        "`ml.explain(text)` applies these rules to a pasted text. Each rule has a name, a source and a test, and "
        "`ml.diagnosis.RULES` is their table. `python -m tests.diagnosis.pages` generates this page.",
        "\n".join(
            ["| severity | meaning |", "|---|---|", *(f"| {level} | {meaning} |" for level, meaning in LEVELS.items())]
        ),
        f"`explain` recognises {len(FORMATS)} kinds of text: {', '.join(form.kind for form in FORMATS)}.",
    ]
    rows = ["| code | looks for | severity |", "|---|---|---|"]
    sections = []
    names: dict[str, int] = {}
    for module, rules in itertools.groupby(RULES, key=lambda rule: rule.check.__module__):
        sections.append(f"## {_title_of(module)}")
        for rule in rules:
            names[rule.code] = names.get(rule.code, 0) + 1
            anchor = rule.code if names[rule.code] == 1 else f"{rule.code}-{names[rule.code]}"
            rows.append(f"| [`{rule.code}`](#{anchor}) | {markdown_text(rule.title)} | {', '.join(severities(rule))} |")
            sections += _section(rule, anchor)
    return "\n\n".join([*blocks, "\n".join(rows), *sections]) + "\n"


def _title_of(module: str) -> str:
    """The first sentence of the docstring of a module of rules, without "Rules about"."""
    summary = (sys.modules[module].__doc__ or module).strip().splitlines()[0].rstrip(".")
    return (
        re.sub(r"^Rules (?:about|for|of|on) ", "", summary)[:1].upper()
        + re.sub(r"^Rules (?:about|for|of|on) ", "", summary)[1:]
    )


def _section(rule: Rule, anchor: str) -> Iterator[str]:
    yield f'<a id="{anchor}"></a>\n\n### {markdown_text(rule.title)}'
    doc = " ".join(inspect.cleandoc(rule.check.__doc__ or "").split())
    yield f"`{rule.code}` · {', '.join(severities(rule)) or 'no example'}"
    yield re.sub(r"``([^`]+)``", r"`\1`", doc)
    sources = (f"<{source}>" if source.startswith("http") else markdown_text(source) for source in rule.source)
    yield f"Source: {'; '.join(sources)}."
    if rule.causes:
        yield f"Explains as consequences: {', '.join(f'`{code}`' for code in rule.causes)}."
    rule_examples = examples()[rule]
    if rule_examples:
        yield "\n".join(fenced([visible(line) for line in rule_examples[0].text.splitlines()]))
        for finding in rule_examples[0].findings[:2]:
            yield f"> {markdown_text(finding.why)}" + (f"\n>\n> → {markdown_text(finding.do)}" if finding.do else "")


def questions_page() -> str:
    """The page of the questions that are asked most often, each with a text and the answer."""
    blocks = [
        "# Ten questions, and what `ml.explain` answers",
        "Each question has a text to paste, and the answer that `print(ml.explain(text))` or `meshlab explain "
        "FILE` prints. `python -m tests.diagnosis.pages` generates this page.",
    ]
    for number, question in enumerate(QUESTIONS, 1):
        blocks.append(f"## {number}. {question.question}")
        blocks.append("\n".join(fenced([visible(line) for line in question.text.splitlines()])))
        blocks.append("\n".join(fenced(str(explain(question.text)).splitlines())))
    return "\n\n".join(blocks) + "\n"


PAGES = {"diagnosis.md": rules_page, "questions.md": questions_page}

if __name__ == "__main__":
    (ROOT / "docs").mkdir(exist_ok=True)
    for name, write in PAGES.items():
        print(write_file(ROOT / "docs" / name, write()))
    without = [rule.code for rule in RULES if not examples()[rule]]
    if without:
        print(f"no text in the tests for {', '.join(without)}")
