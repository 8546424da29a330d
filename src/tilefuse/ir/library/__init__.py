"""Library operators: what they mean, and their gradients."""
