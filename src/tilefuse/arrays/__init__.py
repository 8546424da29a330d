"""Floor 8: symbolic arrays, their tracing and their lowering to graphs."""
