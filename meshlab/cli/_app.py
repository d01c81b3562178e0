"""The command ``meshlab app``: serve the workbench as a page."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshlab.cli._arguments import Command
from meshlab.cli._output import BAD_INPUT, print_error

_TEMPLATE = "meshlab"
_EXTENSIONS = (
    "@jupyter-widgets/jupyterlab-manager",
    "@voila-dashboards/widgets-manager8",
    "anywidget",
)  # of JupyterLab, which the workbench needs


def _run(options: argparse.Namespace) -> int:
    """Serve the workbench as a web page."""
    from importlib.util import find_spec

    if find_spec("voila") is None:
        print_error("Voilà is not installed; run pip install '.[app]' in the folder of meshlab")
        return BAD_INPUT
    code = _app_code(options.cluster, options.mesh)
    with tempfile.TemporaryDirectory(prefix="meshlab-app-") as folder:
        notebook = Path(folder) / "workbench.ipynb"
        notebook.write_text(json.dumps(_notebook_of(code)), encoding="utf-8")
        _write_template(Path(folder))
        command = [
            *(sys.executable, "-m", "voila", str(notebook), f"--Voila.port={options.port}"),
            # Everybody on this host can reach the port, and a workbench starts processes.
            "--Voila.auto_token=True",
            f"--Voila.open_browser={not options.no_browser}",
            f"--VoilaConfiguration.template={_TEMPLATE}",
            # Other extensions of JupyterLab take time to load, and fail without JupyterLab.
            f"--VoilaConfiguration.extension_allowlist={list(_EXTENSIONS)}",
            # The workbench of the next visitor is built before the visit.
            *("--VoilaConfiguration.preheat_kernel=True", "--VoilaConfiguration.default_pool_size=1"),
            # Without a visitor, the ranks that a workbench started would run until the server stops.
            *("--MappingKernelManager.cull_idle_timeout=120", "--MappingKernelManager.cull_interval=30"),
            *options.arguments,
        ]
        paths = os.pathsep.join(filter(None, [folder, os.environ.get("JUPYTER_PATH", "")]))
        with (
            subprocess.Popen(command, env={**os.environ, "JUPYTER_PATH": paths}) as server,
            _interrupted_by(signal.SIGTERM),
        ):
            while True:
                try:
                    return server.wait()
                except KeyboardInterrupt:
                    # Ctrl-C also reaches Voilà, which ends its kernels. A signal to this process alone does not.
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return server.wait(2.0)
                    server.send_signal(signal.SIGINT)


def _write_template(folder: Path) -> None:
    """Write the template of the page into a folder in which Voilà looks for templates."""
    template = folder / "voila" / "templates" / _TEMPLATE
    template.mkdir(parents=True)
    (template / "conf.json").write_text('{"base_template": "lab"}', encoding="utf-8")
    page = Path(__file__).with_name("app.html.j2").read_text(encoding="utf-8")
    (template / "index.html.j2").write_text(page, encoding="utf-8")


@contextlib.contextmanager
def _interrupted_by(number: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt at a signal within a ``with`` block."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _app_code(cluster: str | None, mesh: str | None) -> str:
    """Return the program of the page. Raise if the machine or the mesh is invalid: here, and not in the browser."""
    from meshlab.base._files import is_file
    from meshlab.topology.readers._detect import read
    from meshlab.widgets._workbench import Workbench

    lines, arguments = ["import os", "from pathlib import Path", "", "import meshlab as ml", ""], []
    lines.append(f"os.chdir({str(Path.cwd())!r})")  # the kernel starts in the folder of the notebook
    machine: Any = cluster
    if cluster is not None:
        if is_file(cluster):
            machine = read(Path(cluster))
            arguments.append(f"ml.topology.read(Path({str(Path(cluster).resolve())!r}))")
        else:
            arguments.append(repr(cluster))
    if mesh is not None:
        arguments.append(f"mesh={mesh!r}")
    Workbench(machine, mesh)
    return "\n".join([*lines, f"ml.Workbench({', '.join(arguments)})"])


def _notebook_of(code: str) -> dict[str, Any]:
    """Return a notebook with one cell, in the format of its file."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "app",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": code,
    }
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, "title": "meshlab"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": [cell]}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", metavar="NAME|FILE", help="a preset, or a description of a machine (default: this machine)"
    )
    parser.add_argument("--mesh", help='the first mesh, for example "dp=2, tp=8"')
    parser.add_argument("--port", type=int, default=8866, help="port of the server (default: %(default)s)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)


APP = Command(
    "app",
    "open the workbench as a web page",
    "Serves it on this host, with Voilà (the extra app). The address contains a secret token. Ctrl-C stops it. "
    "Each visitor gets a separate workbench. Arguments after -- are passed to Voilà:\n"
    "  meshlab app --cluster dgx-h100 -- --Voila.ip=0.0.0.0",
    _run,
    _add_options,
)
