from .info import NcclFacts as NcclFacts
from .log import Log as Log
from .log import Section as Section
from .reader import read as read
from .writer import write as write
