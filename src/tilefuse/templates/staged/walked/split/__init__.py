"""Walks of few rows: the walked axis in parts, and heads that share keys as rows of one tile."""
