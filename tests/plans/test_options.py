"""The table of options of a call, and the arguments of a plan: everything else follows from them."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.cli._main import main
from meshlab.plans._arguments import DEFAULTS, PlanArguments
from meshlab.plans._options import OPTIONS, OptionArguments, PlannedOptions, option_label, option_texts, option_value
from tests.plans import new_option

PACKAGE = Path(ml.__file__).parent


def test_the_options_have_the_same_names_everywhere() -> None:
    names = list(OPTIONS)
    assert names == list(OptionArguments.__annotations__) == [item.name for item in fields(PlannedOptions)]
    assert set(DEFAULTS) == set(PlanArguments.__annotations__)
    assert set(DEFAULTS) | {"collective", "axis", "sizes", "functions", "calls"} == {
        item.name for item in fields(ml.Plan)
    }


def test_the_arguments_of_a_plan_are_in_the_signature_and_the_documentation_of_a_benchmark() -> None:
    for function in (ml.Plan, ml.bench):
        parameters = inspect.signature(function).parameters
        documented = re.findall(r"^(?:    )?(\w[\w, ]*) : ", function.__doc__ or "", re.MULTILINE)
        names = [name for line in documented for name in line.split(", ")]
        for name, default in DEFAULTS.items():
            assert parameters[name].default == default
            assert names.count(name) == 1, name


def test_an_unknown_argument_is_an_error_also_with_a_plan() -> None:
    plan = ml.Plan("all_reduce", "tp")
    with pytest.raises(TypeError, match=r"Plan\(\) got an unexpected keyword argument 'algoritm' \(did you mean"):
        ml.Plan("all_reduce", "tp", algoritm="ring")  # type: ignore[call-arg]
    with ml.launch(1, backend="threads") as engines, pytest.raises(TypeError, match=r"bench\(\) got an unexpected"):
        ml.bench(engines, "tp=1", plan, algoritm="ring")  # type: ignore[call-arg]


def test_reprs_can_be_evaluated() -> None:
    plan = ml.Plan("all_reduce", "tp", sizes="1K", algorithm=["ring", None], n_aggregated=2)
    names = {"Plan": ml.Plan, "Step": ml.plans.Step, "Sampling": ml.Sampling}
    assert eval(repr(plan), names) == plan
    assert repr(plan).startswith("Plan(collective=('all_reduce',), axis=('tp',)")
    assert [eval(repr(step), names) for step in plan.steps("tp=2")] == list(plan.steps("tp=2"))


def test_options_of_calls_are_described_in_words() -> None:
    assert option_label("buffers", "symmetric") == "symmetric buffers"
    assert option_label("protocol", "ll128") == "LL128"
    assert option_label("max_ctas", 4) == "at most 4 CTAs"
    assert option_label("buffers", "plain") == option_label("algorithm", None) == ""
    values = {"buffers": "symmetric", "algorithm": "ring", "protocol": None, "n_aggregated": 1}
    assert option_texts(values) == ["symmetric buffers", "ring"]
    assert option_value("buffers", "plain") == "plain buffers"
    assert option_value("algorithm", None) == "default algorithm"
    assert option_value("n_aggregated", None) == "aggregation unknown"


def test_the_command_line_reads_options_of_calls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # on one line
    command = ["bench", "--mesh", "tp=2", "--sizes", "1K", "--seconds", "0.02", "--backend", "threads"]
    assert main([*command, "--n-aggregated", "2", "--alignment-bytes", "8"]) == 0
    assert "8 B off alignment · 2 calls together" in capsys.readouterr().out
    assert main([*command, "--algorithm", "auto, ring"]) == 2
    assert "threads cannot choose algorithm per call" in capsys.readouterr().err
    assert main([*command, "--min-ctas", "8", "--max-ctas", "4,2"]) == 2
    assert "min_ctas=8 is larger than every max_ctas of the plan" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--max-ctas", "4,many"])
    assert "argument --max-ctas: '4,many' is not an integer" in capsys.readouterr().err


@pytest.mark.full
def test_a_new_option_changes_at_most_four_modules(tmp_path: Path) -> None:
    changed = new_option.add_to(tmp_path, PACKAGE)
    before = {path.relative_to(PACKAGE): path.read_bytes() for path in PACKAGE.rglob("*.py")}
    after = {path.relative_to(tmp_path / "meshlab"): path.read_bytes() for path in tmp_path.rglob("*.py")}
    assert sorted(changed) == sorted(path.as_posix() for path in before if before[path] != after[path])
    assert before.keys() == after.keys()
    assert len(changed) <= 4
    # In the folder of the copy, because the engines import from the current folder first.
    done = subprocess.run(
        [sys.executable, new_option.__file__],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"},  # captions on one line
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "touched_bytes must be at least 0, not -1",
        "touched_bytes must be an integer of at most 64 bits, not 'some'",
    ]
