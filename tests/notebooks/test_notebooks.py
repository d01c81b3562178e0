"""Every notebook runs from top to bottom, and is committed without outputs."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    import nbformat  # takes seconds, which only the worker that runs this test has to wait

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert "widgets" not in notebook.metadata


# The browser tests run the first notebook too, and look at more than its outputs. The shortest one always runs.
MARKS = {"01_first_mesh": [pytest.mark.long], "07_what_went_wrong": []}
PACKAGES = {"09_own_torch_code": ("torch", "sympy")}  # that are not installed with the tests
RUNS = [pytest.param(path, id=path.stem, marks=MARKS.get(path.stem, [pytest.mark.full])) for path in NOTEBOOKS]


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNS)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in PACKAGES.get(path.stem, ()) if find_spec(name) is None]
    if missing:
        pytest.skip(f"the notebook needs {' and '.join(missing)}")
    import nbformat
    from nbclient import NotebookClient

    root = str(path.parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(path, as_version=4)
    shorten = "from tests.quick_sampling import shorten_steps\nshorten_steps()"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(shorten))
    for cell in notebook.cells:
        # Ranks that share a core take long for large messages and many sizes.
        for old, new in (("64:4M", "64:256K*4"), ('4M"', '64K"')):
            cell.source = cell.source.replace(old, new)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"] == []
    shown = [output.data for output in outputs if "data" in output]
    assert any("image/png" in data for data in shown)
    if path.stem == "01_first_mesh":
        (live,) = [data for data in shown if "Run " in data.get("text/html", "")]
        # The picture has taken the widget's place, so that the saved notebook is not blank.
        assert "application/vnd.jupyter.widget-view+json" not in live
        assert "<svg" in live["text/html"]
        assert "done · 14 of 14 steps" in live["text/html"]
        assert (tmp_path / "first-report.html").stat().st_size > 10_000
