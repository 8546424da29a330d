"""Left operands of pipelined products whose rows begin anywhere in memory: how they lie, and how tensor copies bring them."""
