"""From a plan to a program's plain data."""
