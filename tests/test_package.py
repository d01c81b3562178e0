"""Rules that hold for the package as a whole: names, imports and their direction, dependencies."""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import meshlab
from meshlab.base._forwarding import implementation, targets
from tests.syntax_trees import tree_of

ROOT = Path(__file__).parent.parent
PACKAGE = Path(meshlab.__file__).parent
MODULES = sorted(module.name for module in pkgutil.walk_packages([str(PACKAGE)], "meshlab."))
FILES = sorted(PACKAGE.rglob("*.py"))

# Folders and top-level modules, lowest first. Those of a line do not import each other.
LEVELS = [
    ["base"],
    ["mesh"],
    ["topology", "comm"],
    ["plans"],
    ["frames"],
    ["runs"],
    ["engines", "prediction", "nccl_tests", "traces"],
    ["analysis"],
    ["diagnosis"],
    ["benchmark"],
    ["plots"],
    ["report"],
    ["commissioning"],
    ["widgets"],
    ["_implementations"],
    ["cli"],
    ["errors", "__main__"],
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}

# These folders work on frames and plain values, so they never import what measures.
NEVER_IMPORT = {
    name: {"engines", "benchmark"} for name in ("analysis", "diagnosis", "plots", "nccl_tests", "prediction", "traces")
}

# The only imports that go up, or would close a circle, all inside functions: methods of a value whose code is in
# another module of its folder, and functions that read a file of another folder. Other methods get their
# implementation from above, see `meshlab.base._forwarding`.
FORWARDING = {
    ("runs/_rundata", "RunData.save"): "runs/_store",
    ("runs/_rundata", "RunData.load"): "runs/_store",
    ("runs/_rundata", "RunData.redacted"): "runs/_redact",
    ("frames/_example", "example"): "analysis/tuning/_tuning",
    ("prediction/_calibration", "_read_log"): "nccl_tests/_reader",
}
MOST_FORWARDING = 4  # pairs of files
LARGEST_CIRCLE = 3  # files, with the imports of FORWARDING

LONGEST_MODULE = 800  # lines
# The modules that are longer, with the reason. At most three stay.
LONGER_MODULES = {
    "mesh/_mesh": "a class is one file, and the public documentation of DeviceMesh alone has 850 lines",
}

# Words that stand for a noun without being one. The limits only fall: a new name is the noun itself, such as
# `findings` instead of `found`. Folders that are not listed have none.
PRONOUNS = {
    *("one", "found", "known", "some", "mine", "own", "made", "given", "kept"),
    *("wanted", "said", "both", "shown", "used", "now"),
}
MOST_PRONOUNS = {
    "base": 1,  # `known`, a public keyword of did_you_mean
    "benchmark": 1,  # `now`, a public keyword of cancel
    "mesh": 1,  # `given`, a public keyword of as_mesh
    "topology": 1,  # `one`, a public argument of word_between
    "widgets": 1,  # `now`, as in benchmark
}

ONLY_IN = {
    "mpi4py": {"meshlab/comm/backends/_mpi.py"},
    "cupy": {"meshlab/comm/backends/_nccl.py", "meshlab/comm/backends/_nccl_binding.py"},
    "cuda": {"meshlab/comm/backends/_cuda_parts.py"},
    "nccl": {"meshlab/comm/backends/_nccl.py", "meshlab/comm/backends/_nccl_binding.py"},
    "torch": {"meshlab/comm/backends/_gloo_world.py", "meshlab/comm/backends/_torch_kernels.py"},
    "orjson": {"meshlab/base/_documents.py"},
    "pynvml": {"meshlab/topology/readers/_nvml.py"},
    "yaml": {"meshlab/topology/readers/_slurm.py", "meshlab/base/_documents.py"},
    "ipyparallel": {"meshlab/engines/_processes.py", "meshlab/engines/_lifeline.py", "meshlab/engines/_nanny.py"},
    "ipywidgets": {"meshlab/widgets/"},
    "anywidget": {"meshlab/widgets/"},
}


