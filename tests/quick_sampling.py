"""Shorter steps for calls that have no sampling, as in the README and the notebooks: nobody reads their times."""

from __future__ import annotations

from dataclasses import astuple

from meshlab.plans._sampling import Sampling

__all__ = ["shorten_steps"]


def shorten_steps() -> None:
    """Reduce the time of a step in this process to a tenth, unless the caller passes a sampling."""
    Sampling.__init__.__defaults__ = astuple(Sampling(max_s=0.05))
