"""The search for the fastest options of a call."""
