"""Engines: one process or thread per rank, with deadlines and clean-up."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
