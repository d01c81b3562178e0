from .api import bench as bench
from .api import bench_pairs as bench_pairs
from .api import overlap as overlap
from .environments import READS as READS
from .environments import EnvComparison as EnvComparison
from .environments import compare_env as compare_env
from .estimate import Estimate as Estimate
from .run import Run as Run
