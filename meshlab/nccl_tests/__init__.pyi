from ._info import NcclFacts as NcclFacts
from ._log import Log as Log
from ._log import Section as Section
from ._reader import read as read
from ._writer import write as write
