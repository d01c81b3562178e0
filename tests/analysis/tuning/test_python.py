"""The module for nccl4py: it compiles, and uses names and arguments that nccl4py has."""

from __future__ import annotations

import ast
import importlib.util
import types
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.analysis.tuning._python import NCCL4PY_CALLS
from meshlab.comm.backends._nccl_binding import selection
from tests.analysis.trial_maker import CAPPED, DEFAULT, a_tuning, both, trial, usual_rows

SOURCES = [
    pytest.param(lambda: a_tuning([row for name in NCCL4PY_CALLS for row in usual_rows(name)]), id="all collectives"),
    pytest.param(lambda: ml.example("tuning"), id="example"),
]


class Configuration(dict):
    """NCCLCollConfig: the arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(options)


class Communicator:
    """Records the calls of nccl4py's Communicator."""

    nranks = 2

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.windows: list[str] = []

    def register_window(self, buffer: Any, flags: str) -> Any:
        self.windows.append(flags)
        return types.SimpleNamespace(close=lambda: self.windows.pop())

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, stream: Any, config: Any) -> None:
            self.calls.append((name, config))

        return call


class Buffer:
    def __init__(self, address: int, nbytes: int) -> None:
        self.data, self.nbytes = types.SimpleNamespace(ptr=address), nbytes


def module_of(source: str, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    core = types.ModuleType("nccl.core")
    core.NCCLCollConfig, core.SUM = Configuration, "sum"  # type: ignore[attr-defined]
    core.WindowFlag = types.SimpleNamespace(COLL_SYMMETRIC="symmetric")  # type: ignore[attr-defined]
    core.CTAPolicy = types.SimpleNamespace(ZERO=2, EFFICIENCY=1, DEFAULT=0)  # type: ignore[attr-defined]
    package = types.ModuleType("nccl")
    package.core = core  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "nccl", package)
    monkeypatch.setitem(__import__("sys").modules, "nccl.core", core)
    module = types.ModuleType("tuned")
    exec(compile(source, "tuned.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("make", SOURCES)
def test_the_module_chooses_what_the_tuning_chose(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = make()
    module = module_of(tuning.to_python(), monkeypatch)
    choices = tuning.choices()
    for collective in tuning.collectives:
        own = [choice for choice in choices if choice.collective == collective]
        for size in (1, 100, 1024, 1500, 3000, 5000, 9000, 1 << 22, 1 << 26, 1 << 40):
            expected = next(one for one in own if one.max_bytes is None or size <= one.max_bytes)
            buffers, options = module.choice(collective, size)
            assert buffers == expected.buffers
            assert options.get("max_ctas") == expected.config.max_ctas
            assert options.get("alg_selection") == selection(expected.config.algorithm, expected.config.protocol)


def test_windows_decide_which_options_a_call_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = module_of(a_tuning(usual_rows()).to_python(), monkeypatch).Tuned(Communicator())
    x, other = Buffer(4096, 1 << 20), Buffer(1 << 30, 1024)
    inside, large = Buffer(8192, 1024), Buffer(4096, 4096)
    with tuned.window(x):
        assert tuned.comm.windows == ["symmetric"]
        tuned.all_reduce(inside, inside)
        tuned.all_reduce(large, large)
        tuned.all_reduce(inside, other)
    tuned.all_reduce(inside, inside)
    assert tuned.comm.windows == []
    configs = [config for _, config in tuned.comm.calls]
    assert configs == [{"max_ctas": 4}, {"alg_selection": "^symk"}, None, None]


def test_another_number_of_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = Communicator()
    comm.nranks = 4
    with pytest.raises(ValueError, match="the options are for 2 ranks, but this communicator has 4"):
        module_of(a_tuning(usual_rows()).to_python(), monkeypatch).Tuned(comm)


def test_a_policy_is_a_member_of_nccl4pys_enumeration() -> None:
    option = {"buffers": "symmetric", "cta_policy": "zero"}
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), *both(option, 1024, 3.0, 3.0)]
    assert '{"cta_policy": nccl.CTAPolicy.ZERO}' in a_tuning(rows).to_python()


def test_no_name_of_a_system_ends_the_docstring() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), trial(CAPPED, 1024, 5.0)]
    source = a_tuning(rows, system={"where": 'evil """\nimport os\\'}).to_python()
    tree = ast.parse(source)
    assert [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import)] == ["import nccl.core as nccl"]


def nccl4py() -> Path | None:
    """The source of nccl4py, which is only parsed: importing it needs CUDA."""
    spec = importlib.util.find_spec("nccl")
    places = [Path(place) / "core" for place in (spec.submodule_search_locations or [])] if spec is not None else []
    return next((place for place in places if (place / "communicator.py").is_file()), None)


@pytest.mark.skipif(nccl4py() is None, reason="nccl4py is not installed")
@pytest.mark.parametrize("make", SOURCES)
def test_nccl4py_has_all_names_and_arguments(make: Any) -> None:
    folder = nccl4py()
    assert folder is not None
    classes = {
        node.name: node
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    exported = ast.parse((folder / "__init__.py").read_text())
    (names,) = [
        ast.literal_eval(node.value)
        for node in exported.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    methods = {node.name: node for node in classes["Communicator"].body if isinstance(node, ast.FunctionDef)}
    fields = {ast.unparse(node.target) for node in classes["NCCLCollConfig"].body if isinstance(node, ast.AnnAssign)}
    for node in ast.walk(ast.parse(make().to_python())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nccl":
            assert node.attr in {*names, "core"}
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("nccl.WindowFlag", "nccl.CTAPolicy"):
            enumeration = classes[ast.unparse(node.value).removeprefix("nccl.")]
            assert node.attr in {ast.unparse(one.targets[0]) for one in enumeration.body if isinstance(one, ast.Assign)}
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self.comm."):
            method = methods[ast.unparse(node.func).removeprefix("self.comm.")]
            positional = [argument.arg for argument in method.args.args][1:]
            assert len(node.args) <= len(positional)
            for argument, parameter in zip(node.args, positional, strict=False):
                if isinstance(argument, ast.Name) and argument.id in ("sendbuf", "recvbuf", "op", "root"):
                    assert argument.id == parameter
            keywords = {keyword.arg for keyword in node.keywords}
            assert keywords <= {*positional, *(argument.arg for argument in method.args.kwonlyargs)}
        if isinstance(node, ast.Dict):
            used = {key.value for key in node.keys if isinstance(key, ast.Constant)} - set(NCCL4PY_CALLS)
            assert used <= fields
