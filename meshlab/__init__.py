"""meshlab."""
