"""The page about the architecture agrees with the code: its paths, its folders, and the walks that it lists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_package import LEVELS, PACKAGE

ROOT = PACKAGE.parent
PAGE = (ROOT / "docs/architecture.md").read_text()


def test_every_path_on_the_page_exists() -> None:
    paths = re.findall(r"`((?:meshlab|tests|docs|\.ci)/[\w./-]+)`", PAGE)
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_modules_in_short_form_exist() -> None:
    """Walks and tables name modules as `engines/_reaper`, or `_reaper` within the section of a folder."""
    names = re.findall(r"`((?:[a-z_]+/)+_[a-z_]+)`", PAGE)
    assert [name for name in names if not (PACKAGE / f"{name}.py").is_file()] == []


def test_the_folders_are_those_of_the_rule() -> None:
    chain = re.search(r"base ← .*?cli", PAGE, re.DOTALL)
    assert chain is not None
    levels = [re.split(r",\s*", level.strip()) for level in re.sub(r"\s+", " ", chain[0]).split("←")]
    folders = [[name for name in names if (PACKAGE / name).is_dir()] for names in LEVELS]
    assert levels == [names for names in folders if names]


def test_every_folder_of_the_page_of_contributors_exists() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| folder | content |")[1].split("\n\n")[0]
    folders = set(re.findall(r"`([a-z_]+)/`", table.replace("`interop/`", "").replace("`model/`", "")))
    inner = {"readers", "backends", "tuning", "rehearsal", "on_ranks", "formats", "rules"}
    assert folders - inner == {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}


def test_hooks_check_what_the_project_asks_of_commits() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    for path in re.findall(r"entry: (\.ci/[\w-]+)", config):
        assert Path(ROOT / path).stat().st_mode & 0o111, f"{path} cannot be executed"
