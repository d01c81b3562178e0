from ._live import LiveTrace as LiveTrace
from ._trace import Trace as Trace
