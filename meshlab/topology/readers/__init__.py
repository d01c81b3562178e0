"""Readers: text, files and drivers in, a `Cluster` out."""
