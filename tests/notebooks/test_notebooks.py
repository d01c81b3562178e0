"""Every notebook runs from top to bottom, and its stored outputs are those of its code."""

from __future__ import annotations

import base64
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from meshlab.plots._style import figure_png
from tests.notebooks.execute import (
    LARGEST_BYTES,
    NOTEBOOKS,
    VIEW,
    digest,
    execute,
    missing_modules,
    needs_gpus,
    stored,
    wrapped,
)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_are_those_of_the_code(path: Path) -> None:
    import nbformat  # takes seconds, which only the worker that runs this test has to wait

    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if needs_gpus(notebook) and not any(cell.outputs for cell in cells):
        pytest.skip("no outputs: they must come from GPUs")
    assert notebook.metadata.get("meshlab", {}).get("code") == digest(notebook), (
        f"run python -m {execute.__module__} {path.stem}"
    )
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_are_small_and_show_no_machine(path: Path) -> None:
    import nbformat

    assert path.stat().st_size <= LARGEST_BYTES
    notebook = nbformat.read(path, as_version=4)
    assert "widgets" not in notebook.metadata
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output.evalue for output in outputs if output.output_type == "error"] == []
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    assert not any(VIEW in output.get("data", {}) for output in outputs), "a code host shows nothing of a widget"
    assert not any("<svg" in output.get("data", {}).get("text/html", "") for output in outputs), "it removes SVG"
    text = path.read_text()
    assert re.findall(r".{20}(?:/tmp|/root|/home|/Users|/work|/usr)/.{20}", text) == []


def test_figures_are_stored_as_png() -> None:
    import matplotlib.figure

    png = base64.b64encode(figure_png(matplotlib.figure.Figure(figsize=(2, 1)))).decode()
    html = f'<div><svg aria-label="a figure"><path/></svg><!--png 192 {png}--></div>'
    data = {"text/html": html, "text/plain": "<ThemedFigure size 200x100 with 1 Axes>", "image/png": "other"}
    output = nbformat_output(data)
    shown = stored(output, "/somewhere")
    assert sorted(shown.data) == ["image/png", "text/plain"]
    assert shown.metadata["image/png"] == {"width": 192}
    card = stored(nbformat_output({"text/html": html, "text/plain": "<Run>"}), "/somewhere")
    assert re.fullmatch(
        r'<div><img alt="a figure" width="192" src="data:image/png;base64,[^"]+"/></div>', card.data["text/html"]
    )


def test_long_lines_that_a_cell_prints_are_broken_between_words() -> None:
    text = wrapped("short\n  " + "word " * 40 + "end\n")
    assert text.startswith("short\n  word ")
    assert "\n    word " in text
    assert max(map(len, text.splitlines())) <= 120
    assert text.endswith("end\n")


def nbformat_output(data: dict[str, str]) -> Any:
    import nbformat

    return nbformat.v4.new_output("display_data", data=data)


def test_a_notebook_that_this_machine_cannot_execute_is_skipped(tmp_path: Path) -> None:
    import nbformat

    cells = [nbformat.v4.new_code_cell(f"import {name}") for name in ("json", "no_such_module")]
    path = tmp_path / "new.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    before = path.read_text()
    assert execute(path, path) == "SKIPPED, it needs no_such_module"
    assert path.read_text() == before


# The browser tests run the first notebook too, and look at more than its outputs. The second one needs GPUs for what it
# shows, and the sixth tunes as the tests of tuning do. The shortest one always runs.
LONG = ("01_first_mesh", "02_on_gpus", "06_tuning", "09_own_torch_code", "10_uneven_traffic")
MARKS = {"07_what_went_wrong": []} | {name: [pytest.mark.long] for name in LONG}
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
    if lacking := missing_modules(notebook):
        pytest.skip(f"{' and '.join(lacking)} is not installed")
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
    assert any("image/png" in data or "<svg" in data.get("text/html", "") for data in shown)
    if path.stem == "01_first_mesh":
        (live,) = [data for data in shown if "Run " in data.get("text/html", "")]
        # The picture has taken the widget's place, so that the saved notebook is not blank.
        assert "application/vnd.jupyter.widget-view+json" not in live
        assert "<svg" in live["text/html"]
        assert "done · 14 of 14 steps" in live["text/html"]
        assert (tmp_path / "first-report.html").stat().st_size > 10_000
