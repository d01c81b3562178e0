"""The rules, by the part of the system that fails."""
