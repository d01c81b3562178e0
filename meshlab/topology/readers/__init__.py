"""Readers that create a `Cluster` from text, files and drivers."""
