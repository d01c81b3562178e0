"""A JupyterLab of our own for a test: start it, open a notebook, run it, ask its kernel, stop it.

::

    with lab_server(tmp_path) as lab:
        lab.write_notebook("demo.ipynb", ["import meshlab", "meshlab.widgets.Designer()"])
        notebook = lab.open(page, "demo.ipynb")
        notebook.run_all()
        notebook.ask("designer.mesh")

`first_on_path` lets the kernel import from a folder first, such as one with another version of ipykernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jupyter_client import BlockingKernelClient

import meshlab

__all__ = ["Lab", "Notebook", "lab_server"]

KERNEL = "under-test"
RUNTIME, LAB_SETTINGS = "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR"
FOLDERS = ("JUPYTER_CONFIG_DIR", LAB_SETTINGS, "JUPYTERLAB_WORKSPACES_DIR", RUNTIME, "IPYTHONDIR")
SETTINGS = {
    "notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "themes": {"theme": "JupyterLab Light"},
}
IDLE = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'

UNFINISHED = "[...document.querySelectorAll('.jp-InputPrompt')].some(e => ['[ ]:', '[*]:'].includes(e.textContent))"

LIMIT_S = 240.0  # for every wait: how long something takes beside other programs is not what the tests are about


@contextlib.contextmanager
def lab_server(root: Path, *, first_on_path: Path | None = None) -> Iterator[Lab]:
    """Start JupyterLab on a free port of this machine, with all its files under `root`; stop it in the end.

    The kernel imports from the folder `first_on_path` first, such as another version of ipykernel.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    folders = {name: str(root / name.lower()) for name in FOLDERS}
    for plugin, settings in SETTINGS.items():
        _write_settings(root, plugin, settings)
    _write_kernel(root / "share" / "kernels" / KERNEL, first_on_path)
    (root / "notebooks").mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"),
        *("--ServerApp.port_retries=0", f"--ServerApp.root_dir={root / 'notebooks'}"),
        *(f"--IdentityProvider.token={token}", "--LabApp.extension_manager=readonly", "--LabApp.news_url=None"),
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (root / "lab.log").open("w") as log:
        environment = {**os.environ, **folders, "JUPYTER_PATH": str(root / "share")}
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        lab = Lab(root, f"http://127.0.0.1:{port}", token)
        try:
            lab._wait_until_up(server)
            yield lab
        finally:
            lab._leave_pages()
            server.send_signal(signal.SIGTERM)  # it ends its kernels itself
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _write_settings(root: Path, plugin: str, settings: dict[str, Any]) -> None:
    folder = root / LAB_SETTINGS.lower() / "@jupyterlab" / "apputils-extension"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{plugin}.jupyterlab-settings").write_text(json.dumps(settings))


