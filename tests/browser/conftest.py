"""A real browser, and a bare page on which a widget's own JavaScript meets the state that its Python half sends."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import meshlab.widgets
from tests.browser.contrast import WITH_HEIGHT
from tests.browser.lab import Lab, lab_server
from tests.browser.pages import ORIGIN, Bare, Wired
from tests.widgets.measure_widget import MeasureWidget

HERE = Path(__file__).parent
WIDGETS = Path(meshlab.widgets.__file__).parent
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-component-update",
    "--no-first-run",
]
NOT_LOCAL = re.compile(r"https?://(?!127\.0\.0\.1[:/])")
JOINED = {
    "/picture": meshlab.widgets.Picture,
    "/workbench": meshlab.widgets.Workbench,
    "/curve": meshlab.widgets.Curve,
    "/paste_box": meshlab.widgets.PasteBox,
    "/live": meshlab.widgets.LiveView,
    "/measure": MeasureWidget,
}
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's chromium, headless."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (apt-get install chromium fonts-dejavu-core)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def expected_faults() -> list[str]:
    """Parts of messages that a test expects on the page's console. Empty unless the test adds some."""
    return []


@pytest.fixture(scope="session")
def tab(chromium: Any) -> Iterator[tuple[Any, list[str]]]:
    """The one page of all tests, because a new one costs as much as a short test, and the faults that it reports."""
    context = chromium.new_context()
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)

    def answer(route: Any) -> None:
        url = urlsplit(route.request.url)
        if route.request.url.startswith(ORIGIN):
            file = (HERE if url.path.endswith(".html") else WIDGETS) / url.path.lstrip("/")
            widget = JOINED.get(url.path.rpartition(".")[0])
            if widget is not None:  # joined from several files
                text = str(widget._esm if file.suffix == ".js" else widget._css)
                route.fulfill(body=text, content_type=KINDS[file.suffix])
            elif file.is_file():
                route.fulfill(body=file.read_bytes(), content_type=KINDS[file.suffix])
            else:
                route.fulfill(status=204)
        else:
            faults.append(f"asked for {route.request.url}")
            route.abort()

    context.route(NOT_LOCAL, answer)
    page.wires = []  # the widget that answers the page
    context.expose_function("askPython", lambda question: page.wires[-1].answer(question))
    yield page, faults
    context.close()


@pytest.fixture
def page(tab: tuple[Any, list[str]], expected_faults: list[str]) -> Iterator[Any]:
    """A page of 1,000 px that must not fail, and must not ask any other host for anything."""
    page, faults = tab
    page.set_viewport_size({"width": 1000, "height": 900})
    page.set_default_timeout(60_000)
    page.mouse.move(0, 0)
    faults.clear()
    page.wires.clear()
    yield page
    page.goto("about:blank")
    unexpected = [fault for fault in faults if not any(part in fault for part in expected_faults)]
    assert not unexpected, unexpected


@pytest.fixture(scope="session")
def lab(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab for the tests of all files. Each test has its own notebook and kernel."""
    with lab_server(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture
def bare(page: Any) -> Callable[..., Bare]:
    def mount(name: str, widget: Any, **options: Any) -> Bare:
        return Bare(page, name, widget, **options)

    return mount


@pytest.fixture
def wired(page: Any) -> Callable[..., Wired]:
    def mount(name: str, widget: Any, **options: Any) -> Wired:
        return Wired(page, name, widget, **options)

    return mount


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what people with a screen reader or without a mouse would stumble over."""
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def serious_faults(page: Any, axe: str) -> Callable[[str], list[str]]:
    """What axe-core calls serious or critical inside an element."""

    def find(selector: str) -> list[str]:
        page.evaluate(axe)
        found = page.evaluate(f"selector => ({WITH_HEIGHT})(() => axe.run(selector))", selector)
        return [
            f"{fault['id']}: {node['html']}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]

    return find


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a measured figure even when the test passes."""

    def tell(figure: str) -> None:
        with capsys.disabled():
            print(f"\n    {figure}", end="", flush=True)

    return tell
