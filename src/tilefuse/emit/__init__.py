"""Floor 4: writers of kernel IR over a domain: statements, values, vectors. They decide nothing."""
