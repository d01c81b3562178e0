"""Running ranks: processes or threads, their deadlines, and the leash that leaves nothing behind."""

from meshlab.engines.engines import Engines
from meshlab.engines.mpi_world import join
from meshlab.engines.launcher import attach, launch

__all__ = ["Engines", "attach", "join", "launch"]
