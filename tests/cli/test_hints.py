"""Hints of errors have a form for Python and one for the command line."""

from __future__ import annotations

import argparse
import ast
import copy
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import meshlab
from meshlab.base._errors import BenchError, MeshlabError
from meshlab.base._hints import NEW_RANKS, READ_A_FILE, Argument, Hint
from meshlab.cli._jobs import job_fields, job_hints
from meshlab.cli._main import COMMANDS
from meshlab.cli._output import OPTIONS, error_text, option_text
from meshlab.prediction._job import Job
from tests.syntax_trees import tree_of

PACKAGE = Path(meshlab.__file__).parent
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.is_relative_to(PACKAGE / "cli")]

OF_JOB = {field.name for field in fields(Job)}
DEGREES = {"dp", "cp", "ep", "pp", "tp"}  # in texts they are axes of a mesh, such as 'dp=2, tp=4'
OF_NO_COMMAND = {"name"}  # a field of a job in Python only; hints write name=size for the axes of a mesh
READERS = PACKAGE / "mesh/interop"  # no command reads the configuration of a framework, with its layout experts=


def arguments_with_options() -> set[str]:
    """The arguments that some command has as an option, possibly with another name, or as a field of ``--set``."""
    options = set()
    for command in COMMANDS:
        parser = argparse.ArgumentParser()
        command.add_options(parser)
        options |= {action.dest for action in parser._actions if action.option_strings}
    return (options | set(OPTIONS) | OF_JOB) - DEGREES - OF_NO_COMMAND


def name_of(node: ast.AST | None) -> str:
    """The name of a variable, or of an attribute of any object. Empty for everything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def hints_in(tree: ast.Module) -> Iterator[ast.expr]:
    """The expressions of hints: arguments ``hint=`` and ``fix=``, of with_hint() and of a job's `Problem`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (keyword.value for keyword in node.keywords if keyword.arg in ("hint", "fix"))
            if name_of(node.func) in ("with_hint", "Problem"):
                yield node.args[-1]


def values_in(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """The expressions that a variable or a function of a module may have as its value, by its name."""
    values = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                values[name_of(target)].append(node.value)
        elif isinstance(node, ast.FunctionDef) and name_of(node.returns) == "str":
            returns = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return)]
            values[node.name] += [value for value in returns if value is not None]
    return values


@cache
def parts_of(expression: ast.expr) -> tuple[list[str], list[str]]:
    """The texts and the names in an expression."""
    texts, names = [], []
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
        elif name := name_of(node):
            names.append(name)
    return texts, names


def texts_of(hint: ast.expr, values: dict[str, list[ast.expr]]) -> Iterator[str]:
    """The texts in a hint, and in the variables and the functions that it consists of."""
    names, queue = set(), [hint]
    while queue:
        texts, used_names = parts_of(queue.pop())
        yield from texts
        for name in used_names:
            if name not in names:
                names.add(name)
                queue += values.get(name, [])


def test_a_hint_that_names_an_argument_has_its_option_too() -> None:
    """Arguments in a call, as in launch(n, backend='threads'), are part of a Python expression and stay."""
    argument = re.compile(rf"(?<![\w-])({'|'.join(sorted(arguments_with_options()))})=")
    hints, faults = [], []
    for path in FILES:
        values = values_in(tree_of(path))
        for hint in hints_in(tree_of(path)):
            hints.append(hint)
            for text in texts_of(hint, values):
                names = set(argument.findall(re.sub(r"\w\([^)]*", "", text)))
                if names - ({"experts"} if path.is_relative_to(READERS) else set()):
                    faults.append(f"{path.relative_to(PACKAGE)}:{hint.lineno}: {text}")
    assert len(hints) > 400
    assert faults == [], "write Hint(…, Argument(…))"


def test_the_arguments_in_hints_are_options() -> None:
    options = arguments_with_options() | DEGREES
    names = {
        node.args[0].value
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and name_of(node.func) == "Argument" and isinstance(node.args[0], ast.Constant)
    }
    assert len(names) > 20
    assert names - options == set()


LONG = ", ".join(f"preset-{number}" for number in range(30))
HINT = Hint("choose one of {}, {}, or pass {}", LONG, READ_A_FILE, Argument("overwrite", True))


@pytest.mark.parametrize("restored", [HINT, copy.copy(HINT), copy.deepcopy(HINT), pickle.loads(pickle.dumps(HINT))])
def test_both_forms_survive_an_error_and_a_copy(restored: Hint) -> None:
    error = BenchError("no", hint=restored)
    python = f"choose one of {LONG}, read a file with ml.topology.read(), or pass overwrite=True"
    assert (str(restored), error.hint, str(error)) == (python, python, f"no; {python}")
    for other in (error, BenchError("no", hint=error.hint), pickle.loads(pickle.dumps(error))):
        assert error_text(other) == f"no; choose one of {LONG}, pass a file that describes hardware, or pass --force"


def test_a_value_that_looks_like_an_argument_or_a_place_stays() -> None:
    hint = Hint("{}, or pass {}", "write {} with mode=fast", Argument("world_size"))
    assert error_text(BenchError("no", hint=hint)) == "no; write {} with mode=fast, or pass --ranks N"
    with pytest.raises(ValueError, match="2 places for 1 values"):
        Hint("{} and {}", "one")


def test_hints_contain_hints() -> None:
    fix = Hint("{}, and {}", Hint("pass {}", Argument("backend", "mpi")), Hint("{}", NEW_RANKS))
    assert fix == "pass backend='mpi', and call engines.restart() to start new ranks"
    assert error_text(BenchError("no", hint=fix), "try again") == "no; pass --backend mpi, and try again"


def test_fields_of_a_job_are_options_of_set() -> None:
    hint = Hint("use {}, {} or {}", Argument("tp", 4, " = "), Argument("layers"), Argument("world_size", 8))
    for names, text in (
        (("tp",), "use --tp 4, --set layers=N or --ranks 8"),
        ((), "use tp = 4, --set layers=N or --ranks 8"),
    ):
        with pytest.raises(MeshlabError) as error, job_hints(*names):
            raise MeshlabError("no", hint=hint)
        assert error.value.hint == text


def test_an_argument_is_an_option_with_its_value() -> None:
    assert option_text(Argument("grouping", "pairs")) == "--grouping pairs"
    assert option_text(Argument("resume")) == "--resume"


def test_changes_of_a_job_are_words_with_an_equals_sign() -> None:
    changes = job_fields(["global_batch=64", "sequence_parallel=false", "recompute=full", "skew=0.8"])
    assert changes == {"global_batch": 64, "sequence_parallel": False, "recompute": "full", "skew": 0.8}
