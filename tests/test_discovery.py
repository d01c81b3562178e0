"""What users find from Python alone: the map of help(), the names of dir(), and the next step in every repr."""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.cli._main import main
from meshlab.plans._sampling import Sampling
from tests.nccl_tests.log_maker import LogMaker

ROOT = Path(__file__).parents[1]
NAMES = [name for name in dir(ml) if not name.startswith("_")]

AS_CODE = {
    *("Communicator", "DeviceMesh", "Group", "Groups", "Hierarchy", "Plan", "Sampling", "Axis", "Recipe", "Step"),
    *("Curve", "Designer", "LiveView", "PasteBox", "Picture", "Workbench"),
    *("Threshold", "Thresholds", "RehearsedCall", "RehearsedLayout", "Batch", "Call", "CallChoice", "CallConfig"),
    *("Capabilities", "Collective", "Event", "Hierarchical", "PreparedCall", "ReduceOp", "Timings", "PasteLine"),
    *("Rule", "TextFinding", "RankInfo", "Progress", "NcclFacts", "Cost", "ExposedAxis", "GroupLinks", "LinkTable"),
    *("LatentAttention", "Memory", "NcclSettings", "StepCall", "Device", "Finding", "Level", "Link", "NcclGraph"),
    *("Nic", "Node", "Numa", "PlannedCall", "ReplaySide", "Traffic"),
}
"""Classes whose values are shown as what they consist of. Widgets among them display themselves in a notebook."""

ONLY_FROM_RANKS = {"EnvComparison", "ComputeRates", "LiveTrace", "Rehearsal", "NcclGraphs", "TorchMesh", "Visibility"}
"""Classes that need minutes or hardware. Their own tests show one."""


def public_classes() -> set[type]:
    spaces = [ml, *(value for name in ml.__all__ if inspect.ismodule(value := getattr(ml, name)))]
    values = [getattr(space, name) for space in spaces for name in getattr(space, "__all__", ())]
    return {value for value in values if inspect.isclass(value) and not issubclass(value, BaseException)}


@pytest.fixture(scope="module")
def results() -> Iterator[Mapping[str, Any]]:
    """A value of every public class whose repr names the next step."""
    mesh, cluster, job = ml.DeviceMesh("dp=2, tp=8"), ml.preset("dgx-h100", nodes=2), ml.Job.preset("llama3-8b")
    measured = ml.example().query("mode == 'graph' and collective == 'all_reduce'")
    judgement, log = ml.judge(measured), ml.nccl_tests.read(LogMaker().text())
    explanation = ml.explain("node7:41:52 [0] NCCL WARN Call to connect to 10.0.0.4<41301> failed : Connection refused")
    with ml.launch(4, backend="threads") as engines:
        replay = ml.benchmark.replay(engines, ml.Trace.example())
    with ml.launch(2, backend="threads") as engines:
        plan = {"sizes": "1K, 4K", "sampling": Sampling(max_s=0.02, min_batches=6)}
        run = ml.bench(engines, **plan)
        run.wait(120)
        sides = {"separate": {"in_place": False}, "in place": {"in_place": True}}
        values = [
            *(mesh.diff("tp=8, dp=2"), cluster, cluster.health(), ml.place(mesh, cluster), job),
            *(ml.predict(mesh, cluster), ml.calibrate(measured, "dgx-h200"), ml.search(cluster, job)),
            *(ml.prediction.step_time(job, mesh, cluster), ml.Report(measured), ml.Trace.example()),
            *(log, log.sections[0], ml.read(LogMaker().text()), judgement, judgement.verdict),
            *(explanation, explanation.paste, ml.example("tuning"), engines, run, run.estimate),
            ml.runs.RunData.load(Path(__file__).parent / "runs" / "data" / "schema_2"),
            *(replay, ml.Job.preset("deepseek-v3").routing("ep=64", skew=0.8)),
            *(ml.compare(run, run), ml.benchmark.compare_now(engines, None, sides, sizes="1K", budget_s=0.2)),
        ]
        yield {type(value).__name__: value for value in values}