def file_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


def file_named(module: str) -> str | None:
    """The file of a module of meshlab, such as "mesh/_mesh"; None if it is a package or not a module."""
    path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return file_of(path) if module.startswith("meshlab.") and path.is_file() else None


@functools.cache
def imports_of(path: Path) -> tuple[tuple[str, str, str], ...]:
    """All imports of a file but those for type checkers only: the enclosing function, the module and the name."""

    def walk(node: ast.AST, owner: str) -> Iterator[tuple[str, str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # most of a file, and it never imports
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for branch in child.orelse:  # what runs without a type checker
                    yield from walk(ast.Module([branch], []), owner)
                continue
            if isinstance(child, ast.Import):
                yield from ((owner, alias.name, "") for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path} has a relative import"
                yield from ((owner, child.module or "", alias.name) for alias in child.names)
            elif isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from walk(child, f"{owner}.{child.name}".lstrip("."))
            else:
                yield from walk(child, owner)

    return tuple(walk(tree_of(path), ""))


@functools.cache
def edges() -> list[tuple[str, str, str]]:
    """The imports between the files of meshlab: importing file, enclosing function, imported file."""
    imports = []
    for path in FILES:
        for owner, module, name in imports_of(path):
            if not module.startswith("meshlab"):
                continue
            other = file_named(f"{module}.{name}") or file_named(module)
            if other is None:
                assert path.name == "__init__.py", (
                    f"{path} imports {name} from {module}, not from the file that defines it"
                )
                continue
            imports.append((file_of(path), owner, other))
    return imports


def forwards(file: str, owner: str, other: str) -> bool:
    return FORWARDING.get((file, owner)) == other


def test_imports_go_down_only() -> None:
    for file, owner, other in edges():
        own_folder, folder = file.split("/")[0], other.split("/")[0]
        # frames/_moved has the names of plans and runs that programs import from meshlab.frames.
        if own_folder == folder or file in ("__init__", "frames/_moved") or forwards(file, owner, other):
            continue
        assert LEVEL[folder] < LEVEL[own_folder], f"{file} must not import {other} (in {owner or 'the module'})"


def test_what_works_on_frames_never_imports_what_measures() -> None:
    for file, owner, other in edges():
        never = NEVER_IMPORT.get(file.split("/")[0], set())
        assert other.split("/")[0] not in never, f"{file} must not import {other} (in {owner or 'the module'})"


def test_imports_are_statements() -> None:
    """Otherwise the rules of this file would not see them. The implementations of methods have their own test."""
    dynamic = re.compile(r"\b(import_module|__import__|resolve_name)\(")
    assert [file_of(path) for path in FILES if dynamic.search(path.read_text())] == ["base/_forwarding"]


def test_no_files_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = collections.defaultdict(set)
    for file, owner, other in edges():
        if file != other and not forwards(file, owner, other):
            graph[file].add(other)
    order: list[str] = []
    state: dict[str, str] = {}

    def visit(file: str, path: tuple[str, ...]) -> None:
        assert state.get(file) != "open", f"imports form a circle: {' → '.join([*path, file])}"
        if file in state:
            return
        state[file] = "open"
        for other in sorted(graph[file]):
            visit(other, (*path, file))
        state[file] = "done"
        order.append(file)

    for file in sorted(graph):
        visit(file, ())
    assert len(order) > 100


def test_every_listed_exception_is_still_needed() -> None:
    imports = {((file, owner), other) for file, owner, other in edges()}
    assert set(FORWARDING.items()) <= imports
    assert len({(file, other) for (file, _), other in FORWARDING.items()}) <= MOST_FORWARDING


def test_circles_are_small_even_with_the_listed_exceptions() -> None:
    graph: dict[str, set[str]] = collections.defaultdict(set)
    for file, _, other in edges():
        graph[file].add(other)

    def reached_from(file: str) -> set[str]:
        reached: set[str] = set()
        pending = [file]
        while pending:
            new = graph[pending.pop()] - reached
            reached |= new
            pending += new
        return reached

    reached = {file: reached_from(file) for file in map(file_of, FILES)}
    circles = [{other for other in others if file in reached[other]} for file, others in reached.items()]
    largest = max(circles, key=len)
    assert 1 < len(largest) <= LARGEST_CIRCLE, sorted(largest)


def test_modules_of_packages_are_private() -> None:
    """A package's stub is the only list of its public names, so that a file can be moved without a change for users."""
    public = {file_of(path) for path in FILES if not path.stem.startswith("_")}
    assert public == {"errors"}  # the namespace of the exceptions
    assert [file_of(path) for path in FILES if path.name != "__init__.py" and "__all__" in path.read_text()] == []


def calls_of_implementations() -> Iterator[tuple[str, str, str, ast.Call]]:
    """Calls of implementations from above: the module, the enclosing method, the method that is named, the call."""
    for path in FILES:
        module = ".".join(["meshlab", *path.relative_to(PACKAGE).with_suffix("").parts])
        classes = [node for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
        for kind, method in [(owner, node) for owner in classes for node in owner.body]:
            for call in ast.walk(method):
                if isinstance(call, ast.Call) and re.match(r"implementation\([\w.]+\)\(", ast.unparse(call)):
                    assert isinstance(method, ast.FunctionDef)
                    assert isinstance(call.func, ast.Call)
                    yield module, f"{kind.name}.{method.name}", ast.unparse(call.func.args[0]), call


def test_methods_and_their_implementations_agree() -> None:
    """The type checker compares the call with the method; this test compares it with the implementation."""
    calls = list(calls_of_implementations())
    assert sorted(name for _, name, _, _ in calls) == sorted(targets)
    for module, name, target, call in calls:
        assert name == target, f"{name} calls the implementation of {target}"
        assert LEVEL[targets[name].split(".")[0].split(":")[0]] >= LEVEL[module.split(".")[1]], name
        kind, method = name.split(".")
        declared = getattr(getattr(importlib.import_module(module), kind), method)
        function = implementation(declared)
        signature = inspect.signature(function)
        keywords = {keyword.arg: keyword for keyword in call.keywords if keyword.arg is not None}
        signature.bind(*call.args, **keywords)  # raises TypeError
        returned = function.__name__ if isinstance(function, type) else signature.return_annotation
        assert returned == inspect.signature(declared).return_annotation, name


def test_the_text_of_an_error_imports_nothing() -> None:
    code = """
import sys
from meshlab.base._errors import EngineError
error = EngineError("rank 1 failed", hint="try again", log="NCCL WARN Error: No space left on device (28)")
before = set(sys.modules)
assert str(error) == "rank 1 failed; try again\\nNCCL WARN Error: No space left on device (28)"
assert set(sys.modules) == before, set(sys.modules) - before
error.explain()
assert "meshlab.diagnosis._explain" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_classes_of_one_name_are_one_thing() -> None:
    classes = collections.defaultdict(list)
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(file_of(path))
    assert {name: files for name, files in classes.items() if len(files) > 1} == {}


def test_modules_of_more_than_800_lines_have_a_reason() -> None:
    longer = {file_of(path) for path in FILES if path.read_text().count("\n") > LONGEST_MODULE}
    assert longer == set(LONGER_MODULES), "split it where two ideas meet"
    assert len(LONGER_MODULES) <= 3


def test_names_are_nouns() -> None:
    counts: collections.Counter[str] = collections.Counter()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            argument = node.arg if isinstance(node, ast.arg) else ""
            name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else argument
            counts[file_of(path).split("/")[0]] += name in PRONOUNS
    for folder, count in counts.items():
        assert count <= MOST_PRONOUNS.get(folder, 0), f"{folder} binds {count} names such as 'found'"


@pytest.mark.parametrize(
    "module",
    ["meshlab.benchmark.on_ranks._timing", "meshlab.benchmark.on_ranks._training_step", "meshlab.engines._worker"],
)
def test_what_runs_on_the_ranks_is_light(module: str) -> None:
    heavy = ["pandas", "matplotlib", "pyarrow", "ipywidgets", "anywidget"]
    code = f"import sys, json, {module}; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(out) == []


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if not file_of(path).startswith("cli/"):
            calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
            names = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
            assert "print" not in names, f"{path} prints"


TEXTS = [*FILES, *PACKAGE.rglob("*.html"), ROOT / "README.md", *(ROOT / "notebooks").glob("*.ipynb")]
LOGGERS = {"meshlab.engines.ipyparallel"}


def exists(reference: str) -> bool:
    """Return whether a dotted name, such as ml.plot.bandwidth or meshlab.frames._schema.STEP, can be resolved."""
    value: object = meshlab
    names = reference.split(".")
    for number, name in enumerate(names[1:], 2):
        if inspect.ismodule(value) and not hasattr(value, name):
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(["meshlab", *names[1:number]]))
        if not (inspect.ismodule(value) or inspect.isclass(value)):
            return True
        if name in [field for kind in getattr(value, "__mro__", ()) for field in getattr(kind, "__annotations__", {})]:
            return True
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def test_names_in_docstrings_messages_and_pages_exist() -> None:
    for path in TEXTS:
        names = re.findall(r"(?<![\w.-])(?:meshlab|ml)(?:\.[A-Za-z_]\w*)+", path.read_text(encoding="utf-8"))
        unknown = [name for name in dict.fromkeys(names) if name not in LOGGERS and not exists(name)]
        assert unknown == [], f"in {path}"


def test_libraries_are_imported_only_where_they_belong() -> None:
    for path in FILES:
        name = str(path.relative_to(PACKAGE.parent))
        for _, module, _ in imports_of(path):
            allowed = ONLY_IN.get(module.split(".")[0])
            assert allowed is None or any(name.startswith(place) for place in allowed), f"{name} imports {module}"


def test_pyplot_is_used_only_where_no_axes_were_given() -> None:
    """One function imports pyplot, and it is called only where the caller passed no axes."""
    for path in FILES:
        check_pyplot(path)


def check_pyplot(path: Path) -> None:
    tree = tree_of(path)
    importing = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert file_of(path) == "plots/_style" or not any("pyplot" in ast.unparse(node) for node in importing), path
    if "new_figure" not in path.read_text():
        return
    branches = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and re.fullmatch(r"\w+ is None", ast.unparse(node.test))
    ]
    allowed = {inner for branch in branches for statement in branch.body for inner in ast.walk(statement)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            own_calls = [call for call in calls if call.func.id == function.name]  # type: ignore[attr-defined]
            if own_calls and all(call in allowed for call in own_calls):  # only ever called from such a branch
                allowed |= set(ast.walk(function))
    for node in calls:
        if node.func.id == "new_figure":  # type: ignore[attr-defined]
            assert node in allowed, f"{path.name} creates a figure outside an 'ax is None' branch"


def test_names_in_stubs_exist() -> None:
    for stub in PACKAGE.rglob("__init__.pyi"):
        package = importlib.import_module(".".join(["meshlab", *stub.parent.relative_to(PACKAGE).parts]))
        names = [alias.asname for node in tree_of(stub).body for alias in getattr(node, "names", [])]
        assert set(names) - {"plots"} == set(package.__all__) - {"plot"}, stub
        for name in names:
            assert getattr(package, str(name)) is not None, f"{stub}: {name}"


def test_about_thirty_names_are_at_the_top() -> None:
    namespaces = {name for name in meshlab.__all__ if inspect.ismodule(getattr(meshlab, name))}
    assert namespaces == {
        "analysis",
        "benchmark",
        "comm",
        "diagnosis",
        "engines",
        "errors",
        "frames",
        "mesh",
        "nccl_tests",
        "plans",
        "plot",
        "prediction",
        "runs",
        "topology",
        "traces",
        "widgets",
    }
    assert len(set(meshlab.__all__) - namespaces) <= 35
    with pytest.raises(AttributeError, match="no_such_name"):
        meshlab.no_such_name  # noqa: B018


def test_dir_offers_public_names_only() -> None:
    left_out = {"__version__", "Communicator", "frames", "plans", "traces"}
    assert {name for name in dir(meshlab) if not name.startswith("__")} == set(meshlab.__all__) - left_out


PUBLIC = [
    (space, name)
    for space in (
        "plot",
        "topology",
        "analysis",
        "nccl_tests",
        "prediction",
        "benchmark",
        "engines",
        "plans",
        "frames",
        "runs",
    )
    for name in getattr(meshlab, space).__all__
]


def test_public_functions_come_with_an_example_that_runs() -> None:
    values = {f"{space}.{name}": getattr(getattr(meshlab, space), name) for space, name in PUBLIC}
    functions = {name: value for name, value in values.items() if inspect.isfunction(value)}
    assert [name for name, function in functions.items() if ">>>" not in (function.__doc__ or "")] == []


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
        "torch",
    ]
    code = f"import sys, json, meshlab; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(out) == []


@pytest.mark.parametrize(("file", "has_gpus"), [("environment.yml", False), ("environment-gpu.yml", True)])
def test_environments_agree_with_pyproject(file: str, has_gpus: bool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / file).read_text()
    python = re.search(r"- python (>=[\d.]+)", text)
    assert python is not None
    assert python[1] == project["requires-python"].replace(" ", "")
    installed = re.search(r"-e \.\[([\w,]+)\]", text)
    assert installed is not None, f"{file} installs the project itself, so that dependencies are listed once"
    extras = set(installed[1].split(","))
    assert extras <= set(project["optional-dependencies"])
    assert any(extra.startswith("cuda") for extra in extras) == has_gpus
    listed = re.findall(r"^\s*- ([a-z][\w-]*)", text, flags=re.MULTILINE)
    assert set(listed) <= {"python", "pip", "conda-forge"}, "dependencies belong in pyproject.toml alone"


def test_the_recipe_of_conda_agrees_with_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    renamed = {"matplotlib": "matplotlib-base"}  # without Qt
    listed = [re.split(r" *;", line)[0] for line in project["dependencies"]]
    expected = {renamed.get(name := line.split()[0].lower(), name): line.split(maxsplit=1)[1] for line in listed}
    runs = dict(line.split(maxsplit=1) for line in recipe["requirements"]["run"])
    assert runs == {"python": project["requires-python"].replace(" ", ""), **expected}
    assert recipe["context"]["version"] == meshlab.__version__


def test_classifiers_name_the_pythons_that_are_tried() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [text.rpartition(" ")[2] for text in classifiers if re.search(r":: 3\.\d+$", text)]
    assert versions == ["3.11", "3.12", "3.13"]  # tests/packages.py also tries 3.14 where there is one


def test_readme_says_what_it_is_and_what_it_is_not() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line and not line.startswith("#")]
    assert "3-D" in lines[0]
    assert "pip install meshlab" not in (ROOT / "README.md").read_text()


GATES = {
    "json": {"loads", "load", "JSONDecoder"},
    "tomllib": {"loads", "load"},
    "yaml": {"safe_load", "safe_load_all", "load", "load_all"},
}


def test_only_one_module_parses_documents_and_digits_are_decimal() -> None:
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Attribute):
                continue
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            # The lifeline starts before anything else of meshlab, and reads what meshlab has just written.
            if path.stem not in ("_documents", "_lifeline"):
                assert node.attr not in GATES.get(owner, ()), f"{path}: read it with meshlab.base._documents"
            # "²" is a digit for both of them, but not for int().
            assert node.attr not in ("isdigit", "isnumeric"), f"{path}: use isdecimal()"
