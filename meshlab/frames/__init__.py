"""Frames."""
