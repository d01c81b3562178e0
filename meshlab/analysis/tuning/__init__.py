"""The options that a search chose: the value, and the files and programs made from it."""
