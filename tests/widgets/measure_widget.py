"""A widget that consists of the panels around a run, as the workbench contains them."""

from __future__ import annotations

from typing import Any

import anywidget

import meshlab as ml
from meshlab.widgets._assets import style
from meshlab.widgets._following import run_traits
from meshlab.widgets._measuring import Measuring, panel_traits

__all__ = ["MeasureWidget"]

# A browser imports the sources of JavaScript without a bundle.
SCRIPT = """
import { measurePanel } from "/js/measure.js";
import { runsPanel } from "/js/runs.js";
import { widgetOf } from "/js/widget.js";
const both = (parts) => {
  const panels = [measurePanel(parts), runsPanel(parts)];
  const each = (name) => (changed) => panels.forEach((one) => one[name](changed));
  return { update: each("update"), destroy: each("destroy") };
};
both.traits = [...measurePanel.traits, ...runsPanel.traits];
export default { render: widgetOf(both, "ml-run-test") };
"""


class MeasureWidget(anywidget.AnyWidget):
    _esm = SCRIPT
    _css = style("live")
    _run, _curve, _late, _details, _load = run_traits()
    _engines, _bench, _runs, _monitor = panel_traits()

    def __init__(self, mesh: ml.DeviceMesh | str | None = "dp=2, tp=2", cluster: ml.Cluster | None = None) -> None:
        super().__init__()
        self.mesh = ml.DeviceMesh(mesh) if isinstance(mesh, str) else mesh
        self.cluster = cluster
        self.measuring = Measuring(self)

    def press(self, kind: str, **more: Any) -> None:
        """Send what a button of the front end sends."""
        self.measuring.receive({"type": kind, **more})
