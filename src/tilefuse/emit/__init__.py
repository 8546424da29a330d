"""Floor 4: what writes kernel IR over a domain: statements, values, vectors. Decides nothing."""
