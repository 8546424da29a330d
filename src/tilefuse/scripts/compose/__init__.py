"""Fused routines as kernel IR."""
