"""Notebooks as HTML, with and without the stored state of widgets: nothing of meshlab is blank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest

import meshlab as ml
from meshlab.cli._main import main
from meshlab.plans._sampling import Sampling
from meshlab.widgets import Curve, Designer, Picture, Workbench

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"


@pytest.fixture(scope="module")
def shown() -> Iterator[dict[str, Any]]:
    """Everything that has a widget, as a notebook displays it."""
    with ml.launch(2, backend="threads") as engines:
        run = ml.bench(engines, sizes="1K, 4K", sampling=Sampling(max_s=0.02, min_batches=6))
        run.wait(120)
        curve = Curve(title="a curve")
        curve.set_series("tp", [1024, 4096], [1.0, 2.0])
        things = {
            "picture": Picture("dp=2, tp=4", "dgx-h100"),
            "designer": Designer(mesh="dp=2, tp=4"),
            "workbench": Workbench("dgx-h100", "dp=1, tp=8"),
            "curve": curve,
            "view": run.view,
            "run": run,
        }
        yield {name: thing._repr_mimebundle_()[0] for name, thing in things.items()}


def notebook_of(shown: dict[str, Any], *, has_state: bool) -> Any:
    import nbformat  # takes seconds, which only the worker that runs this test has to wait

    cells = []
    for name, data in shown.items():
        cell = nbformat.v4.new_code_cell(f"show({name!r})")
        cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
        cells.append(cell)
    notebook = nbformat.v4.new_notebook(cells=cells)
    if has_state:
        state = ipywidgets.Widget.get_manager_state()
        notebook.metadata["widgets"] = {STATE: state}
    return notebook


def test_every_display_has_html_beside_the_widget(shown: dict[str, Any]) -> None:
    for name, data in shown.items():
        assert VIEW in data, name
        assert "<svg" in data["text/html"] or "<img" in data["text/html"], name
        assert data["text/plain"], name


def test_a_page_without_the_state_of_widgets_has_all_figures(shown: dict[str, Any]) -> None:
    nbconvert = pytest.importorskip("nbconvert")
    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook_of(shown, has_state=False))
    assert VIEW not in page
    assert page.count('class="jp-RenderedHTMLCommon jp-RenderedHTML') >= len(shown)


@pytest.mark.parametrize("has_state", [True, False])
def test_the_export_has_all_figures_even_if_the_state_is_stored(
    shown: dict[str, Any], has_state: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nbconvert")
    import nbformat

    path = tmp_path / "all.ipynb"
    nbformat.write(notebook_of(shown, has_state=has_state), path)
    before = path.read_bytes()
    assert main(["export", str(path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'all.html'}\n"
    page = (tmp_path / "all.html").read_text()
    assert VIEW not in page
    assert STATE not in page
    assert page.count("<svg") >= 5
    assert path.read_bytes() == before


@pytest.mark.parametrize(("text", "message"), [(None, "cannot read"), ("{", "is not a notebook")])
def test_a_file_that_is_not_a_notebook_is_reported(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nbconvert")
    path = tmp_path / "x.ipynb"
    if text is not None:
        path.write_text(text)
    assert main(["export", str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_a_notebook_is_executed_and_its_finished_run_is_in_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbconvert")
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(Path(ml.__file__).parents[1]))
    cells = [
        "import meshlab as ml\nengines = ml.launch(2, backend='threads')\nrun = ml.bench(engines, sizes='1K:64K')\nrun",
        "run.wait();",
        "ml.Workbench('dgx-h100', 'dp=1, tp=8')",
        "engines.close()",
    ]
    path = tmp_path / "executed.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells]), path)
    assert main(["export", str(path), "--execute", "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "done · 7 of 7 steps" in page
    assert VIEW not in page


def unexecuted(path: Path) -> Path:
    import nbformat

    cells = [nbformat.v4.new_markdown_cell("# A mesh\n$$x^2$$"), nbformat.v4.new_code_cell("1 + 1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_a_notebook_without_outputs_is_reported_with_the_option_that_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nbconvert")
    import nbformat

    path = unexecuted(tmp_path / "new.ipynb")
    assert main(["export", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'new.html'}\n"
    assert err == (
        f"meshlab: {path} has no outputs of its cell, so the page shows only code; add --execute to run it\n"
    )
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].execution_count = 1  # executed, and prints nothing
    nbformat.write(notebook, path)
    assert main(["export", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_a_cell_that_fails_is_shown_without_the_frames_of_nbconvert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nbconvert = pytest.importorskip("nbconvert")
    from nbclient.exceptions import CellExecutionError

    def preprocess(*_: object) -> None:
        raise CellExecutionError("\x1b[31mZeroDivisionError\x1b[39m: division by zero\n", "ZeroDivisionError", "")

    monkeypatch.setattr(nbconvert.preprocessors.ExecutePreprocessor, "preprocess", preprocess)
    path = unexecuted(tmp_path / "new.ipynb")
    assert main(["export", str(path), "--execute"]) == 1
    text = f"meshlab: a cell of {path} failed, so no page is written\nZeroDivisionError: division by zero\n"
    assert capsys.readouterr().err == text
    assert not path.with_suffix(".html").exists()


def test_a_page_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("nbconvert")
    path = unexecuted(tmp_path / "new.ipynb")
    assert main(["export", str(path)]) == 0
    page = (tmp_path / "new.html").read_text()
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', page)
    assert "import(" not in page
