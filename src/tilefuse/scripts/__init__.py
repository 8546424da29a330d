"""Floor 8: BLAS scripts, a compiler of their own on the same kernel IR."""
