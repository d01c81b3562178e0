"""Check that meshlab works on a machine with an NVIDIA driver and without a CUDA toolkit.

    python tests/gpu/driver_only.py --wheels FOLDER

Needs no network. The folder contains the wheel of meshlab (``pip wheel --no-deps -w FOLDER .``) and those of all
packages that are missing; ``--system-site-packages`` adds the packages of this interpreter. Makes an environment, hides
every CUDA toolkit, and runs in it: `meshlab doctor`, the compilation of kernels, and engines with an all_reduce whose
result is checked. Then it removes NVRTC, and checks that the error at launch names it. Exits with 1 if a step fails.
"""

from __future__ import annotations

import argparse
import os
import shlex
import site
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
NVRTC = {"cuda12": "nvidia-cuda-nvrtc-cu12", "cuda13": "nvidia-cuda-nvrtc"}

# Prints the parts that are not in the environment. The driver and the versions of packages have no path.
FOREIGN = """
import sys
from meshlab.comm.backends._cuda_parts import find_parts
parts = find_parts()
bad = [p for p in parts if p.problem or (" at " in p.text or p.text[:1] == "/") and sys.prefix not in p.text]
sys.exit("\\n".join(f"{p.name}: {p.problem or p.text}" for p in bad) or 0)
"""

ALL_REDUCE = """
import sys
import numpy as np
import meshlab as ml

def check(comm):
    wrong = []
    for dtype in ("int64", "uint8", "float16", "bfloat16", "float32"):
        x = comm.xp.arange(1000).astype(ml.comm.elements.find_dtype(dtype)) % 7
        total = comm.all_reduce(x)
        if int((total != x * comm.size).sum()):
            wrong.append(dtype)
    return wrong

n, backend = int(sys.argv[1]), sys.argv[2]
with ml.launch(n, backend=backend) as engines:
    frame = engines.run(check, f"tp={n}", axis="tp")
    assert list(frame["value"]) == [[]] * n, frame
    run = ml.bench(engines, f"tp={n}", "all_reduce", axis="tp", sizes="1K, 1M")
    results = run.wait()
    assert list(results["n_wrong"]) == [0, 0], results
    print(run.table())
    print(engines.ranks[0].capabilities)
"""

FAIL = """
import sys
import meshlab as ml
from meshlab.comm.backends._cuda_parts import find_parts

found = next(part for part in find_parts() if part.name == "NVRTC")
if not found.problem:
    print(f"not checked, because the machine has another NVRTC: {found.text}")
    sys.exit()
try:
    ml.launch(1, backend="nccl").close()
except ml.MeshlabError as error:
    print(error)
    sys.exit("the error does not name NVRTC" if "NVRTC not found" not in str(error) else 0)
sys.exit("the launch succeeded without NVRTC")
"""


def toolkits() -> list[Path]:
    """The folders of all CUDA toolkits of the machine."""
    named = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    found = [*named, *Path("/usr/local").glob("cuda*"), Path("/opt/cuda"), Path("/usr/lib/cuda")]
    return sorted({folder.resolve() for folder in found if folder.is_dir()})


def without_toolkits(command: Sequence[str | Path], empty: Path) -> list[str]:
    """The command with every toolkit hidden under the folder `empty`, for the command alone.

    Without the permission to do so, the command itself is returned, and a line is printed.
    """
    plain = list(map(str, command))
    folders = toolkits()
    if not folders:
        return plain
    mounts = "".join(f"mount --bind {shlex.quote(str(empty))} {shlex.quote(str(folder))} && " for folder in folders)
    prefix = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    try:
        subprocess.run([*prefix, f"{mounts}true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"cannot hide {', '.join(map(str, folders))}: the system permits no mounts", flush=True)
        return plain
    return [*prefix, f'{mounts}exec "$@"', "sh", *plain]


def clean_environment(venv: Path) -> dict[str, str]:
    """The environment variables without those that lead to a toolkit, to other packages, or to compiled kernels."""
    dropped = ("CUDA", "NVCC", "LD_", "CONDA", "PYTHON", "PYTEST", "VIRTUAL_ENV", "CUPY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    kept["CUPY_CACHE_DIR"] = str(venv / "kernels")
    kept["PATH"] = f"{venv / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    # Some containers mount the driver into a folder that only this variable names.
    paths = [Path(path) for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    of_toolkits = toolkits()
    driver = [
        str(path)
        for path in paths
        if (path / "libcuda.so.1").exists() and not any(path.resolve().is_relative_to(folder) for folder in of_toolkits)
    ]
    if driver:
        kept["LD_LIBRARY_PATH"] = ":".join(driver)
    return kept


def link_packages(folder: Path) -> Path:
    """Link the packages of this interpreter into a folder, except those for GPUs, of which the extra brings its own."""
    folder.mkdir()
    for packages in map(Path, site.getsitepackages()):
        for entry in packages.iterdir() if packages.is_dir() else ():
            if not entry.name.startswith(("cupy", "nvidia", "nccl", "cuda")):
                (folder / entry.name).symlink_to(entry)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--wheels", type=Path, required=True, help="folder of wheels, with that of meshlab")
    parser.add_argument("--extra", choices=list(NVRTC), default="cuda12", help="default: cuda12")
    parser.add_argument("--system-site-packages", action="store_true", help="use packages of this interpreter too")
    parser.add_argument("--ranks", type=int, default=1, help="number of GPUs, default: 1")
    parser.add_argument("--backend", default="nccl", help="backend of the engines; without a GPU, for example threads")
    options = parser.parse_args()
    (wheel,) = options.wheels.glob("meshlab-*.whl")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        venv, empty = Path(folder) / "venv", Path(folder) / "empty"
        empty.mkdir()
        environment = clean_environment(venv)
        python = venv / "bin" / "python"

        def run(title: str, *command: str | Path, is_needed: bool = True) -> None:
            print(f"\n== {title}", flush=True)
            done = subprocess.run(without_toolkits(command, empty), env=environment, cwd=folder, check=False)
            if done.returncode and is_needed:
                print(f"failed with exit code {done.returncode}", flush=True)
                failed.append(title)

        run("make an environment", sys.executable, "-m", "venv", venv)
        if options.system_site_packages:
            # Not venv's own flag, which leads to the packages of the base interpreter if this one is in a venv too.
            (packages,) = venv.glob("lib/python*/site-packages")
            (packages / "interpreter.pth").write_text(f"{link_packages(Path(folder) / 'interpreter')}\n")
        install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", options.wheels.resolve()]
        run("install", *install, f"{wheel.resolve()}[{options.extra}]")
        if failed:
            return 1
        # The doctor also reports parts that have nothing to do with GPUs.
        run("meshlab doctor", python, "-m", "meshlab", "doctor", is_needed=False)
        run("all parts are in the environment", python, "-c", FOREIGN)
        run("compile kernels", python, HERE.resolve() / "compile_kernels.py")
        run("all_reduce", python, "-c", ALL_REDUCE, str(options.ranks), options.backend)
        if not toolkits() or without_toolkits([], empty):  # otherwise the NVRTC of a toolkit would be found
            run("remove NVRTC", python, "-m", "pip", "uninstall", "--quiet", "--yes", NVRTC[options.extra])
            run("launch without NVRTC", python, "-c", FAIL)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\nall steps passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
