"""Graphs written operator by operator."""
