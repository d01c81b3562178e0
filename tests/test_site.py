"""The site is built without a warning and has a page for each public name. Its pages fit phones and pass axe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import meshlab as ml

ROOT = Path(__file__).parents[1]
SOURCES = ["docs", "notebooks", "CHANGELOG.md", "README.md"]
PAGES = [
    "index.html",
    "gallery_pages/index.html",
    "gallery_pages/1_meshes/plot_topology.html",
    "gallery_pages/5_widgets/plot_designer.html",
    "reference/names/meshlab.DeviceMesh.html",
    "notebooks/01_first_mesh.html",
    "nccl_tests.html",
]

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.xdist_group("site")]


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and (name, tag) in {("href", "a"), ("src", "img"), ("src", "iframe"), ("src", "script")}:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in a copy, because the sources of some pages are written at the same time."""
    pytest.importorskip("sphinx_gallery")
    folder = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("gallery_pages", "names", "examples", "meshlab*.md", "notebooks")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored if name == "docs" else None)
        else:
            shutil.copy(ROOT / name, folder)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "site"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "site"


def test_every_public_name_has_a_page(site: Path) -> None:
    pages = {path.stem for path in (site / "reference" / "names").glob("*.html")}
    names = [name for name in dir(ml) if not name.startswith("_") and callable(getattr(ml, name))]
    assert {f"meshlab.{name}" for name in names} <= pages
    assert {f"meshlab.plot.{name}" for name in dir(ml.plot) if not name.startswith("_")} <= pages


def test_every_plot_and_widget_has_a_page_in_the_gallery(site: Path) -> None:
    texts = " ".join(path.read_text() for path in (ROOT / "docs" / "gallery").rglob("plot_*.py"))
    for name in dir(ml.plot):
        if not name.startswith(("_", "figure_", "group_")):
            assert f"{name}(" in texts or name in {"rehearsal", "replay", "routing"}, name
    for name in dir(ml.widgets):
        assert name.startswith("_") or f"{name}(" in texts, name


def test_links_lead_to_pages_and_anchors(site: Path) -> None:
    pages = {
        path: Page(path.read_text()) for path in site.rglob("*.html") if path.relative_to(site).parts[0] != "_static"
    }
    faults = []
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if "://" in address or address.startswith(("mailto:", "data:")):
                continue
            target = (path.parent / unquote(address.partition("?")[0])).resolve() if address else path
            if not target.exists() or (anchor and target in pages and unquote(anchor) not in pages[target].anchors):
                faults.append(f"{path.relative_to(site)}: {link}")
    assert len(pages) > 200
    assert faults == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (1400, "dark")])
def test_pages_pass_axe_and_fit_the_screen(site: Path, browser: Any, width: int, theme: str) -> None:
    package = pytest.importorskip("axe_playwright_python")
    axe = (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 1000})
    page.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")
    faults = []
    for name in PAGES:
        page.goto((site / name).as_uri())
        page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
        page.evaluate(axe)
        violations = page.evaluate("axe.run(document)")["violations"]
        violations = [fault for fault in violations if fault["impact"] in ("serious", "critical")]
        faults += [f"{name}: {fault['id']}: {node['html'][:200]}" for fault in violations for node in fault["nodes"]]
        if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
            faults.append(f"{name} is {wide} px wide")
    page.close()
    assert faults == []
