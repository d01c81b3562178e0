from .accepting import acceptance as acceptance
from .outcome import Acceptance as Acceptance
