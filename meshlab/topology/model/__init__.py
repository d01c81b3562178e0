"""The values that describe hardware."""
