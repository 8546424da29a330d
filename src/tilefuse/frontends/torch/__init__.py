"""Graphs of torch as tensor expressions, operators by theme."""
