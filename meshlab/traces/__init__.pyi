from ._trace import Trace as Trace
