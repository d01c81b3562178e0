"""Rehearsals: the communication of a training step, run on engines."""
