"""Code that runs on the ranks: timing, sampling and descriptions. It imports neither pandas nor matplotlib."""
