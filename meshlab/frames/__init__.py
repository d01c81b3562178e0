"""The frames that producers and readers of measurements share, and the plain values around them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
