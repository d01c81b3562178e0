"""Workbench: design a machine and a mesh by hand, see where its groups run, measure, compare and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import traitlets

from meshlab.mesh.mesh import MeshLike
from meshlab.topology.model.presets import ClusterLike
from meshlab.widgets.picture import PICTURE_SCRIPTS, Picture, joined_scripts

__all__ = ["Workbench"]

_SCRIPTS = (*PICTURE_SCRIPTS, "shell", "workbench_main")


def _styles() -> str:
    return "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("picture.css", "workbench.css"))


class Workbench(Picture):
    """Design a machine and a mesh by hand."""

    _esm = joined_scripts(*_SCRIPTS)
    _css = _styles()

    tab = traitlets.Unicode("design").tag(sync=True)
    """The tab that is shown: ``"design"``, ``"measure"`` or ``"runs"``."""

    def __init__(
        self,
        cluster: ClusterLike | None = None,
        mesh: MeshLike | None = None,
        *,
        engines: Any = None,
        run: Any = None,
        height: int = 540,
        panels: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(mesh, cluster, height=height)
        self.on_msg(self._receive)

    def _receive(self, _: Any, content: dict[str, Any], buffers: list[Any]) -> None:
        """Handle a message of the front end: its ``type`` selects the action."""
