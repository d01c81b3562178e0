from ._plan import Plan as Plan
from ._sampling import Sampling as Sampling
from ._steps import PlannedCall as PlannedCall
from ._steps import Step as Step
