"""Hardware: hosts, devices and links, and the links that the groups of a mesh use."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
