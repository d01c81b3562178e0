"""Backends, one per library that moves the data."""
