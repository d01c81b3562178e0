"""The exceptions that meshlab raises deliberately."""

from meshlab.base._errors import BenchError as BenchError
from meshlab.base._errors import CommunicatorError as CommunicatorError
from meshlab.base._errors import EngineError as EngineError
from meshlab.base._errors import MeshError as MeshError
from meshlab.base._errors import MeshlabError as MeshlabError
from meshlab.base._errors import ParseError as ParseError
from meshlab.base._errors import TopologyError as TopologyError
from meshlab.base._errors import did_you_mean as did_you_mean
from meshlab.base._errors import printable as printable
