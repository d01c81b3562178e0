"""Commissioning: the check of an installation, and the unattended acceptance of a machine."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
