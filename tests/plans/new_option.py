"""An option of calls that meshlab does not have: the changes that add it, and a program that uses it everywhere.

    cd FOLDER && PYTHONPATH=. python tests/plans/new_option.py          in a folder with a copy that `add_to` changed

With `touched_bytes`, each rank writes other memory of this size before each chunk of batches, so that caches are cold.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from pathlib import Path

NAME = "touched_bytes"

# For each module: texts of it, and the new text before each of them.
ADDITIONS = {
    "plans/_options.py": {
        "\n\nclass OptionArguments": """\
    touched_bytes: int | None = _option(
        0,
        dtype="Int64",
        text="Number of bytes that each rank wrote before the batches. Missing if unknown.",
        words="writes before the batches",
        label=lambda value: f"{value} B written before",
        default_label="nothing written before",
        help="bytes that each rank writes before the batches",
        least=0,
        is_tuned=False,
    )
""",
        "\n\n@dataclass(frozen=True, init=False, repr=False)\nclass PlannedOptions": """\
    touched_bytes: int | Sequence[int]
""",
        "\n\nCALL_OPTIONS: Mapping": """\
    touched_bytes: tuple[int, ...]
""",
    },
    "benchmark/on_ranks/_sampling.py": {
        "        batches = take_batches(call.measure, StopVote(everyone, groups)": """\
        if step.touched_bytes:
            call = _Touching(call, step.touched_bytes)
""",
        "def per_call(": '''\
class _Touching:
    """A call that writes other memory before each chunk of batches."""

    n_written = 0

    def __init__(self, call: Any, n_bytes: int) -> None:
        self._call, self._memory = call, np.zeros(n_bytes, np.uint8)

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        self._memory[:] += 1
        _Touching.n_written += self._memory.size
        return self._call.measure(mode, calls, batches)


''',
    },
}


def add_to(folder: Path, package: Path) -> list[str]:
    """Copy meshlab to a folder, add the option to the copy, and return the changed modules."""
    copy = folder / "meshlab"
    shutil.copytree(package, copy)  # with compiled modules, or every rank would compile all of them
    for name, additions in ADDITIONS.items():
        source = (copy / name).read_text()
        for anchor, text in additions.items():
            assert source.count(anchor) == 1, (name, anchor)
            source = source.replace(anchor, text + anchor)
        (copy / name).write_text(source)
    return list(ADDITIONS)


def use_it() -> None:
    """Measure with the option, and look for it in the frames, titles and files of the run."""
    import meshlab as ml
    from meshlab.benchmark.on_ranks import _sampling
    from meshlab.frames._labels import title_parts
    from meshlab.plots._lines import lines_of

    sampling = ml.Sampling(max_s=0.02, min_batches=6)
    choices = {"axis": "tp", "sizes": "1K, 4K", "sampling": sampling}
    with ml.launch(2, backend="threads") as engines:
        run = ml.bench(engines, "tp=2", "all_reduce", **choices, touched_bytes=[0, 4096])
        results = run.wait()
        assert _sampling._Touching.n_written > 0
        others = ml.bench(engines, "tp=2", "all_reduce", **choices).wait()
    assert results[NAME].tolist() == [0, 0, 4096, 4096]
    assert set(results["status"]) == {"ok"}
    assert others[NAME].tolist() == [0, 0]
    assert ml.describe().loc[NAME, "meaning"].startswith("Number of bytes that each rank wrote")
    assert [step.touched_bytes for step in run.steps] == [0, 0, 4096, 4096]
    assert "4096 B written before" in str(run.steps[-1])
    assert "nothing written before and 4096 B written before" in str(run.plan)
    assert title_parts(results[results[NAME] == 4096])[-1] == "4096 B written before"
    assert [line.name for line in lines_of(results, "busbw_gbs")] == [
        "nothing written before",
        "4096 B written before",
    ]
    assert "4096 B written before" in ml.Report(run).html()
    assert ml.nccl_tests.write(others)
    with tempfile.TemporaryDirectory() as folder:
        loaded = ml.Run.load(run.save(Path(folder) / "run"))
        assert loaded.plan == run.plan
        assert loaded.results[NAME].tolist() == [0, 0, 4096, 4096]
    for value in (-1, "some"):
        try:
            ml.Plan("all_reduce", "tp", touched_bytes=value)
        except ml.MeshlabError as error:
            print(error)


def use_on_the_command_line() -> None:
    """Measure with the option of the command line."""
    from meshlab.cli._main import main

    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(
            f"bench --mesh tp=2 --sizes 1K --seconds 0.02 --backend threads --{NAME.replace('_', '-')} 8".split()
        )
    assert code == 0
    assert "8 B written before" in out.getvalue(), out.getvalue()


if __name__ == "__main__":
    use_it()
    use_on_the_command_line()
