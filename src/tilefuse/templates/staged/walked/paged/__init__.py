"""Walked operands in pages: blocks of a cache that a table of numbers finds."""
