"""Plans as text, plans by hand, and questions about plans."""
