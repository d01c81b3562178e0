"""The routing of a workbench's job: sentences, and figures before and after a better placement of the experts."""

from __future__ import annotations

from meshlab.base._errors import MeshlabError
from meshlab.base._markup import escape
from meshlab.plots._routing import figure_html
from meshlab.prediction._job import Job
from meshlab.topology.placement._placement import Placement


def routing_html(job: Job, placement: Placement | None, experts: str) -> str:
    """Return the routing of a job on a mesh on a machine as markup, or the reason why there is none."""
    if placement is None:
        return "<p>A routing needs a mesh on a machine.</p>"
    try:
        routing = job.routing(placement, experts=experts or None)
        lines = routing.explain().splitlines()
    except MeshlabError as error:
        return f"<p>{escape(str(error))}</p>"
    return f'{"".join(f"<p>{escape(line)}</p>" for line in lines)}<div class="ml-routing">{figure_html(routing)}</div>'
