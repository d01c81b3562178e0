"""Write the pages of the reference: the public names, by namespace, from the stubs that list them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import meshlab

# The order in which a reader meets them. Names at the top level are those of `import meshlab as ml`.
NAMESPACES = {
    "meshlab": "Names at the top",
    "meshlab.mesh": "Meshes",
    "meshlab.topology": "Machines and placements",
    "meshlab.engines": "Engines",
    "meshlab.comm": "Communicators",
    "meshlab.plans": "Plans",
    "meshlab.benchmark": "Benchmarks",
    "meshlab.frames": "Frames",
    "meshlab.runs": "Runs",
    "meshlab.analysis": "Analysis",
    "meshlab.prediction": "Prediction and search",
    "meshlab.nccl_tests": "nccl-tests",
    "meshlab.traces": "Traces",
    "meshlab.diagnosis": "Diagnosis",
    "meshlab.plot": "Plots",
    "meshlab.widgets": "Widgets",
    "meshlab.errors": "Errors",
}


def _names(module: ModuleType) -> list[str]:
    """Return the public names of a namespace that are no namespaces themselves."""
    return [name for name in dir(module) if not name.startswith("_") and not inspect.ismodule(getattr(module, name))]


def write_pages(app: Any, config: Any) -> None:
    """Write a page for each namespace. A name that is also at the top has its page there."""
    folder = Path(app.srcdir) / "reference"
    first: dict[int, str] = {}  # the page of an object that several namespaces export
    for namespace, title in NAMESPACES.items():
        module = meshlab if namespace == "meshlab" else getattr(meshlab, namespace.partition(".")[2])
        objects = {f"{namespace}.{name}": getattr(module, name) for name in _names(module)}
        names = [first.setdefault(id(value), name) for name, value in objects.items()]
        summary = inspect.getdoc(module) or ""
        text = [
            f"# {title}",
            "",
            summary.partition("\n\n")[0].replace("\n", " "),
            "",
            "```{eval-rst}",
            ".. autosummary::",
            "   :toctree: names",
            "",
        ]
        text += [f"   {name}" for name in names] + ["```", ""]
        page = folder / f"{namespace}.md"
        content = "\n".join(text)
        if not page.exists() or page.read_text() != content:
            page.write_text(content)


def adapt(app: Any, page: str, source: list[str]) -> None:
    """Turn what a code host needs, HTML anchors and paths of notebooks, into what MyST checks."""
    source[0] = re.sub(r"\]\(\.\./(notebooks/\w+\.ipynb)", r"](\1", source[0])
    source[0] = re.sub(r'^<a id="([^"]+)"></a>$', r"(\1)=", source[0], flags=re.MULTILINE)


def setup(app: Any) -> dict[str, bool]:
    """Write the pages before Sphinx reads them."""
    app.connect("config-inited", write_pages)
    app.connect("source-read", adapt)
    return {"parallel_read_safe": True}
