"""The extras for GPUs contain everything that CuPy needs to compile kernels, so no CUDA toolkit has to be installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.driver_only import NVRTC, clean_environment, without_toolkits

ROOT = Path(__file__).parent.parent


@pytest.mark.long
@pytest.mark.parametrize("extra", sorted(NVRTC))
def test_kernels_compile_with_the_packages_of_the_extra_alone(extra: str, tmp_path: Path) -> None:
    venv, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    python = venv / "bin" / "python"
    environment = clean_environment(venv)

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            without_toolkits(command, empty), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def doctor() -> str:
        code = (
            "from meshlab.commissioning._doctor import _gpu_packages, checks_text; print(checks_text(_gpu_packages()))"
        )
        return run(python, "-c", code)

    run(sys.executable, "-m", "venv", venv)
    run(python, "-m", "pip", "install", "--quiet", f"{ROOT}[{extra}]")
    out = run(python, ROOT / "tests" / "gpu" / "compile_kernels.py")
    assert out.count("compiled ") > 80

    major = extra.removeprefix("cuda")
    found = {line.split()[1]: line for line in doctor().splitlines() if f" at {venv}" in line}
    assert f"NVRTC         {major}." in found["NVRTC"]
    assert f"CUDA headers  {major}." in found["CUDA"]

    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", NVRTC[extra])
    text = doctor()
    assert "NVRTC         not found; needed for GPUs" in text
    assert f"→ pip install '.[{extra}]' in meshlab's folder" in text
