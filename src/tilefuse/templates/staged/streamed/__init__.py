"""Products of few rows, whose weights are read once."""
