"""Generators of candidates for kernels: substitution, exploration, connecting, packing, walks between products."""
