from ._acceptance import acceptance as acceptance
from ._outcome import Acceptance as Acceptance
