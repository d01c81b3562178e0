"""Meshes of other frameworks."""
