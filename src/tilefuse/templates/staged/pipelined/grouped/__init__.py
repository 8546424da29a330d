"""Products whose rows are sorted by group, each group with a right operand of its own."""
