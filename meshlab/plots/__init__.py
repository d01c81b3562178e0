"""Plot functions. They draw a mesh, cluster, run or frame on matplotlib axes, accept ``ax=`` and show nothing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
