"""Cost models of collectives: what a group's links allow, and which algorithm NCCL would choose."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
