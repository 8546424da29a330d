"""The staged template: stages of one kernel over tiles, products among them."""
