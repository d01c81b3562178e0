"""The first notebook in a real JupyterLab, as a person would go through it, on the oldest and the newest ipykernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.browser.lab import LIMIT_S, Lab, Notebook, lab_server
from tests.browser.pages import overlapping_texts, scrolls_sideways

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_first_mesh.ipynb"
LIVE = ".meshlab-live"
DESIGNER = ".meshlab-workbench"

# A run that lasts, so that there is something to cancel.
LONG_RUN = (
    'run = ml.bench(engines, mesh, axis="tp", sizes="1K:16M", sampling=ml.Sampling(max_s=1, precision=1e-9))\nrun'
)


@pytest.fixture(scope="module", params=[pytest.param("6.30.1", marks=pytest.mark.long), "newest"])
def any_lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[Lab]:
    if request.param == "newest":
        yield request.getfixturevalue("lab")
        return
    root = tmp_path_factory.mktemp("lab")
    extra = root / "old"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(extra)]
    done = subprocess.run([*command, f"ipykernel=={request.param}"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"ipykernel {request.param} cannot be fetched: {done.stderr.strip()[-200:]}")
    with lab_server(root, first_on_path=extra) as server:
        yield server


@pytest.fixture
def wide(page: Any) -> Any:
    page.set_viewport_size({"width": 1400, "height": 1100})
    page.set_default_timeout(1e3 * LIMIT_S)
    return page


def cell_with(page: Any, text: str) -> Any:
    """The cell whose code contains a text, scrolled into view: JupyterLab draws only what is near."""
    cell = page.locator(".jp-CodeCell", has_text=text).first
    cell.scroll_into_view_if_needed()
    return cell


def run_cell(page: Any, code: str) -> None:
    """Write code into the last, empty cell and run it."""
    page.keyboard.press("Escape")
    last = page.locator(".jp-Notebook-cell").last

    def is_visible() -> bool:
        # Cells far away are hidden, and scrolling by itself does not help while the heights of others still change.
        page.evaluate(
            "for (const e of document.querySelectorAll('.jp-WindowedPanel-outer')) e.scrollTop = e.scrollHeight"
        )
        return bool(last.is_visible())

    def is_written() -> bool:
        # A click may reach the output of the cell while JupyterLab still moves it, so look where the code has arrived.
        wait_until(page, is_visible)
        last.click()
        for key in ("Escape", "b", "Enter"):
            page.keyboard.press(key)
        page.keyboard.insert_text(code)
        written = page.locator(".jp-Cell.jp-mod-active .cm-line").all_inner_texts()
        return "\n".join(written).split() == code.split()

    wait_until(page, is_written)
    page.keyboard.press("Shift+Enter")


def wait_until(page: Any, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        page.wait_for_timeout(50)


def marked(run_id: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MESHLAB_RUN") == run_id:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def save(page: Any) -> None:
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")


@pytest.mark.full
def test_a_person_goes_through_the_first_notebook(
    any_lab: Lab, wide: Any, say: Callable[[str], None], expected_faults: list[str]
) -> None:
    page, lab = wide, any_lab
    # Fewer sizes, because the browser and the ranks share the cores.
    lab.copy_notebook(NOTEBOOK, {'sizes="1K:4M"': 'sizes="1K:4M*8"'})
    began = time.monotonic()
    notebook: Notebook = lab.open(page, NOTEBOOK.name)
    # The engines stay open for what follows.
    lab_version = notebook.ask("__import__('ipykernel').__version__")
    notebook.run_all()
    say(f"ipykernel {lab_version}: all cells of the first notebook ran in {time.monotonic() - began:.1f} s")
    assert notebook.ask("engines.state") == "'closed'"

    # A size is changed by keyboard: the picture and Python follow.
    cell_with(page, "ml.widgets.Designer").wait_for()
    page.get_by_label("Size of dp", exact=True).fill("4")
    page.keyboard.press("Enter")
    notebook.wait_for("designer.mesh", "DeviceMesh('dp=4, tp=4')")
    page.wait_for_function("() => document.querySelector('.ml-verdict').textContent.includes('dp=4, tp=4')")

    # Hover tells who a rank is; Shift and drag selects, and the kernel reads it.
    stage = page.locator(f"{DESIGNER} .ml-stage")
    stage.scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # until JupyterLab has stopped moving cells
    box = stage.bounding_box()
    stage.focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.querySelector('.meshlab-workbench .ml-tip')?.textContent.includes('rank 0')")
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    notebook.wait_for("len(designer.selected)", "16")

    # A run is started and cancelled while it measures; its rows stay.
    run_cell(page, 'mesh, engines = ml.DeviceMesh("tp=2"), ml.launch(2)')
    notebook.wait_for("engines.state", "'ready'")
    run_id = notebook.ask("engines._rank_set._id").strip("'")
    assert len(marked(run_id)) >= 4
    run_cell(page, LONG_RUN)
    stop = page.get_by_role("button", name="Stop after this step")
    stop.wait_for()
    page.locator(f"{LIVE} svg path").first.wait_for(state="attached")
    wait_until(page, lambda: int(notebook.ask("run.progress.done")) >= 3)
    assert overlapping_texts(page, LIVE) == []
    # The second button asks first, and "Keep running" changes nothing.
    end = page.locator(f"{LIVE} button", has_text="Kill the ranks")
    assert end.count() == 2
    assert [end.nth(number).is_visible() for number in range(2)] == [True, False]
    end.first.click()
    keep = page.locator(f"{LIVE} button", has_text="Keep running")
    keep.wait_for()
    assert overlapping_texts(page, LIVE) == []
    keep.click()
    keep.wait_for(state="hidden")
    assert notebook.ask("run.state") == "'running'"
    stop.click()
    notebook.wait_for("run.state", "'cancelled'")
    assert notebook.ask("3 <= run.progress.done < 15 and bool((run.results['status'] == 'ok').all())") == "True"
    # The widget gives way to a picture and the table.
    page.locator(LIVE).wait_for(state="detached")
    card = page.locator(".jp-OutputArea .ml-card", has_text="cancelled").last
    card.wait_for()
    assert card.locator("svg").count() == 1
    assert notebook.ask("engines.state") == "'ready'"

    # The saved notebook has pictures when it is opened again; the kernel's restart leaves nothing behind.
    save(page)
    wait_until(page, lambda: "cancelled" in (lab.root / "notebooks" / NOTEBOOK.name).read_text())
    notebook.restart_kernel()
    wait_until(page, lambda: not marked(run_id))
    # The new kernel has no models, and JupyterLab looks for that of the designer.
    expected_faults.append("widget model not found")
    page.reload(wait_until="domcontentloaded")
    page.wait_for_selector(".jp-Notebook")
    card = page.locator(".jp-OutputArea .ml-card", has_text="cancelled").last
    card.scroll_into_view_if_needed()
    card.locator("svg").wait_for()
    for code in ("mesh.plot", "ml.plot.topology"):
        cell_with(page, code).locator("svg[role=img]").first.wait_for(state="attached")


@pytest.mark.full
@pytest.mark.parametrize("theme", [pytest.param("Light", marks=pytest.mark.long), "Dark"])
def test_a_live_run_is_readable(
    any_lab: Lab, wide: Any, serious_faults: Callable[[str], list[str]], theme: str, tmp_path: Path
) -> None:
    page, lab = wide, any_lab
    lab.theme(theme)  # type: ignore[arg-type]
    start = 'import meshlab as ml\nmesh = ml.DeviceMesh("dp=2, tp=2")\nengines = ml.launch(4, backend="threads")'
    names = '["all_reduce", "all_gather"]'
    lab.write_notebook(f"live{theme}.ipynb", [start, LONG_RUN.replace("mesh, axis", f"mesh, {names}, axis")])
    notebook = lab.open(page, f"live{theme}.ipynb")
    notebook.run_all()
    page.locator(f"{LIVE} svg path").first.wait_for(state="attached")
    wait_until(page, lambda: int(notebook.ask("run.progress.done")) >= 4)
    page.locator(f"{LIVE} button", has_text="Kill the ranks").first.click()
    page.locator(f"{LIVE} button", has_text="Keep running").wait_for()
    assert serious_faults(LIVE) == []
    pictures = os.environ.get("MESHLAB_PICTURES")
    page.keyboard.press("Control+b")
    for width in (600, 1400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_timeout(400)
        assert overlapping_texts(page, LIVE) == []
        assert not scrolls_sideways(page, LIVE)
        if pictures:
            page.screenshot(path=f"{pictures}/live-{theme}-{width}.png")
    notebook.ask("run.cancel()")
    notebook.wait_for("run.state", "'cancelled'")
    page.locator(".jp-OutputArea .ml-card", has_text="cancelled").last.wait_for()
    if pictures:
        page.screenshot(path=f"{pictures}/over-{theme}.png", full_page=True)
    notebook.ask("engines.close()")
