"""Hosts on one machine, with their own network, processes and temporary folders, and the tests that need them."""
