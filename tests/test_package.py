"""What holds for the package as a whole: names, imports, the direction of imports, the two lists of dependencies."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import meshlab

ROOT = Path(__file__).parent.parent
PACKAGE = Path(meshlab.__file__).parent
MODULES = sorted(module.name for module in pkgutil.walk_packages([str(PACKAGE)], "meshlab."))

# Parts at the same height do not import each other.
HEIGHTS = [
    {"errors", "units", "markup", "files", "version"},
    {"mesh"},
    {"topology", "comm"},
    {"model", "engines"},
    {"benchmark"},
    {"plots"},
    {"widgets", "report"},
    {"doctor", "cli"},
]
AMONG_EACH_OTHER = [HEIGHTS[0], HEIGHTS[-1]]  # the plain helpers, and the command line

ONLY_IN = {
    "mpi4py": {"meshlab/comm/mpi.py"},
    "cupy": {"meshlab/comm/nccl.py", "meshlab/comm/nccl_binding.py"},
    "nccl": {"meshlab/comm/nccl.py", "meshlab/comm/nccl_binding.py"},
    "torch": {"meshlab/comm/gloo.py"},
    "pynvml": {"meshlab/topology/nvml.py"},
    "ipyparallel": {"meshlab/engines/processes.py"},
    "ipywidgets": {"meshlab/widgets/"},
    "anywidget": {"meshlab/widgets/"},
}


def imports_of(path: Path) -> list[tuple[str, ast.AST]]:
    tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found += [
                (f"{node.module}.{alias.name}" if node.module == "meshlab" else node.module or "", node)
                for alias in node.names
            ]
    return found


def enclosing_functions(path: Path) -> dict[ast.AST, str]:
    owners = {}
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                owners[ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""] = function.name
    return owners


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    height = {part: number for number, parts in enumerate(HEIGHTS) for part in parts}
    owners = enclosing_functions(path)
    for module, node in imports_of(path):
        other = part_of(module)
        if not module.startswith("meshlab.") or other == own:
            continue
        if other == "widgets" and owners.get(ast.unparse(node), "").startswith(("_repr_", "_ipython_")):
            continue  # the one way up: an object that a notebook shows
        assert other in height, f"{path.name} imports {module}, which has no place in the order"
        below = height[other] < height[own]
        beside = any({own, other} <= group for group in AMONG_EACH_OTHER)
        assert below or beside, f"{own} must not import {module}"
        if own == "plots":
            assert module not in ("meshlab.benchmark.run", "meshlab.engines"), f"plots must not import {module}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_libraries_are_imported_only_where_they_belong(path: Path) -> None:
    name = str(path.relative_to(PACKAGE.parent))
    for module, _ in imports_of(path):
        allowed = ONLY_IN.get(module.split(".")[0])
        assert allowed is None or any(name.startswith(place) for place in allowed), f"{name} imports {module}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_pyplot_is_imported_only_where_no_axes_were_given(path: Path) -> None:
    tree = ast.parse(path.read_text())
    branches = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and re.fullmatch(r"\w+ is None", ast.unparse(node.test))
    ]
    allowed = {inner for branch in branches for statement in branch.body for inner in ast.walk(statement)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            own = [call for call in calls if call.func.id == function.name]  # type: ignore[attr-defined]
            if own and all(call in allowed for call in own):  # only ever called from such a branch
                allowed |= set(ast.walk(function))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and "pyplot" in ast.unparse(node):
            assert node in allowed, f"{path.name} imports pyplot outside an 'ax is None' branch"


@pytest.mark.parametrize("name", ["meshlab", *(name for name in MODULES if not name.endswith("__main__"))])
def test_exported_names_exist_and_are_sorted(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        assert name in ("meshlab.version", "meshlab.__main__"), f"{name} has no __all__"
        return
    # Like ruff's rule: constants, then classes, then the rest, each in order.
    order = sorted(exported, key=lambda word: (not word.isupper(), not word[:1].isupper(), word))
    assert list(exported) == order
    for word in exported:
        assert getattr(module, word) is not None


def test_public_names_are_listed_once_and_have_a_home() -> None:
    assert set(meshlab._HOMES) | {"__version__"} == set(meshlab.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        meshlab.no_such_name  # noqa: B018


def test_dir_offers_public_names_only() -> None:
    assert {name for name in dir(meshlab) if not name.startswith("__")} == set(meshlab.__all__) - {"__version__"}


@pytest.mark.parametrize(
    "name", [name for name, home in meshlab._HOMES.items() if home in ("meshlab.plots", "meshlab.topology")]
)
def test_pictures_and_machines_come_with_an_example_that_runs(name: str) -> None:
    value = getattr(meshlab, name)
    if inspect.isfunction(value):
        assert ">>>" in (value.__doc__ or "")


def test_public_functions_are_not_hidden_by_packages_of_the_same_name() -> None:
    code = "import meshlab.benchmark, meshlab.engines, meshlab as ml; assert callable(ml.bench) and callable(ml.launch)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_is_light() -> None:
    heavy = [
        "pandas",
        "matplotlib",
        "ipywidgets",
        "anywidget",
        "ipyparallel",
        "mpi4py",
        "pyarrow",
        "IPython",
        "jinja2",
        "tqdm",
    ]
    code = f"import sys, json, meshlab; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(out) == []


def test_environment_yml_agrees_with_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "environment.yml").read_text()
    python = re.search(r"- python (>=[\d.]+)", text)
    assert python is not None
    assert python[1] == project["requires-python"].replace(" ", "")
    installed = re.search(r"-e \.\[([\w,]+)\]", text)
    assert installed is not None, "environment.yml installs the project itself, so that dependencies are listed once"
    assert set(installed[1].split(",")) <= set(project["optional-dependencies"])
    listed = re.findall(r"^\s*- ([a-z][\w-]*)", text, flags=re.MULTILINE)
    assert set(listed) <= {"python", "pip", "conda-forge"}, "dependencies belong in pyproject.toml alone"


def test_readme_says_what_it_is_and_what_it_is_not() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line and not line.startswith("#")]
    assert "3-D" in lines[0]
    assert "pip install meshlab" not in (ROOT / "README.md").read_text()
