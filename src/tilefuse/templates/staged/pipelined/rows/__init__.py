"""Reductions of the rows of results in the kernel of their product: forms, sums in registers, exchanges between blocks."""
