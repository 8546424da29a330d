"""Library operators: their meaning and their gradients."""
