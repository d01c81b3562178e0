"""The base: errors, units, files and documents. It imports nothing else of meshlab."""
