"""The libraries that move the data."""
