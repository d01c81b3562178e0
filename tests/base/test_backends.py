"""The catalogue of backends: its functions, who names a backend besides it, and what a new one touches."""

from __future__ import annotations

import ast
import filecmp
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import meshlab
from meshlab.base._backends import BACKENDS, automatic_backend, check_backend, choice_text, openable_backends
from meshlab.base._errors import EngineError
from meshlab.comm._backend import BUFFERS
from meshlab.frames._labels import CPU_SOURCES, GPU_SOURCES, SOURCES
from tests.syntax_trees import tree_of

PACKAGE = Path(meshlab.__file__).parent


# -- facts -------------------------------------------------------------------------------------------------------------


def test_the_facts_about_each_backend_fit_together() -> None:
    for name, facts in BACKENDS.items():
        assert facts.name == name
        assert set(facts.buffers) <= set(BUFFERS)
        assert facts.mark.lower() in facts.title.lower()
        assert bool(facts.mark) == bool(facts.caveat) == (not facts.on_gpus)


def test_numbers_of_a_cpu_and_of_no_machine_say_so() -> None:
    assert SOURCES["mpi"] == "MPI on this CPU"
    assert SOURCES["threads"] == "threads in this process, not a machine's numbers"
    assert BACKENDS["gloo"].caveat == ("were measured with Gloo on a CPU. They do not apply to GPUs or their links.")
    assert {*CPU_SOURCES, *GPU_SOURCES} == {*BACKENDS, "nccl-tests"} == set(SOURCES)


def test_backends_are_chosen_and_written() -> None:
    assert [automatic_backend(has_gpus=has_gpus) for has_gpus in (True, False)] == ["nccl", "mpi"]
    assert [openable_backends(name) for name in ("mpi", "gloo")] == [("mpi", "gloo"), ("gloo",)]
    assert choice_text(["mpi", "nccl", "gloo"]) == "'mpi', 'nccl' or 'gloo'"


def test_an_unknown_backend_is_answered_with_a_similar_one() -> None:
    check_backend("mpi", EngineError)
    with pytest.raises(
        EngineError, match=r"^unknown backend 'torch' \(did you mean 'gloo'\?\); choose one of nccl, mpi"
    ):
        check_backend("torch", EngineError)
    with pytest.raises(EngineError, match=r"^unknown backend \['mpi'\]; choose one of nccl, mpi, gloo, threads$"):
        check_backend(["mpi"], EngineError)


# -- names in other modules --------------------------------------------------------------------------------------------

# The number of modules whose code names a backend, the catalogue, the table of modules and its own module among them.
# It only falls. Those of nccl, mpi and threads include modules that mean something else (a library, the launcher of
# ipyparallel, a field of nccl-tests), and hints that recommend one of them.
MOST_MODULES = {"nccl": 10, "mpi": 10, "gloo": 3, "threads": 8}


def constants(tree: ast.Module) -> Iterator[str]:
    """All strings of a module that are not docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@cache
def constants_by_module() -> dict[str, list[str]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {str(path.relative_to(PACKAGE)): list(constants(tree_of(path))) for path in paths}


def modules_that_name(backend: str) -> list[str]:
    """The modules with a string that is the name, or that quotes it, as in ``"use backend='mpi'"``."""
    quoted = re.compile(rf"[\"']{backend}[\"']|--backend {backend}")
    return [
        module
        for module, texts in constants_by_module().items()
        if any(text == backend or quoted.search(text) for text in texts)
    ]


def test_few_modules_name_a_backend() -> None:
    assert set(MOST_MODULES) == set(BACKENDS)
    for backend, most in MOST_MODULES.items():
        naming = modules_that_name(backend)
        assert len(naming) <= most, f"{backend} is named by {naming}"
        assert len(naming) == most, f"lower the limit of {backend} to {len(naming)}"


# -- a new backend -----------------------------------------------------------------------------------------------------

FACTS = """
    BackendFacts(
        name="sockets",
        synonyms=("unix",),
        starts="separately",
        opens_beside=True,
        where="sockets of this host",
        elsewhere="sockets of one host",
        mark="sockets",
        role="processes, with sockets",
        why_not_tuned="sockets have no settings",
        rates=Rates(500.0, 0.1, 0.5, 4.0),
    ),
"""

IMPORT = """
    if backend == "sockets":
        from meshlab.comm.backends import _sockets

        return _sockets