def steps_of(text: str) -> list[str]:
    """Return the next steps in a repr."""
    match = re.search(r"[;.:] next: ([^\n]*)>$", text, re.MULTILINE)
    return re.split(r", (?=\.|ml\.|print)", match[1]) if match else []


def test_every_public_class_is_a_case() -> None:
    names = {kind.__name__ for kind in public_classes()}
    assert names >= AS_CODE | ONLY_FROM_RANKS


def test_a_repr_names_steps_that_exist(results: Mapping[str, Any]) -> None:
    names = {kind.__name__ for kind in public_classes()} - AS_CODE - ONLY_FROM_RANKS
    assert names <= set(results), "add a value to the fixture, or the class to AS_CODE"
    for name in sorted(names):
        value = results[name]
        steps = steps_of(repr(value))
        assert steps, f"{value!r} does not say what to do next"
        for step in steps:
            owner, attribute = (ml, step[3:]) if step.startswith("ml.") else (value, step[1:])
            if not step.startswith("print"):
                assert hasattr(owner, re.match(r"\w+", attribute)[0]), f"{name}: {step}"  # type: ignore[index]


def test_a_repr_as_code_is_short() -> None:
    shown = [ml.DeviceMesh("dp=2, tp=8"), ml.preset("dgx-h100").nodes[0], ml.preset("dgx-h100").nodes[0].devices[0]]
    assert all(len(repr(value)) < 120 for value in shown)


def test_the_next_step_follows_the_state() -> None:
    engines = ml.launch(1, backend="threads")
    assert "next: .verify(mesh)" in repr(engines)
    run = ml.bench(engines, sizes="1K", sampling=Sampling(max_s=5.0, min_batches=200, precision=1e-9))
    assert "next: .wait(), .pause(), .cancel()>" in repr(run) or run.has_ended
    run.cancel()
    run.wait(60)
    assert "next: .table(), .plot(), .save(folder)>" in repr(run)
    engines.close()
    assert "next: ml.launch(n)" in repr(engines)


EXTRAS: Mapping[str, tuple[str, str]] = {
    "cuda12": ("cupy", "launch nccl"),
    "cuda13": ("nccl", "launch nccl"),
    "gloo": ("torch", "launch gloo"),
    "lab": ("jupyterlab", "meshlab lab"),
    "app": ("voila", "meshlab app"),
}
"""A module of each extra, and what needs it."""


def test_every_extra_for_users_is_a_case() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) - {"test", "docs"} == set(EXTRAS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_is_named_with_its_command(
    extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    module, use = EXTRAS[extra]
    monkeypatch.setitem(sys.modules, module, None)  # as if it was not installed
    kind, name = use.split()
    if kind == "launch":
        with pytest.raises(ml.MeshlabError) as caught:
            ml.launch(1, backend=name)
        text = str(caught.value)
    else:
        monkeypatch.chdir(tmp_path)
        assert main([name]) == 2
        text = capsys.readouterr().err
    assert re.search(rf"pip install '\.\[{extra}\]'|'\.\[cuda12\]' or '\.\[{extra}\]'", text), text


def test_dir_has_at_most_48_names_and_the_others_resolve() -> None:
    assert len(NAMES) <= 48
    left_out = set(ml.__all__) - set(NAMES) - {"__version__"}
    assert {"Communicator", "plans", "frames", "traces"} <= left_out
    assert all(getattr(ml, name) is not None for name in left_out)


def test_help_is_a_map_by_task() -> None:
    text = ml.__doc__ or ""
    missing = [name for name in NAMES if not re.search(rf"(?<![\w.]){name}\b", text)]
    assert missing == [], "add it to the map in the docstring of the package"
    width = max(map(len, text.splitlines()))
    assert width <= 100, "help() is read in a terminal"
