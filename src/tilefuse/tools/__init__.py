"""Floor 7: command line, explain, view."""
