"""Build the packages and try them: ``python -m tests.packages``.

It builds the source archive, builds the wheel from that archive, compares the wheel with this checkout, and installs it
into a clean environment of each Python from 3.11 to 3.14 that this machine has. Each of them executes
`tests/typing/user_script.py`, and mypy and pyright check that script against the installed wheel. Needs hatchling, uv,
mypy and pyright, next to this Python or in the folder ``--tools``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "typing" / "user_script.py"
MINORS = (11, 12, 13, 14)


def find_python(minor: int) -> Path | None:
    """Return a Python of a version that starts, from the search path or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [sys.executable, shutil.which(f"python3.{minor}") or "", f"/usr/bin/python3.{minor}"]
    candidates += [str(path / "bin" / "python") for path in sorted(pyenv.glob(f"3.{minor}.*"), reverse=True)]
    code = f"import sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))"
    for candidate in filter(None, candidates):
        if Path(candidate).is_file():
            # pyenv has a command for each of its versions, but only the selected ones start.
            done = subprocess.run([candidate, "-c", code], capture_output=True, check=False)
            if done.returncode == 0:
                return Path(candidate)
    return None


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a command, and raise with its output if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SystemExit(f"FAILED: {' '.join(map(str, command))}\n{done.stdout[-4000:]}")


def build(folder: Path, hatchling: Path) -> Path:
    """Build the source archive of this checkout, and a wheel from it."""
    run(hatchling, "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    run(hatchling, "build", "-t", "wheel", "-d", folder, cwd=source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def missing_files(wheel: Path) -> list[str]:
    """Return the files of this checkout that a wheel lacks, or has with another content."""
    expected = {
        path.relative_to(ROOT).as_posix(): path
        for path in (ROOT / "meshlab").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and (ROOT / "meshlab/widgets/js") not in path.parents
    }
    expected |= {f"meshlab/notebooks/{path.name}": path for path in (ROOT / "notebooks").glob("*.ipynb")}
    expected |= {f"meshlab/docs/{path.name}": path for path in (ROOT / "docs").glob("*.md")}
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        return [name for name, path in expected.items() if name not in names or file.read(name) != path.read_bytes()]


def size_mb(folder: Path) -> float:
    """Return the size of the files of a folder in MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


def largest(folder: Path) -> str:
    """Return the four largest packages of an environment."""
    packages = next(folder.glob("lib/python3*/site-packages"))
    sizes = sorted(((size_mb(path), path.name) for path in packages.iterdir() if path.is_dir()), reverse=True)
    return ", ".join(f"{name} {size:.0f}" for size, name in sizes[:4])


def try_wheel(wheel: Path, python: Path, folder: Path, uv: Path) -> Path:
    """Install a wheel into a clean environment, and execute the script of a user with it. Return its Python."""
    start = time.monotonic()
    run(uv, "venv", "--quiet", "--python", python, folder, cwd=folder.parent)
    inside = folder / "bin" / "python"
    run(uv, "pip", "install", "--quiet", "--python", inside, wheel, cwd=folder.parent)
    installed, size = time.monotonic() - start, size_mb(folder)
    # Elsewhere, and without the paths of this process, or it would import the checkout.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    work = folder.parent / f"work-{folder.name}"
    work.mkdir()
    run(inside, SCRIPT, work, cwd=work, env={**environment, "MPLBACKEND": "agg"})
    run(folder / "bin" / "meshlab", "show", "dp=2, tp=2", cwd=work, env=environment)
    print(
        f"{folder.name}: installed in {installed:.0f} s, {size:.0f} MB (MB: {largest(folder)}); the script of a user "
        f"ran in {time.monotonic() - start - installed:.0f} s",
        flush=True,
    )
    return inside


def main(arguments: Sequence[str]) -> int:
    """Build, install and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, default=Path(sys.executable).parent, help="folder of uv and the others")
    options = parser.parse_args(arguments)

    def tool(name: str) -> Path:
        path = next(
            (place / name for place in (options.tools, Path(sys.executable).parent) if (place / name).exists()), None
        )
        if path is None:
            raise SystemExit(f"FAILED: there is no {name}; run pip install {name}")
        return path

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder, tool("hatchling"))
        if lacking := missing_files(wheel):
            raise SystemExit(f"FAILED: the wheel differs from the checkout in {', '.join(lacking[:10])}")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, with all files of the checkout", flush=True)
        checked = None
        for minor in MINORS:
            python = find_python(minor)
            if python is None:
                print(f"SKIPPED: this machine has no Python 3.{minor}", flush=True)
                continue
            inside = try_wheel(wheel, python, folder / f"python3.{minor}", tool("uv"))
            checked = checked or inside
        if checked is None:
            raise SystemExit("FAILED: no Python from 3.11 to 3.14")
        start = time.monotonic()
        cache = f"--cache-dir={folder / 'mypy'}"
        # In the temporary folder, where no configuration of this project applies.
        script = shutil.copy(SCRIPT, folder)
        run(tool("mypy"), "--strict", cache, "--python-executable", checked, script, cwd=folder)
        run(tool("pyright"), "--pythonpath", checked, script, cwd=folder)
        print(f"mypy --strict and pyright accept the script of a user ({time.monotonic() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
