from ._listing import list_runs as list_runs
from ._rundata import Progress as Progress
from ._rundata import RunData as RunData
