"""What runs on the ranks: timing and sampling. Imports neither pandas nor matplotlib."""
