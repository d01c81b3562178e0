"""A real browser, and a bare page on which a widget's own JavaScript meets the state that its Python half sends."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import meshlab.widgets

playwright = pytest.importorskip("playwright.sync_api")

HERE = Path(__file__).parent
WIDGETS = Path(meshlab.widgets.__file__).parent
ORIGIN = "http://widgets.test"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-component-update",
    "--no-first-run",
]
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's chromium, headless."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (apt-get install chromium fonts-dejavu-core)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page of 1,000 px that must not fail, and must not ask any other host for anything."""
    context = chromium.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.set_default_timeout(10_000)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)

    def answer(route: Any) -> None:
        url = urlsplit(route.request.url)
        if url.hostname == "127.0.0.1":
            route.continue_()
        elif route.request.url.startswith(ORIGIN):
            file = (HERE if url.path.endswith(".html") else WIDGETS) / url.path.lstrip("/")
            if file.is_file():
                route.fulfill(body=file.read_bytes(), content_type=KINDS[file.suffix])
            else:
                route.fulfill(status=204)
        else:
            faults.append(f"asked for {route.request.url}")
            route.abort()

    context.route("**/*", answer)
    yield page
    context.close()
    assert not faults, faults


def state_of(widget: Any, *names: str) -> dict[str, Any]:
    """What the kernel sends, with bytes as base64."""
    state = widget.get_state(list(names) or None)
    return {
        name: {"base64": base64.b64encode(value).decode()} if isinstance(value, (bytes, memoryview)) else value
        for name, value in state.items()
        if name not in ("_esm", "_css", "layout", "tabbable", "tooltip")
    }


class Bare:
    """A widget on the bare page."""

    def __init__(self, page: Any, name: str, widget: Any, *, theme: str = "light") -> None:
        self.page = page
        page.goto(f"{ORIGIN}/stub.html")
        self.theme(theme)
        self.first_paint_ms = page.evaluate("([name, state]) => mount(name, state)", [name, state_of(widget)])

    def theme(self, theme: str) -> None:
        self.page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
        self.page.wait_for_timeout(50)

    def receive(self, widget: Any, *names: str) -> float:
        """Send traits; the milliseconds that the widget worked in its frames."""
        return float(self.page.evaluate("state => receive(state)", state_of(widget, *names)))

    def settle(self) -> None:
        self.page.evaluate("() => painted()")


@pytest.fixture
def bare(page: Any) -> Callable[..., Bare]:
    def mount(name: str, widget: Any, **options: Any) -> Bare:
        return Bare(page, name, widget, **options)

    return mount


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which finds what people with a screen reader or without a mouse would stumble over."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, so axe-core cannot be fetched")
    folder = tmp_path_factory.mktemp("axe")
    fetched = subprocess.run(["npm", "pack", "axe-core@4"], cwd=folder, capture_output=True, text=True, timeout=120)
    if fetched.returncode:
        pytest.skip(f"npm could not fetch axe-core: {fetched.stderr.strip()[-200:]}")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder, filter="data")
    return (folder / "package" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture
def serious_faults(page: Any, axe: str) -> Callable[[str], list[str]]:
    """What axe-core calls serious or critical inside an element."""

    def find(selector: str) -> list[str]:
        page.evaluate(axe)
        found = page.evaluate("selector => axe.run(selector)", selector)
        return [
            f"{fault['id']}: {node['html']}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]

    return find


OVERLAPS = """
root => {
  const texts = [];
  const walker = document.createTreeWalker(document.querySelector(root), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.textContent.trim() || node.parentElement.closest("[hidden], .ml-tip, script, style")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width > 1 && box.height > 1) texts.push([node.textContent.trim().slice(0, 40), box]);
    }
  }
  const found = [];
  texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (wide > 1 && high > 2) found.push(`${a} | ${b}`);
  }));
  return found;
}
"""


def overlapping_texts(page: Any, selector: str) -> list[str]:
    """Pairs of texts in the page that lie over each other."""
    return list(page.evaluate(OVERLAPS, selector))


SIDEWAYS = """
root => {
  const page = document.documentElement;
  const clips = e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth && getComputedStyle(e).overflowX !== "visible";
  return page.scrollWidth > innerWidth || [...document.querySelectorAll(`${root}, ${root} *`)].some(clips);
}
"""


def scrolls_sideways(page: Any, selector: str) -> bool:
    """True when something inside the element, or the page, is wider than its box."""
    return bool(page.evaluate(SIDEWAYS, selector))
