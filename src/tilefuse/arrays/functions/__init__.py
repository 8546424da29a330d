"""Functions of arrays by theme, named after the array standard."""
