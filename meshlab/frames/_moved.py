"""Aliases of plans and runs, which programs may still import from `meshlab.frames`."""

from meshlab.plans._plan import Plan as Plan
from meshlab.plans._sampling import Sampling as Sampling
from meshlab.plans._steps import Step as Step
from meshlab.runs._listing import list_runs as list_runs
from meshlab.runs._rundata import Progress as Progress
from meshlab.runs._rundata import RunData as RunData
