"""The search for the parts that GPUs need: each one missing, not matching, or present, without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import CommunicatorError, EngineError
from meshlab.benchmark.on_ranks._overlap import MatrixProduct, _Matrices
from meshlab.comm.backends import _cuda_parts as cuda_parts
from meshlab.comm.backends._cuda_parts import explain_failure, find_parts
from meshlab.commissioning._doctor import _gpu_packages, checks_text


class NotFoundError(RuntimeError):
    """What cuda-pathfinder raises."""


class Machine:
    """A machine with packages, libraries and a driver, whose parts a test removes or changes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packages = {"cupy-cuda12x": "14.2.0", "nccl4py": "0.6.0", "nvidia-nccl-cu12": "2.32.3"}
        self.libraries = {name: f"/venv/lib{name}.so" for name in ("nvrtc", "cudart", "nccl", "cublas")}
        self.driver: tuple[int, int] | None = (12, 8)
        self.nvrtc = (12, 9)
        self.headers: Path | None = folder
        self.write_headers(12090)
        pathfinder = ModuleType("cuda.pathfinder")
        pathfinder.__dict__.update(
            DynamicLibNotFoundError=NotFoundError,
            load_nvidia_dynamic_lib=self.load,
            find_nvidia_header_directory=lambda name: self.headers and str(self.headers),
        )
        cuda = ModuleType("cuda")
        cuda.__dict__["pathfinder"] = pathfinder
        monkeypatch.setitem(sys.modules, "cuda", cuda)
        monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
        monkeypatch.setattr(cuda_parts, "distribution", self.distribution)
        monkeypatch.setattr(cuda_parts, "_driver_version", lambda: self.driver)
        monkeypatch.setattr(cuda_parts, "_nvrtc_version", lambda path: self.nvrtc)
        monkeypatch.setattr(cuda_parts, "_nccl_version", lambda path: "2.32.3")

    def write_headers(self, version: int) -> None:
        assert self.headers is not None
        (self.headers / "cuda_runtime_api.h").write_text(f"/** a comment */\n#define CUDART_VERSION  {version}\n")

    def distribution(self, name: str) -> SimpleNamespace:
        if name not in self.packages:
            raise cuda_parts.PackageNotFoundError(name)
        return SimpleNamespace(version=self.packages[name])

    def load(self, name: str) -> SimpleNamespace:
        if name not in self.libraries:
            raise NotFoundError(f'Failure finding "lib{name}.so"')
        return SimpleNamespace(abs_path=self.libraries[name])

    def problems(self) -> dict[str, str]:
        return {part.name: part.problem for part in find_parts() if part.problem}

    def doctor(self) -> str:
        return checks_text(_gpu_packages())


FIX = "pip install '.[cuda12]' in meshlab's folder"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_complete_machine_has_no_problems(machine: Machine, tmp_path: Path) -> None:
    assert machine.problems() == {}
    text = machine.doctor()
    assert "broken" not in text
    assert "absent" not in text
    for line in ("supports CUDA 12.8", "cupy-cuda12x 14.2.0", f"12.9 at {tmp_path}", "12.9 at /venv/libnvrtc.so"):
        assert line in text


@pytest.mark.parametrize(("library", "name"), [("nvrtc", "NVRTC"), ("nccl", "libnccl"), ("cudart", "CUDA runtime")])
def test_a_missing_library_is_named_with_its_fix(machine: Machine, library: str, name: str) -> None:
    del machine.libraries[library]
    assert machine.problems() == {name: "not found"}
    assert f"→ {FIX}" in machine.doctor()
    assert "broken" in machine.doctor()


def test_missing_headers_are_named_with_their_fix(machine: Machine) -> None:
    machine.headers = None
    error = explain_failure("run kernels of CuPy", RuntimeError("Failed to find CUDA headers.\nPlease install"), rank=1)
    assert isinstance(error, CommunicatorError)
    assert error.message == (
        "cannot run kernels of CuPy: CUDA headers not found (reported: Failed to find CUDA headers.)"
    )
    assert error.hint == FIX
    assert error.rank == 1


def test_headers_of_another_major_version_do_not_match(machine: Machine, tmp_path: Path) -> None:
    machine.write_headers(13000)
    assert machine.problems() == {"CUDA headers": f"13.0 at {tmp_path} do not match NVRTC 12.9"}


def test_a_driver_that_is_too_old_is_named_with_both_fixes(machine: Machine) -> None:
    machine.packages["cupy-cuda13x"] = machine.packages.pop("cupy-cuda12x")
    machine.nvrtc = (13, 0)
    machine.write_headers(13000)
    assert machine.problems() == {"CUDA driver": "supports CUDA 12.8, but CuPy is made for CUDA 13"}
    assert "upgrade the NVIDIA driver to 580 or newer, or pip uninstall cupy-cuda13x and" in machine.doctor()
    machine.driver = (13, 0)
    assert machine.problems() == {}


def test_a_newer_minor_version_of_nvrtc_is_fine_but_not_a_newer_major_one(machine: Machine) -> None:
    machine.driver = (12, 0)
    assert machine.problems() == {}
    machine.nvrtc = (13, 0)
    machine.write_headers(13000)
    assert machine.problems() == {
        "NVRTC": "13.0 at /venv/libnvrtc.so is newer than the driver, which supports CUDA 12.0"
    }


@pytest.mark.parametrize("second", ["cupy-cuda13x", "nvidia-nccl-cu13"])
def test_two_packages_for_one_part_hide_each_other(machine: Machine, second: str) -> None:
    machine.driver = (13, 0)
    machine.packages[second] = "2.30.4"
    assert "are both installed, and one hides the other" in "".join(machine.problems().values())


def test_without_packages_the_driver_decides_which_extra_is_suggested(machine: Machine) -> None:
    machine.packages.clear()
    machine.driver = (13, 2)
    assert cuda_parts.install_command() == "pip install '.[cuda13]' in meshlab's folder"
    machine.driver = None
    assert cuda_parts.install_command().endswith("depending on the driver")


def test_on_a_machine_without_a_driver_parts_are_absent_and_not_broken(machine: Machine) -> None:
    machine.driver = None
    machine.libraries.clear()
    text = machine.doctor()
    assert "broken" not in text
    assert "absent   NVRTC" in text


def test_an_error_without_a_missing_part_is_repeated(machine: Machine) -> None:
    error = explain_failure("initialise CUDA", RuntimeError("no CUDA-capable device is detected"))
    assert str(error) == "cannot initialise CUDA: no CUDA-capable device is detected; run meshlab doctor"


def test_overlap_names_cublas_if_it_is_missing(machine: Machine) -> None:
    del machine.libraries["cublas"]
    assert machine.problems() == {}  # nothing else needs it
    assert "absent   cuBLAS" in machine.doctor()

    def matrices(comm: Any) -> None:
        on_gpu: Any = SimpleNamespace(xp=comm.xp, backend=SimpleNamespace(device=0))
        _Matrices(on_gpu, MatrixProduct(8, 8, 8, "float16"))

    with (
        ml.launch(1, backend="threads") as engines,
        pytest.raises(EngineError, match=r"overlap\(\) needs cuBLAS") as info,
    ):
        engines.run(matrices)
    assert "pip install 'cuda-toolkit[cublas]==12.*'" in str(info.value)
