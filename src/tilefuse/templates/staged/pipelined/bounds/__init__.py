"""Inner axes of pipelined products in parts: their shapes, and how the sums of parts meet."""
