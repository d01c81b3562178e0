"""Import it to shorten every step that has no sampling of its own: its times are less precise, but nobody reads them.

The README and the notebooks show calls without sampling, because that is what a reader writes first.
"""

from __future__ import annotations

from dataclasses import astuple

from meshlab.frames.plan import Sampling

Sampling.__init__.__defaults__ = astuple(Sampling(max_s=0.05))
