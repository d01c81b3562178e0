"""The catalogue of collectives: it is complete, agrees with its users, and is the only table of collectives."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshlab
from meshlab.base._collectives import COLLECTIVES, NCCL_FUNCTIONS, usual_collective, usual_collectives_text
from meshlab.comm._catalog import CATALOG, NATIVE
from meshlab.comm._compositions import COMPOSITIONS
from tests.base import new_collective
from tests.syntax_trees import tree_of

PACKAGE = Path(meshlab.__file__).parent

# Modules that enumerate collectives, and why. All others read the catalogue.
ENUMERATIONS = {
    "comm/_correctness.py": "the expected output of each",
    "comm/backends/_threads.py": "the reference implementation of each",
    "comm/backends/_hierarchical.py": "the stages of those that it divides among nodes",
    "cli/_demo.py": "the choice of the demo",
    "commissioning/_plans.py": "the choice of an acceptance",
}

# The most modules whose code names a collective. Lower these numbers when there are fewer.
MOST_MODULES = {
    "all_reduce": 28,
    "all_gather": 19,
    "reduce_scatter": 14,
    "all_to_all": 12,
    "scatter": 7,
    "all_to_all_v": 6,
}

IS_NAME = re.compile("|".join(rf"\b{name}\b" for name in sorted(COLLECTIVES, key=len, reverse=True) if "_" in name))


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings of a module that are not docstrings."""
    bodies = (node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list))
    docstrings = {id(statement.value) for body in bodies for statement in body if isinstance(statement, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node


def named(text: str) -> set[str]:
    """Return the collectives that a string names. English words are only names if they are the complete string."""
    return {text} if text in COLLECTIVES else set(IS_NAME.findall(text))


@functools.cache
def modules() -> dict[str, ast.Module]:
    return {path.relative_to(PACKAGE).as_posix(): tree_of(path) for path in PACKAGE.rglob("*.py")}


def enumerations(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """Yield the literals with three or more collectives: containers, sides of dictionaries, and strings."""
    for node in strings(tree):
        if len(named(str(node.value))) >= 3:
            yield node.lineno, named(str(node.value))
    for node in ast.walk(tree):
        sides: list[list[ast.expr | None]] = []
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            sides = [[*node.elts]]
        elif isinstance(node, ast.Dict):
            sides = [[*node.keys], [*node.values]]
        for side in sides:
            names = {part.value for part in side if isinstance(part, ast.Constant) and part.value in COLLECTIVES}
            if len(names) >= 3:
                yield node.lineno, {str(name) for name in names}


def test_no_other_module_enumerates_collectives() -> None:
    places = {
        name: [f"line {line}: {', '.join(sorted(names))}" for line, names in enumerations(tree)]
        for name, tree in modules().items()
        if name != "base/_collectives.py"
    }
    places = {name: lines for name, lines in places.items() if lines}
    assert {name: lines for name, lines in places.items() if name not in ENUMERATIONS} == {}, (
        "derive these from meshlab.base._collectives"
    )
    assert set(ENUMERATIONS) <= set(places), "these modules need no exception any more"


def test_few_modules_name_a_collective() -> None:
    in_modules = {
        name: set().union(*(named(str(node.value)) for node in strings(tree))) for name, tree in modules().items()
    }
    for collective, most in MOST_MODULES.items():
        naming = [name for name, names in in_modules.items() if collective in names]
        assert len(naming) <= most, f"derive {collective} from meshlab.base._collectives in one of {', '.join(naming)}"


def test_a_collective_that_receives_has_an_expected_output() -> None:
    for name, row in CATALOG.items():
        assert (row.expected is None) == (row.receives == "nothing"), name


def test_the_collectives_that_are_not_native_are_composed() -> None:
    assert set(COMPOSITIONS) == set(CATALOG) - set(NATIVE)
    for name, composition in COMPOSITIONS.items():
        assert set(composition.parts) <= set(NATIVE), name


def test_each_axis_has_a_usual_collective() -> None:
    assert [usual_collective(axis) for axis in ("pp", "ep", "dp")] == ["send_recv", "all_to_all", "all_reduce"]
    assert usual_collectives_text() == "all_to_all for ep, send_recv for pp, all_reduce for other axes"


def test_names_in_other_programs_are_unique() -> None:
    for source in ("nccl", "mpi"):
        names = [function.name for row in COLLECTIVES.values() if (function := getattr(row, source)) is not None]
        assert len(set(names)) == len(names), source
    programs = [row.nccl_test.program for row in COLLECTIVES.values() if row.nccl_test is not None]
    functions = [name for row in COLLECTIVES.values() if row.torch is not None for name in row.torch.names]
    axes = [axis for row in COLLECTIVES.values() for axis in row.axes]
    for names in (programs, functions, axes):
        assert len(set(names)) == len(names)


def test_the_tuner_of_nccl_chooses_for_the_collectives_of_its_documentation() -> None:
    tuned = {function.name: function.in_plugins for function in NCCL_FUNCTIONS.values() if function.is_tuned}
    assert tuned == {
        "AllReduce": "allreduce",
        "AllGather": "allgather",
        "ReduceScatter": "reducescatter",
        "Broadcast": "broadcast",
        "Reduce": "reduce",
    }


def test_the_names_in_the_bindings_of_nccl_are_those_of_nccl4py() -> None:
    names = {name: function.in_bindings for name, function in NCCL_FUNCTIONS.items()}
    assert {name: text for name, text in names.items() if name != text} == {"all_to_all": "allto_all"}


@pytest.mark.parametrize("n", [2, 3, 8])
def test_rings_trees_and_messages_move_what_the_bus_bandwidth_counts(n: int) -> None:
    for name, row in COLLECTIVES.items():
        for algorithm in ("ring", "tree", "p2p"):
            if algorithm in row.traffic:
                assert row.traffic[algorithm].busiest(n) == pytest.approx(row.bus_factor(n)), name


def test_nvls_moves_the_size_once() -> None:
    shares = {
        name: (traffic.sends(8), traffic.receives(8))
        for name, row in COLLECTIVES.items()
        if (traffic := row.traffic.get("nvls")) is not None
    }
    assert shares == {"all_reduce": (1.125, 1.125), "all_gather": (0.125, 1.0), "reduce_scatter": (1.0, 0.125)}


def test_traffic_of_a_collective_that_nccl_tunes_has_its_algorithms() -> None:
    for name, function in NCCL_FUNCTIONS.items():
        in_switches = {"collnet_direct", "collnet_chain"}  # of the network
        if function.is_tuned:
            algorithms = {algorithm.replace("nvlstree", "nvls_tree") for algorithm in function.algorithms}
            assert set(COLLECTIVES[name].traffic) == algorithms - in_switches, name


@pytest.mark.full
def test_a_new_collective_changes_at_most_four_modules(tmp_path: Path) -> None:
    changed = new_collective.add_to(tmp_path, PACKAGE)
    before = {path.relative_to(PACKAGE): path.read_bytes() for path in PACKAGE.rglob("*.py")}
    after = {path.relative_to(tmp_path / "meshlab"): path.read_bytes() for path in tmp_path.rglob("*.py")}
    assert sorted(changed) == sorted(path.as_posix() for path in before if before[path] != after[path])
    assert before.keys() == after.keys()
    assert len(changed) <= 4
    # In the folder of the copy, because the engines import from the current folder first.
    done = subprocess.run(
        [sys.executable, new_collective.__file__, "threads", "mpi"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    load, prediction = done.stdout.splitlines()
    assert load.startswith("TopologyError: unknown collective 'rotated_gather'; choose one of all_reduce")
    assert prediction.startswith("BenchError: rotated_gather has no cost model; choose one of all_reduce")
