"""All widgets in the light and the dark theme of every front end: opened in it, and switched while they are open."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._files import write_file
from meshlab.diagnosis._html import as_page
from meshlab.plans._plan import Sampling
from meshlab.widgets._exports import FILES
from tests.browser.contrast import contrast_faults, wait_for_scheme
from tests.browser.lab import Lab
from tests.browser.test_front_ends import free_port, pictures_of, run_all_cells, served, wait_for_port, write_notebook

PASTED = "node1:1:1 [0] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000"
SETUP = """
import meshlab as ml
from IPython.display import display
from meshlab.plans._plan import Sampling
engines = ml.launch(8, backend="threads")
run = ml.bench(engines, "dp=2, tp=4", sizes="1K:16K", sampling=Sampling(max_s=0.05, min_batches=6))
results = run.wait(120)
wb = ml.Workbench("dgx-h100", "dp=2, tp=4", axis="dp", engines=engines, run=run, failed=["node0/NIC3"],
                  pinned=("dgx-h100", "dp=4, tp=2"))
curve = ml.widgets.Curve(references={"NVLink": 12.0})
curve.set_series("tp", [1024, 2048, 4096], [3.1, 6.0, 11.2], [2.9, 5.8, 10.9], [3.4, 6.1, 11.6])
box = ml.widgets.PasteBox(PASTED)
"""
CELLS = (
    f"PASTED = {PASTED!r}{SETUP}",
    "wb",
    "run.view",
    "box",
    "ml.widgets.Designer(mesh='dp=2, tp=4', world_size=8)",
    "ml.widgets.Picture('dp=2, tp=4', 'dgx-h100', axis='tp')",
    "curve",
    "display(run, wb.mesh, engines, wb.cluster, ml.explain(PASTED))",
)
N_ROOTS = 8  # the roots of seven widgets, of which the workbench contains a picture of its own
TABS = ("Design", "Measure", "Runs")


def wait_for_widgets(page: Any) -> None:
    page.locator(".meshlab").nth(N_ROOTS - 1).wait_for()  # playwright looks into shadow roots
    page.locator(".meshlab-curve path:visible").first.wait_for()


def faults_of(page: Any, axe: str, scheme: str, name: str) -> list[str]:
    """The faults of all widgets, with each tab of the workbench."""
    wait_for_scheme(page, scheme)
    faults = []
    for tab in TABS:
        page.locator(".meshlab-workbench").first.get_by_role("tab", name=tab, exact=True).click()
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)  # the transitions of the page's colours
        if tab == "Measure":
            open_monitor(page)
        faults += [f"{name}, {tab}: {fault}" for fault in contrast_faults(page, axe)]
        pictures_of(page, f"{name}-{tab.lower()}")
    return list(dict.fromkeys(faults))


def open_monitor(page: Any) -> None:
    fold = page.locator(".meshlab-workbench .ml-run-fold").first
    if fold.get_attribute("aria-expanded") != "true":
        fold.click()
        page.locator(".meshlab-workbench .ml-run-monitor tbody tr").first.wait_for()


def choose_theme(page: Any, theme: str) -> None:
    """Choose a theme in the menu of JupyterLab or Notebook."""
    page.get_by_text("Settings", exact=True).first.click()
    page.locator('.lm-Menu-itemLabel:text-is("Theme")').hover()
    page.locator(f'.lm-Menu-itemLabel:text-is("JupyterLab {theme.title()}")').click()


@pytest.fixture
def tall(chromium: Any) -> Iterator[Any]:
    """A page that shows all cells at once, because JupyterLab draws no others."""
    context = chromium.new_context(viewport={"width": 1400, "height": 6000})
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


@pytest.mark.parametrize(
    "themes", [("dark", "light", "dark"), pytest.param(("light", "dark"), marks=pytest.mark.full)], ids=" then ".join
)
def test_all_widgets_in_the_themes_of_jupyterlab(lab: Lab, tall: Any, axe: str, themes: tuple[str, ...]) -> None:
    """Opened in the first theme, and switched to the others while they are open."""
    lab.theme(themes[0].title())
    lab.write_notebook("all.ipynb", CELLS)
    lab.open(tall, "all.ipynb").run_all()
    wait_for_widgets(tall)
    faults = faults_of(tall, axe, themes[0], f"lab-opened-{themes[0]}")
    for before, theme in pairwise(themes):
        choose_theme(tall, theme)
        faults += faults_of(tall, axe, theme, f"lab-{before}-then-{theme}")
    lab.theme("Light")
    tall.goto("about:blank")
    assert not faults, "\n".join(faults)


@pytest.mark.full
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_all_widgets_in_the_themes_of_notebook_7(tall: Any, axe: str, tmp_path: Path, theme: str) -> None:
    pytest.importorskip("notebook")
    write_notebook(tmp_path / "all.ipynb", CELLS)
    settings = tmp_path / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": f"JupyterLab {theme.title()}"}))
    token, port = secrets.token_hex(8), free_port()
    options = [f"--port={port}", "--no-browser", "--allow-root", f"--IdentityProvider.token={token}"]
    options.append(f"--LabApp.user_settings_dir={tmp_path / 'settings'}")
    options.append(f"--JupyterNotebookApp.user_settings_dir={tmp_path / 'settings'}")
    with served(["-m", "notebook", *options], tmp_path, r"http://(?:localhost|127\.0\.0\.1):\d+/tree"):
        wait_for_port(port)
        tall.goto(f"http://127.0.0.1:{port}/notebooks/all.ipynb?token={token}", wait_until="domcontentloaded")
        tall.locator(".jp-Notebook").wait_for()
        run_all_cells(tall)
        wait_for_widgets(tall)
        faults = faults_of(tall, axe, theme, f"notebook-opened-{theme}")
        other = {"dark": "light", "light": "dark"}[theme]
        choose_theme(tall, other)
        faults += faults_of(tall, axe, other, f"notebook-switched-{other}")
        tall.goto("about:blank")
    assert not faults, "\n".join(faults)


@pytest.mark.full
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_all_widgets_in_the_themes_of_voila(tall: Any, axe: str, tmp_path: Path, theme: str) -> None:
    pytest.importorskip("voila")
    notebook = write_notebook(tmp_path / "all.ipynb", CELLS)
    command = ["-m", "voila", str(notebook), f"--port={free_port()}", "--no-browser", f"--theme={theme}"]
    with served(command, tmp_path, r"http://localhost:\d+/") as line:
        tall.goto(line.group(0), wait_until="domcontentloaded")
        wait_for_widgets(tall)
        faults = faults_of(tall, axe, theme, f"voila-{theme}")
        tall.goto("about:blank")
    assert not faults, "\n".join(faults)


@pytest.mark.full
def test_all_widgets_in_the_themes_of_marimo(tall: Any, axe: str, tmp_path: Path) -> None:
    """marimo follows the browser with its theme "system", also when it changes."""
    pytest.importorskip("marimo")
    setup = CELLS[0].replace("\n", "\n    ").replace("from IPython.display import display", "import marimo as mo")
    shown = "mo.vstack([wb, run.view, box, designer, picture, curve, wb.mesh, engines, wb.cluster, ml.explain(PASTED)])"
    body = f"{setup}\n    designer, picture = {CELLS[4]}, {CELLS[5]}\n    {shown}\n"
    (tmp_path / "app.py").write_text(
        'import marimo\n\napp = marimo.App(width="full")\n\n'
        f"@app.cell\ndef _():\n    {body}    return\n\nif __name__ == '__main__':\n    app.run()\n"
    )
    (tmp_path / "pyproject.toml").write_text('[tool.marimo.display]\ntheme = "system"\n')
    command = ["-m", "marimo", "run", "app.py", "--headless", "--no-token", f"--port={free_port()}"]
    faults = []
    with served(command, tmp_path, r"http://(?:localhost|127\.0\.0\.1|0\.0\.0\.0):(\d+)") as line:
        wait_for_port(int(line.group(1)))
        tall.emulate_media(color_scheme="dark")
        tall.goto(f"http://localhost:{line.group(1)}/", wait_until="domcontentloaded")
        wait_for_widgets(tall)
        for scheme in ("dark", "light", "dark"):
            tall.emulate_media(color_scheme=scheme)
            faults += faults_of(tall, axe, scheme, f"marimo-{scheme}")
        tall.goto("about:blank")
    assert not faults, "\n".join(faults)


@pytest.mark.full
def test_saved_pages_in_the_themes_of_the_browser(tall: Any, axe: str, tmp_path: Path) -> None:
    with ml.launch(4, backend="threads") as engines:
        run = ml.bench(engines, "dp=2, tp=2", sizes="1K:16K", sampling=Sampling(max_s=0.02, min_batches=6))
        run.wait(120)
        view = run.view
    wb = ml.Workbench("dgx-h100", "dp=2, tp=4", run=run, failed=["node0/NIC3"], pinned=("dgx-h100", "dp=4, tp=2"))
    pages = {
        "run": view.save(tmp_path / "run.html"),
        "workbench": wb.save(tmp_path / "workbench.html"),
        "picture": ml.widgets.Picture("dp=2, tp=4", "dgx-h100", axis="tp").save(tmp_path / "picture.html"),
        "explanation": write_file(tmp_path / "explanation.html", as_page(ml.explain(PASTED))),
        "report": write_file(tmp_path / "report.html", FILES["report"](wb)[2]),
    }
    wb.close()
    faults = []
    for name, path in pages.items():
        for opened in ("dark", "light"):
            tall.emulate_media(color_scheme=opened)
            tall.goto(path.as_uri())
            for scheme in (opened, {"dark": "light", "light": "dark"}[opened]):
                tall.emulate_media(color_scheme=scheme)
                if name in ("run", "workbench", "picture"):
                    wait_for_scheme(tall, scheme)
                faults += [f"{name}, {scheme}: {fault}" for fault in contrast_faults(tall, axe, everywhere=True)]
                pictures_of(tall, f"saved-{name}-{scheme}")
    assert not faults, "\n".join(faults)
