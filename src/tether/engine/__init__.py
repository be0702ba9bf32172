"""The engine: rows of the table, the interpreter of words, and what carries out its updates."""