def _write_kernel(folder: Path, first_on_path: Path | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [first_on_path, Path(meshlab.__file__).parents[1], os.environ.get("PYTHONPATH")]
    kernel = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": KERNEL,
        "language": "python",
        "env": {"PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)},
    }
    (folder / "kernel.json").write_text(json.dumps(kernel))


class Lab:
    """A running server."""

    def __init__(self, root: Path, url: str, token: str) -> None:
        self.root = root
        self.url = url
        self.token = token
        self._pages: list[Any] = []

    def _request(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def _wait_until_up(self, server: subprocess.Popen[bytes], limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while True:
            try:
                self._request("/api/status")
                return
            except OSError as error:
                if server.poll() is not None or time.monotonic() > end:
                    log = (self.root / "lab.log").read_text()[-3000:]
                    raise RuntimeError(f"JupyterLab does not answer:\n{log}") from error
            time.sleep(0.1)

    def _leave_pages(self) -> None:
        """Leave the server before it stops, or its pages complain that it is gone."""
        for page in self._pages:
            if not page.is_closed():
                page.goto("about:blank")

    def theme(self, theme: Literal["Light", "Dark"]) -> None:
        """Choose the theme of notebooks that are opened from now on."""
        _write_settings(self.root, "themes", {"theme": f"JupyterLab {theme}"})

    def write_notebook(self, name: str, cells: Sequence[str]) -> None:
        """Make a notebook of code cells."""
        import nbformat  # takes seconds, and all tests import this module

        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        self._save(name, notebook)

    def copy_notebook(self, path: Path, changes: Mapping[str, str] | None = None) -> None:
        """Copy a notebook without its outputs, which would speak of widgets that are gone, and with other code."""
        import nbformat

        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        for old, new in (changes or {}).items():
            (cell,) = [cell for cell in notebook.cells if old in cell.source]
            cell.source = cell.source.replace(old, new)
        notebook.metadata.pop("widgets", None)
        self._save(path.name, notebook)

    def _save(self, name: str, notebook: Any) -> None:
        import nbformat

        notebook.metadata["kernelspec"] = {"name": KERNEL, "display_name": KERNEL, "language": "python"}
        nbformat.write(notebook, self.root / "notebooks" / name)

    def open(self, page: Any, name: str) -> Notebook:
        """Open a notebook in a page and wait for its kernel."""
        self._pages.append(page)
        page.goto(f"{self.url}/lab/tree/{name}?token={self.token}&reset", wait_until="domcontentloaded")
        page.wait_for_selector(IDLE, timeout=1e3 * LIMIT_S)
        return Notebook(page, self.root / RUNTIME.lower() / f"kernel-{self._kernel_of(page, name)}.json")

    def _kernel_of(self, page: Any, name: str, limit_s: float = LIMIT_S) -> str:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for session in self._request("/api/sessions"):
                if session["path"] == name and session["kernel"]:
                    return str(session["kernel"]["id"])
            page.wait_for_timeout(100)  # a plain sleep would stop what playwright does for the page
        raise RuntimeError(f"no kernel was started for {name}")


class Notebook:
    """A notebook that is open in a page."""

    def __init__(self, page: Any, connection_file: Path) -> None:
        self.page = page
        self._connection_file = connection_file

    def run_all(self) -> None:
        """Run all cells, as the menu does, and wait until the kernel is idle again."""
        self.page.click('text="Run"')
        self.page.click('text="Run All Cells"')
        self.page.wait_for_function(f"() => !({UNFINISHED})", timeout=1e3 * LIMIT_S)
        self.page.wait_for_selector(IDLE, timeout=1e3 * LIMIT_S)

    def ask(self, expression: str, *, limit_s: float = LIMIT_S) -> str:
        """The repr of an expression in the notebook's own kernel."""
        client = BlockingKernelClient(connection_file=str(self._connection_file))
        client.load_connection_file()
        # Without the heartbeat: its thread opens sockets without end when it is stopped before it has begun.
        client.start_channels(hb=False)
        try:
            reply = client.execute("", user_expressions={"asked": expression}, reply=True, timeout=limit_s)
        finally:
            client.stop_channels()
        answer = reply["content"]["user_expressions"]["asked"]
        if answer["status"] != "ok":
            raise RuntimeError(f"{expression}: {answer['ename']}: {answer['evalue']}")
        return str(answer["data"]["text/plain"])

    def wait_for(self, expression: str, expected: str, *, limit_s: float = LIMIT_S) -> None:
        """Wait until an expression in the kernel has the expected repr."""
        end = time.monotonic() + limit_s
        while (answer := self.ask(expression)) != expected:
            if time.monotonic() > end:
                raise AssertionError(f"{expression} is {answer}, not {expected}")
            self.page.wait_for_timeout(50)

    def restart_kernel(self) -> None:
        """Restart the kernel, as the menu does."""
        self.page.click('text="Kernel"')
        self.page.click('text="Restart Kernel…"')
        self.page.click('.jp-Dialog button:has-text("Restart")')
        self.page.wait_for_selector(IDLE, timeout=1e3 * LIMIT_S)
