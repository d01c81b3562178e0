"""What a search for options chose: the value, and the files and programs made from it."""
