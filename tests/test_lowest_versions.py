"""The oldest versions that pyproject.toml allows: they install together, and the demo and the tests pass with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def lowest_pins() -> list[str]:
    """The dependencies of the project, each pinned to the lowest version that it allows."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pins = []
    for dependency in dependencies:
        found = re.fullmatch(r"([\w.-]+) *>=([\w.]+)((?:,[^;]+)?)(?:; .*)?", dependency)
        assert found is not None, f"{dependency!r} has no lowest version"
        pins.append(f"{found[1]}=={found[2]}")
    return pins


def test_every_dependency_has_a_lowest_version() -> None:
    assert "numpy==2.0" in lowest_pins()


@pytest.mark.long
def test_the_demo_and_the_tests_pass_with_the_lowest_versions(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    log = tmp_path / "log.txt"

    def run(*command: str | Path, cwd: Path = ROOT) -> None:
        # To a file, because the tests print more than a pipe should hold, and a failure has to show the end of it.
        with log.open("a") as file:
            done = subprocess.run(command, cwd=cwd, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False)
        assert done.returncode == 0, f"{' '.join(map(str, command))}\n{log.read_text()[-4000:]}"

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    pins = tmp_path / "pins.txt"
    pins.write_text("\n".join(lowest_pins()))
    run(python, "-m", "pip", "install", "--quiet", "--constraint", pins, f"{ROOT}[test]")
    run(python.with_name("meshlab"), "demo", "--out", tmp_path / "demo", cwd=tmp_path)
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    run(python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not long")
