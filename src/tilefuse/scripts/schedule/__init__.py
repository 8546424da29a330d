"""Fused routines: grid, elements, order, barriers, combination of partial values."""
