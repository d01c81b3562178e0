"""A collective that no library has: the changes that add it to meshlab, and a program that uses it everywhere.

    python -m tests.base.new_collective FOLDER          copies meshlab to FOLDER, and adds the collective to the copy
    cd FOLDER && PYTHONPATH=. python tests/base/new_collective.py [BACKEND …]        uses it on these backends

`rotated_gather` is an all_gather whose chunks are rotated by one rank. It is composed of messages and an all_gather.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

NAME = "rotated_gather"

# For each module: a text of it, and the new text before it.
ADDITIONS = {
    "base/_collectives.py": (
        """\
    CollectiveFacts(
        name="barrier",
""",
        """\
    CollectiveFacts(
        name="rotated_gather",
        receives="count x n",
        synchronises=True,
        bus_factor=_OTHERS,
        is_composed=True,
        nccl_test=NcclTest(program="rotated_gather"),
        summary="Concatenates the inputs of all ranks on every rank, starting with that of the last rank.",
    ),
""",
    ),
    "comm/_correctness.py": (
        """\
EXPECTED: Mapping[str, Callable[[Case, Index], Expected]] = MappingProxyType(
    {
""",
        """\
def rotated(case: Case, index: Index) -> Expected:
    \"\"\"Return all inputs, concatenated, starting with that of the last rank.\"\"\"
    return _select(case, (index // max(case.count, 1) - 1) % case.n, index % max(case.count, 1))


""",
    ),
    "comm/_compositions.py": (
        """\
COMPOSITIONS: Mapping[str, Composition] = MappingProxyType({})
""",
        """\
def _rotated_gather(call: Call, backend: Backend) -> Sequence[Sequence[Call]]:
    from meshlab.comm._catalog import CATALOG

    part, n = backend.empty(call.send.shape, call.send.dtype), backend.size
    message = call._replace(in_place=False, dest=None, source=None)
    return [
        [
            message._replace(collective=CATALOG["send"], recv=None, dest=(backend.rank + 1) % n),
            message._replace(collective=CATALOG["recv"], send=None, recv=part, source=(backend.rank - 1) % n),
        ],
        [message._replace(collective=CATALOG["all_gather"], send=part)],
    ]


""",
    ),
    "comm/_collectives.py": (
        """\
    def barrier(self) -> None:
""",
        """\
    def rotated_gather(self, send: Any, out: Any = None, *, dtype: Any = None) -> Any:
        \"\"\"Concatenate the inputs of all ranks on every rank, starting with that of the last rank.\"\"\"
        return self._call(CATALOG["rotated_gather"], send, out, dtype)

""",
    ),
}
# The tables of the two modules in which the collective also needs an entry.
ENTRIES = {
    "comm/_correctness.py": ('        "all_reduce": reduced,\n', '        "rotated_gather": rotated,\n'),
    "comm/_compositions.py": (
        "MappingProxyType({})\n",
        'MappingProxyType(\n    {"rotated_gather": Composition(("send", "recv", "all_gather"), _rotated_gather)}\n)\n',
    ),
}


def add_to(folder: Path, package: Path) -> list[str]:
    """Copy meshlab to a folder, add the collective to the copy, and return the changed modules."""
    copy = folder / "meshlab"
    shutil.copytree(package, copy)  # with compiled modules, or every rank would compile all of them
    changed = []
    for name, (before, text) in ADDITIONS.items():
        source = (copy / name).read_text()
        assert source.count(before) == 1, name
        source = source.replace(before, text + before)
        if name in ENTRIES:
            anchor, entry = ENTRIES[name]
            assert source.count(anchor) == 1, name
            source = source.replace(anchor, entry if anchor.endswith("({})\n") else entry + anchor)
        (copy / name).write_text(source)
        changed.append(name)
    return changed


def call_it(comm: Any) -> list[list[float]]:
    """Call it in every way: with a new output, with an output, repeatedly, prepared, and without elements."""
    x = np.arange(3.0, dtype="float32") + 10 * comm.rank
    out = comm.xp.empty(3 * comm.size, "float32")
    outputs = [comm.rotated_gather(x), comm.rotated_gather(x, out).copy(), comm.rotated_gather(x, out).copy()]
    call = comm.prepare("rotated_gather", x, out)
    for _ in range(2):
        out[:] = 0
        call()
    outputs.append(out)
    assert comm.rotated_gather(x[:0]).size == 0
    return [output.tolist() for output in outputs]


def put_into_batch(comm: Any) -> str:
    """Return the error of a batch with a collective of two stages."""
    try:
        with comm.batch() as batch:
            batch.rotated_gather(np.zeros(2))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def use_on(backend: str) -> None:
    """Run, measure and analyse it on a backend."""
    import meshlab as ml
    from meshlab.frames._labels import axis_labels

    with ml.launch(4, backend=backend) as engines:
        expected = [value + 10 * rank for rank in (3, 0, 1, 2) for value in range(3)]
        for outputs in engines.run(call_it)["value"]:
            assert outputs == [expected] * 4, outputs
        assert all(
            text.startswith(f"CommunicatorError: {NAME} runs in 2 stages")
            for text in engines.run(put_into_batch)["value"]
        )
        plan = ml.Plan(
            [NAME, "all_gather"],
            ["tp"],
            sizes="1K:4K",
            mode="isolated",
            grouping=["together", "alone"],
            sampling=ml.Sampling(max_s=0.05),
        )
        run = ml.bench(engines, "dp=2, tp=2", plan)
        results = run.wait()
    rows = results[results["collective"] == NAME]
    assert len(rows) == 3 * 4
    assert (rows["n_wrong"] == 0).all()
    assert set(rows["status"]) == {"ok"}
    assert (rows["busbw_gbs"] > 0).all()
    assert np.allclose(rows["busbw_gbs"], rows["algbw_gbs"] / 2)
    assert (rows["size_bytes"] == rows["count"] * 4 * 2).all()
    assert set(axis_labels(rows)) == {"tp", "tp, one group at a time"}, set(axis_labels(rows))
    assert NAME in set(ml.analysis.contention(run)["collective"])
    assert NAME in set(ml.analysis.find_stragglers(run)["collective"])
    assert NAME in ml.Report(run).html()
    log = ml.nccl_tests.write(results)
    assert f"{NAME}_perf" in log
    assert set(ml.nccl_tests.read(log).results["collective"]) == {NAME, "all_gather"}
    assert NAME in str(ml.explain(log))


def ask_for_models() -> None:
    """Check that what has no model of it says so."""
    import meshlab as ml

    cluster = ml.preset("dgx-h100")
    for ask in (
        lambda: ml.place("tp=8", cluster).loads("tp", collective=NAME),
        lambda: ml.predict("tp=8", cluster, NAME, axis="tp"),
    ):
        try:
            ask()
        except ml.MeshlabError as error:
            print(f"{type(error).__name__}: {error}")
        else:
            raise AssertionError("a time without a model")


if __name__ == "__main__":
    if len(sys.argv) == 2 and not sys.argv[1].isalpha():
        add_to(Path(sys.argv[1]), Path(__file__).parent.parent / "meshlab")
    else:
        for name in sys.argv[1:]:
            use_on(name)
        ask_for_models()
