"""The widgets in Voilà, marimo and Notebook 7, which the extra `test` does not install."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from tests.browser.lab import IDLE

pytestmark = pytest.mark.long

ROOT = Path(ml.__file__).parents[1]
SHOWN_MS = 120_000

# The run continues after its cell has ended. Voilà shows the page only then.
RUN = (
    "import meshlab as ml\n"
    "from meshlab.plans._plan import Sampling\n"
    "engines = ml.launch(2, backend='threads')\n"
    "slow = Sampling(max_s=4, precision=1e-9, max_batches=10**6)\n"
    "run = ml.bench(engines, sizes='1K:16K', sampling=slow)\n"
)
WORKBENCH = "wb = ml.Workbench('dgx-h100', 'dp=2, tp=4', engines=engines)\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end
        time.sleep(0.1)


@contextlib.contextmanager
def served(command: Sequence[str], folder: Path, ready: str) -> Iterator[re.Match[str]]:
    """Start a server, and wait until a line of its output matches."""
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "XDG_CONFIG_HOME")
    environment = {**os.environ, **{name: str(folder / name.lower()) for name in names}, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    reader = threading.Thread()
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line)
            found = re.search(ready, line)
            if found:
                break
        else:
            raise AssertionError("".join(lines))
        reader = threading.Thread(target=process.stdout.read, daemon=True)  # or the pipe fills up
        reader.start()
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if reader.ident is not None:
            reader.join(20)
        process.stdout.close()


@pytest.fixture
def free_page(chromium: Any) -> Iterator[Any]:
    """A page without the checks of `page`: these front ends have faults of their own."""
    context = chromium.new_context(viewport={"width": 1200, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(SHOWN_MS)
    yield page
    context.close()


def pictures_of(page: Any, name: str) -> None:
    folder = os.environ.get("MESHLAB_PICTURES")
    if folder:
        page.wait_for_timeout(500)
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def write_notebook(path: Path, cells: Sequence[str]) -> Path:
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


def run_all_cells(page: Any) -> None:
    """Choose it in the menu of Notebook, which asks for a kernel or ignores it until the kernel has started."""
    page.locator(IDLE).wait_for()
    has_begun = "() => document.querySelector('.jp-InputPrompt').textContent !== '[ ]:'"
    for _ in range(10):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        with contextlib.suppress(Exception):
            page.wait_for_function(has_begun, timeout=5_000)
            break


def test_voila_shows_a_run_that_ends_after_its_cell(free_page: Any, tmp_path: Path) -> None:
    pytest.importorskip("voila")
    notebook = write_notebook(tmp_path / "run.ipynb", [f"{RUN}run", f"{WORKBENCH}wb"])
    command = ["-m", "voila", str(notebook), f"--port={free_port()}", "--no-browser", "--show_tracebacks=True"]
    with served(command, tmp_path, r"http://localhost:\d+/") as found:
        free_page.goto(found.group(0), wait_until="domcontentloaded")
        free_page.locator(".ml-run[data-state=running]").first.wait_for()
        free_page.locator(".ml-run[data-state=done], .ml-card").first.wait_for()
        free_page.locator(".meshlab-workbench canvas").first.wait_for()
        assert "model not found" not in free_page.content()
        pictures_of(free_page, "voila")


def test_the_app_needs_its_token_and_measures(free_page: Any, tmp_path: Path) -> None:
    pytest.importorskip("voila")
    port = free_port()
    command = ["-m", "meshlab", "app", "--cluster=dgx-h100", "--mesh=dp=2, tp=2", f"--port={port}", "--no-browser"]
    with served(command, tmp_path, r"http://localhost:\d+/\?token=\w+") as found:
        free_page.goto(f"http://localhost:{port}/", wait_until="domcontentloaded")
        assert free_page.locator(".meshlab-workbench").count() == 0
        others: list[str] = []
        errors: list[str] = []
        free_page.on("request", lambda request: others.append(request.url) if "localhost" not in request.url else None)
        free_page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        free_page.goto(found.group(0), wait_until="domcontentloaded")
        free_page.get_by_role("tab", name="Measure").click()
        assert free_page.title() == "meshlab"
        assert [url for url in others if url.startswith("http")] == []
        assert errors == []
        free_page.get_by_label("Engines to start").select_option(label="4 threads, for experiments")
        free_page.locator(".ml-run-engines .ml-run-main").first.click()
        free_page.locator(".ml-run-chip.ml-run-idle").first.wait_for()
        free_page.get_by_label("Sizes").fill("1K, 4K")
        free_page.get_by_label("Sizes").press("Tab")
        free_page.locator(".ml-run-estimate", has_text="4 steps").wait_for()
        free_page.locator(".ml-run-form .ml-run-main").click()
        free_page.locator(".ml-run[data-state=done]").wait_for()
        pictures_of(free_page, "app")


def test_marimo_shows_a_run_and_the_workbench(free_page: Any, tmp_path: Path) -> None:
    pytest.importorskip("marimo")
    body = RUN.replace("\n", "\n    ")
    (tmp_path / "app.py").write_text(
        "import marimo\n\napp = marimo.App()\n\n"
        f"@app.cell\ndef _():\n    {body}run\n    return engines, ml, run\n\n"
        f"@app.cell\ndef _(engines, ml):\n    {WORKBENCH}    wb\n    return wb,\n\n"
        "if __name__ == '__main__':\n    app.run()\n"
    )
    command = ["-m", "marimo", "run", "app.py", "--headless", "--no-token", f"--port={free_port()}"]
    with served(command, tmp_path, r"http://(?:localhost|127\.0\.0\.1|0\.0\.0\.0):(\d+)") as found:
        free_page.goto(f"http://localhost:{found.group(1)}/", wait_until="domcontentloaded")
        free_page.locator(".ml-run").first.wait_for()  # playwright looks into shadow roots
        free_page.locator(".ml-run[data-state=done]").first.wait_for()
        free_page.locator(".meshlab-workbench canvas").first.wait_for()
        free_page.get_by_role("tab", name="Measure").click()
        free_page.locator(".ml-run-chip").first.wait_for()
        assert "not supported in marimo" not in free_page.content()
        pictures_of(free_page, "marimo")


def test_notebook_7_shows_a_run_and_the_workbench(free_page: Any, tmp_path: Path) -> None:
    pytest.importorskip("notebook")
    write_notebook(tmp_path / "run.ipynb", [f"{RUN}run", f"{WORKBENCH}wb"])
    token, port = secrets.token_hex(8), free_port()
    options = [f"--port={port}", "--no-browser", "--allow-root", f"--IdentityProvider.token={token}"]
    with served(["-m", "notebook", *options], tmp_path, r"http://(?:localhost|127\.0\.0\.1):\d+/tree"):
        wait_for_port(port)
        free_page.goto(f"http://127.0.0.1:{port}/notebooks/run.ipynb?token={token}", wait_until="domcontentloaded")
        free_page.locator(".jp-Notebook").wait_for()
        run_all_cells(free_page)
        free_page.locator(".ml-run[data-state=running]").first.wait_for()
        free_page.locator(".ml-card", has_text="done · 5 of 5 steps").wait_for()  # the static figure replaces the view
        free_page.locator(".meshlab-workbench canvas").first.wait_for()
        pictures_of(free_page, "notebook")
