"""The files that browsers load are those that the sources of JavaScript give."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import meshlab.widgets
from meshlab.plots._theme import DARK, LIGHT
from meshlab.widgets import _assets

FOLDER = Path(meshlab.widgets.__file__).parent
SOURCES = FOLDER / "js"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with esbuild in the version of the lock file."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, so the scripts cannot be built")
    if not SOURCES.is_dir():
        pytest.skip("this installation has no sources of JavaScript")
    folder = tmp_path_factory.mktemp("widgets")
    copy = shutil.copytree(SOURCES, folder / "js", ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(FOLDER / "static", folder / "static")
    installed = subprocess.run(["npm", "ci", "--omit=dev"], cwd=copy, capture_output=True, text=True, timeout=120)
    if installed.returncode:
        pytest.skip(f"npm could not fetch esbuild: {installed.stderr.strip()[-200:]}")
    return copy


def test_the_scripts_are_those_that_the_sources_give(sources: Path) -> None:
    build = ["npm", "run", "build", "--", "--check"]
    current = subprocess.run(build, cwd=sources, capture_output=True, text=True, timeout=120)
    assert current.returncode == 0, current.stderr
    with (sources / "dom.js").open("a") as file:
        file.write("export const more = 1;\nconsole.log(more);\n")
    stale = subprocess.run(build, cwd=sources, capture_output=True, text=True, timeout=120)
    assert stale.returncode == 1
    assert "workbench.js" in stale.stderr
    assert "run build" in stale.stderr


def test_every_colour_is_in_the_table_of_the_figures() -> None:
    for name in ("picture", "workbench", "live", "curve", "paste_box"):
        style = _assets.style(name)
        for light, dark in zip(LIGHT.groups, DARK.groups, strict=True):
            assert f"light-dark({light}, {dark})" in style
        assert f"--ml-ink: light-dark({LIGHT.ink}, {DARK.ink});" in style
    for sheet in (SOURCES / "css").glob("*.css"):
        assert "#" not in sheet.read_text(encoding="utf-8"), f"a colour in {sheet.name}"


def test_a_widget_loads_only_its_own_script() -> None:
    sizes = {name: len(_assets.script(name)) for name in ("curve", "live", "paste_box", "picture", "workbench")}
    assert sizes["curve"] < 0.2 * sizes["workbench"]
    assert sizes["live"] < 0.3 * sizes["workbench"]
    assert max(sizes.values()) < 150_000
