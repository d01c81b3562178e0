"""A mesh on a cluster: which links each group uses."""
