from .engines import Engines as Engines
from .launcher import attach as attach
from .launcher import launch as launch
from .mpi_world import join as join
from .rounds import RankInfo as RankInfo
