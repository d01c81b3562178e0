"""Logs of nccl-tests and rccl-tests: read them as frames, or write frames as such logs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
