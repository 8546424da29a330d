"""Explanations of programs as plain data."""
