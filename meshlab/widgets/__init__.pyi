from .curve import Curve as Curve
from .designer import Designer as Designer
from .live import LiveView as LiveView
from .paste_box import PasteBox as PasteBox
from .picture import Picture as Picture
from .workbench import Workbench as Workbench
