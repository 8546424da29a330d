"""Floor 2: the tensor-expression graph. Immutable values; text that prints and parses; a verifier; a reference interpreter."""
