"""Reverse differentiation of graphs."""
