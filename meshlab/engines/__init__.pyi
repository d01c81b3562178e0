from ._engines import Engines as Engines
from ._launch import attach as attach
from ._launch import launch as launch
from ._mpi_world import join as join
from ._rounds import RankInfo as RankInfo
from ._torch import TorchMesh as TorchMesh