"""

MODULE = '''
"""Every rank sends its calls to the first rank of the group, and receives the calls of all."""

import time
from multiprocessing.connection import Client, Listener

import numpy as np

from meshlab.base._backends import BACKENDS
from meshlab.comm._backend import BlockingBackend, Call, Capabilities, measure_blocking
from meshlab.comm.backends._threads import execute
from meshlab.comm._catalog import CATALOG
from meshlab.comm._elements import DTYPES, OPS, carrier

BARRIER = Call(CATALOG["barrier"], None, None, 0, None, None, None, False)


def check_installed():
    pass


def unique_id():
    return b""


def load():
    pass


def open_world(rendezvous):
    return SocketBackend(rendezvous.store_file, rendezvous.rank, rendezvous.size)


def capabilities():
    return Capabilities(
        backend="sockets",
        library=f"numpy {np.__version__}",
        path="unknown",
        where=BACKENDS["sockets"].where,
        collectives=tuple(name for name, row in CATALOG.items() if not row.peers),
        dtypes=tuple(name for name, dtype in DTYPES.items() if carrier(dtype) == dtype),
        ops=tuple(OPS),
        modes=("isolated", "pipelined"),
        abort=False,
    )


class SocketBackend(BlockingBackend):
    def __init__(self, path, rank, size):
        self.path, self.rank, self.size, self.n_splits = path, rank, size, 0
        if rank == 0:
            self.listener = Listener(path, "AF_UNIX", backlog=size)
            self.links = [self.listener.accept() for _ in range(size - 1)]
        else:
            self.links = [self.connect()]

    def connect(self):
        while True:
            try:
                return Client(self.path, "AF_UNIX")
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.01)

    def gather(self, value):
        if self.rank:
            self.links[0].send((self.rank, value))
            return self.links[0].recv()
        received = dict([(0, value), *(link.recv() for link in self.links)])
        values = [received[rank] for rank in range(self.size)]
        for link in self.links:
            link.send(values)
        return values

    def work(self, calls):
        for call in calls:
            values = call._replace(collective=call.collective.name, recv=None)
            others = [other._replace(collective=call.collective) for other in self.gather(values)]
            others[self.rank] = call
            execute(others)

    def prepare(self, call):
        return SocketCalls(self, (call,))

    def prepare_batch(self, calls):
        return SocketCalls(self, calls)

    def runner(self, call):
        return lambda send, recv: self.work([call._replace(send=send, recv=recv)])

    def comparer(self):
        return None

    def split(self, color, key, *, separate=False):
        self.n_splits += 1
        places = self.gather((color, key))
        members = sorted((key, rank) for rank, (other, key) in enumerate(places) if other == color)
        if color is None:
            return None
        path = f"{self.path}.{self.n_splits}.{color}"
        return SocketBackend(path, [rank for _, rank in members].index(self.rank), len(members))

    def capabilities(self):
        return capabilities()

    def close(self):
        for link in self.links:
            link.close()


class SocketCalls:
    def __init__(self, backend, calls):
        self.backend, self.calls = backend, calls

    def __call__(self):
        self.backend.work(self.calls)

    def measure(self, mode, calls, batches):
        return measure_blocking(self, lambda: self.backend.work([BARRIER]), mode, calls, batches)
'''

SCRIPT = """
import json

import meshlab as ml
from meshlab.frames._labels import title_parts
from meshlab.report._content import caveats


def reduced(comm):
    return comm.all_reduce(comm.xp.arange(3) + comm.rank).tolist(), comm.backend.capabilities().backend


seen = {}
with ml.launch(4, backend="sockets") as engines:
    seen["engines"] = repr(engines)
    seen["groups"] = engines.verify("dp=2, tp=2")["is_right"].tolist()
    seen["reduced"] = engines.run(reduced, "dp=2, tp=2", axis="tp")["value"].tolist()
    run = ml.bench(engines, "dp=2, tp=2", "all_reduce", axis="tp", sizes="1K:2K", sampling="quick")
    results = run.wait()
    seen["status"], seen["wrong"] = results["status"].tolist(), results["n_wrong"].sum().item()
    seen["source"] = results["source"].unique().tolist()
    seen["title"] = title_parts(results)
    seen["caveat"] = caveats(results, fingerprint="")[0]
    seen["estimate"] = run.plan.estimate(run.mesh, backend="sockets").seconds
with ml.launch(2, backend="mpi") as engines:
    mesh = ml.DeviceMesh("tp=2", backends={"tp": "sockets"})
    seen["beside"] = engines.run(reduced, mesh, axis="tp")["value"].tolist()
try:
    ml.launch(2, backend="unix")
except ml.errors.EngineError as error:
    seen["similar"] = str(error)
print(json.dumps(seen))
"""


def insert(path: Path, before: str, text: str) -> None:
    """Insert text before the only place with another one."""
    source = path.read_text()
    assert source.count(before) == 1, f"{path} has {before!r} {source.count(before)} times"
    path.write_text(source.replace(before, text.lstrip("\n") + before))


@pytest.mark.full
def test_a_new_backend_touches_at_most_four_modules(tmp_path: Path) -> None:
    package = tmp_path / "meshlab"
    shutil.copytree(PACKAGE, package)  # with compiled modules, or every rank would compile all of them
    insert(package / "base" / "_backends.py", '    BackendFacts(\n        name="threads",', FACTS)
    insert(
        package / "comm" / "_worlds.py",
        '    raise CommunicatorError(f"backend {backend!r} has no module for ranks in processes',
        IMPORT,
    )
    (package / "comm" / "backends" / "_sockets.py").write_text(MODULE)

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (
        seen["engines"]
        == "<Engines: 4 ranks · sockets of this host, ready; next: .verify(mesh), ml.bench(engines, mesh), .close()>"
    )
    assert seen["groups"] == [True] * 5
    assert seen["reduced"] == [[[1, 3, 5], "sockets"]] * 4
    assert set(seen["status"]) == {"ok"}
    assert seen["wrong"] == 0
    assert seen["source"] == ["sockets"]
    assert "4 ranks · sockets of this host" in seen["title"]
    assert seen["caveat"] == (
        "These numbers were measured with sockets of one host. They do not apply to GPUs or their links."
    )
    assert seen["estimate"] > 0
    assert seen["beside"] == [[[1, 3, 5], "sockets"]] * 2
    assert re.search(r"unknown backend 'unix' \(did you mean 'sockets'\?\)", seen["similar"])

    changed = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if not (PACKAGE / path.relative_to(package)).exists()
        or not filecmp.cmp(path, PACKAGE / path.relative_to(package), shallow=False)
    ]
    assert sorted(changed) == ["base/_backends.py", "comm/_worlds.py", "comm/backends/_sockets.py"]
    assert len(changed) <= 4
