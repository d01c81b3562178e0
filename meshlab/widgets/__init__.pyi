from ._curve import Curve as Curve
from ._designer import Designer as Designer
from ._live import LiveView as LiveView
from ._paste_box import PasteBox as PasteBox
from ._picture import Picture as Picture
from ._workbench import Workbench as Workbench
